"""
The life of a payment intent: Stripe's object, its statuses, what a confirm does to it.

Pure rules: values in, values out. Whoever calls writes the change to the book.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from types import MappingProxyType

from billing_jobs.sandbox.answers import Executed, JsonObject, RequestRefused, encoded
from billing_jobs.sandbox.book import Intent
from billing_jobs.sandbox.faults import Fault, Named
from billing_jobs.sandbox.parameters import Parameters

_CONFIRMABLE = frozenset({"requires_payment_method", "requires_confirmation", "requires_action"})
_CANCELLABLE = _CONFIRMABLE | {"processing"}
_SETTLEABLE = frozenset({"processing", "requires_action"})

#: Fields that Stripe shows and that are empty at first, or always in a sandbox.
_UNUSED = (
    "application",
    "application_fee_amount",
    "automatic_payment_methods",
    "canceled_at",
    "cancellation_reason",
    "last_payment_error",
    "latest_charge",
    "next_action",
    "on_behalf_of",
    "processing",
    "receipt_email",
    "review",
    "setup_future_usage",
    "shipping",
    "statement_descriptor",
    "statement_descriptor_suffix",
    "transfer_data",
    "transfer_group",
)
#: Stripe repeats these decline codes as the error's code; all others are `card_declined`.
_OWN_CODE = frozenset(
    {
        "authentication_required",
        "expired_card",
        "incorrect_cvc",
        "incorrect_number",
        "processing_error",
    }
)
#: Stripe's advice where it has one for sure.
_ADVICE = MappingProxyType(
    {
        "insufficient_funds": "try_again_later",
        "do_not_honor": "try_again_later",
        "generic_decline": "try_again_later",
        "processing_error": "try_again_later",
        "lost_card": "do_not_try_again",
        "stolen_card": "do_not_try_again",
        "pickup_card": "do_not_try_again",
        "fraudulent": "do_not_try_again",
        "expired_card": "confirm_card_data",
        "incorrect_cvc": "confirm_card_data",
        "incorrect_number": "confirm_card_data",
    }
)


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to a payment intent: its new face, a capture, the answer."""

    intent: Intent
    executed: Executed


def new_intent(parameters: Parameters, now: float) -> Intent:
    """Return a fresh, unconfirmed payment intent."""
    identifier = f"pi_{secrets.token_hex(12)}"
    amount, currency = parameters.amount(), parameters.currency()
    token, metadata = parameters.payment_method(), parameters.metadata()
    shown = {
        "id": identifier,
        "object": "payment_intent",
        "amount": amount,
        "amount_capturable": 0,
        "amount_details": {"tip": {}},
        "amount_received": 0,
        "capture_method": "automatic",
        "client_secret": f"{identifier}_secret_{secrets.token_hex(12)}",
        "confirmation_method": "automatic",
        "created": int(now),
        "currency": currency,
        "customer": parameters.text("customer") or None,
        "description": parameters.text("description") or None,
        "livemode": False,
        "metadata": metadata,
        "payment_method": token or None,
        "payment_method_options": {},
        "payment_method_types": ["card"],
        "status": "requires_confirmation" if token else "requires_payment_method",
    }
    shown |= dict.fromkeys(_UNUSED)
    return Intent(shown, token)


def created(intent: Intent) -> Change:
    """Return the answer to a create."""
    return _changed(intent, {}, intent.token)


def is_confirmable(intent: Intent) -> bool:
    """Say whether a confirm could do anything."""
    return intent.shown["status"] in _CONFIRMABLE


def check_confirmable(intent: Intent, token: str) -> None:
    """
    Refuse the confirm of an intent that is done, or that has no card.

    This is what keeps one intent to one successful charge when every key is forgotten.
    """
    if not is_confirmable(intent):
        status = intent.shown["status"]
        raise _unexpected_state(
            intent, f"You cannot confirm this PaymentIntent because it has a status of {status}."
        )
    if not token:
        raise _unexpected_state(
            intent, "You cannot confirm this PaymentIntent because it's missing a payment method."
        )


