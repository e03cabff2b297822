"""
The thread that keeps leases alive, and what an executor may believe of its lease.

The clock stands still and moves when the test says so; only the beats of the thread are real.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import cast
from uuid import uuid4

import pytest
from support.waiting import until

from billing_jobs.adapters.heartbeat import HeartbeatKeeper, HeldLease
from billing_jobs.adapters.memory.jobs import MemoryJobStore
from billing_jobs.domain.errors import LeaseLost, StoreUnavailable
from billing_jobs.domain.job import ClaimedJob, NewJob
from billing_jobs.ports import JobStore, RescuePolicy
from billing_jobs.testing import FrozenClock

#: Four beats in this time; it is trusted for nine tenths of it.
TTL_SECONDS = 0.2

DEADLINE_SECONDS = 300.0

NOTHING_BURIED = RescuePolicy(())


@dataclass
class Renewals:
    """The part of a store that the heartbeat calls; `answer` is what it says."""

    answer: bool | None = True
    broken: bool = False
    asked: Counter[int] = field(default_factory=Counter)

    def renew(self, job: ClaimedJob, *, ttl_seconds: float) -> bool:
        """Count, and answer as told; None is a database that is away."""
        assert ttl_seconds == TTL_SECONDS
        self.asked[job.token] += 1
        if self.broken:
            raise ZeroDivisionError
        if self.answer is None:
            raise StoreUnavailable("Postgres cannot be reached.")
        return self.answer


@dataclass
class Bench:
    """A keeper over renewals that the test controls."""

    clock: FrozenClock = field(default_factory=FrozenClock)
    renewals: Renewals = field(default_factory=Renewals)

    def __post_init__(self) -> None:
        """Make the keeper; its thread starts with the first job."""
        self.keeper = HeartbeatKeeper(
            cast("JobStore", self.renewals),
            self.clock,
            ttl_seconds=TTL_SECONDS,
            attempt_deadline_seconds=DEADLINE_SECONDS,
        )

    def beats(self, token: int, more: int = 3) -> None:
        """
        Wait until this lease was renewed so many times more.

        The first beat may have read the clock before, the third shows that the second has ended.
        """
        enough = self.renewals.asked[token] + more
        until(lambda: self.renewals.asked[token] >= enough, f"{more} beats for token {token}")


@pytest.fixture
def bench() -> Bench:
    """A keeper of its own."""
    return Bench()


def job(token: int = 1) -> ClaimedJob:
    """Return a job in the hands of a worker."""
    now = FrozenClock().now()
    return ClaimedJob(
        id=uuid4(),
        kind="work",
        queue="default",
        tenant="acme",
        arguments={},
        attempt=1,
        max_attempts=4,
        outage_count=0,
        token=token,
        lease_until=now,
        started_at=now,
        worker="w1",
    )


def trusted(lease: HeldLease) -> bool:
    """Whether the executor may go on."""
    try:
        lease.check()
    except LeaseLost:
        return False
    return True


def test_a_lease_is_renewed_as_long_as_it_is_held(bench: Bench) -> None:
    """And not a moment longer: the next owner's lease is not ours to prolong."""
    with bench.keeper.hold(job(1), 0.0):
        bench.beats(1)

    with bench.keeper.hold(job(2), 0.0):
        bench.beats(2)
        asked = bench.renewals.asked[1]
        bench.beats(2)

    assert bench.renewals.asked[1] == asked


def test_each_renewal_moves_the_window(bench: Bench) -> None:
    """A run of any length keeps its trust while the database keeps answering."""
    with bench.keeper.hold(job(), 0.0) as lease:
        for _ in range(3):
            bench.clock.advance(TTL_SECONDS * 0.8)
            bench.beats(1)
            assert trusted(lease)


def test_the_window_begins_when_the_claim_was_asked_for(bench: Bench) -> None:
    """A claim that took as long as a lease is a lease that nobody may trust."""
    bench.renewals.answer = None
    bench.clock.advance(10.0)

    with bench.keeper.hold(job(1), 10.0) as fresh, bench.keeper.hold(job(2), 9.7) as late:
        assert trusted(fresh)
        with pytest.raises(LeaseLost, match="under token 2 can no longer be trusted"):
            late.check()


def test_a_database_that_is_away_costs_the_lease_only_when_the_window_closes(bench: Bench) -> None:
    """A short failover passes unnoticed; the thread lives on and asks again."""
    bench.renewals.answer = None
    with bench.keeper.hold(job(), 0.0) as lease:
        bench.beats(1)
        assert trusted(lease)

        bench.clock.advance(TTL_SECONDS)
        bench.beats(1)
        assert not trusted(lease)

        bench.renewals.answer = True
        until(lambda: trusted(lease), "the lease is trusted again: the database says it is ours")


def test_a_lease_that_somebody_else_has_is_lost_for_good(bench: Bench) -> None:
    """The executor learns it at once, long before its window closes, and never gets it back."""
    with bench.keeper.hold(job(1), 0.0) as lost, bench.keeper.hold(job(2), 0.0):
        bench.renewals.answer = False
        until(lambda: not trusted(lost), "the lease is lost")

        bench.renewals.answer = True
        bench.beats(2)
        assert not trusted(lost)


