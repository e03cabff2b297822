"""
An engine in memory whose executors do what a test tells them, on a clock that stands still.

Owns the putting together: no server, no thread, no broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import cast
from uuid import UUID

from billing_jobs import lifecycle
from billing_jobs.adapters.memory.jobs import MemoryJobStore
from billing_jobs.domain.errors import BillingJobsError
from billing_jobs.domain.job import ClaimedJob, JobView, NewJob, Recorded, Recording
from billing_jobs.domain.ledger import Effect
from billing_jobs.domain.outcome import Completed, Outcome
from billing_jobs.lifecycle import Engine, Options
from billing_jobs.ports import Ledger, Ports, Transaction
from billing_jobs.registry import Arguments, JobKind, OnExpiredLease, Registry
from billing_jobs.testing import (
    TEST_LIMITS,
    FrozenClock,
    RecordingDoorbell,
    RecordingEvents,
    engine_over,
)

#: What an executor does: return an outcome, or raise.
Act = Callable[[ClaimedJob, Ports], Outcome]


class WorkArguments(Arguments):
    """The arguments of the test's kinds."""

    n: int = 0
    text: str | None = None
    ratio: float | None = None


class WatchedStore(MemoryJobStore):
    """A store in memory that keeps what it was told, and fails when the test says so."""

    def __init__(self, clock: FrozenClock) -> None:
        """Start with nothing told."""
        super().__init__(clock)
        self.inserted: list[NewJob] = []
        self.recorded: list[Recording] = []
        #: Raised by the next writes, one each.
        self.failures: list[BillingJobsError] = []
        #: Pruned behind everybody's back.
        self.hidden: set[UUID] = set()

    def insert(
        self, jobs: Sequence[NewJob], transaction: Transaction | None = None
    ) -> list[Recorded]:
        """Record jobs; a transaction of a caller is taken for ours."""
        del transaction
        self._fail()
        self.inserted.extend(jobs)
        return super().insert(jobs)

    def record(
        self,
        job: ClaimedJob,
        recording: Recording,
        *,
        effects: Sequence[Effect] = (),
        then: Sequence[NewJob] = (),
    ) -> None:
        """Write the end of a run."""
        self._fail()
        super().record(job, recording, effects=effects, then=then)
        self.recorded.append(recording)
        self.inserted.extend(then)

    def get(self, job_id: UUID) -> JobView | None:
        """Return one job, unless the test hid it."""
        return None if job_id in self.hidden else super().get(job_id)

    def _fail(self) -> None:
        if self.failures:
            raise self.failures.pop(0)


@dataclass
class WitnessLedger:
    """The part of a ledger that `lifecycle.py` itself calls."""

    evidence: list[tuple[UUID, str, str]] = field(default_factory=list)

    def keep_evidence(self, attempt_id: UUID, *, source: str, raw: str) -> None:
        """Keep what the gateway said."""
        self.evidence.append((attempt_id, source, raw))


@dataclass
class PlainLease:
    """A lease that holds."""

    def check(self) -> None:
        """Pass."""


@dataclass
class PlainKeeper:
    """Keeps nothing alive, and remembers what it was asked to hold."""

    held: list[tuple[int, float]] = field(default_factory=list)
    lease: PlainLease = field(default_factory=PlainLease)

    @contextmanager
    def hold(self, job: ClaimedJob, asked_at_seconds: float) -> Iterator[PlainLease]:
        """Remember the token and when the claim was asked for."""
        self.held.append((job.token, asked_at_seconds))
        yield self.lease


@dataclass
class Workshop:
    """An engine and all its parts, with their test-kit types."""

    clock: FrozenClock = field(default_factory=FrozenClock)
    ledger: WitnessLedger = field(default_factory=WitnessLedger)
    bell: RecordingDoorbell = field(default_factory=RecordingDoorbell)
    events: RecordingEvents = field(default_factory=RecordingEvents)
    keeper: PlainKeeper = field(default_factory=PlainKeeper)
    registry: Registry = field(default_factory=Registry)
    #: What the next runs do; when none is left they complete.
    acts: list[Act] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Register two kinds and put the engine together."""
        self.store = WatchedStore(self.clock)
        self.kind("work")
        self.kind("fragile", on_expired_lease=OnExpiredLease.FAIL, queue="charges")
        self.engine = replace(
            engine_over(
                self.store,
                cast("Ledger", self.ledger),
                limits=TEST_LIMITS,
                clock=self.clock,
                registry=self.registry,
            ),
            doorbell=self.bell,
            events=self.events,
            keeper=self.keeper,
        )

    def kind(self, name: str, **policies: object) -> None:
        """Register a kind whose runs do the test's acts."""
        values: dict[str, object] = {"arguments": WorkArguments, "execute": self._act, **policies}
        self.registry.add(JobKind(name, **values))  # type: ignore[arg-type] # fields of JobKind

    def limit(self, **limits: object) -> Engine:
        """Change the limits; return the engine as it is now."""
        changed = replace(self.engine.limits, **limits)  # type: ignore[arg-type] # fields of Limits
        self.engine = replace(self.engine, limits=changed)
        return self.engine

    def enqueue(
        self, arguments: Mapping[str, object] | None = None, kind: str = "work", **options: object
    ) -> UUID:
        """Enqueue a job; return its id."""
        given = Options(**options)  # type: ignore[arg-type] # fields of Options
        return lifecycle.enqueue(self.engine, kind, arguments or {}, given).id

    def run(self, *acts: Act, queue: str = "default") -> bool:
        """Run what is due next; it does the first act."""
        self.acts.extend(acts)
        return lifecycle.run_next(self.engine, queue, "w1")

    def view(self, job_id: UUID) -> JobView:
        """Return a job that must be there."""
        found = self.store.get(job_id)
        assert found is not None
        return found

    def _act(self, job: ClaimedJob, ports: Ports) -> Outcome:
        return self.acts.pop(0)(job, ports) if self.acts else Completed()


def give(outcome: Outcome) -> Act:
    """Return an act that gives this outcome."""
    return lambda _job, _ports: outcome


def fail(error: BaseException) -> Act:
    """Return an act that raises this error."""

    def act(_job: ClaimedJob, _ports: Ports) -> Outcome:
        raise error

    return act
