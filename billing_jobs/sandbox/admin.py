"""
The endpoints under /sandbox/ by which tests read the book and pull strings.

No key is needed: the sandbox listens on the loopback address unless told otherwise. Owns no rule
about payments.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from billing_jobs.sandbox import payment_intents
from billing_jobs.sandbox.answers import (
    JsonObject,
    Reply,
    RequestRefused,
    invalid_request,
    json_reply,
    missing_resource,
)
from billing_jobs.sandbox.book import Book
from billing_jobs.sandbox.faults import checked_plan, token_rule
from billing_jobs.sandbox.parameters import Parameters

#: Captures of one answer; about 4 MB.
_CAPTURES_PAGE = 10_000
#: Ten years: far beyond any lifetime a test may want to pass.
_ADVANCE_SECONDS_MAX = 10 * 366 * 24 * 3600


class Admin:
    """Answers the requests under /sandbox/."""

    def __init__(self, book: Book, counts: Mapping[str, Mapping[str, int]]) -> None:
        self._book = book
        self._counts = counts
        self._routes: dict[tuple[str, str], Callable[[str, str], JsonObject]] = {
            ("GET", "/sandbox/health"): self._health,
            ("GET", "/sandbox/journal"): self._journal,
            ("GET", "/sandbox/requests"): self._requests,
            ("GET", "/sandbox/faults"): self._plan,
            ("POST", "/sandbox/faults"): self._set_plan,
            ("POST", "/sandbox/clock"): self._advance,
            ("POST", "/sandbox/settle"): self._settle,
        }

    def answer(self, method: str, path: str, query: str, body: str) -> Reply:
        """Answer one request; `query` and `body` as they came."""
        route = self._routes.get((method, path))
        try:
            if route is None:
                known = ", ".join(f"{verb} {known}" for verb, known in sorted(self._routes))
                raise invalid_request(f"No {method} {path} here; there are {known}.", status=404)
            return json_reply(route(query, body))
        except RequestRefused as refused:
            return Reply(refused.status, refused.body())

    def _health(self, _query: str, _body: str) -> JsonObject:
        with self._book.lock:
            return {"status": "ok", "now": self._book.now(), "captures": len(self._book.captures)}

    def _journal(self, query: str, _body: str) -> JsonObject:
        offset = Parameters(query).text("offset") or "0"
        if not offset.isascii() or not offset.isdigit():
            raise invalid_request("The offset is a number.", param="offset")
        start = int(offset)
        with self._book.lock:
            captures = self._book.captures[start : start + _CAPTURES_PAGE]
            more = len(self._book.captures) > start + _CAPTURES_PAGE
        return {"object": "list", "has_more": more, "data": captures}

    def _requests(self, _query: str, _body: str) -> JsonObject:
        with self._book.lock:
            keys = {
                identifier: {operation: len(seen) for operation, seen in intent.keys.items()}
                for identifier, intent in self._book.intents.items()
            }
            routes = {route: dict(counts) for route, counts in self._counts.items()}
        return {"routes": routes, "idempotency_keys": keys}

    def _plan(self, _query: str, _body: str) -> JsonObject:
        with self._book.lock:
            return self._book.faults

    def _set_plan(self, _query: str, body: str) -> JsonObject:
        plan = checked_plan(_json(body))
        self._record({"faults": plan})
        return plan

    def _advance(self, _query: str, body: str) -> JsonObject:
        asked = _json(body)
        advance = _seconds(asked, "advance_seconds", 0.0)
        with self._book.lock:
            lifetime = _seconds(asked, "key_lifetime_seconds", self._book.key_lifetime_seconds)
            record = self._book.clock_record(advance, lifetime)
        self._record(record)
        with self._book.lock:
            return {"now": self._book.now(), "key_lifetime_seconds": lifetime}

    def _settle(self, _query: str, body: str) -> JsonObject:
        asked = _json(body)
        outcome = asked.get("outcome", "ok")
        rule = token_rule(f"pm_sandbox_{outcome}")
        if rule is None:
            raise invalid_request("The outcome is 'ok' or 'decline_<code>'.", param="outcome")
        with self._book.lock:
            identifier = str(asked.get("payment_intent"))
            intent = self._book.intents.get(identifier)
            if intent is None:
                raise missing_resource("payment_intent", identifier, param="intent", status=404)
            change = payment_intents.settled(intent, rule.named, self._book.now())
            position = self._book.record(change.executed.record)
        self._book.sync(position)
        return change.intent.shown

    def _record(self, record: JsonObject) -> None:
        with self._book.lock:
            position = self._book.record(record)
        self._book.sync(position)


def _json(body: str) -> JsonObject:
    try:
        value = json.loads(body)
    except ValueError as error:
        raise invalid_request(f"The body is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise invalid_request("The body is no JSON object.")
    return value


def _seconds(asked: JsonObject, name: str, default: float) -> float:
    value: Any = asked.get(name, default)
    if not isinstance(value, int | float) or not 0 <= value <= _ADVANCE_SECONDS_MAX:
        raise invalid_request(
            f"{name} is a number between 0 and {_ADVANCE_SECONDS_MAX}; the clock never goes back.",
            param=name,
        )
    return float(value)
