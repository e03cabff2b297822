"""
billing_jobs: a billing worker cluster on Celery. Postgres is the truth, the broker is a doorbell.

The tour, in the order of reading:

- `tasks.py`: what other services import; `charge.delay(invoice_id=...)` records a job and rings;
- `lifecycle.py`: the life of a job from enqueue to record, in one file;
- `executors/charge.py`: how one invoice is charged once, whatever dies;
- `adapters/postgres/jobs.sql`: every change of a job's state.

`celery -A billing_jobs worker` and `beat` find the application here; it is made when it is asked
for, so that importing this package is cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["app"]


def __getattr__(name: str) -> Celery:
    """Make the Celery application when somebody asks for `billing_jobs.app`."""
    if name != "app":
        raise AttributeError(f"module 'billing_jobs' has no attribute {name!r}")
    from billing_jobs.worker.app import app  # noqa: PLC0415 - keeps the import cheap

    return app
