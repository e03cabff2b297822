"""
What callers and people do to a job: enqueue, cancel, replay.

The store is the one in memory, which passes the same contract as Postgres. How runs end is
`test_lifecycle_runs.py`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from support.workshop import Workshop, give

from billing_jobs import lifecycle
from billing_jobs.domain.errors import (
    ArgumentsInvalid,
    BillingJobsError,
    EnqueueError,
    OptionRefused,
    StoreUnavailable,
    UnknownJobKind,
    UnknownQueue,
)
from billing_jobs.domain.job import KEY_CHARS_MAX, JobState
from billing_jobs.domain.outcome import Refused
from billing_jobs.lifecycle import Options
from billing_jobs.ports import Ledger, Transaction

NAIVE = datetime(2026, 4, 1, 9, 0)  # noqa: DTZ001 - the mistake under test


@pytest.fixture
def shop() -> Workshop:
    """An engine in memory."""
    return Workshop()


def test_an_enqueued_job_is_pending_and_rung_for(shop: Workshop) -> None:
    """The plain way: a row, then a ring."""
    job_id = shop.enqueue({"n": 3})

    view = shop.view(job_id)
    assert (view.state, view.arguments, view.queue) == (JobState.PENDING, {"n": 3}, "default")
    assert shop.bell.rings == ["default"]


def test_a_ring_that_fails_costs_a_log_line_and_nothing_else(
    shop: Workshop, caplog: pytest.LogCaptureFixture
) -> None:
    """G1: the broker is down at `delay()`; the row is committed and the dispatcher will ring."""
    shop.bell.broken = True

    with caplog.at_level(logging.INFO, logger="billing_jobs"):
        job_id = shop.enqueue()

    assert shop.view(job_id).state is JobState.PENDING
    assert "doorbell.lost" in caplog.text


def test_a_job_that_is_known_already_is_not_rung_for_again(shop: Workshop) -> None:
    """A caller that repeats itself must not fill the broker."""
    first, again = shop.enqueue(key="k"), shop.enqueue(key="k")

    assert first == again
    assert shop.bell.rings == ["default"]


@pytest.mark.parametrize(
    "later",
    [Options(delay_seconds=5.0), Options(run_at=datetime(2026, 4, 1, tzinfo=UTC))],
    ids=["delay", "run_at"],
)
def test_a_job_for_later_is_not_rung_for_now(shop: Workshop, later: Options) -> None:
    """No countdown lives in the broker: the dispatcher rings when it is time."""
    lifecycle.enqueue(shop.engine, "work", {}, later)

    assert shop.bell.rings == []


def test_nothing_rings_inside_a_callers_transaction(shop: Workshop) -> None:
    """A worker that comes before the caller's commit finds nothing, and nobody rings again."""
    lifecycle.enqueue(shop.engine, "work", {}, transaction=object())

    assert len(shop.store.inserted) == 1
    assert shop.bell.rings == []


def test_the_callers_options_become_columns(shop: Workshop) -> None:
    """What `apply_async` takes is kept, or refused; nothing is silently dropped."""
    job_id = uuid4()
    moment = shop.clock.now() + timedelta(hours=1)

    shop.enqueue(
        id=job_id,
        key="k",
        run_at=moment,
        expires_at=moment + timedelta(hours=1),
        priority=9,
        queue="reminders",
        tenant="other",
        actor="api",
    )

    (job,) = shop.store.inserted
    assert (job.id, job.key, job.run_at, job.priority) == (job_id, "k", moment, 9)
    assert (job.queue, job.lane, job.tenant, job.actor) == (
        "reminders",
        "reminders",
        "other",
        "api",
    )
    assert job.expires_at == moment + timedelta(hours=1)


def test_what_a_caller_does_not_say_has_a_default(shop: Workshop) -> None:
    """Priority 4, the engine's tenant, the kind's queue, a new id."""
    shop.enqueue(kind="fragile")

    (job,) = shop.store.inserted
    assert (job.priority, job.tenant, job.queue, job.key) == (4, "default", "charges", None)
    assert (job.max_attempts, job.actor) == (shop.engine.limits.max_attempts, "caller")


