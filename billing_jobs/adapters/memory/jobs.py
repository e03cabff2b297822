"""
The jobs in memory: the same answers as Postgres gives, for tests without a server.

Owns the table of rows, one lock around each call, and lanes that a test can pause and close.
Survives nothing, and knows no transaction of a caller.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count
from uuid import UUID

from billing_jobs.adapters.memory.rows import DISPATCHER, AuditEntry, Row, check
from billing_jobs.domain.errors import EnqueueError, InputError, LeaseLost, RecordRefused
from billing_jobs.domain.job import (
    AttemptView,
    ClaimedJob,
    JobState,
    JobView,
    NewJob,
    Recorded,
    Recording,
    Verb,
    check_end,
)
from billing_jobs.domain.ledger import Effect
from billing_jobs.ports import Clock, RescuePolicy, Transaction

#: Applies one effect of a run; what it raises leaves the run unrecorded.
ApplyEffect = Callable[[ClaimedJob, Effect], None]


@dataclass(slots=True)
class _Lane:
    #: None until the first job tells it: a test may pause a lane before.
    queue: str | None = None
    paused: bool = False
    closed_until: datetime | None = None

    def is_open(self, now: datetime) -> bool:
        return not self.paused and (self.closed_until is None or self.closed_until <= now)


class MemoryJobStore:
    """`JobStore` in memory, safe to use from many threads."""

    def __init__(self, clock: Clock, apply_effect: ApplyEffect | None = None) -> None:
        """Take the clock that decides, and what applies effects; without it they are dropped."""
        self._clock = clock
        self._apply_effect = apply_effect
        self._up_since = clock.now()
        # Reentrant, for an effect may look at the store.
        self._lock = threading.RLock()
        self._tokens = count(1)
        self._rows: dict[UUID, Row] = {}
        self._keys: dict[tuple[str, str, str], UUID] = {}
        self._lanes: dict[str, _Lane] = {}

    def insert(
        self, jobs: Sequence[NewJob], transaction: Transaction | None = None
    ) -> list[Recorded]:
        """
        Record jobs, all or none.

        Raises `EnqueueError` for what Postgres would refuse, and `InputError` for a transaction.

        Crash safety: none, this is memory.
        """
        if transaction is not None:
            raise InputError(
                "A store in memory cannot join a transaction. Enqueue without one, or test with "
                "billing_jobs.testing.postgres_engine."
            )
        with self._lock:
            for job in jobs:
                check(job)
            return [self._insert(job) for job in jobs]

    def claim(
        self, queue: str, kinds: Collection[str], *, limit: int, ttl_seconds: float, worker: str
    ) -> list[ClaimedJob]:
        """
        Take due jobs.

        Crash safety: none, this is memory.
        """
        with self._lock:
            now = self._clock.now()
            due = [
                row
                for row in self._claimable(now)
                if self._lanes[row.job.lane].queue == queue
                and row.job.kind in kinds
                and row.run_at <= now
            ]
            due.sort(key=lambda row: (-row.job.priority, row.run_at, row.job.id))
            until = now + timedelta(seconds=ttl_seconds)
            return [row.claim(next(self._tokens), worker, now, until) for row in due[:limit]]

    def renew(self, job: ClaimedJob, *, ttl_seconds: float) -> bool:
        """
        Prolong the lease.

        Crash safety: none, this is memory.
        """
        with self._lock:
            row = self._rows.get(job.id)
            if row is None or row.token != job.token:
                return False
            row.lease_until = self._clock.now() + timedelta(seconds=ttl_seconds)
            return True

    def open_effect(self, job: ClaimedJob) -> None:
        """
        Declare a call to the outside, as a ledger does; from here on nobody cancels the job.

        Crash safety: none, this is memory.
        """
        with self._lock:
            self._held(job).effect_open = True

    def record(
        self,
        job: ClaimedJob,
        recording: Recording,
        *,
        effects: Sequence[Effect] = (),
        then: Sequence[NewJob] = (),
    ) -> None:
        """
        Write the end of a run, or nothing at all.

        Raises `LeaseLost` for a stale owner and `RecordRefused` for a follow-up that Postgres would
        refuse.

        Crash safety: none, this is memory.
        """
        check_end(recording)
        with self._lock:
            row = self._held(job)
            try:
                for item in then:
                    check(item)
            except EnqueueError as refused:
                raise RecordRefused(refused.message) from refused
            if self._apply_effect is not None:
                for effect in effects:
                    self._apply_effect(job, effect)
            closes_effect = bool(effects) or recording.state is JobState.COMPLETED
            row.end(job, recording, self._clock.now(), closes_effect=closes_effect)
            for item in then:
                self._insert(item)

    def rescue(self, policy: RescuePolicy, *, limit: int, ttl_seconds: float) -> list[UUID]:
        """
        Free jobs whose lease expired.

        Crash safety: none, this is memory.
        """
        with self._lock:
            now = self._clock.now()
            if now - self._up_since < timedelta(seconds=ttl_seconds):
                return []
            held = ((row.lease_until, row) for row in self._rows.values())
            expired = [(until, row) for until, row in held if until is not None and until < now]
            expired.sort(key=lambda pair: pair[0])
            for _, row in expired[:limit]:
                row.rescue(policy, now)
            return [row.job.id for _, row in expired[:limit]]

    def expire(self, *, limit: int) -> list[UUID]:
        """
        Cancel pending jobs that came too late.

        Crash safety: none, this is memory.
        """
        with self._lock:
            now = self._clock.now()
            rows = self._rows.values()
            late = [row for row in rows if row.state is JobState.PENDING and row.expired(now)]
            late.sort(key=lambda row: row.job.expires_at or now)
            for row in late[:limit]:
                row.finished_at = now
                row.move(Verb.EXPIRE, JobState.CANCELLED, DISPATCHER, "expired")
            return [row.job.id for row in late[:limit]]

    def due_queues(self) -> list[str]:
        """Return the queues with due jobs."""
        with self._lock:
            now = self._clock.now()
            due = (row for row in self._claimable(now) if row.run_at <= now)
            queues = (self._lanes[row.job.lane].queue for row in due)
            return sorted({queue for queue in queues if queue is not None})

    def next_due_seconds(self) -> float | None:
        """Return how far away the next due job is."""
        with self._lock:
            now = self._clock.now()
            moments = [row.run_at for row in self._claimable(now)]
            return max(0.0, (min(moments) - now).total_seconds()) if moments else None

    def cancel(self, job_id: UUID, *, actor: str, reason: str) -> JobState | None:
        """
        Cancel a pending job, or ask a running one.

        Crash safety: none, this is memory.
        """
        with self._lock:
            row = self._rows.get(job_id)
            if row is None or row.effect_open:
                return None
            if row.state is JobState.PENDING:
                row.finished_at = self._clock.now()
                row.move(Verb.CANCEL, JobState.CANCELLED, actor, reason)
            elif row.state is JobState.RUNNING:
                row.ask_to_stop(actor, reason)
            else:
                return None
            return row.state

    def replay(self, job_id: UUID, *, actor: str, reason: str) -> bool:
        """
        Make a dead letter pending again.

        Crash safety: none, this is memory.
        """
        with self._lock:
            row = self._dead(job_id)
            if row is not None:
                row.replay(self._clock.now(), actor, reason)
            return row is not None

    def resolve(self, job_id: UUID, *, actor: str, reason: str) -> bool:
        """
        Close a dead letter.

        Crash safety: none, this is memory.
        """
        with self._lock:
            row = self._dead(job_id)
            if row is None or row.effect_open:
                return False
            row.move(Verb.RESOLVE, JobState.CANCELLED, actor, reason)
            return True

    def get(self, job_id: UUID) -> JobView | None:
        """Return one job."""
        with self._lock:
            row = self._rows.get(job_id)
            return None if row is None else row.view()

    def all_jobs(self) -> list[JobView]:
        """Return every job, in the order of recording."""
        with self._lock:
            return [row.view() for row in self._rows.values()]

    def attempts(self, job_id: UUID) -> list[AttemptView]:
        """Return the runs of one job."""
        with self._lock:
            row = self._rows.get(job_id)
            return [] if row is None else list(row.attempts)

    def audit(self, job_id: UUID) -> list[AuditEntry]:
        """Return the audit trail of one job."""
        with self._lock:
            row = self._rows.get(job_id)
            return [] if row is None else list(row.audit)

    def pause_lane(self, lane: str) -> None:
        """Let nobody claim from a lane until it is opened."""
        with self._lock:
            self._lane(lane).paused = True

    def close_lane(self, lane: str, seconds: float) -> None:
        """Let nobody claim from a lane for a while."""
        with self._lock:
            self._lane(lane).closed_until = self._clock.now() + timedelta(seconds=seconds)

    def open_lane(self, lane: str) -> None:
        """Undo a pause and a closing."""
        with self._lock:
            self._lanes[lane] = _Lane(self._lane(lane).queue)

    def _lane(self, lane: str) -> _Lane:
        return self._lanes.setdefault(lane, _Lane())

    def _insert(self, job: NewJob) -> Recorded:
        slot = None if job.key is None else (job.tenant, job.kind, job.key)
        first = job.id if slot is None else self._keys.get(slot, job.id)
        created = first == job.id and job.id not in self._rows
        if created:
            self._rows[job.id] = Row.made(job, self._clock.now())
            lane = self._lane(job.lane)
            lane.queue = lane.queue or job.queue
            if slot is not None:
                self._keys[slot] = job.id
        return Recorded(first, created=created, queue=job.queue)

    def _claimable(self, now: datetime) -> Iterable[Row]:
        return (
            row
            for row in self._rows.values()
            if row.state is JobState.PENDING
            and self._lanes[row.job.lane].is_open(now)
            and not row.expired(now)
        )

    def _held(self, job: ClaimedJob) -> Row:
        row = self._rows.get(job.id)
        if row is None or row.token != job.token:
            raise _lost(job)
        return row

    def _dead(self, job_id: UUID) -> Row | None:
        row = self._rows.get(job_id)
        return row if row is not None and row.state is JobState.DEAD_LETTER else None


def _lost(job: ClaimedJob) -> LeaseLost:
    return LeaseLost(
        f"Job {job.id} is no longer held under token {job.token}; "
        "nothing was written. Another worker owns it now."
    )