def confirmed(intent: Intent, token: str, named: Named | None, now: float) -> Change:
    """Return what a confirm does: capture, unless the fault says otherwise."""
    fault = named.fault if named else None
    if fault is Fault.DECLINE and named:
        return _declined(intent, token, named.decline_code)
    if fault is Fault.PROCESSING:
        return _changed(intent, _cleared(token, status="processing"), token)
    if fault is Fault.REQUIRES_ACTION:
        action = {"type": "use_stripe_sdk", "use_stripe_sdk": {}}
        face = _cleared(token, status="requires_action") | {"next_action": action}
        return _changed(intent, face, token)
    amount = intent.shown["amount"]
    return _captured(intent, token, (amount + 1) // 2 if fault is Fault.PARTIAL else amount, now)


def cancelled(intent: Intent, reason: str, now: float) -> Change:
    """Return the cancelled intent, or refuse where money has moved."""
    status = intent.shown["status"]
    if status not in _CANCELLABLE:
        raise _unexpected_state(
            intent, f"You cannot cancel this PaymentIntent because it has a status of {status}."
        )
    face = {
        "status": "canceled",
        "canceled_at": int(now),
        "cancellation_reason": reason or None,
        "next_action": None,
    }
    return _changed(intent, face, intent.token)


def settled(intent: Intent, named: Named | None, now: float) -> Change:
    """Return the late end of a payment that was processing or waited for the customer."""
    status = intent.shown["status"]
    if status not in _SETTLEABLE:
        raise _unexpected_state(intent, f"Nothing to settle: the status is {status}.")
    return confirmed(intent, intent.token, named, now)


def _captured(intent: Intent, token: str, amount: int, now: float) -> Change:
    charge = f"ch_{secrets.token_hex(12)}"
    face = _cleared(token, status="succeeded")
    face |= {"amount_received": amount, "latest_charge": charge}
    capture = {
        "charge": charge,
        "payment_intent": intent.shown["id"],
        "amount": amount,
        "currency": intent.shown["currency"],
        "metadata": intent.shown["metadata"],
        "created": int(now),
    }
    changed = _changed(intent, face, token)
    record = {**changed.executed.record, "capture": capture}
    return Change(changed.intent, Executed(200, changed.executed.body, record))


def _declined(intent: Intent, token: str, decline_code: str) -> Change:
    charge = f"ch_{secrets.token_hex(12)}"
    error: JsonObject = {
        "type": "card_error",
        "code": decline_code if decline_code in _OWN_CODE else "card_declined",
        "decline_code": decline_code,
        "message": "Your card was declined.",
        "charge": charge,
        "payment_method": {"id": token, "object": "payment_method", "type": "card"},
    }
    if decline_code in _ADVICE:
        error["advice_code"] = _ADVICE[decline_code]
    # Stripe takes the card off the intent. The token is kept all the same, see `Intent.token`.
    face: JsonObject = {
        "status": "requires_payment_method",
        "payment_method": None,
        "last_payment_error": error,
        "latest_charge": charge,
        "next_action": None,
    }
    changed = _changed(intent, face, token)
    body = encoded({"error": {**error, "payment_intent": changed.intent.shown}})
    return Change(changed.intent, Executed(402, body, changed.executed.record))


def _changed(intent: Intent, face: JsonObject, token: str) -> Change:
    changed = intent.showing({**intent.shown, **face}, token)
    executed = Executed(200, encoded(changed.shown), {"intent": changed.as_record()})
    return Change(changed, executed)


def _cleared(token: str, *, status: str) -> JsonObject:
    return {
        "status": status,
        "payment_method": token,
        "last_payment_error": None,
        "next_action": None,
    }


def _unexpected_state(intent: Intent, message: str) -> RequestRefused:
    error = {
        "type": "invalid_request_error",
        "code": "payment_intent_unexpected_state",
        "message": message,
        "payment_intent": intent.shown,
    }
    return RequestRefused(400, error)
