"""
The import of a book into Postgres: all of it or nothing.

Owns the rows. What a book may hold and how its lines are checked is `domain/book.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from uuid import NAMESPACE_URL, UUID, uuid5
from zoneinfo import ZoneInfo

from billing_jobs.adapters.postgres.engine import Connection, Database, statements
from billing_jobs.domain.book import Book, Customer, PaymentMethod, Subscription, first_index
from billing_jobs.domain.errors import BookInvalid
from billing_jobs.domain.periods import day_start, local_date, period_at
from billing_jobs.ports import BookReport

SQL = statements("books")

#: Ids of imported rows are made of tenant and reference, so that a second import finds them.
NAMESPACE = uuid5(NAMESPACE_URL, "billing-jobs:books")


class PostgresBooks:
    """`Books` over Postgres."""

    def __init__(self, database: Database) -> None:
        """Take the way to the database."""
        self._database = database

    def add(self, book: Book, *, tenant: str) -> BookReport:
        """
        Write a book.

        Customers and payment methods that changed are updated; a subscription that is there under
        other terms is refused, for a change of plan is more than a new row.

        Crash safety: one transaction; imported twice, the second changes nothing.
        """

        def write(connection: Connection) -> BookReport:
            return _Import(connection, tenant, _now(connection)).run(book)

        return self._database.run(write)


class _Import:
    """One import inside its transaction: a few statements, however long the book is."""

    def __init__(self, connection: Connection, tenant: str, now: datetime) -> None:
        self._connection = connection
        self._tenant = tenant
        self._now = now

    def run(self, book: Book) -> BookReport:
        customers = self._put("put_customer", [self._customer(item) for item in book.customers])
        methods = self._put("put_payment_method", [self._method(m) for m in book.payment_methods])
        zones = {customer.reference: customer.timezone for customer in book.customers}
        wanted = [self._subscription(item, zones[item.customer]) for item in book.subscriptions]
        subscriptions = self._put("put_subscription", wanted)
        problems = [*self._other_currencies(book.customers), *self._other_terms(wanted)]
        if problems:
            raise BookInvalid(
                "The book contradicts what was imported before; nothing was imported.", problems
            )
        return BookReport(
            customers=customers,
            payment_methods=methods,
            subscriptions=subscriptions,
            unchanged=len(wanted) - subscriptions,
        )

    def _put(self, name: str, rows: Sequence[Mapping[str, object]]) -> int:
        cursor = self._connection.cursor()
        cursor.executemany(SQL[name], rows)
        return max(cursor.rowcount, 0)

    def _other_currencies(self, customers: Sequence[Customer]) -> Iterator[str]:
        there = self._there("customer_currencies", [item.reference for item in customers])
        for item in customers:
            currency = there[item.reference]["currency"]
            if currency != item.currency:
                yield (
                    f"customer {item.reference}: currency {item.currency} contradicts {currency} "
                    "of an earlier import; it cannot be changed"
                )

    def _other_terms(self, wanted: Sequence[Mapping[str, object]]) -> Iterator[str]:
        there = self._there("subscription_terms", [str(item["reference"]) for item in wanted])
        for item in wanted:
            row = there[str(item["reference"])]
            for name in (column for column in row if row[column] != item[column]):
                yield (
                    f"subscription {item['reference']}: {name} {item[name]} contradicts "
                    f"{row[name]} of an earlier import; changes of plan are not imported"
                )

    def _there(self, name: str, references: list[str]) -> dict[str, dict[str, object]]:
        rows = self._connection.execute(
            SQL[name], {"tenant": self._tenant, "references": references}
        ).fetchall()
        return {row["reference"]: row for row in rows}

    def _customer(self, customer: Customer) -> dict[str, object]:
        return {
            "id": self._id("customer", customer.reference),
            "tenant": self._tenant,
            "reference": customer.reference,
            "name": customer.name,
            "email": customer.email,
            "country": customer.country,
            "timezone": customer.timezone,
            "locale": customer.locale,
            "currency": customer.currency,
        }

    def _method(self, method: PaymentMethod) -> dict[str, object]:
        return {
            "id": self._id("payment_method", method.reference),
            "tenant": self._tenant,
            "customer_id": self._id("customer", method.customer),
            "reference": method.reference,
            "gateway": method.gateway,
            "token": method.token,
        }

    def _subscription(self, item: Subscription, zone: str) -> dict[str, object]:
        index = first_index(item, local_date(self._now, ZoneInfo(zone)))
        start = period_at(item.anchor, item.interval, index).start
        method = item.payment_method
        return {
            "id": self._id("subscription", item.reference),
            "tenant": self._tenant,
            "reference": item.reference,
            "customer_id": self._id("customer", item.customer),
            "payment_method_id": None if method is None else self._id("payment_method", method),
            "description": item.terms.description,
            "currency": item.terms.currency,
            "unit_amount_minor": item.terms.unit_amount_minor,
            "quantity": item.terms.quantity,
            "tax_rate_ppm": item.terms.tax_rate_ppm,
            "net_days": item.net_days,
            "timezone": zone,
            "period_unit": item.interval.unit.value,
            "period_count": item.interval.count,
            "anchor_date": item.anchor.date,
            "month_end": item.anchor.month_end,
            "ends_on": item.ends_on,
            "next_index": index,
            "next_period_start": start,
            "next_period_start_at": day_start(start, ZoneInfo(zone)),
        }

    def _id(self, what: str, reference: str) -> UUID:
        return uuid5(NAMESPACE, f"{self._tenant}:{what}:{reference}")


def _now(connection: Connection) -> datetime:
    row = connection.execute(SQL["now"]).fetchone()
    assert row is not None
    now = row["now"]
    assert isinstance(now, datetime)
    return now
