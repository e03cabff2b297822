"""
What an answer of a Stripe-shaped gateway means, and what the lack of one means.

Owns the translation into `GatewayObject` or a `GatewayError` by what is known about the money.
Owns no connection.
"""

from __future__ import annotations

import json
import re
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus

from urllib3 import BaseHTTPResponse
from urllib3.exceptions import (
    ClosedPoolError,
    ConnectTimeoutError,
    LocationParseError,
    ReadTimeoutError,
)

from billing_jobs.adapters.gateway.payment_intent import (
    Unreadable,
    gateway_object,
    json_object,
    redacted,
)
from billing_jobs.domain.errors import (
    GatewayAuthentication,
    GatewayBusy,
    GatewayError,
    GatewayNotSent,
    GatewayOutcomeUnknown,
    GatewayRefusedRequest,
)
from billing_jobs.domain.payment import GatewayObject, ObjectStatus

#: Longest pause a gateway may ask for; beyond it the breaker is the better tool.
RETRY_AFTER_SECONDS_MAX = 300.0
#: A page of 100 objects has about 200 KB.
BODY_BYTES_MAX = 4 * 1024 * 1024
_CHUNK_BYTES = 64 * 1024
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
#: The chains of the library have four links.
_CHAIN_LENGTH_MAX = 20
#: Only a chain with one of these proves that no request left the house. A refused connection and
#: an unresolved name are kinds of the first.
_NEVER_CONNECTED = (
    ClosedPoolError,
    ConnectTimeoutError,
    LocationParseError,
    ssl.SSLCertVerificationError,
)
#: Answered before execution: the same key is in use, or the object is locked.
_IN_FLIGHT = frozenset({"idempotency_key_in_use", "lock_timeout"})
_LOOK_UP = "The money may have moved: look the object up before anything else."


@dataclass(frozen=True, slots=True)
class Answer:
    """One whole HTTP answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    #: What was asked, for error texts: method and path, nothing else.
    asked: str

    @property
    def raw(self) -> str:
        """What may be kept of it."""
        return redacted(self.body)

    def error(self) -> dict[str, object]:
        """Return Stripe's error; empty when the body has none."""
        try:
            error = json_object(self.body).get("error")
        except Unreadable:
            return {}
        return error if isinstance(error, dict) else {}


def content(response: BaseHTTPResponse, seconds: float) -> bytes:
    """Read a body, bounded in size and time; a slow drip must not outlive the read time-out."""
    deadline = time.monotonic() + seconds
    chunks: list[bytes] = []
    size = 0
    while chunk := response.read1(_CHUNK_BYTES):
        chunks.append(chunk)
        size += len(chunk)
        if size > BODY_BYTES_MAX or time.monotonic() > deadline:
            response.close()
            raise TimeoutError(f"the body had no end after {size} bytes and {seconds} s")
    return b"".join(chunks)


def failure(error: Exception, asked: str, *, head_sent: bool | None) -> GatewayError:
    """
    Return what a request without an answer means.

    `head_sent` says whether the kernel took the request's head; None where that was not watched.
    Where it was, nothing else counts: the chain of causes of a call inside an `except` also holds
    what was handled there, so a refused connection in it may be an older one.
    """
    cause = f"{type(error).__name__}: {error}"[:200]
    if head_sent is False or (head_sent is None and _never_connected(error)):
        return GatewayNotSent(
            f"{asked} did not reach the gateway ({cause}). Nothing was sent; try again."
        )
    if isinstance(error, ReadTimeoutError | TimeoutError):
        return GatewayOutcomeUnknown(f"{asked} had no answer in time ({cause}). {_LOOK_UP}")
    return GatewayOutcomeUnknown(f"{asked} lost its connection ({cause}). {_LOOK_UP}")


def _never_connected(error: BaseException) -> bool:
    """
    Say whether a request that moves no money failed before it had a connection.

    A refused connection, a closed peer and a reset look alike from above, so the chain is walked to
    its end; some causes stand in the arguments only.
    """
    links: list[BaseException] = [error]
    for link in links:
        inner = [link.__cause__, link.__context__, *link.args]
        fresh = [one for one in inner if isinstance(one, BaseException) and one not in links]
        links += fresh[: _CHAIN_LENGTH_MAX - len(links)]
    return any(isinstance(link, _NEVER_CONNECTED) for link in links)


