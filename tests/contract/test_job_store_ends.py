"""
What every job store promises about the end of a run, its own or by a rescue.

Checked in memory and over real Postgres. Each write of a run is guarded by its token, and leaves
everything or nothing.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.job_benches import (
    KIND,
    TTL_SECONDS,
    AuditLine,
    JobBench,
    PostgresBench,
    claim,
    claim_one,
    crashed,
    impossible_effect,
    last,
    new_job,
    recording,
    rescue,
    running,
    standing,
    view,
)

from billing_jobs.domain.errors import IllegalTransition, LeaseLost, RecordRefused, StoreUnavailable
from billing_jobs.domain.job import CRASHES_MAX, JobState, JobView, Verb
from billing_jobs.ports import RescuePolicy


@pytest.mark.parametrize(
    ("verb", "state"),
    [
        (Verb.COMPLETE, JobState.COMPLETED),
        (Verb.FAIL, JobState.FAILED),
        (Verb.BURY, JobState.DEAD_LETTER),
        (Verb.RESCHEDULE, JobState.PENDING),
        (Verb.DEFER, JobState.PENDING),
    ],
)
def test_each_verb_leaves_its_state_an_attempt_and_an_audit_line(
    bench: JobBench, verb: Verb, state: JobState
) -> None:
    """G9: every change is in the trail with who, when, why, before and after."""
    job = running(bench)
    result = {"n": [1, None]} if verb is Verb.COMPLETE else None

    bench.store.record(job, recording(verb, error="e", result=result, error_fingerprint="f"))

    found = view(bench, job.id)
    spent = 0 if verb is Verb.DEFER else 1
    (run,) = bench.store.attempts(job.id)
    assert (found.state, found.attempt, found.error, found.version) == (state, spent, "e", 3)
    assert found.result == result
    assert (found.finished_at is None) == (state is JobState.PENDING)
    assert (run.token, run.attempt, run.outcome, run.error) == (job.token, 1, str(verb), "e")
    assert (run.worker, run.finished_at >= run.started_at) == ("w1", True)
    assert last(bench, job) == AuditLine(
        verb=verb,
        from_state=JobState.RUNNING,
        to_state=state,
        attempt=spent,
        held=True,
        actor="w1",
        reason=f"because of {verb}",
    )


def test_a_later_success_takes_the_error_of_an_earlier_run_away(bench: JobBench) -> None:
    """A completed job that shows an error sends people to look for nothing."""
    job = running(bench)
    bench.store.record(job, recording(Verb.RESCHEDULE, error="time-out", delay_seconds=0.0))

    bench.store.record(claim_one(bench), recording())

    assert view(bench, job.id).error is None
    assert [run.error for run in bench.store.attempts(job.id)] == ["time-out", None]


def test_a_rescheduled_job_waits_its_pause_out(bench: JobBench) -> None:
    """The pause is counted from the write, not from the claim."""
    job = running(bench)
    bench.pass_seconds(10)
    bench.store.record(job, recording(Verb.RESCHEDULE, delay_seconds=60.0))

    bench.pass_seconds(58)
    early = claim(bench)
    bench.pass_seconds(3)

    assert early == []
    assert claim_one(bench).attempt == 2


def test_only_spent_runs_count_as_attempts(bench: JobBench) -> None:
    """A hand-back, a limit or an outage must not bring a job nearer to the dead letters."""
    job = running(bench)
    seen = []
    for verb in (Verb.DEFER, Verb.RESCHEDULE, Verb.DEFER, Verb.DEFER, Verb.RESCHEDULE):
        seen.append(job.attempt)
        bench.store.record(job, recording(verb, delay_seconds=0.0))
        job = claim_one(bench)

    assert [*seen, job.attempt] == [1, 1, 2, 2, 2, 3]
    assert [run.attempt for run in bench.store.attempts(job.id)] == seen


def test_the_outage_counter_is_what_the_run_says(bench: JobBench) -> None:
    """It counts runs in which nothing was sent, and starts again after one that was."""
    job = running(bench)
    seen = []
    for outages in (1, 2, 0):
        seen.append(job.outage_count)
        bench.store.record(job, recording(Verb.DEFER, outages=outages, delay_seconds=0.0))
        job = claim_one(bench)

    assert [*seen, job.outage_count] == [0, 1, 2, 0]


@pytest.mark.parametrize("verb", [Verb.COMPLETE, Verb.RESCHEDULE, Verb.DEFER, Verb.FAIL, Verb.BURY])
def test_a_stale_owner_writes_nothing(bench: JobBench, verb: Verb) -> None:
    """G5: whatever it found out, the newer owner's outcome stands alone."""
    bench.store.insert([new_job()])
    stale = crashed(bench)
    rescue(bench)
    newer = claim_one(bench)
    follow_up = new_job()
    before = view(bench, newer.id), bench.audit(newer.id), bench.store.attempts(newer.id)

    with pytest.raises(LeaseLost, match=f"token {stale.token}"):
        bench.store.record(stale, recording(verb), then=[follow_up])

    assert before == (view(bench, newer.id), bench.audit(newer.id), bench.store.attempts(newer.id))
    assert bench.store.get(follow_up.id) is None
    bench.store.record(newer, recording())


