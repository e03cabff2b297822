"""
Charge one invoice once.

Owns the order of a charge: write the attempt down (T1), declare the call (T2), create the gateway's
object unconfirmed and keep its id, confirm it, answer (T3). Owns no SQL and no HTTP. What happens
when the answer is missing is `look_up.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from billing_jobs.domain.errors import (
    GatewayAuthentication,
    GatewayBusy,
    GatewayNotSent,
    GatewayOutcomeUnknown,
    GatewayRefusedRequest,
    NotFound,
)
from billing_jobs.domain.job import ClaimedJob
from billing_jobs.domain.ledger import ChargeAnswered, ChargeAttempt, NothingDue
from billing_jobs.domain.outcome import Completed, Outcome, Refused, RetryLater, Unknown
from billing_jobs.domain.payment import AttemptState
from billing_jobs.executors import look_up
from billing_jobs.ports import Ledger, Ports, Transaction
from billing_jobs.registry import Arguments, OnExpiredLease, argument_id, job


class ChargeArguments(Arguments):
    """Which invoice to collect."""

    invoice_id: UUID


def charge_key(
    arguments: Mapping[str, object], ledger: Ledger, transaction: Transaction | None
) -> str:
    """Return (invoice, number of the try): twice it is one job, after a decline it is a new one."""
    invoice_id = UUID(str(arguments["invoice_id"]))
    return f"{invoice_id}:{ledger.next_collection_number(invoice_id, transaction)}"


@job(
    "charge",
    arguments=ChargeArguments,
    queue="charges",
    key=charge_key,
    on_expired_lease=OnExpiredLease.RECONCILE,
)
def execute_charge(job: ClaimedJob, ports: Ports) -> Outcome:
    """
    Collect what is open on one invoice.

    Crash safety: before T1 nothing happened. After T1 the attempt is found again, nothing was sent.
    After T2 the outcome counts as unknown: the next run looks the gateway's object up before it
    confirms it again, under the same key, and one object takes money at most once. Twice at the
    same time: the second one finds the live attempt of the first, and its writes are fenced by the
    token.
    """
    invoice_id = argument_id(job, "invoice_id")
    try:
        opened = ports.ledger.open_charge(job, invoice_id, ports.gateway.name)
    except NotFound as missing:
        return Refused(missing.message)
    if isinstance(opened, NothingDue):
        return _nothing(opened)
    return _charge(job, ports, opened)


def _charge(job: ClaimedJob, ports: Ports, opened: ChargeAttempt) -> Outcome:
    if opened.state is AttemptState.CREATED:
        ports.lease.check()
        ports.ledger.declare_call(job, opened)
        return collect(job, ports, opened, seen_before=False)
    if opened.state is AttemptState.SENDING:
        return collect(job, ports, opened, seen_before=True)
    # Unknown, pending or waiting for the customer: others own the debt, nothing is sent.
    return Completed({"outcome": opened.state.value, "attempt_id": str(opened.id)})


def collect(job: ClaimedJob, ports: Ports, attempt: ChargeAttempt, *, seen_before: bool) -> Outcome:
    """
    Confirm the gateway's object, after looking at it if somebody may have confirmed it before.

    Crash safety: the attempt was declared; see `execute_charge`.
    """
    try:
        return _confirmed(job, ports, attempt, seen_before=seen_before)
    except (GatewayNotSent, GatewayBusy, GatewayAuthentication) as error:
        # The attempt stays declared: the next run looks before it sends.
        return RetryLater(error.message, after_seconds=error.retry_after_seconds, outage=True)
    except GatewayRefusedRequest as error:
        effect = ChargeAnswered(attempt.id, AttemptState.FAILED_NOT_SENT, error.message)
        return Refused(error.message, needs_person=True, effects=(effect,))
    except GatewayOutcomeUnknown as error:
        return _in_doubt(ports, attempt, error)


def _confirmed(
    job: ClaimedJob, ports: Ports, attempt: ChargeAttempt, *, seen_before: bool
) -> Completed | Refused:
    found = look_up.seen_object(ports, attempt) if seen_before else None
    known = None if found is None else look_up.settled(attempt, found)
    if known is not None:
        return known
    if not attempt.collectible:
        raise GatewayOutcomeUnknown(
            f"Invoice {attempt.invoice_id} is not to be collected any more, and a call of it may "
            "be on its way. Nothing is sent; its outcome is looked up."
        )
    reference = look_up.payment_object(job, ports, attempt, found)
    ports.lease.check()
    answer = ports.gateway.confirm(reference, key=attempt.key, payment_token=attempt.payment_token)
    return look_up.answered(attempt, answer)


def _in_doubt(ports: Ports, attempt: ChargeAttempt, error: GatewayOutcomeUnknown) -> Unknown:
    first = ports.policy.reconcile_ladder_seconds[0]
    effect = ChargeAnswered(
        attempt.id, AttemptState.UNKNOWN, error.message, probe_after_seconds=first
    )
    return Unknown(
        error.message,
        reference=str(attempt.id),
        effects=(effect,),
        then=(look_up.reconcile_later(attempt, first),),
    )


def _nothing(opened: NothingDue) -> Outcome:
    if opened.needs_person:
        return Refused(opened.reason, needs_person=True)
    return Completed({"outcome": opened.reason})
