"""
The life of a job, from top to bottom: enqueue, claim, execute, record; and what people do to it.

Owns the order of the steps and the one place where exceptions become outcomes. Owns no SQL, no
broker and no billing: those are ports and executors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol
from uuid import UUID

from billing_jobs import logs
from billing_jobs.domain.errors import (
    ArgumentsInvalid,
    EnqueueError,
    InputError,
    LeaseLost,
    OptionRefused,
    RecordRefused,
    StoreUnavailable,
)
from billing_jobs.domain.job import (
    KEY_CHARS_MAX,
    PRIORITY_DEFAULT,
    PRIORITY_MAX,
    PRIORITY_MIN,
    ClaimedJob,
    NewJob,
    Recorded,
    Recording,
    Verb,
)
from billing_jobs.domain.ledger import ChargeAnswered
from billing_jobs.domain.outcome import Completed, FollowUp, Outcome, RetryLater, Unknown
from billing_jobs.domain.retry import decide
from billing_jobs.domain.storable import (
    json_bytes,
    storable_json,
    storable_recording,
    storable_text,
)
from billing_jobs.logs import Event
from billing_jobs.ports import (
    Clock,
    Doorbell,
    JobEvents,
    JobStore,
    Lease,
    Ports,
    Transaction,
)
from billing_jobs.registry import JobKind, Registry, check_queue

log = logs.get_logger("lifecycle")


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a job, from the settings."""

    max_attempts: int
    lease_ttl_seconds: float
    payload_bytes: int
    result_bytes: int
    error_chars: int
    outage_defer_seconds: float


class Keeper(Protocol):
    """Keeps the lease of a running job alive."""

    def hold(self, job: ClaimedJob, asked_at_seconds: float) -> AbstractContextManager[Lease]:
        """Renew until the block ends or the attempt's deadline is over."""


@dataclass(frozen=True, slots=True)
class Engine:
    """What the life of a job needs of the world, put together by `bootstrap.py`."""

    registry: Registry
    store: JobStore
    ports: Ports
    doorbell: Doorbell
    keeper: Keeper
    events: JobEvents
    clock: Clock
    limits: Limits
    tenant: str


@dataclass(frozen=True, slots=True)
class Options:
    """What a caller may say about one job, beside its arguments."""

    id: UUID | None = None
    key: str | None = None
    run_at: datetime | None = None
    delay_seconds: float = 0.0
    expires_at: datetime | None = None
    priority: int | None = None
    queue: str | None = None
    tenant: str | None = None
    actor: str = "caller"


def enqueue(
    engine: Engine,
    kind: str,
    arguments: Mapping[str, object],
    options: Options | None = None,
    *,
    transaction: Transaction | None = None,
) -> Recorded:
    """
    Record a job, then ring; inside a caller's transaction the dispatcher rings after its commit.

    Raises `UnknownJobKind`, `ArgumentsInvalid`, `OptionRefused` for wrong input and `EnqueueError`
    when the job could not be recorded.

    Crash safety: a crash between the two loses only the ring; the dispatcher rings again. Two calls
    with the same business key record one job and both learn its id.
    """
    try:
        job = new_job(engine, kind, arguments, options, transaction=transaction)
    except StoreUnavailable as unavailable:
        raise EnqueueError(f"The job was not recorded. {unavailable.message}") from unavailable
    recorded = engine.store.insert([job], transaction)[0]
    log.info(Event.JOB_ENQUEUED, job_id=recorded.id, kind=kind, queue=job.queue)
    if transaction is None and recorded.created and job.due_at_once:
        ring(engine, job.queue)
    return recorded


def ring(engine: Engine, queue: str) -> None:
    """Ring for a queue; a broker that is down costs a log line and nothing else."""
    if not engine.doorbell.ring(queue):
        log.warning(Event.DOORBELL_LOST, queue=queue)


def run_next(engine: Engine, queue: str, worker: str) -> bool:
    """
    Claim one due job of a queue, execute it outside any transaction, record how it ended.

    Returns False when nothing was due.

    Crash safety: before the claim's commit nothing happened; from there to the record's commit the
    lease stands, expires, and the job is rescued; executors write down before they call out, so the
    next run looks before it acts. After the record's commit only the next ring can be lost.
    """
    asked_at = engine.clock.steady_seconds()
    claimed = engine.store.claim(
        queue,
        engine.registry.of_queue(queue),
        limit=1,
        ttl_seconds=engine.limits.lease_ttl_seconds,
        worker=worker,
    )
    if not claimed:
        return False
    run_job(engine, claimed[0], asked_at)
    return True


