"""
What every job store promises about jobs that are called off, and about dead letters.

Checked in memory and over real Postgres. An open effect guards cancelling in every state: never
cancelled but charged.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
from support.job_benches import (
    AuditLine,
    JobBench,
    claim,
    claim_one,
    crashed,
    dead_letter,
    last,
    new_job,
    recording,
    rescue,
    running,
    standing,
    view,
)

from billing_jobs.domain.job import JobState, Verb


def test_a_pending_job_that_came_too_late_is_called_off(bench: JobBench) -> None:
    """A reminder for last week's appointment helps nobody."""
    late = bench.now() + timedelta(seconds=5)
    job, other = new_job(expires_at=late), new_job(expires_at=late + timedelta(seconds=60))
    bench.store.insert([job, other, new_job()])
    assert bench.store.expire(limit=9) == []

    bench.pass_seconds(6)

    assert bench.store.expire(limit=9) == [job.id]
    assert view(bench, job.id).state is JobState.CANCELLED
    assert view(bench, job.id).finished_at is not None
    assert (bench.audit(job.id)[-1].verb, bench.audit(job.id)[-1].actor) == (
        Verb.EXPIRE,
        "dispatcher",
    )


def test_what_came_too_late_is_called_off_in_turns(bench: JobBench) -> None:
    """A flood of expired jobs must not be one long statement."""
    bench.store.insert([new_job(expires_at=bench.now()) for _ in range(3)])
    bench.pass_seconds(1)

    assert [len(bench.store.expire(limit=2)) for _ in range(3)] == [2, 1, 0]


def test_a_running_job_does_not_expire(bench: JobBench) -> None:
    """`expires` is about beginning; what has begun is finished."""
    job = running(bench, expires_at=bench.now() + timedelta(seconds=5))
    bench.pass_seconds(6)

    assert bench.store.expire(limit=9) == []
    bench.store.record(job, recording())


def test_a_pending_job_is_cancelled_at_once(bench: JobBench) -> None:
    """Nothing has begun; there is nothing to wait for."""
    job = new_job()
    bench.store.insert([job])

    assert bench.store.cancel(job.id, actor="op", reason="wrong customer") is JobState.CANCELLED

    assert claim(bench) == []
    assert view(bench, job.id).finished_at is not None
    assert bench.audit(job.id)[-1] == AuditLine(
        verb=Verb.CANCEL,
        from_state=JobState.PENDING,
        to_state=JobState.CANCELLED,
        attempt=0,
        held=False,
        actor="op",
        reason="wrong customer",
    )
    assert bench.store.cancel(job.id, actor="op", reason="again") is None


def test_a_running_job_is_asked_to_stop_and_may_still_complete(bench: JobBench) -> None:
    """What is done is done: a run that succeeded is completed, whoever asked meanwhile."""
    job = running(bench)

    assert bench.store.cancel(job.id, actor="op", reason="x") is JobState.RUNNING

    assert (last(bench, job).verb, last(bench, job).to_state) == (Verb.CANCEL, JobState.RUNNING)
    bench.store.record(job, recording())
    assert standing(bench, job) == (JobState.COMPLETED, 1, 0)


@pytest.mark.parametrize("verb", [Verb.RESCHEDULE, Verb.DEFER])
def test_a_run_that_would_wait_ends_cancelled_after_a_request(bench: JobBench, verb: Verb) -> None:
    """The next safe point: nothing is open, so the job does not run again."""
    job = running(bench)
    bench.store.cancel(job.id, actor="op", reason="x")

    bench.store.record(job, recording(verb))

    line = last(bench, job)
    assert standing(bench, job) == (JobState.CANCELLED, 0 if verb is Verb.DEFER else 1, 0)
    assert view(bench, job.id).finished_at is not None
    assert (line.verb, line.from_state, line.to_state) == (
        Verb.CANCEL,
        JobState.RUNNING,
        JobState.CANCELLED,
    )


def test_a_rescued_job_ends_cancelled_after_a_request(bench: JobBench) -> None:
    """The trail called it a rescue into a state that no rescue knows."""
    bench.store.insert([new_job()])
    job = crashed(bench)
    bench.store.cancel(job.id, actor="op", reason="x")

    rescue(bench)

    assert standing(bench, job) == (JobState.CANCELLED, 0, 1)
    assert (last(bench, job).verb, last(bench, job).actor) == (Verb.CANCEL, "dispatcher")


def test_an_open_effect_makes_cancelling_too_late(bench: JobBench) -> None:
    """Never cancelled but charged: the call is declared, so its outcome will be looked up."""
    job = running(bench)
    assert bench.open_effect(job)

    assert bench.store.cancel(job.id, actor="op", reason="x") is None

    bench.store.record(job, recording(Verb.RESCHEDULE, delay_seconds=0.0))
    assert view(bench, job.id).effect_open
    assert bench.store.cancel(job.id, actor="op", reason="x") is None


