"""
How a run ends: outcomes, exceptions, lost leases, follow-up work, texts that nobody can store.

Nothing that one job does may leave `run_next`: the drain goes on with the next job.
"""

from __future__ import annotations

import logging
from uuid import uuid4

import pytest
from support.workshop import Workshop, fail, give

from billing_jobs import lifecycle
from billing_jobs.domain.errors import (
    LeaseLost,
    RecordRefused,
    StoreUnavailable,
)
from billing_jobs.domain.job import ClaimedJob, JobState, Verb
from billing_jobs.domain.ledger import ChargeAnswered, NoticeAnswered, NoticeState
from billing_jobs.domain.outcome import (
    Completed,
    Defer,
    FollowUp,
    Outcome,
    Refused,
    RetryLater,
    Unknown,
)
from billing_jobs.domain.payment import AttemptState, GatewayObject, ObjectStatus
from billing_jobs.ports import Ports, RescuePolicy

ATTEMPT = uuid4()
NOTHING_BURIED = RescuePolicy(())


@pytest.fixture
def shop() -> Workshop:
    """An engine in memory."""
    return Workshop()


def answered(raw: str | None) -> ChargeAnswered:
    """Return the effect of a charge; without a raw answer only its reason is known."""
    answer = None
    if raw is not None:
        answer = GatewayObject("pi_1", ObjectStatus.SUCCEEDED, 100, 100, "EUR", raw=raw)
    return ChargeAnswered(ATTEMPT, AttemptState.SUCCEEDED, "it timed out", answer=answer)


def test_nothing_due_is_nothing_run(shop: Workshop) -> None:
    """The drain ends here."""
    shop.enqueue(delay_seconds=60.0)

    assert not shop.run()
    assert shop.events.told == []


def test_a_run_that_completes_is_recorded_and_told(shop: Workshop) -> None:
    """The row, the watchers and the log say the same."""
    job_id = shop.enqueue({"n": 2})

    assert shop.run(lambda job, _: Completed({"twice": int(str(job.arguments["n"])) * 2}))

    view = shop.view(job_id)
    assert (view.state, view.result, view.attempt) == (JobState.COMPLETED, {"twice": 4}, 1)
    assert shop.events.told == [("started", job_id), ("succeeded", job_id)]


@pytest.mark.parametrize(
    ("outcome", "state", "spent", "told"),
    [
        (RetryLater("x"), JobState.PENDING, 1, "retried"),
        (RetryLater("x", outage=True), JobState.PENDING, 0, "retried"),
        (Defer("x", 5.0), JobState.PENDING, 0, "retried"),
        (Refused("x"), JobState.FAILED, 1, "failed"),
        (Refused("x", needs_person=True), JobState.DEAD_LETTER, 1, "failed"),
        (Unknown("x", "att-1"), JobState.COMPLETED, 1, "succeeded"),
    ],
    ids=["retry", "outage", "defer", "refused", "person", "unknown"],
)
def test_each_outcome_has_its_end(
    shop: Workshop, outcome: Outcome, state: JobState, spent: int, told: str
) -> None:
    """The five answers of an executor, and what becomes of the job."""
    job_id = shop.enqueue()

    shop.run(give(outcome))

    view = shop.view(job_id)
    assert (view.state, view.attempt) == (state, spent)
    assert shop.events.told[-1] == (told, job_id)


@pytest.mark.parametrize(("attempts", "pauses"), [(4, [1, 4, 9]), (3, [1, 4]), (1, [])])
def test_a_failing_job_runs_after_1_4_and_9_seconds_and_is_buried(
    shop: Workshop, attempts: int, pauses: list[int]
) -> None:
    """Exactly the promised pauses, exactly as many runs; the job's own max_attempts counts."""
    shop.kind("own", max_attempts=attempts)
    job_id = shop.enqueue(kind="own")
    shop.limit(max_attempts=25)
    waited = []

    assert shop.run(fail(ValueError("no")))
    for pause in pauses:
        shop.clock.advance(pause - 0.01)
        early = shop.run()
        shop.clock.advance(0.01)
        waited.append((early, shop.run(fail(ValueError("no")))))

    assert waited == [(False, True)] * len(pauses)
    view = shop.view(job_id)
    assert (view.state, view.attempt) == (JobState.DEAD_LETTER, attempts)
    assert view.error == "ValueError: no"
    assert len(shop.store.attempts(job_id)) == attempts
    assert shop.store.recorded[-1].reason == f"all {attempts} attempts are spent"


def test_an_exception_is_a_retry_with_a_fingerprint(shop: Workshop) -> None:
    """Equal failures are one failure, whatever their texts say."""
    for number in (1, 2):
        shop.enqueue()
        shop.run(fail(KeyError(number)))
    shop.enqueue()
    shop.run(elsewhere)

    prints = [recording.error_fingerprint for recording in shop.store.recorded]
    assert [recording.verb for recording in shop.store.recorded] == [Verb.RESCHEDULE] * 3
    assert prints[0] == prints[1] != prints[2]
    assert all(found is not None and len(found) == 12 for found in prints)


