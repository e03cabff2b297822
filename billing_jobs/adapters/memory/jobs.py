"""
The jobs in memory: the same answers as Postgres gives, for tests without a server.

Owns the rows, one lock around each call, and lanes that a test can pause and close. Survives
nothing, and knows no transaction of a caller.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count
from uuid import UUID

from billing_jobs.domain.errors import EnqueueError, InputError, LeaseLost, RecordRefused
from billing_jobs.domain.job import (
    CRASHES_MAX,
    PRIORITY_MAX,
    PRIORITY_MIN,
    AttemptView,
    ClaimedJob,
    JobState,
    JobView,
    NewJob,
    Recorded,
    Recording,
    Verb,
    check_transition,
)
from billing_jobs.domain.ledger import Effect
from billing_jobs.domain.storable import storable_json
from billing_jobs.ports import Clock, RescuePolicy, Transaction

#: Applies one effect of a run; what it raises leaves the run unrecorded.
ApplyEffect = Callable[[ClaimedJob, Effect], None]

#: Who rescues and expires, in the audit trail.
DISPATCHER = "dispatcher"

#: The CHECKs of the jobs table allow as many.
MAX_ATTEMPTS_MAX = 25

#: What is told of a worker that never came back.
VANISHED = "the worker vanished: its lease expired"

#: The states in which a run may end.
_ENDS = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.DEAD_LETTER, JobState.PENDING})


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One line of a job's audit trail."""

    sequence: int
    verb: Verb
    from_state: JobState | None
    to_state: JobState
    attempt: int
    token: int | None
    actor: str
    reason: str | None


@dataclass(slots=True)
class _Row:
    """A job's row; arguments and result are texts, so that no reader shares them."""

    job: NewJob
    arguments: str
    created_at: datetime
    run_at: datetime
    state: JobState = JobState.PENDING
    attempt: int = 0
    crash_count: int = 0
    outage_count: int = 0
    version: int = 1
    effect_open: bool = False
    cancel_requested: bool = False
    started_at: datetime | None = None
    finished_at: datetime | None = None
    lease_until: datetime | None = None
    token: int | None = None
    worker: str | None = None
    result: str | None = None
    error: str | None = None

    def expired(self, now: datetime) -> bool:
        """Whether it came too late; never while somebody must look what became of an effect."""
        expires_at = self.job.expires_at
        return expires_at is not None and expires_at <= now and not self.effect_open

    def release(self) -> None:
        """Take the lease away."""
        self.token = self.lease_until = self.worker = None