def test_a_request_from_before_the_call_does_not_cancel_a_run_after_it(bench: JobBench) -> None:
    """The effect is open when the run ends: somebody must look, so the job runs again."""
    job = running(bench)
    bench.store.cancel(job.id, actor="op", reason="x")
    assert bench.open_effect(job)

    bench.store.record(job, recording(Verb.RESCHEDULE))

    assert standing(bench, job) == (JobState.PENDING, 1, 0)


def test_a_stale_owner_declares_no_call(bench: JobBench) -> None:
    """The executor learns that it lost its lease before it calls out."""
    bench.store.insert([new_job()])
    job = crashed(bench)
    rescue(bench)

    assert not bench.open_effect(job)
    assert not view(bench, job.id).effect_open


@pytest.mark.parametrize(
    ("verb", "stays_open"),
    [(Verb.COMPLETE, False), (Verb.BURY, True), (Verb.FAIL, True), (Verb.DEFER, True)],
)
def test_an_effect_is_closed_by_a_success_and_not_by_giving_up(
    bench: JobBench, verb: Verb, *, stays_open: bool
) -> None:
    """A job buried after its call can be replayed; cancelled then, it would hide a charge."""
    job = running(bench)
    assert bench.open_effect(job)

    bench.store.record(job, recording(verb))

    assert view(bench, job.id).effect_open is stays_open


def test_a_buried_job_with_an_open_effect_cannot_be_cancelled_after_a_replay(
    bench: JobBench,
) -> None:
    """Replay, then cancel, was a way to lose a charge that may have been made."""
    job = running(bench)
    assert bench.open_effect(job)
    bench.store.record(job, recording(Verb.BURY))
    bench.store.replay(job.id, actor="op", reason="repaired")

    assert bench.store.cancel(job.id, actor="op", reason="x") is None


def test_a_replayed_dead_letter_starts_afresh_under_its_keys(bench: JobBench) -> None:
    """A person repaired the cause; the job has all its attempts again and is still one job."""
    bench.store.insert([new_job(key="k", max_attempts=2)])
    bench.store.record(claim_one(bench), recording(Verb.RESCHEDULE, delay_seconds=0.0))
    job = claim_one(bench)
    bench.store.record(job, recording(Verb.BURY, outages=2))

    assert bench.store.replay(job.id, actor="op", reason="card renewed")

    assert standing(bench, job) == (JobState.PENDING, 0, 0)
    assert view(bench, job.id).finished_at is None
    assert last(bench, job) == AuditLine(
        verb=Verb.REPLAY,
        from_state=JobState.DEAD_LETTER,
        to_state=JobState.PENDING,
        attempt=0,
        held=False,
        actor="op",
        reason="card renewed",
    )
    assert bench.store.insert([new_job(key="k")])[0].id == job.id
    again = claim_one(bench)
    assert (again.attempt, again.outage_count, again.token > job.token) == (1, 0, True)


def test_a_wish_to_cancel_does_not_outlive_a_replay(bench: JobBench) -> None:
    """The replayed job was cancelled at its first retry, by a request from before."""
    job = running(bench)
    bench.store.cancel(job.id, actor="op", reason="x")
    bench.store.record(job, recording(Verb.BURY))
    bench.store.replay(job.id, actor="op", reason="run it after all")

    bench.store.record(claim_one(bench), recording(Verb.RESCHEDULE))

    assert standing(bench, job) == (JobState.PENDING, 1, 0)


def test_a_resolved_dead_letter_is_closed_for_good(bench: JobBench) -> None:
    """G7: a dead letter is kept until a person resolves it, with a reason."""
    job = dead_letter(bench)

    assert bench.store.resolve(job.id, actor="op", reason="paid by wire")

    assert standing(bench, job) == (JobState.CANCELLED, 1, 0)
    assert view(bench, job.id).error == "no card"
    assert (last(bench, job).verb, last(bench, job).reason) == (Verb.RESOLVE, "paid by wire")
    assert not bench.store.replay(job.id, actor="op", reason="x")
    assert not bench.store.resolve(job.id, actor="op", reason="x")


def test_a_dead_letter_whose_call_is_in_doubt_is_not_closed(bench: JobBench) -> None:
    """Money may have moved: a replay looks it up, closing it would hide it."""
    job = running(bench)
    assert bench.open_effect(job)
    bench.store.record(job, recording(Verb.BURY))

    assert not bench.store.resolve(job.id, actor="op", reason="x")
    assert bench.store.replay(job.id, actor="op", reason="look it up")


@pytest.mark.parametrize("verb", [Verb.COMPLETE, Verb.FAIL, Verb.RESCHEDULE])
def test_only_a_dead_letter_is_replayed_or_resolved(bench: JobBench, verb: Verb) -> None:
    """A completed charge that could be replayed would be a second charge."""
    job = running(bench)
    during = view(bench, job.id)
    assert not bench.store.replay(job.id, actor="op", reason="x")
    assert view(bench, job.id) == during
    bench.store.record(job, recording(verb))
    after = view(bench, job.id)

    assert not bench.store.replay(job.id, actor="op", reason="x")
    assert not bench.store.resolve(job.id, actor="op", reason="x")

    assert view(bench, job.id) == after
