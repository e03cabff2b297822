"""
How a fault looks from outside: the refusals, the hidden answers and the lies.

Pure: replies in, replies out. When a fault strikes is decided in `faults.py` and `app.py`.
"""

from __future__ import annotations

import re
from dataclasses import replace

from billing_jobs.sandbox.answers import (
    Delivery,
    Executed,
    Headers,
    JsonObject,
    Reply,
    encoded,
    gateway_failed,
    invalid_request,
)
from billing_jobs.sandbox.faults import Fault

_RETRY_AFTER: Headers = (("Retry-After", "1"),)
_KEY_IN_USE = (
    "There is currently another in-progress request using this Idempotency Key (that probably "
    "means you submitted twice, and the other request is still going through): {key}."
)


def refusal(fault: Fault | None, key: str | None) -> Reply | None:
    """Return the answer of a fault that strikes before anything is executed."""
    match fault:
        case Fault.HANG_BEFORE_CHARGE:
            reply = Reply(0, b"", delivery=Delivery.HELD)
        case Fault.RESET_BEFORE_CHARGE:
            reply = Reply(0, b"", delivery=Delivery.RESET)
        case Fault.IN_FLIGHT:
            reply = in_use(key or "")
        case Fault.BUSY:
            busy = invalid_request("Too many requests.", code="rate_limit", status=429)
            reply = Reply(busy.status, busy.body(), _RETRY_AFTER)
        case Fault.UNAUTHORIZED:
            reply = Reply(401, invalid_request("Invalid API Key provided.").body())
        case Fault.FORBIDDEN:
            reply = Reply(403, invalid_request("This key may not do that.").body())
        case _:
            return None
    return reply


def in_use(key: str) -> Reply:
    """Return the answer while another request with the same key runs."""
    message = _KEY_IN_USE.format(key=key)
    error = {"type": "idempotency_error", "code": "idempotency_key_in_use", "message": message}
    return Reply(409, encoded({"error": error}))


def or_failed(executed: Executed, fault: Fault | None) -> Executed:
    """Return the 500 that hides what was done, where the fault asks for it."""
    if fault in {Fault.ERROR_AFTER_CHARGE, Fault.ERROR_BEFORE_CHARGE}:
        return failed(executed.record)
    return executed


def failed(record: JsonObject) -> Executed:
    """Return a 500; `record` is what happened all the same."""
    refused = gateway_failed("Sorry! There was an error while talking to one of our backends.")
    return Executed(refused.status, refused.body(), record)


def delivered(reply: Reply, fault: Fault | None) -> Reply:
    """Return the reply as the fault lets it through; the saved answer is not touched."""
    match fault:
        case Fault.HANG_AFTER_CHARGE:
            reply = replace(reply, delivery=Delivery.HELD)
        case Fault.RESET_AFTER_CHARGE:
            reply = replace(reply, delivery=Delivery.RESET)
        case Fault.GARBAGE_AFTER_CHARGE:
            reply = Reply(200, b"<html>Bad gateway</html>", content_type="text/html")
        case Fault.WRONG_CURRENCY:
            lie = re.sub(rb'"currency":"[a-z]{3}"', b'"currency":"xof"', reply.body)
            reply = replace(reply, body=lie)
        case Fault.WRONG_AMOUNT:
            reply = replace(reply, body=reply.body.replace(b'"amount":', b'"amount":1'))
        case _:
            pass
    return reply
