"""
Look at the gateway's object before anything is sent again.

Owns the reading of an object's status into what is known about a charge attempt, shared by the
charge and by the reconciliation of unknown outcomes.
"""

from __future__ import annotations

from datetime import timedelta

from billing_jobs.domain.errors import GatewayOutcomeUnknown
from billing_jobs.domain.job import ClaimedJob
from billing_jobs.domain.ledger import ChargeAnswered, ChargeAttempt
from billing_jobs.domain.outcome import Completed, FollowUp
from billing_jobs.domain.payment import (
    AttemptState,
    GatewayObject,
    ObjectStatus,
    PaymentInstruction,
)
from billing_jobs.ports import Ports

#: The step of the notice that tells a customer about a declined charge.
DECLINED_STEP = "payment_failed"

#: A look-up by metadata starts this long before the attempt was first sent: clocks differ.
LOOK_BACK = timedelta(hours=1)

#: What an object's status says about the attempt that confirmed it. UNCONFIRMED is missing: it says
#: that no confirm has been executed so far.
_STATES = {
    ObjectStatus.SUCCEEDED: AttemptState.SUCCEEDED,
    ObjectStatus.DECLINED: AttemptState.DECLINED,
    ObjectStatus.CANCELLED: AttemptState.DECLINED,
    ObjectStatus.PENDING: AttemptState.PENDING,
    ObjectStatus.REQUIRES_ACTION: AttemptState.REQUIRES_ACTION,
}


def find_object(ports: Ports, attempt: ChargeAttempt) -> GatewayObject | None:
    """
    Read the debt's object at the gateway, by its id or by what we wrote on it; never moves money.

    None means that the gateway shows no such object.
    """
    if attempt.object_reference is not None:
        return ports.gateway.retrieve(attempt.object_reference)
    since = (attempt.first_sent_at or ports.clock.now()) - LOOK_BACK
    found = ports.gateway.find(
        metadata_key="invoice_id", metadata_value=str(attempt.invoice_id), created_since=since
    )
    paid = [item for item in found if item.status is ObjectStatus.SUCCEEDED]
    return next(iter(paid or found), None)


def payment_object(
    job: ClaimedJob, ports: Ports, attempt: ChargeAttempt, found: GatewayObject | None
) -> str:
    """
    Return the id of the debt's object; one that was found, or a new one, is committed first.

    Crash safety: an unconfirmed object moves no money; created again under its key it is the same
    object, and its id is committed before anybody may confirm it.
    """
    if attempt.object_reference is not None:
        return attempt.object_reference
    if found is None:
        ports.lease.check()
        instruction = PaymentInstruction(
            amount_minor=attempt.amount_minor,
            currency=attempt.currency,
            metadata=(("invoice_id", str(attempt.invoice_id)), ("tenant", job.tenant)),
        )
        found = ports.gateway.create(instruction, key=attempt.object_key)
    ports.ledger.keep_object(job, attempt, found.reference)
    return found.reference


def settled(attempt: ChargeAttempt, answer: GatewayObject) -> Completed | None:
    """
    Return the outcome if the object shows one; None while no confirm of ours was executed.

    An object that was declined by an earlier attempt of the same debt shows that decline until it
    is confirmed again, so a decline counts only for the first attempt of the debt.
    """
    if answer.status is ObjectStatus.UNCONFIRMED:
        return None
    if answer.status is ObjectStatus.DECLINED and attempt.number > 1:
        return None
    return answered(attempt, answer)


def answered(attempt: ChargeAttempt, answer: GatewayObject) -> Completed:
    """
    Return the outcome of an attempt that the gateway answered.

    Raises `GatewayOutcomeUnknown` when the money is of another currency than the debt: it is never
    applied, the attempt stays in doubt until a person has looked.
    """
    if answer.currency != attempt.currency:
        raise GatewayOutcomeUnknown(
            f"Payment object {answer.reference} is in {answer.currency}, the debt in "
            f"{attempt.currency}. Nothing was applied; a person must look at the gateway.",
            raw=answer.raw,
        )
    state = _STATES.get(answer.status, AttemptState.PENDING)
    effect = ChargeAnswered(attempt.id, state, _reason(state, answer), answer=answer)
    result = {"outcome": state.value, "attempt_id": str(attempt.id)}
    if state is AttemptState.DECLINED:
        return Completed(
            {**result, "decline_code": answer.decline_code},
            effects=(effect,),
            then=(
                FollowUp(
                    "reminder", {"invoice_id": str(attempt.invoice_id), "step": DECLINED_STEP}
                ),
            ),
        )
    return Completed(result, effects=(effect,))


def reconcile_later(attempt: ChargeAttempt, after_seconds: float) -> FollowUp:
    """Return the job that will ask the gateway about an unknown outcome."""
    return FollowUp(
        "reconcile_charge",
        {"attempt_id": str(attempt.id)},
        key=str(attempt.id),
        after_seconds=after_seconds,
    )


def _reason(state: AttemptState, answer: GatewayObject) -> str:
    if answer.decline_code is not None:
        return f"{state.value}: {answer.decline_code}"
    return state.value