def run_job(engine: Engine, job: ClaimedJob, asked_at_seconds: float) -> None:
    """
    Execute a claimed job and record how it ended; nothing that one job does leaves this function.

    Crash safety: see `run_next`. A stale owner's record finds no row under its token: nothing is
    written, and the newer owner's outcome stands.
    """
    kind = engine.registry.get(job.kind)
    engine.events.send("started", job, {})
    with (
        logs.log_context(job_id=job.id, kind=job.kind, attempt=job.attempt, fence=job.token),
        engine.keeper.hold(job, asked_at_seconds) as lease,
    ):
        try:
            outcome = _execute(kind, job, replace(engine.ports, lease=lease))
            _record(engine, job, outcome)
        except LeaseLost as lost:
            log.warning(Event.WRITE_FENCED, error=lost)
            engine.events.send("failed", job, {"exception": lost.message})
        except (StoreUnavailable, RecordRefused) as unavailable:
            # The lease expires and the job is rescued; what was called is in the attempt's row.
            log.warning(Event.DB_LOST, error=unavailable)
            engine.events.send("failed", job, {"exception": unavailable.message})


def cancel(engine: Engine, job_id: UUID, *, actor: str, reason: str) -> str:
    """
    Call a job off: at once while it is pending, at its next safe point while it runs.

    Returns "cancelled", "requested" or "too_late": a call to the outside is declared already, so
    its outcome will be looked up instead; a job that does the looking up is never called off.

    Crash safety: one guarded statement.
    """
    view = engine.store.get(job_id)
    if view is not None and not engine.registry.get(view.kind).cancellable:
        return "too_late"
    state = engine.store.cancel(job_id, actor=actor, reason=reason)
    if state is None:
        return "too_late"
    return "cancelled" if state == "cancelled" else "requested"


def replay(engine: Engine, job_id: UUID, *, actor: str, reason: str) -> bool:
    """
    Make a dead letter pending again under the same business and idempotency keys, and ring.

    Crash safety: one guarded statement; a lost ring is made good by the dispatcher.
    """
    replayed = engine.store.replay(job_id, actor=actor, reason=reason)
    view = engine.store.get(job_id)
    if replayed and view is not None:
        ring(engine, view.queue)
    return replayed


def new_job(
    engine: Engine,
    kind_name: str,
    arguments: Mapping[str, object],
    options: Options | None = None,
    *,
    transaction: Transaction | None = None,
) -> NewJob:
    """Build a job: validated arguments, its business key, the policies of its kind."""
    options = options or Options()
    kind = engine.registry.get(kind_name)
    values = kind.validate(arguments)
    _check_values(kind, values, engine.limits.payload_bytes)
    _check_options(options)
    queue = check_queue(options.queue or kind.queue)
    written_by_us = None if kind.key is None else kind.key(values, engine.ports.ledger, transaction)
    key = ":".join(part for part in (written_by_us, options.key) if part) or None
    _check_key(key)
    return NewJob(
        id=options.id or engine.clock.new_id(),
        kind=kind.name,
        queue=queue,
        lane=queue,
        arguments=values,
        tenant=options.tenant or engine.tenant,
        max_attempts=kind.max_attempts or engine.limits.max_attempts,
        key=key,
        run_at=options.run_at,
        delay_seconds=options.delay_seconds,
        expires_at=options.expires_at,
        priority=PRIORITY_DEFAULT if options.priority is None else options.priority,
        actor=options.actor,
    )


def _execute(kind: JobKind, job: ClaimedJob, ports: Ports) -> Outcome:
    """Run the executor; the one place where exceptions become outcomes."""
    try:
        return _outcome(kind, kind.execute(job, ports))
    except (LeaseLost, StoreUnavailable):
        raise
    except Exception as error:  # noqa: BLE001 - an executor's error must not leave its job
        return RetryLater(
            f"{type(error).__name__}: {error}".strip(), fingerprint=fingerprint(error)
        )


def _outcome(kind: JobKind, said: object) -> Outcome:
    """Refuse what is no outcome: other packages' executors are not always type-checked."""
    if isinstance(said, Outcome) and isinstance(getattr(said, "result", {}), Mapping):
        return said
    raise TypeError(
        f"The executor of {kind.name} returned {type(said).__name__}, and that is no outcome with "
        "a mapping as its result. Return one of billing_jobs.domain.outcome."
    )


