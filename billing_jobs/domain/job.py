"""
A job: the row that is the truth, its states and the changes of state that exist.

Owns the transition table. The SQL guards and the CHECKs of the `jobs` table say the same; a test
proves that the three agree over all pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from billing_jobs.domain.errors import IllegalTransition

#: An object that survives JSON unchanged.
Json = Mapping[str, object]


class JobState(StrEnum):
    """Where a job stands. "Retrying" and "scheduled" are words for the display, not states."""

    #: Waits for its time and a worker.
    PENDING = "pending"
    #: A worker holds a lease on it.
    RUNNING = "running"
    #: Done.
    COMPLETED = "completed"
    #: The executor refused for good.
    FAILED = "failed"
    #: Needs a person; can be replayed.
    DEAD_LETTER = "dead_letter"
    #: Called off.
    CANCELLED = "cancelled"


class Verb(StrEnum):
    """What happens to a job."""

    ENQUEUE = "enqueue"
    CLAIM = "claim"
    COMPLETE = "complete"
    RESCHEDULE = "reschedule"
    DEFER = "defer"
    FAIL = "fail"
    BURY = "bury"
    RESCUE = "rescue"
    CANCEL = "cancel"
    REPLAY = "replay"
    RESOLVE = "resolve"
    EXPIRE = "expire"


_P, _R = JobState.PENDING, JobState.RUNNING
_DEAD, _CANCELLED = JobState.DEAD_LETTER, JobState.CANCELLED

#: verb → the pairs (from, to) it may make.
TRANSITIONS: Mapping[Verb, frozenset[tuple[JobState, JobState]]] = {
    Verb.ENQUEUE: frozenset(),
    Verb.CLAIM: frozenset({(_P, _R)}),
    Verb.COMPLETE: frozenset({(_R, JobState.COMPLETED)}),
    Verb.RESCHEDULE: frozenset({(_R, _P)}),
    Verb.DEFER: frozenset({(_R, _P)}),
    Verb.FAIL: frozenset({(_R, JobState.FAILED)}),
    Verb.BURY: frozenset({(_R, _DEAD)}),
    Verb.RESCUE: frozenset({(_R, _P), (_R, _DEAD)}),
    Verb.CANCEL: frozenset({(_P, _CANCELLED), (_R, _CANCELLED)}),
    Verb.REPLAY: frozenset({(_DEAD, _P)}),
    Verb.RESOLVE: frozenset({(_DEAD, _CANCELLED)}),
    Verb.EXPIRE: frozenset({(_P, _CANCELLED)}),
}

#: Every pair that some verb may make.
ALLOWED_PAIRS = frozenset(pair for pairs in TRANSITIONS.values() for pair in pairs)

#: The verbs by which the owner of a run may end it.
RUN_ENDS = frozenset({Verb.COMPLETE, Verb.RESCHEDULE, Verb.DEFER, Verb.FAIL, Verb.BURY})

#: States that nothing leaves.
TERMINAL_STATES = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED})

#: 0 is least urgent, 9 most, as `apply_async(priority=...)` of this package reads it.
PRIORITY_MIN, PRIORITY_DEFAULT, PRIORITY_MAX = 0, 4, 9

#: With tenant and kind, a business key must fit an index row of Postgres: 2,704 bytes, and a
#: character takes up to four.
KEY_CHARS_MAX = 500

#: A job that was claimed alone and killed its worker this often is poison.
CRASHES_MAX = 3


def check_transition(verb: Verb, source: JobState, target: JobState) -> None:
    """Raise `IllegalTransition` unless the table knows this change."""
    if (source, target) not in TRANSITIONS[verb]:
        raise IllegalTransition(
            f"Bug: {verb} cannot take a job from {source} to {target}. "
            "Look at TRANSITIONS in billing_jobs/domain/job.py for what it may do."
        )


@dataclass(frozen=True, slots=True)
class NewJob:
    """
    A job about to be recorded.

    `run_at` None means `delay_seconds` from now by the database's clock. `key` is the business key,
    unique for ever within (tenant, kind); None means that two equal jobs are two jobs.
    """

    id: UUID
    kind: str
    queue: str
    arguments: Json
    tenant: str
    lane: str
    max_attempts: int
    key: str | None = None
    run_at: datetime | None = None
    delay_seconds: float = 0.0
    expires_at: datetime | None = None
    priority: int = PRIORITY_DEFAULT
    parent_id: UUID | None = None
    actor: str = "caller"

    @property
    def due_at_once(self) -> bool:
        """Whether the job may run as soon as it is recorded."""
        return self.run_at is None and self.delay_seconds <= 0


@dataclass(frozen=True, slots=True)
class Recorded:
    """The answer to an enqueue: the job's id, and whether this call made it."""

    id: UUID
    created: bool
    queue: str


@dataclass(frozen=True, slots=True)
class ClaimedJob:
    """
    A job in the hands of a worker: what an executor needs, and the token that guards its writes.

    `attempt` counts from 1 and only runs that were spent; `token` is unique in the whole database
    and grows with each claim.
    """

    id: UUID
    kind: str
    queue: str
    tenant: str
    arguments: Json
    attempt: int
    max_attempts: int
    outage_count: int
    token: int
    lease_until: datetime
    started_at: datetime
    worker: str


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as readers see it."""

    id: UUID
    kind: str
    queue: str
    tenant: str
    state: JobState
    attempt: int
    max_attempts: int
    run_at: datetime
    created_at: datetime
    finished_at: datetime | None
    arguments: Json
    key: str | None
    result: Json | None
    error: str | None
    effect_open: bool
    version: int
    crash_count: int = 0


@dataclass(frozen=True, slots=True)
class AttemptView:
    """One run of a job as readers see it."""

    token: int
    attempt: int
    started_at: datetime
    finished_at: datetime
    outcome: str
    error: str | None
    worker: str | None


@dataclass(frozen=True, slots=True)
class Recording:
    """
    How a run ends, decided by the rules, written by a store in one transaction.

    `delay_seconds` is counted from the database's clock at the write. `spend` says whether the run
    counts as an attempt; `outages` is the new value of the counter of runs in which nothing was
    sent.
    """

    verb: Verb
    state: JobState
    outcome: str
    delay_seconds: float | None = None
    spend: bool = True
    outages: int = 0
    result: Json | None = None
    error: str | None = None
    error_fingerprint: str | None = None
    reason: str | None = None
    details: Json = field(default_factory=dict)


def check_end(recording: Recording) -> None:
    """Raise `IllegalTransition` unless a run may end like this."""
    if recording.verb not in RUN_ENDS:
        raise IllegalTransition(
            f"Bug: {recording.verb} is no end of a run. "
            "Look at RUN_ENDS in billing_jobs/domain/job.py for what is."
        )
    check_transition(recording.verb, JobState.RUNNING, recording.state)
