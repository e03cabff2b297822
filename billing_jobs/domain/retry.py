"""
When a job runs again, and when it does not.

Owns the arithmetic of the transport clock, attempt² seconds, and the one place where an outcome
becomes an end of the run. Days after a decline and the ladder of an unknown outcome are other
clocks and live with the charges.
"""

from __future__ import annotations

from typing import assert_never

from billing_jobs.domain.job import ClaimedJob, JobState, Recording, Verb, check_end
from billing_jobs.domain.outcome import Completed, Defer, Outcome, Refused, RetryLater, Unknown

#: A pause asked for by the other side (Retry-After) is honoured up to here, in seconds.
RETRY_AFTER_MAX_SECONDS = 3600.0

#: Runs in which nothing was sent keep the pace of attempt² this often, then wait for the outage.
OUTAGE_RETRIES = 3


def backoff_seconds(attempt: int) -> int:
    """
    Return the pause after the `attempt`-th run, in seconds: attempt².

    >>> [backoff_seconds(attempt) for attempt in (1, 2, 3)]
    [1, 4, 9]
    """
    return attempt * attempt


def pause_seconds(attempt: int, asked_seconds: float | None) -> float:
    """
    Return the longer of attempt² and what the other side asked for, capped.

    >>> pause_seconds(2, 30)
    30.0
    >>> pause_seconds(3, None)
    9.0
    """
    asked = min(asked_seconds or 0.0, RETRY_AFTER_MAX_SECONDS)
    return float(max(backoff_seconds(attempt), asked))


def decide(job: ClaimedJob, outcome: Outcome, *, outage_defer_seconds: float) -> Recording:
    """
    Turn an outcome into the end of the run.

    `outage_defer_seconds` is the pause after the quick retries of an outage are used up.
    """
    match outcome:
        case Completed() | Unknown():
            recording = _done(outcome)
        case RetryLater(outage=True):
            recording = _outage(job, outcome, outage_defer_seconds)
        case RetryLater():
            recording = _retry(job, outcome)
        case Defer():
            recording = _defer(job, outcome)
        case Refused():
            recording = _refused(outcome)
        case _:  # pragma: no cover
            assert_never(outcome)
    check_end(recording)
    return recording


def _done(outcome: Completed | Unknown) -> Recording:
    if isinstance(outcome, Unknown):
        return Recording(
            Verb.COMPLETE,
            JobState.COMPLETED,
            outcome="unknown",
            result={"outcome": "unknown", "reference": outcome.reference},
            reason=outcome.reason,
        )
    return Recording(
        Verb.COMPLETE, JobState.COMPLETED, outcome="completed", result=dict(outcome.result)
    )


def _defer(job: ClaimedJob, outcome: Defer) -> Recording:
    return Recording(
        Verb.DEFER,
        JobState.PENDING,
        outcome="deferred",
        spend=False,
        outages=job.outage_count,
        delay_seconds=outcome.after_seconds,
        reason=outcome.reason,
    )


def _outage(job: ClaimedJob, outcome: RetryLater, outage_defer_seconds: float) -> Recording:
    outages = job.outage_count + 1
    quick = outages <= OUTAGE_RETRIES
    least = pause_seconds(min(outages, OUTAGE_RETRIES), outcome.after_seconds)
    return Recording(
        Verb.DEFER,
        JobState.PENDING,
        outcome="not_sent",
        spend=False,
        outages=outages if quick else 0,
        delay_seconds=least if quick else max(least, outage_defer_seconds),
        error=outcome.reason,
        error_fingerprint=outcome.fingerprint,
        reason=outcome.reason,
    )


def _retry(job: ClaimedJob, outcome: RetryLater) -> Recording:
    if job.attempt >= job.max_attempts:
        return Recording(
            Verb.BURY,
            JobState.DEAD_LETTER,
            outcome="failed",
            error=outcome.reason,
            error_fingerprint=outcome.fingerprint,
            reason=f"all {job.max_attempts} attempts are spent",
        )
    return Recording(
        Verb.RESCHEDULE,
        JobState.PENDING,
        outcome="failed",
        delay_seconds=pause_seconds(job.attempt, outcome.after_seconds),
        error=outcome.reason,
        error_fingerprint=outcome.fingerprint,
        reason=outcome.reason,
    )


def _refused(outcome: Refused) -> Recording:
    verb, state = (
        (Verb.BURY, JobState.DEAD_LETTER) if outcome.needs_person else (Verb.FAIL, JobState.FAILED)
    )
    return Recording(verb, state, outcome="refused", error=outcome.reason, reason=outcome.reason)