def test_an_end_is_written_once(bench: JobBench) -> None:
    """The answer to a commit can get lost; writing again must not write twice."""
    job = running(bench)
    bench.store.record(job, recording())

    with pytest.raises(LeaseLost):
        bench.store.record(job, recording())

    assert len(bench.store.attempts(job.id)) == 1


@pytest.mark.parametrize(
    ("verb", "state"),
    [
        (Verb.COMPLETE, JobState.RUNNING),
        (Verb.DEFER, JobState.FAILED),
        (Verb.CANCEL, JobState.CANCELLED),
        (Verb.RESCUE, JobState.PENDING),
    ],
)
def test_no_run_ends_by_a_verb_that_is_no_end(bench: JobBench, verb: Verb, state: JobState) -> None:
    """A cancelled run is one that somebody asked for, never one that an executor chose."""
    job = running(bench)

    with pytest.raises(IllegalTransition, match="Bug"):
        bench.store.record(job, replace(recording(), verb=verb, state=state))

    assert standing(bench, job) == (JobState.RUNNING, 1, 0)


def test_follow_up_jobs_are_made_with_the_end_of_the_run(bench: JobBench) -> None:
    """An unknown charge and its reconciliation exist together or not at all."""
    first = new_job(key="once", delay_seconds=5.0)
    bench.store.record(running(bench), recording(), then=[first, new_job(kind="other")])

    bench.store.record(running(bench), recording(), then=[new_job(key="once")])

    assert claim(bench, limit=9) == []
    assert bench.store.due_queues() == ["default"]
    bench.pass_seconds(6)
    assert [found.id for found in claim(bench, limit=9)] == [first.id]


def test_a_follow_up_that_cannot_be_written_leaves_the_run_unrecorded(bench: JobBench) -> None:
    """Half of an outcome would be an outcome without its consequences."""
    job = running(bench)
    good, bad = new_job(key="good"), new_job(max_attempts=99)

    with pytest.raises(RecordRefused):
        bench.store.record(job, recording(), then=[good, bad])

    assert standing(bench, job) == (JobState.RUNNING, 1, 0)
    assert bench.store.attempts(job.id) == []
    assert bench.store.get(good.id) is None
    bench.store.record(job, recording())


def test_an_effect_that_cannot_be_applied_leaves_the_run_unrecorded(bench: JobBench) -> None:
    """The books and the job agree, also when the books say no."""
    job = running(bench)
    follow_up = new_job()

    with pytest.raises((LeaseLost, RecordRefused)):
        bench.store.record(job, recording(), effects=[impossible_effect()], then=[follow_up])

    assert standing(bench, job) == (JobState.RUNNING, 1, 0)
    assert bench.store.get(follow_up.id) is None


def test_an_expired_lease_makes_the_job_pending_again_unspent(bench: JobBench) -> None:
    """G1: a worker was killed; nobody has to do anything, and nothing was the job's fault."""
    bench.store.insert([new_job()])
    job = crashed(bench)

    freed = rescue(bench)

    (run,) = bench.store.attempts(job.id)
    assert freed == [job.id]
    assert standing(bench, job) == (JobState.PENDING, 0, 1)
    assert (run.token, run.attempt, run.outcome, run.worker) == (
        job.token,
        1,
        "lease_expired",
        "w1",
    )
    assert last(bench, job) == AuditLine(
        verb=Verb.RESCUE,
        from_state=JobState.RUNNING,
        to_state=JobState.PENDING,
        attempt=0,
        held=True,
        actor="dispatcher",
        reason="lease expired, crash 1",
    )
    assert claim_one(bench).attempt == 1


