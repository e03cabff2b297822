"""
Enqueue the invoice of each subscription whose next period has begun.

Owns the paging. The invoices themselves, and catching up on more than one period, are jobs.
"""

from __future__ import annotations

from billing_jobs import lifecycle
from billing_jobs.domain.job import NewJob
from billing_jobs.lifecycle import Engine, Options

#: Subscriptions read, and jobs recorded, at a time.
PAGE = 500


def bill_due(engine: Engine) -> int:
    """
    Record one invoice job a due subscription; return how many are new.

    Crash safety: page by page, each one transaction; run again, jobs that are there already are
    found by their business key (subscription, component, period) and nothing is made twice.
    """
    made, after = 0, None
    while page := engine.ports.ledger.due_subscriptions(after=after, limit=PAGE):
        after = page[-1][0]
        jobs = [_invoice_job(engine, str(item[0]), item[1], item[2].isoformat()) for item in page]
        made += sum(recorded.created for recorded in engine.store.insert(jobs))
    if made:
        lifecycle.ring(engine, "invoices")
    return made


def _invoice_job(engine: Engine, subscription_id: str, tenant: str, period: str) -> NewJob:
    return lifecycle.new_job(
        engine,
        "invoice",
        {"subscription_id": subscription_id, "period": period},
        Options(tenant=tenant, actor="bill_due"),
    )
