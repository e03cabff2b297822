"""
Invoices and notices in Postgres: the whole invoice in one transaction, a mail once a step.

Owns the rows; the arithmetic of an invoice is `domain/billing.py`. Every function here runs inside
a transaction of its caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5
from zoneinfo import ZoneInfo

from billing_jobs.adapters.postgres.engine import Connection, statements
from billing_jobs.adapters.postgres.postings import post
from billing_jobs.domain.billing import SubscriptionTerms
from billing_jobs.domain.job import ClaimedJob
from billing_jobs.domain.ledger import (
    DueSubscription,
    InvoiceIssued,
    Notice,
    NoticeAnswered,
    NoticeState,
)
from billing_jobs.domain.periods import Anchor, Interval, IntervalUnit, local_date

SQL = statements("invoices")

#: Invoices of subscriptions are numbered in this series.
SERIES = "INV"

#: Digits of a printed invoice number.
NUMBER_DIGITS = 6

#: Notices are named under this, so that one step of one invoice has one id for ever.
NAMESPACE = uuid5(NAMESPACE_URL, "billing-jobs:notices")


def due_subscription(connection: Connection, subscription_id: UUID) -> DueSubscription | None:
    """Read a subscription and its next period."""
    row = connection.execute(
        SQL["due_subscription"], {"subscription_id": subscription_id}
    ).fetchone()
    if row is None:
        return None
    now: datetime = row["now"]
    return DueSubscription(
        id=row["id"],
        tenant=row["tenant"],
        terms=SubscriptionTerms(
            description=row["description"],
            unit_amount_minor=row["unit_amount_minor"],
            currency=row["currency"],
            quantity=row["quantity"],
            tax_rate_ppm=row["tax_rate_ppm"],
        ),
        anchor=Anchor(row["anchor_date"], month_end=row["month_end"]),
        interval=Interval(IntervalUnit(row["period_unit"]), row["period_count"]),
        zone=row["timezone"],
        net_days=row["net_days"],
        index=row["next_index"],
        ends_on=row["ends_on"],
        active=row["state"] == "active",
        today=local_date(now, ZoneInfo(row["timezone"])),
    )


def due_subscriptions(
    connection: Connection, *, after: UUID | None, limit: int
) -> list[tuple[UUID, str, date]]:
    """Read one page of subscriptions whose next period has begun."""
    rows = connection.execute(SQL["due_subscriptions"], {"after": after, "limit": limit})
    return [(row["id"], row["tenant"], row["next_period_start"]) for row in rows]


def issue(connection: Connection, effect: InvoiceIssued) -> None:
    """
    Write one invoice whole: period, lines, taxes, ledger, and its number last.

    A period that was billed before is success and changes nothing.
    """
    values = _values(effect)
    owner = connection.execute(SQL["advance_subscription"], values).fetchone()
    if owner is None:
        return
    values |= {"tenant": owner["tenant"], "customer_id": owner["customer_id"]}
    if connection.execute(SQL["take_period"], values).rowcount == 0:
        return
    connection.execute(SQL["draft_invoice"], values)
    _add_lines(connection, effect)
    _post_issue(connection, effect, str(owner["tenant"]))
    number = connection.execute(SQL["take_number"], values).fetchone()
    assert number is not None
    connection.execute(SQL["issue_invoice"], {**values, "number": number["number"]})


def open_notice(
    connection: Connection, job: ClaimedJob, invoice_id: UUID, *, step: str, domain: str
) -> Notice | None:
    """Write a notice down or find it, with the facts of this moment."""
    notice_id = uuid5(NAMESPACE, f"{invoice_id}:{step}:mail")
    connection.execute(
        SQL["open_notice"],
        {
            "id": notice_id,
            "invoice_id": invoice_id,
            "step": step,
            "message_id": f"<{notice_id}@{domain}>",
            "token": job.token,
        },
    )
    row = connection.execute(SQL["get_notice"], {"invoice_id": invoice_id, "step": step}).fetchone()
    return None if row is None else _notice(row)


def begin_data(connection: Connection, job: ClaimedJob, notice: Notice) -> int:
    """Mark that DATA begins; returns the rows changed."""
    return connection.execute(
        SQL["begin_data"], {"notice_id": notice.id, "token": job.token}
    ).rowcount


def answer_notice(connection: Connection, job: ClaimedJob, effect: NoticeAnswered) -> int:
    """Write what became of a notice; returns the rows changed."""
    return connection.execute(
        SQL["answer_notice"],
        {
            "notice_id": effect.notice_id,
            "state": effect.state.value,
            "reason": effect.reason,
            "token": job.token,
        },
    ).rowcount


def printed_number(series: str, number: int) -> str:
    """
    Return an invoice number as it is printed.

    >>> printed_number("INV", 42)
    'INV-000042'
    """
    return f"{series}-{number:0{NUMBER_DIGITS}d}"


def _values(effect: InvoiceIssued) -> dict[str, object]:
    return {
        "invoice_id": effect.invoice_id,
        "subscription_id": effect.subscription_id,
        "index": effect.index,
        "period_start": effect.period.start,
        "period_end": effect.period.end,
        "next_period_start": effect.next_period.start,
        "next_due_at": effect.next_due_at,
        "series": SERIES,
        "currency": effect.draft.currency,
        "subtotal_minor": effect.draft.subtotal_minor,
        "tax_minor": effect.draft.tax_minor,
        "total_minor": effect.draft.total_minor,
        "issued_on": effect.issued_on,
        "due_on": effect.due_on,
    }


def _add_lines(connection: Connection, effect: InvoiceIssued) -> None:
    for position, line in enumerate(effect.draft.lines, start=1):
        connection.execute(
            SQL["add_line"],
            {
                "invoice_id": effect.invoice_id,
                "position": position,
                "description": line.item.description,
                "quantity": line.item.quantity,
                "unit_amount_minor": line.item.unit_amount_minor,
                "net_minor": line.net_minor,
                "tax_rate_ppm": line.item.tax_rate_ppm,
                "tax_minor": line.tax_minor,
            },
        )
    for tax in effect.draft.taxes:
        connection.execute(
            SQL["add_tax"],
            {
                "invoice_id": effect.invoice_id,
                "rate_ppm": tax.tax_rate_ppm,
                "base_minor": tax.base_minor,
                "tax_minor": tax.tax_minor,
            },
        )


def _post_issue(connection: Connection, effect: InvoiceIssued, tenant: str) -> None:
    post(
        connection,
        transaction_id=effect.invoice_id,
        tenant=tenant,
        currency=effect.draft.currency,
        sides={
            "receivable": effect.draft.total_minor,
            "revenue": -effect.draft.subtotal_minor,
            "tax": -effect.draft.tax_minor,
        },
        invoice_id=effect.invoice_id,
    )


def _notice(row: Mapping[str, Any]) -> Notice:
    obsolete = None
    if row["invoice_state"] not in {"open", "uncollectible"}:
        obsolete = f"the invoice is {row['invoice_state']}"
    elif row["disputed"]:
        obsolete = "the invoice is disputed"
    return Notice(
        id=row["id"],
        message_id=row["message_id"],
        state=NoticeState(row["state"]),
        recipient=row["recipient"],
        name=row["name"],
        number=printed_number(row["series"], row["number"] or 0),
        step=row["step"],
        open_minor=row["open_minor"],
        currency=row["currency"],
        due_on=row["due_on"],
        obsolete=obsolete,
    )
