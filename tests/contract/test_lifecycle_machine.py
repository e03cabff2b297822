"""
Both stores in lockstep: whatever is done in whatever order, they tell the same story.

The store in memory is the model, Postgres is the real one. Time passes in steps so long that the
milliseconds which Postgres takes cannot change what is due.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import TypeVar
from uuid import UUID

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from hypothesis.strategies import SearchStrategy
from support.job_benches import (
    KIND,
    AuditLine,
    JobBench,
    MemoryBench,
    PostgresBench,
    new_job,
    recording,
    rescue,
)

from billing_jobs.domain.errors import LeaseLost
from billing_jobs.domain.job import RUN_ENDS, ClaimedJob, JobState, Recorded, Verb

T = TypeVar("T")

#: One step of time. Delays and expiries are odd halves of it, so that nothing is due at its edge.
STEP_SECONDS = 200.0

KINDS = (KIND, "fragile")
#: Each with the lane of its name; over several lanes of a queue, Postgres promises no order.
QUEUES = ("default", "charges")

#: Until something happens: at once, after one step of time, after two.
waits = st.sampled_from((0.0, 0.0, 0.5, 1.5)).map(lambda times: times * STEP_SECONDS)

#: Counted from the youngest: a story about few jobs goes further than one about many.
which_one = st.integers(0, 2)

#: What may be done, and with what.
STEPS: Mapping[str, Mapping[str, SearchStrategy[object]]] = {
    "insert": {
        "kind": st.sampled_from(KINDS),
        "queue": st.sampled_from(QUEUES),
        "key": st.sampled_from((None, None, "a", "b")),
        "priority": st.sampled_from((0, 4, 9)),
        "delay": waits,
        "expires": st.none() | waits,
    },
    "insert_again": {"which": which_one},
    "claim": {
        "queue": st.sampled_from(QUEUES),
        "kinds": st.sampled_from((KINDS, KINDS, (KIND,))),
    },
    "renew": {"which": which_one},
    "open_effect": {"which": which_one},
    "record": {
        "which": which_one,
        "verb": st.sampled_from(sorted(RUN_ENDS)),
        "delay": waits,
        "then": st.booleans(),
    },
    "rescue": {"bury": st.sampled_from(((), ("fragile",)))},
    "expire": {},
    "person": {
        "which": which_one,
        "what": st.sampled_from(("cancel", "replay", "resolve")),
        "held": st.booleans(),
    },
    "lane": {
        "lane": st.sampled_from(QUEUES),
        "what": st.sampled_from(("pause", "close", "open", "open")),
    },
    "pass_time": {"times": st.integers(1, 2)},
}

#: What moves a story on is done more often.
OFTEN = ("claim", "claim", "record", "rescue", "pass_time")

steps = st.sampled_from((*STEPS, *OFTEN)).flatmap(
    lambda name: st.tuples(st.just(name), st.fixed_dictionaries({**STEPS[name]}))
)

#: A job as both stores show it: what a clock or a sequence gives is left out.
Shown = tuple[object, ...]


class Lockstep(RuleBasedStateMachine):
    """Does everything to both stores and compares what they say."""

    real: PostgresBench

    def __init__(self) -> None:
        """Start with two empty stores."""
        super().__init__()
        self.model = MemoryBench()
        self.ids: list[UUID] = []
        self.held: list[tuple[ClaimedJob, ClaimedJob]] = []
        self.tokens = [0, 0]
        self.numbers = count(1)

    @initialize()
    def begin(self) -> None:
        """Forget the jobs of the run before, and have something to do."""
        self.real.clear()
        for queue in QUEUES:
            self.insert(kind=KIND, queue=queue, key=None, priority=4, delay=0.0, expires=None)

    @rule(step=steps)
    def do(self, step: tuple[str, Mapping[str, object]]) -> None:
        """Take a step. One rule for all: hypothesis leaves some rules out of each story."""
        name, values = step
        getattr(self, name)(**values)

    def insert(self, *, delay: float, expires: float | None, queue: str, **fields: object) -> None:
        """Record a job, perhaps under a key that is taken."""
        where = {"queue": queue, "lane": queue, "delay_seconds": delay}
        job = new_job(id=self.next_id(), **where, **fields)

        def record(bench: JobBench) -> list[Recorded]:
            if expires is None:
                return bench.store.insert([job])
            # Each store has a clock of its own.
            expires_at = bench.now() + timedelta(seconds=expires)
            return bench.store.insert([replace(job, expires_at=expires_at)])

        (recorded,) = self.both(record)
        if recorded.created:
            self.ids.append(recorded.id)

    def insert_again(self, which: int) -> None:
        """Record a job whose id is there already."""
        job = new_job(id=youngest(self.ids, which), key="c")

        self.both(lambda bench: bench.store.insert([job]))

    def claim(self, queue: str, kinds: Sequence[str]) -> None:
        """Take the job that is due next; of a batch, Postgres does not say which row came first."""
        taken = [
            bench.store.claim(queue, kinds, limit=1, ttl_seconds=100.0, worker="w")
            for bench in (self.model, self.real)
        ]
        assert [claimed(job) for job in taken[0]] == [claimed(job) for job in taken[1]]
        self.tokens = [grown(*pair) for pair in zip(self.tokens, taken, strict=True)]
        self.held.extend(zip(*taken, strict=True))

    def renew(self, which: int) -> None:
        """Prolong a lease that may be lost by now."""
        self.both_with(which, lambda bench, job: bench.store.renew(job, ttl_seconds=100.0))

    def open_effect(self, which: int) -> None:
        """Declare a call to the outside."""
        self.both_with(which, lambda bench, job: bench.open_effect(job))

    def record(self, which: int, verb: Verb, delay: float, *, then: bool) -> None:
        """End a run that may have another owner by now."""
        if not self.held:
            return
        job = youngest(self.held, which)[0]
        end = recording(verb, outages=job.outage_count + 1, error="e")
        if end.state is JobState.PENDING:
            end = recording(verb, delay_seconds=delay, error="e")
        # What has spent its attempts is buried by the rules; no store checks it twice.
        if end.state is JobState.PENDING and job.attempt >= job.max_attempts:
            end = recording(Verb.BURY)
        follow_up = [new_job(id=self.next_id(), kind="after", key="f")] if then else []

        def write(bench: JobBench, held: ClaimedJob) -> bool:
            try:
                bench.store.record(held, end, then=follow_up)
            except LeaseLost:
                return False
            return True

        if self.both_with(which, write):
            self.ids.extend(job.id for job in follow_up if self.model.store.get(job.id))

    def rescue(self, bury: Sequence[str]) -> None:
        """Free the job whose lease expired first."""
        self.both(lambda bench: rescue(bench, *bury, limit=1))

    def expire(self) -> None:
        """Call off what came too late."""
        self.both(lambda bench: sorted(bench.store.expire(limit=100)))

    def person(self, which: int, what: str, *, held: bool) -> None:
        """Let a person act on a job in whatever state."""
        jobs = [model.id for model, _ in self.held] if held and self.held else self.ids
        job_id = youngest(jobs, which)

        self.both(lambda bench: getattr(bench.store, what)(job_id, actor="op", reason="x"))

    def lane(self, lane: str, what: str) -> None:
        """Stop a lane, for good or for a while, or open it."""

        def turn(bench: JobBench) -> None:
            if what == "pause":
                bench.pause_lane(lane)
            elif what == "close":
                bench.close_lane(lane, 0.5 * STEP_SECONDS)
            else:
                bench.open_lane(lane)

        self.both(turn)

    def pass_time(self, times: int) -> None:
        """Let leases expire and retries become due."""
        self.both(lambda bench: bench.pass_seconds(times * STEP_SECONDS))

    @invariant()
    def stores_agree(self) -> None:
        """The state and version of every job, and what is due, are the same after each step."""
        # A moment passes, for nothing happens at the same time in Postgres either.
        self.model.pass_seconds(0.001)
        self.both(standings)
        self.both(lambda bench: bench.store.due_queues())
        self.both(steps_until_due)

    def teardown(self) -> None:
        """At the end the whole story is compared: every field, every run, every audit line."""
        self.both(lambda bench: [story(bench, job_id) for job_id in sorted(bench.standings())])

    def next_id(self) -> UUID:
        """Return ids in the order in which they are asked for."""
        return UUID(int=next(self.numbers))

    def both(self, do: Callable[[JobBench], T]) -> T:
        """Do it to both; they must answer the same."""
        by_model, by_real = do(self.model), do(self.real)
        assert by_model == by_real
        return by_model

    def both_with(self, which: int, do: Callable[[JobBench, ClaimedJob], T]) -> T | None:
        """Do it to both with a job that each of them gave away; nothing while there is none."""
        if not self.held:
            return None
        held = dict(zip((self.model, self.real), youngest(self.held, which), strict=True))
        return self.both(lambda bench: do(bench, held[bench]))


def youngest(items: Sequence[T], which: int) -> T:
    """Return an item counted from the end."""
    return items[-1 - which % len(items)]


def claimed(job: ClaimedJob) -> Shown:
    """Return what both stores must agree about in a claim."""
    return job.id, job.kind, job.arguments, job.attempt, job.outage_count, job.worker


def grown(before: int, jobs: Sequence[ClaimedJob]) -> int:
    """Check that tokens are greater than all before; return the greatest there is now."""
    tokens = {job.token for job in jobs}
    assert len(tokens) == len(jobs)
    assert all(token > before for token in tokens)
    return max(tokens, default=before)


def story(bench: JobBench, job_id: UUID) -> tuple[Shown, list[Shown], list[AuditLine]]:
    """Return all that a store tells of a job, without moments and tokens."""
    view = bench.store.get(job_id)
    assert view is not None
    row = (
        *(view.state, view.kind, view.queue, view.attempt, view.key, view.result, view.error),
        *(view.effect_open, view.version, view.crash_count, view.finished_at is None),
    )
    runs: list[Shown] = [
        (run.attempt, run.outcome, run.error, run.worker) for run in bench.store.attempts(job_id)
    ]
    return row, runs, bench.audit(job_id)


def standings(bench: JobBench) -> dict[UUID, tuple[str, int]]:
    """Return the state and the version of every job."""
    return bench.standings()


def steps_until_due(bench: JobBench) -> float | None:
    """Return when the next job is due, in half steps."""
    seconds = bench.store.next_due_seconds()
    return None if seconds is None else round(seconds / STEP_SECONDS * 2)


def test_both_stores_tell_the_same_story(postgres_jobs: PostgresBench) -> None:
    """What a test in memory proves holds in Postgres, for any order of events."""

    class Machine(Lockstep):
        real = postgres_jobs

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=30,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            # A failure is shown as it was found: shrinking would talk to Postgres for minutes.
            phases=(Phase.generate,),
            print_blob=True,
            database=None,
        ),
    )