def test_a_lease_that_holds_is_not_rescued(bench: JobBench) -> None:
    """Never by elapsed time alone: a job may run as long as its owner renews."""
    job = running(bench)
    bench.pass_seconds(TTL_SECONDS - 1)

    assert rescue(bench) == []
    assert standing(bench, job)[0] is JobState.RUNNING


def test_nobody_is_rescued_before_the_server_has_been_up_for_a_ttl(bench: JobBench) -> None:
    """After a failover every owner gets the chance to renew first."""
    bench.store.insert([new_job()])
    job = crashed(bench)

    freed = bench.store.rescue(RescuePolicy(()), limit=9, ttl_seconds=1e6)

    assert freed == []
    assert rescue(bench) == [job.id]


def test_the_third_crash_is_a_dead_letter(bench: JobBench) -> None:
    """Poison: a job that kills its workers must not kill them all night."""
    bench.store.insert([new_job()])
    for crash in range(1, CRASHES_MAX):
        job = crashed(bench)
        rescue(bench)
        assert standing(bench, job) == (JobState.PENDING, 0, crash)

    job = crashed(bench)
    rescue(bench)

    assert standing(bench, job) == (JobState.DEAD_LETTER, 0, CRASHES_MAX)
    assert (view(bench, job.id).finished_at is None, claim(bench)) == (False, [])
    assert [run.outcome for run in bench.store.attempts(job.id)] == ["lease_expired"] * CRASHES_MAX


def test_a_kind_that_must_not_run_again_goes_to_a_person(bench: JobBench) -> None:
    """The kind's own policy: something may have left the house, and no look-up exists."""
    bench.store.insert([new_job()])
    job = crashed(bench)

    rescue(bench, "other", KIND)

    assert standing(bench, job) == (JobState.DEAD_LETTER, 0, 1)


def test_a_rescue_frees_the_longest_expired_first_up_to_its_limit(bench: JobBench) -> None:
    """After a big outage the beat works through it in turns."""
    bench.store.insert([new_job() for _ in range(3)])
    order = []
    for _ in range(3):
        order.append(claim_one(bench).id)
        bench.pass_seconds(1)
    bench.pass_seconds(TTL_SECONDS)

    freed = [rescue(bench, limit=1), rescue(bench, limit=9), rescue(bench)]

    assert freed[0] == order[:1]
    assert sorted(freed[1]) == sorted(order[1:])
    assert freed[2] == []


def test_runs_are_told_oldest_first(bench: JobBench) -> None:
    """The story of a job is read from top to bottom."""
    job = running(bench)
    for _ in range(3):
        bench.store.record(job, recording(Verb.RESCHEDULE, delay_seconds=0.0, error=str(job.token)))
        job = claim_one(bench)

    runs = bench.store.attempts(job.id)

    assert [run.attempt for run in runs] == [1, 2, 3]
    assert [run.error for run in runs] == [str(run.token) for run in runs]


def test_what_a_reader_was_given_is_its_own(bench: JobBench) -> None:
    """An executor that changes its arguments must not change the row."""
    job = running(bench, arguments={"list": [1]})
    stolen = job.arguments["list"]
    assert isinstance(stolen, list)

    stolen.append(2)

    assert view(bench, job.id).arguments == {"list": [1]}
    found: JobView = view(bench, job.id)
    assert found.arguments is not view(bench, job.id).arguments


def test_a_row_that_somebody_else_holds_is_told_as_unavailable(postgres: PostgresBench) -> None:
    """A long transaction of a person must not end the heartbeat's thread, or a drain."""
    job = running(postgres)
    with postgres.impatient(lock_seconds=0.05) as store:
        with postgres.database.transaction() as connection:
            connection.execute("SELECT FROM jobs WHERE id = %s FOR UPDATE", (job.id,))

            with pytest.raises(StoreUnavailable, match="lock timeout"):
                store.renew(job, ttl_seconds=TTL_SECONDS)
            with pytest.raises(StoreUnavailable, match="lock timeout"):
                store.record(job, recording())
            with pytest.raises(StoreUnavailable, match="lock timeout"):
                store.cancel(job.id, actor="op", reason="x")

        store.record(job, recording())
    assert standing(postgres, job) == (JobState.COMPLETED, 1, 0)


def test_a_refusal_names_the_rule_that_said_no(postgres: PostgresBench) -> None:
    """Whoever reads the dead letter must know what to repair."""
    job = running(postgres)

    with pytest.raises(RecordRefused, match="jobs_max_attempts_in_range"):
        postgres.store.record(job, recording(), then=[new_job(max_attempts=99)])