def test_a_kinds_own_attempts_win_over_the_settings(shop: Workshop) -> None:
    """A kind that must not be repeated says so itself."""
    shop.kind("once", max_attempts=1)

    shop.enqueue(kind="once")

    assert shop.store.inserted[0].max_attempts == 1


@pytest.mark.parametrize(
    ("with_rule", "own", "key"),
    [(True, "mine", "n=7:mine"), (True, None, "n=7"), (False, "mine", "mine"), (False, None, None)],
)
def test_a_callers_key_is_added_to_the_kinds_own(
    shop: Workshop, key: str | None, own: str | None, *, with_rule: bool
) -> None:
    """The business key is written by us, so that no caller can forget it."""
    if with_rule:
        shop.kind("keyed", key=number_key)

    shop.enqueue({"n": 7}, kind="keyed" if with_rule else "work", key=own)

    assert shop.store.inserted[0].key == key


@pytest.mark.parametrize("key", ["k" * (KEY_CHARS_MAX + 1), "a\x00b", "a\ud800"], ids=len)
def test_a_key_that_postgres_cannot_keep_is_refused(shop: Workshop, key: str) -> None:
    """Without this the caller would read about an index row, or be told to try again for ever."""
    with pytest.raises(OptionRefused, match=r"key .* is refused"):
        shop.enqueue(key=key)

    shop.enqueue(key="k" * KEY_CHARS_MAX)


@pytest.mark.parametrize(
    ("options", "name"),
    [(Options(run_at=NAIVE), "run_at"), (Options(expires_at=NAIVE), "expires_at")],
    ids=["run_at", "expires_at"],
)
def test_a_moment_without_a_zone_is_refused(shop: Workshop, options: Options, name: str) -> None:
    """Nine o'clock where? A guess would be wrong by hours."""
    with pytest.raises(OptionRefused, match=f"{name} has no time zone"):
        lifecycle.enqueue(shop.engine, "work", {}, options)


@pytest.mark.parametrize(("priority", "good"), [(-1, False), (0, True), (9, True), (10, False)])
def test_a_priority_goes_from_0_to_9(shop: Workshop, priority: int, *, good: bool) -> None:
    """Celery's users count differently; a number out of range is told, not bent."""
    if good:
        shop.enqueue(priority=priority)
    else:
        with pytest.raises(OptionRefused, match=f"priority {priority} is out of range"):
            shop.enqueue(priority=priority)

    assert [job.priority for job in shop.store.inserted] == ([priority] if good else [])


@pytest.mark.parametrize(
    ("kind", "arguments", "queue", "error", "says"),
    [
        ("wrok", {}, None, UnknownJobKind, "Did you mean 'work'?"),
        ("zzz", {}, None, UnknownJobKind, "Known: fragile, work."),
        ("work", {}, "charge", UnknownQueue, "Did you mean 'charges'?"),
        ("work", {}, "zzz", UnknownQueue, "Declared are charges, invoices"),
        ("work", {"n": "x"}, None, ArgumentsInvalid, "n: Input should be a valid integer"),
        ("work", {"m": 1}, None, ArgumentsInvalid, "It takes n (optional), text (optional)"),
    ],
)
def test_a_wrong_name_or_argument_is_told_at_the_caller(
    shop: Workshop,
    kind: str,
    arguments: Mapping[str, object],
    queue: str | None,
    error: type[BillingJobsError],
    says: str,
) -> None:
    """The sooner, the better: with what is wrong and what would be right."""
    with pytest.raises(error) as caught:
        shop.enqueue(arguments, kind=kind, queue=queue)

    assert says in caught.value.message
    assert shop.store.inserted == []
    assert shop.bell.rings == []


def test_arguments_that_are_too_large_are_refused(shop: Workshop) -> None:
    """Ids, not payloads: a row of megabytes would slow every claim."""
    shop.limit(payload_bytes=100)

    with pytest.raises(ArgumentsInvalid, match="take 101 bytes, more than the 100 allowed"):
        shop.enqueue({"text": "x" * 81})

    shop.enqueue({"text": "x" * 80})


@pytest.mark.parametrize("arguments", [{"text": "a\x00b"}, {"ratio": math.nan}], ids=str)
def test_arguments_that_postgres_cannot_keep_are_refused(
    shop: Workshop, arguments: Mapping[str, object]
) -> None:
    """As an EnqueueError, a plain message that carries a NUL would be put back for ever."""
    with pytest.raises(ArgumentsInvalid, match="NUL"):
        shop.enqueue(arguments)


