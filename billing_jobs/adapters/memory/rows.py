"""
The row of one job in memory, with its history: what `jobs.sql` does to a row, done here.

Owns the changes of one row. Which row, and the lock, are `jobs.py`'s.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from billing_jobs.domain.errors import EnqueueError
from billing_jobs.domain.job import (
    CRASHES_MAX,
    PRIORITY_MAX,
    PRIORITY_MIN,
    AttemptView,
    ClaimedJob,
    JobState,
    JobView,
    NewJob,
    Recording,
    Verb,
    check_transition,
)
from billing_jobs.domain.storable import storable_json
from billing_jobs.ports import RescuePolicy

#: Who rescues and expires, in the audit trail.
DISPATCHER = "dispatcher"

#: The CHECKs of the jobs table allow as many.
MAX_ATTEMPTS_MAX = 25

#: What is told of a worker that never came back.
VANISHED = "the worker vanished: its lease expired"


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
class Row:
    """A job, its runs and its audit trail; JSON is kept as text, so that no reader shares it."""

    job: NewJob
    arguments: str
    created_at: datetime
    run_at: datetime
    state: JobState = JobState.PENDING
    attempt: int = 0
    crash_count: int = 0
    outage_count: int = 0
    version: int = 0
    effect_open: bool = False
    cancel_requested: bool = False
    started_at: datetime | None = None
    finished_at: datetime | None = None
    lease_until: datetime | None = None
    token: int | None = None
    worker: str | None = None
    result: str | None = None
    error: str | None = None
    attempts: list[AttemptView] = field(default_factory=list)
    audit: list[AuditEntry] = field(default_factory=list)

    @classmethod
    def made(cls, job: NewJob, now: datetime) -> Row:
        """Make the row of a new job."""
        run_at = job.run_at or now + timedelta(seconds=job.delay_seconds)
        row = cls(job, json.dumps(dict(job.arguments)), created_at=now, run_at=run_at)
        row._note(Verb.ENQUEUE, None, job.actor)
        return row

    def expired(self, now: datetime) -> bool:
        """Whether it came too late; never while somebody must look what became of an effect."""
        expires_at = self.job.expires_at
        return expires_at is not None and expires_at <= now and not self.effect_open

    def claim(self, token: int, worker: str, now: datetime, until: datetime) -> ClaimedJob:
        """Give the job to a worker."""
        self.attempt += 1
        self.token, self.worker = token, worker
        self.started_at, self.lease_until = now, until
        self.move(Verb.CLAIM, JobState.RUNNING, worker)
        return ClaimedJob(
            id=self.job.id,
            kind=self.job.kind,
            queue=self.job.queue,
            tenant=self.job.tenant,
            arguments=json.loads(self.arguments),
            attempt=self.attempt,
            max_attempts=self.job.max_attempts,
            outage_count=self.outage_count,
            token=token,
            lease_until=until,
            started_at=now,
            worker=worker,
        )

    def end(
        self, job: ClaimedJob, recording: Recording, now: datetime, *, closes_effect: bool
    ) -> None:
        """Write the end of a run; one that would wait ends cancelled if somebody asked for it."""
        state, verb = recording.state, recording.verb
        self.effect_open = self.effect_open and not closes_effect
        if state is JobState.PENDING:
            self.run_at = now + timedelta(seconds=recording.delay_seconds or 0.0)
            if self.cancel_requested and not self.effect_open:
                state, verb = JobState.CANCELLED, Verb.CANCEL
        self.finished_at = None if state is JobState.PENDING else now
        self._ran(job.attempt, recording.outcome, recording.error, now)
        self.attempt -= 0 if recording.spend else 1
        self.outage_count = recording.outages
        self.result = None if recording.result is None else json.dumps(dict(recording.result))
        self.error = recording.error
        self.move(verb, state, job.worker, recording.reason)

    def rescue(self, policy: RescuePolicy, now: datetime) -> None:
        """Take the job from a worker that vanished."""
        self._ran(self.attempt, "lease_expired", VANISHED, now)
        self.attempt -= 1
        self.crash_count += 1
        self.run_at, self.error = now, VANISHED
        verb, state = Verb.RESCUE, JobState.PENDING
        if self.job.kind in policy.bury_kinds or self.crash_count >= CRASHES_MAX:
            state = JobState.DEAD_LETTER
        elif self.cancel_requested and not self.effect_open:
            verb, state = Verb.CANCEL, JobState.CANCELLED
        self.finished_at = None if state is JobState.PENDING else now
        self.move(verb, state, DISPATCHER, f"lease expired, crash {self.crash_count}")

    def ask_to_stop(self, actor: str, reason: str) -> None:
        """Remember that somebody wants the running job cancelled."""
        self.cancel_requested = True
        self._note(Verb.CANCEL, self.state, actor, reason)

    def replay(self, now: datetime, actor: str, reason: str) -> None:
        """Give a dead letter fresh attempts."""
        self.attempt = self.crash_count = self.outage_count = 0
        self.cancel_requested = False
        self.run_at, self.finished_at = now, None
        self.move(Verb.REPLAY, JobState.PENDING, actor, reason)

    def move(self, verb: Verb, state: JobState, actor: str, reason: str | None = None) -> None:
        """Change the state as the table of transitions allows, and note it."""
        check_transition(verb, self.state, state)
        source, self.state = self.state, state
        self._note(verb, source, actor, reason)
        if state is not JobState.RUNNING:
            self.token = self.lease_until = self.worker = None

    def view(self) -> JobView:
        """Return the row as readers see it."""
        return JobView(
            id=self.job.id,
            kind=self.job.kind,
            queue=self.job.queue,
            tenant=self.job.tenant,
            state=self.state,
            attempt=self.attempt,
            max_attempts=self.job.max_attempts,
            run_at=self.run_at,
            created_at=self.created_at,
            finished_at=self.finished_at,
            arguments=json.loads(self.arguments),
            key=self.job.key,
            result=None if self.result is None else json.loads(self.result),
            error=self.error,
            effect_open=self.effect_open,
            version=self.version,
            crash_count=self.crash_count,
        )

    def _ran(self, attempt: int, outcome: str, error: str | None, now: datetime) -> None:
        assert self.token is not None
        assert self.started_at is not None
        run = AttemptView(
            token=self.token,
            attempt=attempt,
            started_at=self.started_at,
            finished_at=now,
            outcome=outcome,
            error=error,
            worker=self.worker,
        )
        self.attempts.append(run)

    def _note(
        self, verb: Verb, source: JobState | None, actor: str, reason: str | None = None
    ) -> None:
        self.version += 1
        # Who merely asks holds no token.
        token = None if source is self.state else self.token
        self.audit.append(
            AuditEntry(self.version, verb, source, self.state, self.attempt, token, actor, reason)
        )


def check(job: NewJob) -> None:
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
