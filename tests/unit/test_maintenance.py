"""
The periodic work: rescuing with patience, ringing where something is due, billing what has begun.

The store is the one in memory, on a clock that stands still.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from typing import cast
from uuid import UUID, uuid4

import pytest
from support.workshop import WorkArguments, Workshop

from billing_jobs.domain.errors import StoreUnavailable
from billing_jobs.domain.job import CRASHES_MAX, JobState
from billing_jobs.maintenance import bill_due as module
from billing_jobs.maintenance.bill_due import bill_due
from billing_jobs.maintenance.rescue_expired import RESCUE_BATCH, Rescuer
from billing_jobs.maintenance.ring_due import ring_due
from billing_jobs.ports import Ledger
from billing_jobs.testing import TEST_LIMITS

TTL = TEST_LIMITS.lease_ttl_seconds


@pytest.fixture
def shop() -> Workshop:
    """An engine in memory."""
    return Workshop()


def abandoned(shop: Workshop, kind: str = "work", queue: str = "default") -> UUID:
    """Return a job whose worker vanished at this moment."""
    job_id = shop.enqueue(kind=kind)
    shop.store.claim(queue, [kind], limit=1, ttl_seconds=TTL, worker="gone")
    return job_id


def turns(shop: Workshop, rescuer: Rescuer, seconds: float, step: float = TTL / 4) -> list[int]:
    """Take a turn each step for so long; return what each turn freed."""
    freed = []
    for _ in range(round(seconds / step)):
        shop.clock.advance(step)
        freed.append(rescuer.turn())
    return freed


def test_a_vanished_workers_job_is_freed_after_a_ttl_of_turns(
    shop: Workshop, caplog: pytest.LogCaptureFixture
) -> None:
    """G1: without an operator, and told in the log."""
    job_id = abandoned(shop)
    rescuer = Rescuer(shop.engine)
    assert rescuer.turn() == 0

    with caplog.at_level(logging.WARNING, logger="billing_jobs"):
        freed = turns(shop, rescuer, TTL + TTL / 4)

    assert freed == [0, 0, 0, 0, 1]
    assert shop.view(job_id).state is JobState.PENDING
    assert "job.rescued" in caplog.text


def test_nobody_is_rescued_in_the_first_ttl_of_a_beat(shop: Workshop) -> None:
    """A beat that starts after an outage must let every owner renew first."""
    abandoned(shop)
    shop.clock.advance(TTL * 100)
    rescuer = Rescuer(shop.engine)

    assert [rescuer.turn(), *turns(shop, rescuer, TTL)] == [0, 0, 0, 0, 1]


def test_a_gap_between_turns_starts_the_patience_again(shop: Workshop) -> None:
    """The beat was stopped or asleep: perhaps all workers were, and could not renew."""
    rescuer = Rescuer(shop.engine)
    rescuer.turn()
    turns(shop, rescuer, TTL)
    abandoned(shop)

    shop.clock.advance(TTL * 2)

    assert [rescuer.turn(), *turns(shop, rescuer, TTL)] == [0, 0, 0, 0, 1]


def test_a_gap_of_half_a_ttl_is_not_one_yet(shop: Workshop) -> None:
    """A slow turn is no outage."""
    rescuer = Rescuer(shop.engine)
    rescuer.turn()
    abandoned(shop)

    assert turns(shop, rescuer, TTL * 1.5, step=TTL / 2) == [0, 0, 1]


def test_a_turn_that_failed_starts_the_patience_again(shop: Workshop) -> None:
    """The database was away for the beat, so it was away for the owners too."""
    rescuer = Rescuer(shop.engine)
    rescuer.turn()
    turns(shop, rescuer, TTL)
    abandoned(shop)
    turns(shop, rescuer, TTL / 2)

    rescuer.broken()

    assert turns(shop, rescuer, TTL * 1.25) == [0, 0, 0, 0, 1]


def test_a_kind_that_must_not_run_again_is_buried(shop: Workshop) -> None:
    """The kind says so in the registry, and the rescuer asks it."""
    job_id = abandoned(shop, "fragile", "charges")
    rescuer = Rescuer(shop.engine)
    rescuer.turn()

    assert sum(turns(shop, rescuer, TTL * 1.25)) == 1

    assert shop.view(job_id).state is JobState.DEAD_LETTER


def test_a_poisonous_job_ends_as_a_dead_letter(shop: Workshop) -> None:
    """Three workers died under it: the fourth is spared."""
    job_id = abandoned(shop)
    rescuer = Rescuer(shop.engine)
    rescuer.turn()
    for _ in range(CRASHES_MAX):
        turns(shop, rescuer, TTL * 1.25)
        shop.store.claim("default", ["work"], limit=1, ttl_seconds=TTL, worker="gone too")

    assert shop.view(job_id).state is JobState.DEAD_LETTER
    assert shop.view(job_id).crash_count == CRASHES_MAX


def test_what_came_too_late_is_called_off_and_counted(shop: Workshop) -> None:
    """The same turn, for the same reason: nobody else looks at these rows."""
    late = shop.enqueue(expires_at=shop.clock.now() + timedelta(seconds=1))
    vanished = abandoned(shop, "fragile", "charges")
    rescuer = Rescuer(shop.engine)
    rescuer.turn()

    freed = turns(shop, rescuer, TTL * 1.25)

    assert sum(freed) == 2
    assert shop.view(late).state is JobState.CANCELLED
    assert shop.view(vanished).state is JobState.DEAD_LETTER


def test_a_turn_frees_a_batch_and_leaves_the_rest_to_the_next(shop: Workshop) -> None:
    """After a big outage a turn must not take longer than the turns are apart."""
    for _ in range(RESCUE_BATCH + 1):
        abandoned(shop)
    rescuer = Rescuer(shop.engine)
    rescuer.turn()

    assert turns(shop, rescuer, TTL * 1.5)[-2:] == [RESCUE_BATCH, 1]


def test_every_queue_with_due_work_is_rung(shop: Workshop) -> None:
    """The second bell, where the first was lost."""
    shop.enqueue()
    shop.enqueue(kind="fragile")
    shop.enqueue(kind="fragile", queue="reminders", delay_seconds=60.0)
    shop.bell.rings.clear()

    assert ring_due(shop.engine) == 0.0

    assert shop.bell.rings == ["charges", "default"]


def test_nothing_is_rung_before_it_is_due(shop: Workshop) -> None:
    """The beat sleeps until then: a retry is late by milliseconds, and no ring is wasted."""
    shop.enqueue(delay_seconds=9.0)
    assert ring_due(shop.engine) == 9.0
    shop.clock.advance(9.0)
    assert shop.bell.rings == []

    ring_due(shop.engine)

    assert shop.bell.rings == ["default"]


def test_a_quiet_database_has_nothing_to_ring_for(shop: Workshop) -> None:
    """None says that nothing waits at all."""
    assert ring_due(shop.engine) is None
    assert shop.bell.rings == []


def test_a_broker_that_is_down_does_not_stop_the_turn(shop: Workshop) -> None:
    """The next turn rings again; the rows wait."""
    shop.enqueue()
    shop.enqueue(kind="fragile")
    shop.bell.broken = True

    assert ring_due(shop.engine) == 0.0


@dataclass
class Subscriptions:
    """A ledger with subscriptions whose period has begun."""

    due: list[tuple[UUID, str, date]]
    pages: list[int] = field(default_factory=list)

    def due_subscriptions(self, *, after: UUID | None, limit: int) -> list[tuple[UUID, str, date]]:
        """Page through them in the order of their ids."""
        ids = [item[0] for item in self.due]
        start = 0 if after is None else ids.index(after) + 1
        page = self.due[start : start + limit]
        self.pages.append(len(page))
        return page


class InvoiceArguments(WorkArguments):
    """What an invoice job is told."""

    subscription_id: UUID
    period: date


@pytest.fixture
def billing(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> Subscriptions:
    """Five due subscriptions of two tenants, read two at a time."""
    monkeypatch.setattr(module, "PAGE", 2)
    tenants = ("acme", "acme", "other", "acme", "acme")
    ledger = Subscriptions([(uuid4(), tenant, date(2026, 3, 31)) for tenant in tenants])
    shop.kind(
        "invoice",
        queue="invoices",
        arguments=InvoiceArguments,
        key=lambda arguments, _ledger, _transaction: str(arguments["subscription_id"]),
    )
    ports = replace(shop.engine.ports, ledger=cast("Ledger", ledger))
    shop.engine = replace(shop.engine, ports=ports)
    return ledger


def test_each_due_subscription_gets_an_invoice_job(shop: Workshop, billing: Subscriptions) -> None:
    """Page by page, under its tenant and its own period, and one ring for all."""
    assert bill_due(shop.engine) == 5

    made = shop.store.inserted
    assert [(job.kind, job.tenant, job.actor) for job in made] == [
        ("invoice", tenant, "bill_due") for _, tenant, _ in billing.due
    ]
    assert [job.arguments["subscription_id"] for job in made] == [str(i) for i, _, _ in billing.due]
    assert {job.arguments["period"] for job in made} == {"2026-03-31"}
    assert billing.pages == [2, 2, 1, 0]
    assert shop.bell.rings == ["invoices"]


def test_billing_again_makes_nothing_twice_and_rings_for_nothing(
    shop: Workshop, billing: Subscriptions
) -> None:
    """G3, G6: two beats, or one beat that crashed half way, are one run."""
    bill_due(shop.engine)
    billing.due.append((uuid4(), "acme", date(2026, 3, 31)))
    shop.bell.rings.clear()

    assert bill_due(shop.engine) == 1
    assert bill_due(shop.engine) == 0

    assert shop.bell.rings == ["invoices"]


def test_a_store_that_goes_away_in_the_middle_leaves_whole_pages(
    shop: Workshop, billing: Subscriptions
) -> None:
    """The next turn goes on where this one stopped."""
    shop.store.failures.append(StoreUnavailable("Postgres cannot be reached."))
    with pytest.raises(StoreUnavailable):
        bill_due(shop.engine)

    assert bill_due(shop.engine) == len(billing.due)
