"""
What the sandbox answers: replies, how they leave the house, and Stripe's error shape.

Owns no rule about payments and no socket.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

JsonObject = dict[str, Any]

#: Headers of one answer, in order.
Headers = tuple[tuple[str, str], ...]


class Delivery(StrEnum):
    """How a reply leaves the house."""

    #: Written to the client.
    ANSWER = "answer"
    #: Never written: the connection stays open until the client leaves.
    HELD = "held"
    #: Never written: the connection is cut with a RST.
    RESET = "reset"


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer as bytes, and how it is delivered."""

    status: int
    body: bytes
    headers: Headers = ()
    content_type: str = "application/json"
    delivery: Delivery = Delivery.ANSWER
    #: The answer comes from the idempotency cache.
    replayed: bool = False


class RequestRefused(Exception):
    """
    A request that is answered with Stripe's error JSON.

    What execution refuses is kept under the idempotency key, as Stripe does; what validation,
    authentication and the rate limit refuse is not. So it counts where this is raised.
    """

    def __init__(self, status: int, error: JsonObject) -> None:
        super().__init__(status, error)
        self.status = status
        self.error = error

    def body(self) -> bytes:
        """Return the error JSON."""
        return encoded({"error": self.error})


@dataclass(frozen=True, slots=True)
class Executed:
    """What an operation did: the answer, and what must be written down before it is given."""

    status: int
    body: bytes
    #: Parts of one line of the book; empty when nothing changed.
    record: JsonObject = field(default_factory=dict)


def encoded(value: JsonObject) -> bytes:
    """Return JSON as bytes, the same for the same value."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def json_reply(value: JsonObject, *, status: int = 200) -> Reply:
    """Return a plain answer."""
    return Reply(status, encoded(value))


def invalid_request(
    message: str, *, code: str | None = None, param: str | None = None, status: int = 400
) -> RequestRefused:
    """Return Stripe's answer to a request that can never be right."""
    error: JsonObject = {"type": "invalid_request_error", "message": message}
    if code is not None:
        error["code"] = code
    if param is not None:
        error["param"] = param
    return RequestRefused(status, error)


def missing_resource(thing: str, identifier: str, *, param: str, status: int) -> RequestRefused:
    """Return Stripe's answer to an id that names nothing."""
    message = f"No such {thing}: '{identifier}'"
    return invalid_request(message, code="resource_missing", param=param, status=status)


def gateway_failed(message: str, *, status: int = 500) -> RequestRefused:
    """Return Stripe's answer when something broke on its side."""
    return RequestRefused(status, {"type": "api_error", "message": message})
