"""
Double entries: what moves between accounts, always in balance.

Owns the insert; a deferred trigger checks the balance again at the commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from billing_jobs.adapters.postgres.engine import Connection, statements

SQL = statements("ledger")


def post(  # noqa: PLR0913 - one call names the whole transaction
    connection: Connection,
    *,
    transaction_id: UUID,
    tenant: str,
    currency: str,
    sides: Mapping[str, int],
    invoice_id: object = None,
    payment_id: object = None,
) -> None:
    """
    Post a ledger transaction: account to amount in minor units, debits positive, credits negative.

    Crash safety: part of the caller's transaction.
    """
    assert sum(sides.values()) == 0, "Bug: an unbalanced posting"
    connection.execute(
        SQL["post"],
        {
            "transaction_id": transaction_id,
            "tenant": tenant,
            "currency": currency,
            "accounts": list(sides),
            "amounts_minor": list(sides.values()),
            "invoice_id": invoice_id,
            "payment_id": payment_id,
        },
    )
