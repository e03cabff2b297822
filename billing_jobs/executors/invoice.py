"""
Write one invoice for one subscription period.

Owns the choice of the period and of what follows; the arithmetic is `domain/billing.py`, the rows
are the ledger's.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from uuid import NAMESPACE_URL, UUID, uuid5
from zoneinfo import ZoneInfo

from billing_jobs.domain.billing import draft_invoice, due_date
from billing_jobs.domain.job import ClaimedJob
from billing_jobs.domain.ledger import DueSubscription, InvoiceIssued
from billing_jobs.domain.outcome import Completed, Defer, FollowUp, Outcome, Refused
from billing_jobs.domain.periods import Period, day_start, due_indexes, period_at
from billing_jobs.ports import Ledger, Ports, Transaction
from billing_jobs.registry import Arguments, argument_id, job

#: Invoices of subscription periods are named under this: one period has one id for ever.
NAMESPACE = uuid5(NAMESPACE_URL, "billing-jobs:invoices")

#: A job that came before its period looks again after this long at least: clocks differ.
EARLY_SECONDS = 60.0

#: What a subscription bills; usage and add-ons will be components of their own.
COMPONENT = "subscription"


class InvoiceArguments(Arguments):
    """Which subscription to bill, and the first day of the period; None means the next one due."""

    subscription_id: UUID
    period: date | None = None


def invoice_key(
    arguments: Mapping[str, object], ledger: Ledger, transaction: Transaction | None
) -> str:
    """Return (subscription, component, period)."""
    subscription_id = UUID(str(arguments["subscription_id"]))
    period = arguments.get("period") or ledger.next_period_start(subscription_id, transaction)
    return f"{subscription_id}:{COMPONENT}:{period}"


@job("invoice", arguments=InvoiceArguments, queue="invoices", key=invoice_key)
def execute_invoice(job: ClaimedJob, ports: Ports) -> Outcome:
    """
    Bill the next period of a subscription, if it has begun.

    Crash safety: everything is written in the recording transaction; before it nothing happened.
    Run twice, the second finds the period billed and changes nothing.
    """
    due = ports.ledger.due_subscription(argument_id(job, "subscription_id"))
    if due is None:
        return Refused(f"There is no subscription {job.arguments['subscription_id']}.")
    period = period_at(due.anchor, due.interval, due.index)
    wanted = job.arguments.get("period")
    if wanted is not None and str(wanted) < period.start.isoformat():
        return Completed({"outcome": "billed already", "period": str(wanted)})
    if wanted is not None and str(wanted) != period.start.isoformat():
        return Refused(
            f"The period of {wanted} is not the next one of subscription {due.id}: "
            f"that begins on {period.start}. Periods are billed in order."
        )
    return _bill(due, period, ports.clock.now())


def _bill(due: DueSubscription, period: Period, now: datetime) -> Outcome:
    open_indexes = due_indexes(
        due.anchor,
        due.interval,
        first_index=due.index,
        today=due.today,
        ends_on=due.ends_on,
    )
    ended = due.ends_on is not None and period.start > due.ends_on
    if not due.active or ended:
        return Completed({"outcome": "ended", "period": period.start.isoformat()})
    if not open_indexes:
        # Ended, the job would keep the period's key and nobody could bill it any more.
        begins = day_start(period.start, ZoneInfo(due.zone))
        wait = max((begins - now).total_seconds(), EARLY_SECONDS)
        return Defer("the period has not begun", after_seconds=wait)
    invoice_id = uuid5(NAMESPACE, f"{due.id}:{COMPONENT}:{period.start}")
    draft = draft_invoice(due.terms, period)
    upcoming = period_at(due.anchor, due.interval, due.index + 1)
    effect = InvoiceIssued(
        invoice_id=invoice_id,
        subscription_id=due.id,
        index=due.index,
        period=period,
        next_period=upcoming,
        next_due_at=day_start(upcoming.start, ZoneInfo(due.zone)),
        draft=draft,
        issued_on=due.today,
        due_on=due_date(due.today, due.net_days),
    )
    result = {
        "outcome": "issued",
        "invoice_id": str(invoice_id),
        "total_minor": draft.total_minor,
        "currency": draft.currency,
    }
    return Completed(result, effects=(effect,), then=_then(due, effect, late=len(open_indexes) > 1))


def _then(due: DueSubscription, issued: InvoiceIssued, *, late: bool) -> tuple[FollowUp, ...]:
    """The charge of this invoice, and the invoice of the next period if that has begun as well."""
    charge = FollowUp("charge", {"invoice_id": str(issued.invoice_id)})
    following = FollowUp(
        "invoice", {"subscription_id": str(due.id), "period": issued.next_period.start.isoformat()}
    )
    owed = (charge,) if issued.draft.total_minor > 0 else ()
    return owed + ((following,) if late else ())