def test_a_store_that_is_away_is_an_enqueue_error_and_no_ring(shop: Workshop) -> None:
    """Nothing is half done, and the caller hears it at once."""
    shop.store.failures.append(EnqueueError("The job was not recorded."))

    with pytest.raises(EnqueueError):
        shop.enqueue()

    assert shop.bell.rings == []


def test_a_store_that_is_away_while_the_key_is_made_is_an_enqueue_error_too(
    shop: Workshop,
) -> None:
    """A charge's key reads the invoice: the caller must not have to know two errors."""
    shop.kind("keyed", key=away_key)

    with pytest.raises(EnqueueError, match=r"not recorded\. Postgres cannot be reached"):
        shop.enqueue(kind="keyed")


def test_a_pending_job_is_cancelled_at_once(shop: Workshop) -> None:
    """Nothing has begun."""
    job_id = shop.enqueue()

    assert lifecycle.cancel(shop.engine, job_id, actor="op", reason="x") == "cancelled"
    assert not shop.run()


def test_a_running_job_is_asked_and_an_open_call_makes_it_too_late(shop: Workshop) -> None:
    """Never cancelled but charged: once the call is declared, its outcome is looked up instead."""
    job_id, answers = shop.enqueue(), []

    def ask() -> None:
        answers.append(lifecycle.cancel(shop.engine, job_id, actor="op", reason="x"))

    (job,) = shop.store.claim("default", ["work"], limit=1, ttl_seconds=20.0, worker="w1")
    ask()
    shop.store.open_effect(job)
    ask()

    assert answers == ["requested", "too_late"]


@pytest.mark.parametrize("known", [True, False])
def test_what_has_ended_or_never_was_is_too_late_to_cancel(shop: Workshop, *, known: bool) -> None:
    """There is nothing left to call off."""
    job_id = shop.enqueue() if known else uuid4()
    shop.run()

    assert lifecycle.cancel(shop.engine, job_id, actor="op", reason="x") == "too_late"


def test_a_replayed_dead_letter_is_rung_for_and_runs(shop: Workshop) -> None:
    """The person who repaired the cause wants to see it run now."""
    job_id = dead_letter(shop)
    shop.bell.rings.clear()

    assert lifecycle.replay(shop.engine, job_id, actor="op", reason="repaired")

    assert shop.bell.rings == ["default"]
    assert shop.run()
    assert shop.view(job_id).state is JobState.COMPLETED


def test_what_is_no_dead_letter_is_neither_replayed_nor_rung_for(shop: Workshop) -> None:
    """A completed charge that could be replayed would be a second charge."""
    job_id = shop.enqueue()
    shop.bell.rings.clear()

    assert not lifecycle.replay(shop.engine, job_id, actor="op", reason="x")
    assert not lifecycle.replay(shop.engine, uuid4(), actor="op", reason="x")

    assert shop.bell.rings == []


def test_a_job_that_vanishes_after_its_replay_is_not_rung_for(shop: Workshop) -> None:
    """Pruned by somebody in the same moment: there is no queue to ring in."""
    job_id = dead_letter(shop)
    shop.bell.rings.clear()
    shop.store.hidden.add(job_id)

    assert lifecycle.replay(shop.engine, job_id, actor="op", reason="x")

    assert shop.bell.rings == []


def dead_letter(shop: Workshop) -> UUID:
    """Return the id of a job that was refused and needs a person."""
    job_id = shop.enqueue()
    shop.run(give(Refused("no card", needs_person=True)))
    assert shop.view(job_id).state is JobState.DEAD_LETTER
    return job_id


def number_key(
    arguments: Mapping[str, object], ledger: Ledger, transaction: Transaction | None
) -> str:
    """Make a key of the number."""
    del ledger, transaction
    return f"n={arguments['n']}"


def away_key(
    arguments: Mapping[str, object], ledger: Ledger, transaction: Transaction | None
) -> str:
    """Read a ledger that is away."""
    del arguments, ledger, transaction
    raise StoreUnavailable("Postgres cannot be reached.")
