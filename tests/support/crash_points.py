"""
Kills the process that runs a charge right after a named step, the first time it passes there.

A worker imports this module as an entry point, so nothing of it is in the product. The plan is a
directory `crash plan` beside the worker's logs with one file an invoice or subscription, holding
the name of the step: `plan_crash` writes it. Each file works once.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from billing_jobs.adapters.gateway.http import HttpGateway
from billing_jobs.adapters.postgres.jobs import PostgresJobStore
from billing_jobs.adapters.postgres.ledger import PostgresLedger

PLAN = "crash plan"

#: The steps of a charge in the order in which they are written.
STEPS = (
    "claim",
    "open_charge",
    "declare_call",
    "create",
    "keep_object",
    "confirm",
    "record",
)


def plan_crash(directory: Path, subject: UUID, step: str, *, number: int = signal.SIGKILL) -> None:
    """Let the first process that passes the step for an invoice or subscription get the signal."""
    plan = directory / PLAN
    plan.mkdir(exist_ok=True)
    (plan / str(subject)).write_text(f"{step} {int(number)}", encoding="utf-8")


def happened(directory: Path, subject: UUID) -> bool:
    """Whether the planned crash took place."""
    return (directory / PLAN / f"{subject}.done").exists()


def _pass(step: str, subject: object) -> None:
    plan = Path.cwd() / PLAN / str(subject)
    try:
        planned, number = plan.read_text(encoding="utf-8").split()
        if planned == step:
            plan.rename(plan.with_suffix(".done"))
            os.kill(os.getpid(), int(number))
    except FileNotFoundError:
        return


def _subject(arguments: Mapping[str, object]) -> object:
    return arguments.get("invoice_id") or arguments.get("subscription_id")


def _after(owner: type, method: str, then: Callable[..., None]) -> None:
    original = getattr(owner, method)

    def patched(self: object, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - any method
        result = original(self, *args, **kwargs)
        then(result, *args, **kwargs)
        return result

    setattr(owner, method, patched)


#: The invoice of each object of the gateway that this process made or found.
_invoices: dict[str, UUID] = {}


def _claimed(jobs: Any, *_: Any, **__: Any) -> None:  # noqa: ANN401
    for job in jobs:
        _pass("claim", _subject(job.arguments))


def _kept(_result: None, _job: object, attempt: Any, reference: str) -> None:  # noqa: ANN401
    _invoices[reference] = attempt.invoice_id
    _pass("keep_object", attempt.invoice_id)


_after(PostgresJobStore, "claim", _claimed)
_after(
    PostgresJobStore, "record", lambda _, job, *__, **___: _pass("record", _subject(job.arguments))
)
_after(PostgresLedger, "open_charge", lambda _, __, invoice, *___: _pass("open_charge", invoice))
_after(
    PostgresLedger, "declare_call", lambda _, __, attempt: _pass("declare_call", attempt.invoice_id)
)
_after(PostgresLedger, "keep_object", _kept)
_after(
    HttpGateway,
    "create",
    lambda _, asked, **__: _pass("create", dict(asked.metadata)["invoice_id"]),
)
_after(
    HttpGateway, "confirm", lambda _, reference, **__: _pass("confirm", _invoices.get(reference))
)
