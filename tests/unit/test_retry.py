"""When a job runs again, and when it does not: the transport clock of 1, 4 and 9 seconds."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing_jobs.domain.errors import IllegalTransition
from billing_jobs.domain.job import (
    RUN_ENDS,
    TRANSITIONS,
    ClaimedJob,
    JobState,
    Recording,
    Verb,
    check_end,
    check_transition,
)
from billing_jobs.domain.outcome import Completed, Defer, Outcome, Refused, RetryLater, Unknown
from billing_jobs.domain.retry import (
    OUTAGE_RETRIES,
    RETRY_AFTER_MAX_SECONDS,
    backoff_seconds,
    decide,
    pause_seconds,
)

NOW = datetime(2026, 3, 31, tzinfo=UTC)


def job(attempt: int = 1, max_attempts: int = 4, outage_count: int = 0) -> ClaimedJob:
    """Return a job in its so-many-th attempt."""
    return ClaimedJob(
        id=uuid4(),
        kind="work",
        queue="default",
        tenant="acme",
        arguments={},
        attempt=attempt,
        max_attempts=max_attempts,
        outage_count=outage_count,
        token=1,
        lease_until=NOW,
        started_at=NOW,
        worker="w1",
    )


def end(claimed: ClaimedJob, outcome: Outcome) -> Recording:
    """Decide with a long pause for outages, so that it cannot be taken for another."""
    return decide(claimed, outcome, outage_defer_seconds=300.0)


def story(max_attempts: int) -> list[tuple[Verb, float | None]]:
    """Let a job fail until it does not run any more."""
    steps: list[tuple[Verb, float | None]] = []
    for attempt in range(1, max_attempts + 2):
        recording = end(job(attempt, max_attempts), RetryLater("no"))
        steps.append((recording.verb, recording.delay_seconds))
        if recording.verb is Verb.BURY:
            return steps
    raise AssertionError(f"never buried: {steps}")


def test_four_attempts_wait_1_4_and_9_seconds_and_end_as_a_dead_letter() -> None:
    """The promise of the seed, and the default."""
    again = Verb.RESCHEDULE

    assert story(4) == [(again, 1.0), (again, 4.0), (again, 9.0), (Verb.BURY, None)]
    assert story(3) == [(again, 1.0), (again, 4.0), (Verb.BURY, None)]
    assert story(1) == [(Verb.BURY, None)]


def test_the_pause_is_the_square_of_the_attempt() -> None:
    """In whole seconds, without jitter, so that an operator can say when it comes."""
    assert [backoff_seconds(attempt) for attempt in range(1, 6)] == [1, 4, 9, 16, 25]


@pytest.mark.parametrize(
    ("asked", "pause"),
    [
        (None, 4.0),
        (0.0, 4.0),
        (-5.0, 4.0),
        (3.9, 4.0),
        (30.0, 30.0),
        (RETRY_AFTER_MAX_SECONDS, RETRY_AFTER_MAX_SECONDS),
        (1e9, RETRY_AFTER_MAX_SECONDS),
        (float("inf"), RETRY_AFTER_MAX_SECONDS),
        (float("nan"), 4.0),
    ],
)
def test_what_the_other_side_asks_for_is_honoured_up_to_a_cap(
    asked: float | None, pause: float
) -> None:
    """A Retry-After never shortens our pause, and a mad one never parks a job for years."""
    assert pause_seconds(2, asked) == pause
    assert end(job(2), RetryLater("busy", after_seconds=asked)).delay_seconds == pause


def test_a_retry_tells_what_failed() -> None:
    """The error and its fingerprint are the row's, the reason is the trail's."""
    recording = end(job(), RetryLater("time-out", fingerprint="abc"))

    assert (recording.outcome, recording.error, recording.error_fingerprint) == (
        "failed",
        "time-out",
        "abc",
    )
    assert (recording.reason, recording.spend, recording.outages) == ("time-out", True, 0)


def test_a_buried_job_tells_that_its_attempts_are_spent() -> None:
    """G7: with its reason, and with the last error."""
    recording = end(job(4), RetryLater("time-out", fingerprint="abc"))

    assert (recording.state, recording.error) == (JobState.DEAD_LETTER, "time-out")
    assert (recording.reason, recording.error_fingerprint) == ("all 4 attempts are spent", "abc")


def test_an_attempt_beyond_the_limit_is_buried_too() -> None:
    """A limit that was lowered while the job waited still ends it."""
    assert end(job(7, max_attempts=4), RetryLater("no")).verb is Verb.BURY


def test_an_outage_keeps_the_pace_three_times_and_then_waits_for_it_to_end() -> None:
    """G8: nothing was sent, so nothing is spent, whatever attempt the job is in."""
    pauses, count = [], 0
    for _ in range(OUTAGE_RETRIES + 2):
        recording = end(job(4, outage_count=count), RetryLater("down", outage=True))
        assert (recording.verb, recording.spend) == (Verb.DEFER, False)
        pauses.append(recording.delay_seconds)
        count = recording.outages

    assert pauses == [1.0, 4.0, 9.0, 300.0, 1.0]


def test_an_outage_waits_as_long_as_the_gateway_asks() -> None:
    """Also when the gateway asks for longer than we would wait for an outage."""
    quick = end(job(), RetryLater("busy", after_seconds=60.0, outage=True))
    patient = end(job(outage_count=3), RetryLater("busy", after_seconds=900.0, outage=True))

    assert (quick.delay_seconds, quick.outages) == (60.0, 1)
    assert (patient.delay_seconds, patient.outages) == (900.0, 0)
    assert (quick.outcome, quick.error, quick.reason) == ("not_sent", "busy", "busy")


def test_a_run_that_was_spent_starts_the_count_of_outages_again() -> None:
    """The gateway answered: the outage is over."""
    assert end(job(outage_count=2), RetryLater("no")).outages == 0


def test_a_deferred_job_waits_as_told_and_spends_nothing() -> None:
    """A limit or a stop is not the job's fault, nor the end of an outage."""
    recording = end(job(4, outage_count=2), Defer("lane is full", 12.5))

    assert (recording.verb, recording.state) == (Verb.DEFER, JobState.PENDING)
    assert (recording.delay_seconds, recording.spend, recording.outages) == (12.5, False, 2)
    assert (recording.outcome, recording.reason, recording.error) == (
        "deferred",
        "lane is full",
        None,
    )