def test_an_error_that_was_never_raised_has_a_fingerprint_too() -> None:
    """By its type alone; two types differ."""
    assert lifecycle.fingerprint(ValueError("a")) == lifecycle.fingerprint(ValueError("b"))
    assert lifecycle.fingerprint(ValueError("a")) != lifecycle.fingerprint(TypeError("a"))


@pytest.mark.parametrize("said", [None, "done", {"n": 1}, Completed("text")])  # type: ignore[arg-type] # the mistake under test
def test_what_is_no_outcome_is_a_failed_run(shop: Workshop, said: object) -> None:
    """An executor that forgets its `return` ends as a dead letter with a reason, not in a loop."""
    job_id = shop.enqueue()

    shop.run(lambda _job, _ports: said)  # type: ignore[arg-type,return-value] # the mistake

    error = shop.view(job_id).error
    assert error is not None
    assert "Return one of billing_jobs.domain.outcome" in error


def test_a_lost_lease_writes_nothing_and_leaves_nothing(
    shop: Workshop, caplog: pytest.LogCaptureFixture
) -> None:
    """The executor learned it before it called out; the job has another owner now."""
    job_id = shop.enqueue()

    with caplog.at_level(logging.INFO, logger="billing_jobs"):
        assert shop.run(fail(LeaseLost("gone")))

    assert shop.store.recorded == []
    assert shop.view(job_id).state is JobState.RUNNING
    assert shop.events.told[-1] == ("failed", job_id)
    assert "write.fenced" in caplog.text


@pytest.mark.parametrize(
    ("raw", "kept"),
    [('{"id": "pi_1"}', '{"id": "pi_1"}'), (None, "it timed out"), ("a\0", "a\ufffd")],
)
def test_a_stale_owner_keeps_what_the_gateway_said(
    shop: Workshop, raw: str | None, kept: str
) -> None:
    """Its write is fenced, but the answer is evidence for whoever looks the charge up."""
    notice = NoticeAnswered(uuid4(), NoticeState.SENT, "x")
    shop.enqueue()
    shop.store.failures.append(LeaseLost("a newer owner has it"))

    shop.run(give(Completed(effects=(notice, answered(raw)))))

    assert shop.ledger.evidence == [(ATTEMPT, "stale owner", kept)]
    assert shop.store.recorded == []


def test_a_real_stale_owner_is_fenced_by_its_token(shop: Workshop) -> None:
    """G5, without any staging: the lease expires during the run, somebody else takes the job."""
    job_id = shop.enqueue()

    def slow(_job: ClaimedJob, _ports: Ports) -> Outcome:
        shop.clock.advance(shop.engine.limits.lease_ttl_seconds + 1)
        rescued = shop.store.rescue(NOTHING_BURIED, limit=9, ttl_seconds=0.0)
        assert rescued == [job_id]
        assert shop.run(give(Completed({"by": "the newer owner"})))
        return Completed({"by": "the stale owner"})

    shop.run(slow)

    assert shop.view(job_id).result == {"by": "the newer owner"}
    assert [run.outcome for run in shop.store.attempts(job_id)] == ["lease_expired", "completed"]


