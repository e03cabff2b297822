"""Invoices for tests: a small book, imported and billed through the real path."""

from __future__ import annotations

from uuid import UUID

import psycopg

from billing_jobs.adapters.postgres.books import PostgresBooks
from billing_jobs.adapters.postgres.engine import Database
from billing_jobs.domain.book import parse_book
from billing_jobs.lifecycle import Engine
from billing_jobs.maintenance.bill_due import bill_due
from billing_jobs.testing import WORKER

HEADER = (
    "customer,name,email,country,timezone,locale,currency,payment_method,gateway,payment_token,"
    "subscription,description,amount_minor,quantity,interval,interval_count,anchor_date,month_end,"
    "bill_from,ends_on,tax_rate_ppm,net_days"
)


def book_text(
    *tokens: str, email: str = "customer{n}@example.com", amount: int = 4900, first: int = 1
) -> str:
    """Return a CSV book with one customer and monthly subscription a payment token."""
    lines = [HEADER]
    for n, token in enumerate(tokens, start=first):
        address = email.format(n=n)
        lines.append(
            f"c{n},Customer {n},{address},DE,Europe/Berlin,de,EUR,pm{n},sandbox,{token},"
            f"s{n},Plan,{amount},1,month,1,2024-01-31,true,,,190000,14"
        )
    return "\n".join(lines) + "\n"


def bill(
    engine: Engine,
    database_url: str,
    *tokens: str,
    email: str = "customer{n}@example.com",
    amount: int = 4900,
    first: int = 1,
) -> list[UUID]:
    """
    Import a customer a token and issue its invoice; return the invoices' ids in the tokens' order.

    The charges stay pending: only the queue of invoices is run.
    """
    from billing_jobs import lifecycle  # noqa: PLC0415 - keeps the helper's imports in one place

    database = Database(database_url)
    try:
        book = parse_book(
            book_text(*tokens, email=email, amount=amount, first=first),
            file_format="csv",
            file_name="book.csv",
        )
        PostgresBooks(database).add(book, tenant="default")
    finally:
        database.close()
    bill_due(engine)
    while lifecycle.run_next(engine, "invoices", WORKER):
        pass
    return invoices(database_url)


def invoices(database_url: str) -> list[UUID]:
    """Return the ids of all invoices, in the order of their subscriptions' references."""
    rows = query(
        database_url,
        "SELECT invoices.id FROM invoices JOIN subscriptions s ON s.id = subscription_id "
        "ORDER BY length(s.reference), s.reference",
    )
    return [UUID(str(row[0])) for row in rows]


def query(database_url: str, sql: str, *parameters: object) -> list[tuple[object, ...]]:
    """Run a statement on the test's database; tests look where no port does."""
    plain = database_url.replace("postgresql+psycopg://", "postgresql://")
    with psycopg.connect(plain, autocommit=True) as connection:
        cursor = connection.execute(sql, parameters)
        return cursor.fetchall() if cursor.description else []