def checked(answer: Answer) -> Answer:
    """Return an answer that tells of a payment object; raise for all others."""
    status, error = answer.status, answer.error()
    code = error.get("code")
    if status == HTTPStatus.TOO_MANY_REQUESTS or (
        status == HTTPStatus.CONFLICT and code in _IN_FLIGHT
    ):
        return _raise_busy(answer, str(code))
    if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        raise GatewayAuthentication(
            f"The gateway refused our key for {answer.asked} ({status}). Nothing was executed; "
            "check the gateway's API key.",
            raw=answer.raw,
        )
    if status in {HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND}:
        raise _refused(answer, error)
    if status != HTTPStatus.PAYMENT_REQUIRED and not 200 <= status < 300:  # noqa: PLR2004
        raise unknown(answer, f"answered {status}")
    return answer


def _raise_busy(answer: Answer, code: str) -> Answer:
    raise GatewayBusy(
        f"The gateway did not execute {answer.asked} ({answer.status} {code}). Send it again with "
        "the same key.",
        raw=answer.raw,
        retry_after_seconds=retry_after_seconds(answer.headers),
    )


def _refused(answer: Answer, error: Mapping[str, object]) -> GatewayError:
    code = str(error.get("code") or error.get("type") or "no code")
    if code == "payment_intent_unexpected_state":
        # Most often somebody has charged it already; only the object itself can tell.
        return unknown(answer, "says that the object is not in a state for this")
    return GatewayRefusedRequest(
        f"The gateway refused {answer.asked} ({answer.status} {code}). No money moved; sending it "
        "again is useless.",
        raw=answer.raw,
    )


def unknown(answer: Answer, said: str) -> GatewayOutcomeUnknown:
    """Return the error for an answer that proves nothing."""
    return GatewayOutcomeUnknown(
        f"The gateway {said} to {answer.asked}. {_LOOK_UP}", raw=answer.raw
    )


def retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """
    Return the pause that the gateway asks for, capped; None where it asks for nothing sensible.

    >>> retry_after_seconds({"Retry-After": "9999"}), retry_after_seconds({"Retry-After": "soon"})
    (300.0, None)
    """
    value = headers.get("Retry-After", "").strip()
    if _SECONDS.fullmatch(value):
        return min(float(value), RETRY_AFTER_SECONDS_MAX)
    # A date counts from the gateway's own Date: its clock need not be ours.
    until, now = _date(value), _date(headers.get("Date", ""))
    if until is None or now is None:
        return None
    return min(max((until - now).total_seconds(), 0.0), RETRY_AFTER_SECONDS_MAX)


def _date(value: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(value)
    except ValueError:
        return None
    return date if date.tzinfo is not None else None


def one_object(answer: Answer) -> GatewayObject:
    """Return the payment object of an answer, also of a decline."""
    replayed = answer.headers.get("Idempotent-Replayed", "").lower() == "true"
    declined = answer.status == HTTPStatus.PAYMENT_REQUIRED
    try:
        intent = answer.error().get("payment_intent") if declined else json_object(answer.body)
        told = gateway_object(intent, raw=answer.raw, replayed=replayed)
    except Unreadable as error:
        raise unknown(answer, f"answered {answer.status}, but {error},") from error
    if declined and told.status is not ObjectStatus.DECLINED:
        raise unknown(answer, f"answered {answer.status} about an object that is {told.status}")
    return told


def same_object(answer: Answer, reference: str) -> GatewayObject:
    """Return the payment object of an answer that must be about this one."""
    told = one_object(answer)
    if told.reference != reference:
        raise unknown(answer, f"answered with {told.reference}")
    return told


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list."""

    #: Each object with its metadata.
    objects: list[tuple[GatewayObject, Mapping[str, object]]]
    has_more: bool


def page(answer: Answer) -> Page:
    """
    Return one page of a list.

    One object that cannot be read spoils the page, for it may be the one looked for.
    """
    try:
        return _page(json_object(answer.body))
    except Unreadable as error:
        raise unknown(answer, f"answered {answer.status}, but {error},") from error


def _page(listed: Mapping[str, object]) -> Page:
    intents, has_more = listed.get("data"), listed.get("has_more")
    if not isinstance(intents, list) or not isinstance(has_more, bool):
        raise Unreadable("it is no list")
    if has_more and not intents:
        raise Unreadable("an empty page promises more")
    return Page([_listed(intent) for intent in intents], has_more)


def _listed(intent: object) -> tuple[GatewayObject, Mapping[str, object]]:
    if not isinstance(intent, dict):
        raise Unreadable("there is no payment intent")
    metadata = intent.get("metadata")
    raw = redacted(json.dumps(intent, ensure_ascii=False).encode())
    return gateway_object(intent, raw=raw), metadata if isinstance(metadata, dict) else {}