@pytest.mark.parametrize("where", ["execute", "record"])
def test_a_store_that_goes_away_leaves_the_job_to_its_lease(
    shop: Workshop, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    """G1: nothing is lost and nothing is counted; the job is rescued when its lease expires."""
    job_id = shop.enqueue()
    away = StoreUnavailable("Postgres cannot be reached")
    if where == "record":
        shop.store.failures.append(away)

    with caplog.at_level(logging.INFO, logger="billing_jobs"):
        assert shop.run(*([fail(away)] if where == "execute" else []))

    assert shop.view(job_id).state is JobState.RUNNING
    assert shop.events.told[-1] == ("failed", job_id)
    assert "db.lost" in caplog.text


def test_what_cannot_be_written_ends_as_a_dead_letter_with_its_reason(shop: Workshop) -> None:
    """G7: it would fail the same way after each rescue, and nobody would be told why."""
    job_id = shop.enqueue()
    for pause in (1, 4, 9, 0):
        shop.store.failures.append(RecordRefused("violates constraint invoices_once"))
        assert shop.run(give(Completed(effects=(answered("raw"),))))
        shop.clock.advance(pause)

    view = shop.view(job_id)
    assert (view.state, view.error) == (JobState.DEAD_LETTER, "violates constraint invoices_once")
    assert shop.ledger.evidence == [(ATTEMPT, "refused record", "raw")] * 4
    assert shop.store.recorded[0].error_fingerprint is not None


def test_a_store_that_refuses_even_that_leaves_the_job_to_its_lease(shop: Workshop) -> None:
    """The last resort is the rescue, and the third one buries the job."""
    job_id = shop.enqueue()
    shop.store.failures.extend([RecordRefused("first"), RecordRefused("second")])

    assert shop.run()

    assert shop.view(job_id).state is JobState.RUNNING


def test_follow_up_jobs_carry_their_origin_and_are_rung_for_once_a_queue(shop: Workshop) -> None:
    """Work that follows is enqueued with the outcome, never before it."""
    job_id = shop.enqueue(tenant="other")
    shop.bell.rings.clear()
    follow_ups = (
        FollowUp("work", {"n": 1}, key="a"),
        FollowUp("work", {"n": 2}),
        FollowUp("fragile", {"n": 3}),
    )

    shop.run(give(Completed(then=follow_ups)))

    made = shop.store.inserted[1:]
    assert [job.arguments["n"] for job in made] == [1, 2, 3]
    assert {(job.parent_id, job.tenant, job.actor) for job in made} == {
        (job_id, "other", f"job {job_id}")
    }
    assert made[0].key == "a"
    assert shop.bell.rings == ["charges", "default"]


def test_follow_up_work_for_later_is_not_rung_for(shop: Workshop) -> None:
    """The look-up of an unknown charge comes when it is time."""
    shop.enqueue()
    shop.bell.rings.clear()
    later = FollowUp("work", {}, after_seconds=60.0)

    shop.run(give(Unknown("timed out", "att-1", then=(later,))))

    assert shop.store.inserted[1].delay_seconds == 60.0
    assert shop.bell.rings == []


@pytest.mark.parametrize(
    "bad",
    [FollowUp("wrok", {}), FollowUp("work", {"m": 1}), FollowUp("work", {"text": "x" * 70_000})],
)
def test_a_follow_up_that_is_wrong_is_a_failed_run(shop: Workshop, bad: FollowUp) -> None:
    """It left the run before, and took the whole drain with it."""
    job_id = shop.enqueue()

    assert shop.run(give(Completed(effects=(answered("raw"),), then=(bad,))))

    view = shop.view(job_id)
    assert (view.state, view.attempt) == (JobState.PENDING, 1)
    assert view.error is not None
    assert shop.ledger.evidence == [(ATTEMPT, "refused record", "raw")]
    assert len(shop.store.inserted) == 1


def test_long_texts_are_cut(shop: Workshop) -> None:
    """A stack of a megabyte would be copied with every update of the row."""
    shop.limit(error_chars=20)
    job_id = shop.enqueue()

    shop.run(fail(ValueError("x" * 1000)))

    (recording,) = shop.store.recorded
    assert shop.view(job_id).error == "ValueError: xxxxxxxx"
    assert (recording.error, recording.reason) == ("ValueError: xxxxxxxx",) * 2


@pytest.mark.parametrize("bad", ["a\x00b", "a\ud800b"])
def test_what_postgres_refuses_in_a_text_is_replaced(shop: Workshop, bad: str) -> None:
    """The record must not fail for its texts: the run would be made again, with its effects."""
    first = shop.enqueue()
    shop.run(fail(ValueError(bad)))
    second = shop.enqueue()
    shop.run(give(Completed({"text": bad, bad: 1, "list": [bad]})))

    error, result = shop.view(first).error, shop.view(second).result
    assert error is not None
    assert result is not None
    assert bad not in error
    assert bad not in str(result)
    assert len(result) == 3


def test_a_result_that_is_no_json_becomes_text(shop: Workshop) -> None:
    """A forgotten `str()` in an executor must not undo a charge."""
    job_id, unlike = shop.enqueue(), uuid4()

    shop.run(give(Completed({"id": unlike, "ratio": float("inf"), "list": (1, None, 0.5)})))

    assert shop.view(job_id).result == {"id": str(unlike), "ratio": "inf", "list": [1, None, 0.5]}


def test_a_result_that_is_too_large_says_how_large_it_was(shop: Workshop) -> None:
    """The job is done; what it wanted to tell is what is dropped."""
    shop.limit(result_bytes=100)
    job_id = shop.enqueue()

    shop.run(give(Completed({"text": "x" * 200})))

    view = shop.view(job_id)
    assert view.state is JobState.COMPLETED
    assert view.result == {"outcome": "result_too_large", "bytes": 212}


def test_the_executor_gets_the_lease_of_its_run(shop: Workshop) -> None:
    """The trust window begins before the claim was sent: the time it took is on our side."""
    shop.clock.advance(7.0)
    shop.enqueue()
    seen: list[object] = []

    def act(_job: ClaimedJob, ports: Ports) -> Outcome:
        seen.append(ports.lease)
        return Completed()

    shop.run(act)

    assert seen == [shop.keeper.lease]
    assert [asked_at for _, asked_at in shop.keeper.held] == [7.0]


def test_a_cancelled_run_that_would_wait_is_not_run_again(shop: Workshop) -> None:
    """The next safe point after the request."""
    job_id = shop.enqueue()

    def act(_job: ClaimedJob, _ports: Ports) -> Outcome:
        assert lifecycle.cancel(shop.engine, job_id, actor="op", reason="x") == "requested"
        return RetryLater("busy")

    shop.run(act)

    assert shop.view(job_id).state is JobState.CANCELLED


def elsewhere(_job: ClaimedJob, _ports: Ports) -> Outcome:
    """Raise the same error from another place."""
    raise KeyError(3)
