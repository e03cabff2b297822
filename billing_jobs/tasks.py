"""
What other services import: `from billing_jobs.tasks import charge, invoice, reminder`.

Owns the typed signatures. `charge.delay(invoice_id=...)` records a job in Postgres and returns a
handle whose id is the job's id; a wrong or unknown argument is an error at the caller, for the type
checker and at run time.
"""

from __future__ import annotations

from datetime import date
from uuid import UUID

from billing_jobs.adapters.doorbell import DRAIN_TASK
from billing_jobs.worker.app import app, runtime
from billing_jobs.worker.door import door
from billing_jobs.worker.drain import drain as drain_queue
from billing_jobs.worker.shutdown import node_name, stopping


@door("charge")
def charge(invoice_id: UUID) -> None:
    """Collect what is open on one invoice, once."""


@door("invoice")
def invoice(subscription_id: UUID, period: date | None = None) -> None:
    """Write the invoice of a subscription's next period, or of the one that begins on `period`."""


@door("reminder")
def reminder(invoice_id: UUID, step: str | None = None) -> None:
    """Remind the customer of an invoice, once a step."""


@app.task(name=DRAIN_TASK, acks_late=False, send_events=False, ignore_result=True)
def drain(queue: str) -> int:
    """Run what is due in one queue; sent by rings, never by services."""
    prepared = runtime()
    return drain_queue(
        prepared.engine,
        queue,
        worker=node_name(),
        slice_seconds=prepared.settings.drain_slice_seconds,
        stopping=stopping,
    )
