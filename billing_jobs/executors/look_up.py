"""
Look at the gateway's object before anything is sent again.

Owns the reading of an object's status into what is known about a charge attempt, shared by the
charge and by the reconciliation of unknown outcomes.
"""

from __future__ import annotations

from datetime import timedelta

from billing_jobs.domain.errors import GatewayOutcomeUnknown, GatewayRefusedRequest
from billing_jobs.domain.job import ClaimedJob
from billing_jobs.domain.ledger import ChargeAnswered, ChargeAttempt
from billing_jobs.domain.outcome import Completed, FollowUp, Refused
from billing_jobs.domain.payment import (
    AttemptState,
    GatewayObject,
    ObjectStatus,
    PaymentInstruction,
)
from billing_jobs.ports import Ports

#: The step of the notice that tells a customer about a declined charge.
DECLINED_STEP = "payment_failed"

#: States in which the gateway has accepted and the outcome comes later.
LATER_STATES = frozenset({AttemptState.PENDING, AttemptState.REQUIRES_ACTION})

#: The first question about such an outcome, in seconds; then the ladder goes on.
LATER_SECONDS = 60.0

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
    same = [
        item
        for item in found
        if (item.amount_minor, item.currency) == (attempt.amount_minor, attempt.currency)
    ]
    paid = [item for item in same if item.status is ObjectStatus.SUCCEEDED]
    return next(iter(paid or same), None)


def seen_object(ports: Ports, attempt: ChargeAttempt) -> GatewayObject | None:
    """
    Read the object of an attempt that may have been sent.

    A gateway that does not know an object it has named before proves nothing about the money, so
    that is `GatewayOutcomeUnknown`.
    """
    try:
        return find_object(ports, attempt)
    except GatewayRefusedRequest as error:
        raise GatewayOutcomeUnknown(
            f"The look-up was refused: {error.message}", raw=error.raw
        ) from error


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


def settled(attempt: ChargeAttempt, answer: GatewayObject) -> Completed | Refused | None:
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


def answered(attempt: ChargeAttempt, answer: GatewayObject) -> Completed | Refused:
    """
    Return the outcome of an attempt that the gateway answered.

    Raises `GatewayOutcomeUnknown` when the object is over another amount or currency than the debt:
    it is never applied, the attempt stays in doubt until a person has looked.
    """
    if (answer.amount_minor, answer.currency) != (attempt.amount_minor, attempt.currency):
        raise GatewayOutcomeUnknown(
            f"Payment object {answer.reference} is over {answer.amount_minor} {answer.currency}, "
            f"the debt over {attempt.amount_minor} {attempt.currency}, in minor units. Nothing was "
            "applied; a person must look at the gateway.",
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
    if state in LATER_STATES:
        # The outcome comes later: somebody must ask for it.
        later = (reconcile_later(attempt, LATER_SECONDS),)
        return Completed(result, effects=(effect,), then=later)
    if answer.amount_received_minor < attempt.amount_minor:
        part = f"only {answer.amount_received_minor} of {attempt.amount_minor} arrived"
        return Refused(part, needs_person=True, effects=(effect,))
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