@dataclass(slots=True)
class _Lane:
    queue: str
    paused: bool = False
    closed_until: datetime | None = None

    def open(self, now: datetime) -> bool:
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
        self._rows: dict[UUID, _Row] = {}
        self._keys: dict[tuple[str, str, str], UUID] = {}
        self._lanes: dict[str, _Lane] = {}
        self._attempts: dict[UUID, list[AttemptView]] = {}
        self._audit: dict[UUID, list[AuditEntry]] = {}

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
                _check(job)
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
            return [self._claim(row, now, until, worker) for row in due[:limit]]

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
        with self._lock:
            row = self._held(job)
            if recording.state not in _ENDS:
                raise _lost(job)
            try:
                for item in then:
                    _check(item)
            except EnqueueError as refused:
                raise RecordRefused(refused.message) from refused
            if self._apply_effect is not None:
                for effect in effects:
                    self._apply_effect(job, effect)
            closes_effect = bool(effects) or recording.state is JobState.COMPLETED
            self._end(row, job, recording, closes_effect=closes_effect)
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
            return [self._rescue(row, policy, now) for _, row in expired[:limit]]

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
                self._move(row, Verb.EXPIRE, JobState.CANCELLED, actor=DISPATCHER, reason="expired")
            return [row.job.id for row in late[:limit]]

    def due_queues(self) -> list[str]:
        """Return the queues with due jobs."""
        with self._lock:
            now = self._clock.now()
            due = (row for row in self._claimable(now) if row.run_at <= now)
            return sorted({self._lanes[row.job.lane].queue for row in due})

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
                self._move(row, Verb.CANCEL, JobState.CANCELLED, actor=actor, reason=reason)
            elif row.state is JobState.RUNNING:
                row.cancel_requested = True
                self._note(row, Verb.CANCEL, row.state, actor=actor, reason=reason)
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
            if row is None:
                return False
            row.attempt = row.crash_count = row.outage_count = 0
            row.cancel_requested = False
            row.run_at, row.finished_at = self._clock.now(), None
            self._move(row, Verb.REPLAY, JobState.PENDING, actor=actor, reason=reason)
            return True

    def resolve(self, job_id: UUID, *, actor: str, reason: str) -> bool:
        """
        Close a dead letter.

        Crash safety: none, this is memory.
        """
        with self._lock:
            row = self._dead(job_id)
            if row is None:
                return False
            self._move(row, Verb.RESOLVE, JobState.CANCELLED, actor=actor, reason=reason)
            return True

    def get(self, job_id: UUID) -> JobView | None:
        """Return one job."""
        with self._lock:
            row = self._rows.get(job_id)
            return None if row is None else _view(row)

    def attempts(self, job_id: UUID) -> list[AttemptView]:
        """Return the runs of one job."""
        with self._lock:
            return list(self._attempts.get(job_id, ()))

    def audit(self, job_id: UUID) -> list[AuditEntry]:
        """Return the audit trail of one job."""
        with self._lock:
            return list(self._audit.get(job_id, ()))

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
        return self._lanes.setdefault(lane, _Lane(lane))

    def _insert(self, job: NewJob) -> Recorded:
        if job.id in self._rows:
            return Recorded(self._first(job), created=False, queue=job.queue)
        first = self._first(job)
        if first == job.id:
            now = self._clock.now()
            run_at = job.run_at or now + timedelta(seconds=job.delay_seconds)
            row = _Row(job, json.dumps(dict(job.arguments)), created_at=now, run_at=run_at)
            self._rows[job.id] = row
            self._lanes.setdefault(job.lane, _Lane(job.queue))
            if job.key is not None:
                self._keys[job.tenant, job.kind, job.key] = job.id
            entry = AuditEntry(1, Verb.ENQUEUE, None, row.state, 0, None, job.actor, None)
            self._audit[job.id] = [entry]
        return Recorded(first, created=first == job.id, queue=job.queue)

    def _first(self, job: NewJob) -> UUID:
        return self._keys.get((job.tenant, job.kind, job.key or ""), job.id)

    def _claimable(self, now: datetime) -> Iterable[_Row]:
        return (
            row
            for row in self._rows.values()
            if row.state is JobState.PENDING
            and self._lanes[row.job.lane].open(now)
            and not row.expired(now)
        )

    def _claim(self, row: _Row, now: datetime, until: datetime, worker: str) -> ClaimedJob:
        row.attempt += 1
        row.token, row.worker = next(self._tokens), worker
        row.started_at, row.lease_until = now, until
        self._move(row, Verb.CLAIM, JobState.RUNNING, actor=worker, reason=None)
        return ClaimedJob(
            id=row.job.id,
            kind=row.job.kind,
            queue=row.job.queue,
            tenant=row.job.tenant,
            arguments=json.loads(row.arguments),
            attempt=row.attempt,
            max_attempts=row.job.max_attempts,
            outage_count=row.outage_count,
            token=row.token,
            lease_until=until,
            started_at=now,
            worker=worker,
        )

    def _held(self, job: ClaimedJob) -> _Row:
        row = self._rows.get(job.id)
        if row is None or row.token != job.token:
            raise _lost(job)
        return row

    def _end(
        self, row: _Row, job: ClaimedJob, recording: Recording, *, closes_effect: bool
    ) -> None:
        now = self._clock.now()
        state, verb = recording.state, recording.verb
        if closes_effect:
            row.effect_open = False
        if state is JobState.PENDING:
            row.run_at = now + timedelta(seconds=recording.delay_seconds or 0.0)
            if row.cancel_requested and not row.effect_open:
                state, verb = JobState.CANCELLED, Verb.CANCEL
        row.finished_at = None if state is JobState.PENDING else now
        row.attempt -= 0 if recording.spend else 1
        row.outage_count = recording.outages
        row.result = None if recording.result is None else json.dumps(dict(recording.result))
        row.error = recording.error
        self._ran(row, job.attempt, recording.outcome, recording.error)
        self._move(row, verb, state, actor=job.worker, reason=recording.reason)

    def _rescue(self, row: _Row, policy: RescuePolicy, now: datetime) -> UUID:
        self._ran(row, row.attempt, "lease_expired", VANISHED)
        row.attempt -= 1
        row.crash_count += 1
        row.run_at, row.error = now, VANISHED
        verb, state = Verb.RESCUE, JobState.PENDING
        if row.job.kind in policy.bury_kinds or row.crash_count >= CRASHES_MAX:
            state = JobState.DEAD_LETTER
        elif row.cancel_requested and not row.effect_open:
            verb, state = Verb.CANCEL, JobState.CANCELLED
        row.finished_at = None if state is JobState.PENDING else now
        reason = f"lease expired, crash {row.crash_count}"
        self._move(row, verb, state, actor=DISPATCHER, reason=reason)
        return row.job.id

    def _ran(self, row: _Row, attempt: int, outcome: str, error: str | None) -> None:
        assert row.token is not None
        assert row.started_at is not None
        run = AttemptView(
            token=row.token,
            attempt=attempt,
            started_at=row.started_at,
            finished_at=self._clock.now(),
            outcome=outcome,
            error=error,
            worker=row.worker,
        )
        self._attempts.setdefault(row.job.id, []).append(run)

    def _dead(self, job_id: UUID) -> _Row | None:
        row = self._rows.get(job_id)
        return row if row is not None and row.state is JobState.DEAD_LETTER else None

    def _move(
        self, row: _Row, verb: Verb, state: JobState, *, actor: str, reason: str | None
    ) -> None:
        check_transition(verb, row.state, state)
        self._note(row, verb, state, actor=actor, reason=reason)
        row.state = state
        if state is not JobState.RUNNING:
            row.release()

    def _note(
        self, row: _Row, verb: Verb, state: JobState, *, actor: str, reason: str | None
    ) -> None:
        row.version += 1
        entry = AuditEntry(
            row.version, verb, row.state, state, row.attempt, row.token, actor, reason
        )
        self._audit[row.job.id].append(entry)


