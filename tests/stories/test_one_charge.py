"""The path of one charge, from a book to money in the books, as the docs tell it."""

from __future__ import annotations

from support.books import bill, query

from billing_jobs import lifecycle
from billing_jobs.lifecycle import Engine
from billing_jobs.testing import FakeGateway, run_until_idle


def test_an_invoice_is_charged_once_and_ends_paid(
    engine: Engine, database_url: str, gateway: FakeGateway
) -> None:
    """The whole promise in small: one debt, one capture, one payment, a balanced ledger."""
    (invoice_id,) = bill(engine, database_url, "pm_sandbox_ok")

    first = lifecycle.enqueue(engine, "charge", {"invoice_id": invoice_id})
    again = lifecycle.enqueue(engine, "charge", {"invoice_id": invoice_id})
    run_until_idle(engine)

    assert first.id == again.id
    assert len(gateway.journal) == 1
    assert query(database_url, "SELECT state, paid_minor FROM invoices") == [("paid", 5831)]
    assert query(database_url, "SELECT sum(amount_minor) FROM ledger_entries") == [(0,)]
    view = engine.store.get(first.id)
    assert view is not None
    assert view.state == "completed"
    assert view.result is not None
    assert view.result["outcome"] == "succeeded"
