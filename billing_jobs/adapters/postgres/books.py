"""
The import of a book into Postgres: all of it or nothing.

Owns the rows. What a book may hold and how its lines are checked is `domain/book.py`.
"""

from __future__ import annotations

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
    """One import inside its transaction."""

    def __init__(self, connection: Connection, tenant: str, now: datetime) -> None:
        self._connection = connection
        self._tenant = tenant
        self._now = now
        self._problems: list[str] = []

    def run(self, book: Book) -> BookReport:
        customers = sum(self._put_customer(customer) for customer in book.customers)
        methods = sum(self._put_method(method) for method in book.payment_methods)
        zones = {customer.reference: customer.timezone for customer in book.customers}
        subscriptions = sum(
            self._put_subscription(item, zones[item.customer]) for item in book.subscriptions
        )
        if self._problems:
            raise BookInvalid(
                "The book contradicts what was imported before; nothing was imported.",
                self._problems,
            )
        return BookReport(
            customers=customers,
            payment_methods=methods,
            subscriptions=subscriptions,
            unchanged=len(book.subscriptions) - subscriptions,
        )

    def _put_customer(self, customer: Customer) -> int:
        key = {"tenant": self._tenant, "reference": customer.reference}
        rows = self._connection.execute(
            SQL["put_customer"],
            {
                **key,
                "id": self._id("customer", customer.reference),
                "name": customer.name,
                "email": customer.email,
                "country": customer.country,
                "timezone": customer.timezone,
                "locale": customer.locale,
                "currency": customer.currency,
            },
        ).rowcount
        there = self._connection.execute(SQL["get_customer_currency"], key).fetchone()
        if there is not None and there["currency"] != customer.currency:
            self._problems.append(
                f"customer {customer.reference}: currency {customer.currency} contradicts "
                f"{there['currency']} of an earlier import; it cannot be changed"
            )
        return rows

    def _put_method(self, method: PaymentMethod) -> int:
        return self._connection.execute(
            SQL["put_payment_method"],
            {
                "id": self._id("payment_method", method.reference),
                "tenant": self._tenant,
                "customer_id": self._id("customer", method.customer),
                "reference": method.reference,
                "gateway": method.gateway,
                "token": method.token,
            },
        ).rowcount

    def _put_subscription(self, item: Subscription, zone: str) -> int:
        terms = self._terms(item)
        index = first_index(item, local_date(self._now, ZoneInfo(zone)))
        start = period_at(item.anchor, item.interval, index).start
        rows = self._connection.execute(
            SQL["put_subscription"],
            {
                **terms,
                "id": self._id("subscription", item.reference),
                "tenant": self._tenant,
                "reference": item.reference,
                "timezone": zone,
                "next_index": index,
                "next_period_start": start,
                "next_period_start_at": day_start(start, ZoneInfo(zone)),
            },
        ).rowcount
        if rows == 0:
            self._compare(item.reference, terms)
        return rows

    def _compare(self, reference: str, terms: dict[str, object]) -> None:
        row = self._connection.execute(
            SQL["get_subscription"], {"tenant": self._tenant, "reference": reference}
        ).fetchone()
        assert row is not None, "Bug: a subscription that conflicted is not there"
        self._problems.extend(
            f"subscription {reference}: {name} {terms[name]} contradicts {row[name]} of an earlier "
            "import; changes of plan are not imported"
            for name in terms
            if row[name] != terms[name]
        )

    def _terms(self, item: Subscription) -> dict[str, object]:
        method = item.payment_method
        return {
            "customer_id": self._id("customer", item.customer),
            "payment_method_id": None if method is None else self._id("payment_method", method),
            "description": item.terms.description,
            "currency": item.terms.currency,
            "unit_amount_minor": item.terms.unit_amount_minor,
            "quantity": item.terms.quantity,
            "tax_rate_ppm": item.terms.tax_rate_ppm,
            "net_days": item.net_days,
            "period_unit": item.interval.unit.value,
            "period_count": item.interval.count,
            "anchor_date": item.anchor.date,
            "month_end": item.anchor.month_end,
            "ends_on": item.ends_on,
        }

    def _id(self, what: str, reference: str) -> UUID:
        return uuid5(NAMESPACE, f"{self._tenant}:{what}:{reference}")


def _now(connection: Connection) -> datetime:
    row = connection.execute(SQL["now"]).fetchone()
    assert row is not None
    now = row["now"]
    assert isinstance(now, datetime)
    return now
