"""
How a Stripe-shaped payment intent reads as a `GatewayObject`, and what of an answer may be kept.

Owns the reading of bodies and the redaction. Owns neither HTTP nor the classes of failures.
"""

from __future__ import annotations

import json
import re
from types import MappingProxyType

from billing_jobs.domain.payment import GatewayObject, ObjectStatus

#: What is kept of an answer as evidence; a payment intent has about 1,500 characters.
RAW_LENGTH_MAX = 4_000
#: The statuses that say all by themselves.
_STATUSES = MappingProxyType(
    {
        "requires_confirmation": ObjectStatus.UNCONFIRMED,
        "requires_action": ObjectStatus.REQUIRES_ACTION,
        "processing": ObjectStatus.PENDING,
        "succeeded": ObjectStatus.SUCCEEDED,
        "canceled": ObjectStatus.CANCELLED,
    }
)
_CURRENCY = re.compile(r"[a-z]{3}")
# What must never reach a row or a log: payment tokens, client secrets, API keys, mail addresses,
# and anything as long as a card number.
_SECRETS = (
    (re.compile(r"\b(pm|card|src|tok|ba|seti)_\w+"), r"\1_***"),
    (re.compile(r"(_secret_)\w+"), r"\1***"),
    (re.compile(r"\b([sr]k)_\w+"), r"\1_***"),
    # Bounded: without it a long run of other characters costs its length squared.
    (re.compile(r"[^\s\"'<>@]{1,64}@[^\s\"'<>@]{1,255}"), "***@***"),
    (re.compile(r"\b[0-9](?:[ -]?[0-9]){12,18}\b"), "***"),
)


class Unreadable(Exception):
    """A body that is no payment intent as we know it; the text says why."""


def redacted(body: bytes) -> str:
    """
    Return what may be kept of an answer.

    >>> redacted(b'{"id": "pi_1", "payment_method": "pm_card_visa"}')
    '{"id": "pi_1", "payment_method": "pm_***"}'
    """
    # Cut with room to spare before the masks, and exactly after them: a mask may be longer than
    # what it hides, and a secret must not be cut in two so that its mask misses it.
    text = body[: 4 * RAW_LENGTH_MAX].decode("utf-8", "replace")
    for pattern, mask in _SECRETS:
        text = pattern.sub(mask, text)
    return text.replace("\x00", "")[:RAW_LENGTH_MAX]


def json_object(body: bytes) -> dict[str, object]:
    """Return the JSON object in a body."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Unreadable("the body is no JSON") from error
    if not isinstance(value, dict):
        raise Unreadable("the body is no JSON object")
    return value


def gateway_object(intent: object, *, raw: str, replayed: bool = False) -> GatewayObject:
    """Read one payment intent; `raw` is kept as it is given."""
    if not isinstance(intent, dict):
        raise Unreadable("there is no payment intent")
    reference, currency = intent.get("id"), intent.get("currency")
    if not isinstance(reference, str) or not reference:
        raise Unreadable("the payment intent has no id")
    if not isinstance(currency, str) or not _CURRENCY.fullmatch(currency.lower()):
        raise Unreadable("the payment intent has no currency")
    charge = intent.get("latest_charge")
    return GatewayObject(
        reference=reference,
        status=_status(intent),
        amount_minor=_amount(intent, "amount"),
        amount_received_minor=_amount(intent, "amount_received"),
        currency=currency.upper(),
        charge_reference=charge if isinstance(charge, str) else None,
        decline_code=_decline_code(intent.get("last_payment_error")),
        replayed=replayed,
        raw=raw,
    )


def _status(intent: dict[str, object]) -> ObjectStatus:
    status = intent.get("status")
    if status == "requires_payment_method":
        declined = intent.get("last_payment_error") is not None
        return ObjectStatus.DECLINED if declined else ObjectStatus.UNCONFIRMED
    known = _STATUSES.get(str(status))
    if known is None:
        raise Unreadable(f"we do not know the status {str(status)[:40]!r}")
    return known


def _amount(intent: dict[str, object], name: str) -> int:
    amount = intent.get(name)
    if not isinstance(amount, int) or isinstance(amount, bool) or amount < 0:
        raise Unreadable(f"{name} is no amount in minor units")
    return amount


def _decline_code(error: object) -> str | None:
    if not isinstance(error, dict):
        return None
    code = error.get("decline_code") or error.get("code")
    return str(code)[:100] if code else None