def fingerprint(error: BaseException) -> str:
    """
    Name what broke, so that equal failures are grouped: the type and where it was raised.

    >>> len(fingerprint(ValueError("x")))
    12
    """
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = "" if place is None else f"{place.tb_frame.f_code.co_qualname}:{place.tb_lineno}"
    return hashlib.sha256(f"{type(error).__qualname__}:{where}".encode()).hexdigest()[:12]


def _record(engine: Engine, job: ClaimedJob, outcome: Outcome) -> None:
    try:
        _write(engine, job, outcome)
    except LeaseLost:
        _keep_evidence(engine, outcome, "stale owner")
        raise
    except (InputError, RecordRefused) as refused:
        # A follow-up or an effect that cannot be written would fail again after each rescue, with
        # nobody told why. As the run's own failure it is counted and ends as a dead letter.
        _keep_evidence(engine, outcome, "refused record")
        _write(engine, job, RetryLater(refused.message, fingerprint=fingerprint(refused)))


def _write(engine: Engine, job: ClaimedJob, outcome: Outcome) -> None:
    limits = engine.limits
    recording = storable_recording(
        decide(job, outcome, outage_defer_seconds=limits.outage_defer_seconds),
        result_bytes=limits.result_bytes,
        error_chars=limits.error_chars,
    )
    follow_ups = outcome.then if isinstance(outcome, Completed | Unknown) else ()
    then = [_follow_up(engine, job, item) for item in follow_ups]
    engine.store.record(job, recording, effects=outcome.effects, then=then)
    _tell(engine, job, recording)
    for queue in sorted({item.queue for item in then if item.due_at_once}):
        ring(engine, queue)


def _keep_evidence(engine: Engine, outcome: Outcome, source: str) -> None:
    """Keep what the gateway said: the next owner's look-up is the decision, this is its witness."""
    for effect in outcome.effects:
        if isinstance(effect, ChargeAnswered):
            raw = effect.reason if effect.answer is None else effect.answer.raw
            engine.ports.ledger.keep_evidence(
                effect.attempt_id, source=source, raw=storable_text(raw)
            )


def _follow_up(engine: Engine, job: ClaimedJob, item: FollowUp) -> NewJob:
    options = Options(
        key=item.key,
        delay_seconds=item.after_seconds,
        tenant=job.tenant,
        actor=f"job {job.id}",
    )
    return replace(new_job(engine, item.kind, item.arguments, options), parent_id=job.id)


#: verb → (the log's event, the word Flower knows).
_TOLD = {
    Verb.COMPLETE: (Event.JOB_COMPLETED, "succeeded"),
    Verb.RESCHEDULE: (Event.JOB_RESCHEDULED, "retried"),
    Verb.DEFER: (Event.JOB_DEFERRED, "retried"),
    Verb.FAIL: (Event.JOB_FAILED, "failed"),
    Verb.BURY: (Event.JOB_BURIED, "failed"),
}


def _tell(engine: Engine, job: ClaimedJob, recording: Recording) -> None:
    event, word = _TOLD[recording.verb]
    log.info(event, outcome=recording.outcome, reason=recording.reason)
    engine.events.send(word, job, {"outcome": recording.outcome, "exception": recording.reason})


def _check_values(kind: JobKind, values: Mapping[str, object], bytes_max: int) -> None:
    if storable_json(values) != values:
        raise ArgumentsInvalid(
            f"The arguments of {kind.name} hold what Postgres cannot keep: a NUL character, a "
            "number that is not finite, or very deep nesting. Store the data and pass its id."
        )
    size = json_bytes(values)
    if size > bytes_max:
        raise ArgumentsInvalid(
            f"The arguments of {kind.name} take {size} bytes, more than the {bytes_max} allowed. "
            "Store the data and pass its id."
        )


def _check_key(key: str | None) -> None:
    if key is not None and (len(key) > KEY_CHARS_MAX or storable_text(key) != key):
        raise OptionRefused(
            f"The key {storable_text(key)[:40]!r} is refused: it has {len(key)} characters. "
            f"At most {KEY_CHARS_MAX} are kept, and no NUL among them."
        )


def _check_options(options: Options) -> None:
    for name, moment in (("run_at", options.run_at), ("expires_at", options.expires_at)):
        if moment is not None and moment.tzinfo is None:
            raise OptionRefused(
                f"{name} has no time zone, so the moment it means is a guess. "
                "Pass an aware datetime, for example in UTC."
            )
    priority = options.priority
    if priority is not None and not PRIORITY_MIN <= priority <= PRIORITY_MAX:
        raise OptionRefused(
            f"priority {priority} is out of range. "
            f"It goes from {PRIORITY_MIN} to {PRIORITY_MAX}, {PRIORITY_MAX} being most urgent."
        )