def test_a_completed_job_keeps_its_result() -> None:
    """The result is what `AsyncResult.get()` answers with."""
    recording = end(job(), Completed({"outcome": "succeeded"}))

    assert (recording.verb, recording.state) == (Verb.COMPLETE, JobState.COMPLETED)
    assert recording.result == {"outcome": "succeeded"}
    assert (recording.error, recording.reason) == (None, None)


def test_an_unknown_outcome_completes_the_job_and_names_who_owns_the_debt() -> None:
    """The charge attempt and its ladder go on from here; the job must not run again."""
    recording = end(job(), Unknown("timed out", "att-1"))

    assert (recording.state, recording.outcome) == (JobState.COMPLETED, "unknown")
    assert recording.result == {"outcome": "unknown", "reference": "att-1"}
    assert recording.reason == "timed out"


@pytest.mark.parametrize(
    ("needs_person", "verb", "state"),
    [(False, Verb.FAIL, JobState.FAILED), (True, Verb.BURY, JobState.DEAD_LETTER)],
)
def test_a_refused_job_ends_at_once(verb: Verb, state: JobState, *, needs_person: bool) -> None:
    """This input can never succeed: trying again would only be noise."""
    recording = end(job(), Refused("no such invoice", needs_person=needs_person))

    assert (recording.verb, recording.state, recording.outcome) == (verb, state, "refused")
    assert (recording.error, recording.reason) == ("no such invoice", "no such invoice")


outcomes = st.one_of(
    st.builds(Completed),
    st.builds(Unknown, reason=st.text(), reference=st.text()),
    st.builds(
        RetryLater,
        reason=st.text(),
        after_seconds=st.none() | st.floats(),
        outage=st.booleans(),
    ),
    st.builds(Defer, reason=st.text(), after_seconds=st.floats(0, 1e6)),
    st.builds(Refused, reason=st.text(), needs_person=st.booleans()),
)


@given(
    outcome=outcomes,
    attempt=st.integers(1, 30),
    max_attempts=st.integers(1, 25),
    outages=st.integers(0, 5),
)
def test_every_outcome_is_an_end_that_the_state_machine_knows(
    outcome: Outcome, attempt: int, max_attempts: int, outages: int
) -> None:
    """A pause is given when the job runs again, and is never endless or negative."""
    recording = end(job(attempt, max_attempts, outages), outcome)

    assert (JobState.RUNNING, recording.state) in TRANSITIONS[recording.verb]
    assert (recording.delay_seconds is not None) == (recording.state is JobState.PENDING)
    assert recording.delay_seconds is None or 0 <= recording.delay_seconds <= 1e6
    assert recording.spend or recording.state is JobState.PENDING


def test_only_the_owners_verbs_end_a_run() -> None:
    """A bug in a rule must be told as one before anything is written."""
    good = Recording(Verb.COMPLETE, JobState.COMPLETED, outcome="completed")
    check_end(good)

    for verb in set(Verb) - RUN_ENDS:
        with pytest.raises(IllegalTransition, match=f"Bug: {verb} is no end"):
            check_end(replace(good, verb=verb))
    with pytest.raises(IllegalTransition, match="Bug: complete cannot take a job from running"):
        check_end(replace(good, state=JobState.FAILED))


@pytest.mark.parametrize("verb", Verb)
def test_the_table_is_what_decides_about_a_transition(verb: Verb) -> None:
    """All 36 pairs of each verb: what the table does not name is a bug."""
    for source in JobState:
        for target in JobState:
            if (source, target) in TRANSITIONS[verb]:
                check_transition(verb, source, target)
            else:
                with pytest.raises(IllegalTransition, match=f"{verb} cannot take a job"):
                    check_transition(verb, source, target)