def test_renewal_ends_at_the_attempts_deadline(bench: Bench) -> None:
    """A job that is stuck for ever loses its lease and runs elsewhere."""
    with bench.keeper.hold(job(1), 0.0) as stuck:
        bench.clock.advance(DEADLINE_SECONDS)
        bench.beats(1)
        assert trusted(stuck)

        bench.clock.advance(1.0)
        until(lambda: not trusted(stuck), "the lease is given up")
        with bench.keeper.hold(job(2), DEADLINE_SECONDS + 1.0):
            bench.beats(2)
            asked = bench.renewals.asked[1]
            bench.beats(2)
        assert bench.renewals.asked[1] == asked


def test_one_thread_serves_all_jobs_of_a_process_and_starts_with_the_first(bench: Bench) -> None:
    """The parent of a pool must hold no thread of ours: nothing starts before a job is held."""
    before = set(threading.enumerate())
    assert Bench().keeper is not None
    assert set(threading.enumerate()) == before

    with bench.keeper.hold(job(1), 0.0), bench.keeper.hold(job(2), 0.0):
        bench.beats(1)
        bench.beats(2)
        started = set(threading.enumerate()) - before

    assert [(thread.name, thread.daemon) for thread in started] == [("lease-heartbeat", True)]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_renewing_thread_that_died_is_replaced_by_the_next_job(bench: Bench) -> None:
    """A bug in one renewal must not cost the lease of every later job of the process."""
    before = set(threading.enumerate())
    bench.renewals.broken = True
    with bench.keeper.hold(job(), asked_at_seconds=0.0):
        until(lambda: bench.renewals.asked[1], "the renewal that breaks")
        until(lambda: set(threading.enumerate()) <= before, "the end of the thread")

    bench.renewals.broken = False
    with bench.keeper.hold(job(2), asked_at_seconds=0.0):
        until(lambda: bench.renewals.asked[2], "a renewal by a new thread")


class CountingStore(MemoryJobStore):
    """A store in memory that counts renewals."""

    renewals = 0

    def renew(self, job: ClaimedJob, *, ttl_seconds: float) -> bool:
        """Prolong the lease, and count."""
        renewed = super().renew(job, ttl_seconds=ttl_seconds)
        self.renewals += 1
        return renewed

    def await_renewals(self, more: int) -> None:
        """Wait until so many renewals have ended."""
        enough = self.renewals + more
        until(lambda: self.renewals >= enough, "the heartbeat renews")


def test_a_running_job_is_not_rescued_while_its_heartbeat_beats() -> None:
    """The whole of it over a store: several ttls of running, and nobody takes the job away."""
    clock = FrozenClock()
    store = CountingStore(clock)
    keeper = HeartbeatKeeper(
        store, clock, ttl_seconds=TTL_SECONDS, attempt_deadline_seconds=DEADLINE_SECONDS
    )
    store.insert([NewJob(uuid4(), "work", "default", {}, "acme", "default", 4)])
    (claimed,) = store.claim("default", ["work"], limit=1, ttl_seconds=TTL_SECONDS, worker="w1")

    with keeper.hold(claimed, clock.steady_seconds()):
        for _ in range(3):
            clock.advance(TTL_SECONDS * 0.8)
            store.await_renewals(2)
            assert store.rescue(NOTHING_BURIED, limit=1, ttl_seconds=0.0) == []

    def freed() -> list[object]:
        clock.advance(TTL_SECONDS * 2)
        return [*store.rescue(NOTHING_BURIED, limit=1, ttl_seconds=0.0)]

    # A last renewal may have been under way when the run ended.
    assert until(freed, "the lease expires") == [claimed.id]


FORKED = """
import os, sys
from datetime import UTC, datetime
from threading import Event, enumerate as threads
from uuid import uuid4
from billing_jobs.adapters.clock import SystemClock
from billing_jobs.adapters.heartbeat import HeartbeatKeeper
from billing_jobs.domain.job import ClaimedJob

class Store:
    def __init__(self):
        self.renewed = {1: Event(), 2: Event()}
    def renew(self, job, *, ttl_seconds):
        self.renewed[job.token].set()
        return True

def job(token):
    now = datetime(2026, 3, 31, tzinfo=UTC)
    return ClaimedJob(
        uuid4(), "work", "default", "acme", {}, 1, 4, 0, token, now, now, "w1"
    )

store, clock = Store(), SystemClock()
keeper = HeartbeatKeeper(store, clock, ttl_seconds=0.2, attempt_deadline_seconds=60.0)
with keeper.hold(job(1), clock.steady_seconds()):
    assert store.renewed[1].wait(30)
child = os.fork()
if child == 0:
    assert [thread.name for thread in threads()] == ["MainThread"]
    with keeper.hold(job(2), clock.steady_seconds()):
        os._exit(0 if store.renewed[2].wait(30) else 1)
_, status = os.waitpid(child, 0)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_a_forked_child_starts_a_thread_of_its_own() -> None:
    """Threads do not survive a fork: a child that counted on its parent's would lose its leases."""
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", FORKED],
        check=False,
        capture_output=True,
        text=True,
        timeout=90,
    )

    assert (ended.returncode, ended.stderr) == (0, "")