def _check(job: NewJob) -> None:
    """Refuse what the CHECKs and types of the jobs table refuse."""
    arguments: Mapping[str, object] = dict(job.arguments)
    fits = (
        PRIORITY_MIN <= job.priority <= PRIORITY_MAX
        and 1 <= job.max_attempts <= MAX_ATTEMPTS_MAX
        and storable_json(arguments) == arguments
    )
    if not fits:
        raise EnqueueError(
            f"The job was not recorded: priority {job.priority}, max_attempts {job.max_attempts} "
            "or its arguments are not what the jobs table takes. Nothing is half done."
        )


def _lost(job: ClaimedJob) -> LeaseLost:
    return LeaseLost(
        f"Job {job.id} is no longer held under token {job.token}; "
        "nothing was written. Another worker owns it now."
    )


def _view(row: _Row) -> JobView:
    return JobView(
        id=row.job.id,
        kind=row.job.kind,
        queue=row.job.queue,
        tenant=row.job.tenant,
        state=row.state,
        attempt=row.attempt,
        max_attempts=row.job.max_attempts,
        run_at=row.run_at,
        created_at=row.created_at,
        finished_at=row.finished_at,
        arguments=json.loads(row.arguments),
        key=row.job.key,
        result=None if row.result is None else json.loads(row.result),
        error=row.error,
        effect_open=row.effect_open,
        version=row.version,
        crash_count=row.crash_count,
    )
