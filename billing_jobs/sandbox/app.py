"""
The gateway's front: routes, keys, idempotency, and the order in which faults strike.

A Stripe-compatible subset (payment intents: create, confirm, retrieve, list, cancel), so that
Stripe's own SDK can be pointed at it. Owns the steps of one request; owns neither
sockets (`server.py`) nor the rules of a payment (`payment_intents.py`).
"""

from __future__ import annotations

import re
import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from billing_jobs.sandbox import payment_intents
from billing_jobs.sandbox.admin import Admin
from billing_jobs.sandbox.answers import (
    Delivery,
    Executed,
    JsonObject,
    Reply,
    RequestRefused,
    encoded,
    gateway_failed,
    invalid_request,
    missing_resource,
)
from billing_jobs.sandbox.book import INTENTS_MAX, Book, Intent, SavedAnswer
from billing_jobs.sandbox.faults import Choice, Fault, Faults, Target
from billing_jobs.sandbox.parameters import Parameters
from billing_jobs.sandbox.strikes import delivered, failed, in_use, or_failed, refusal

#: How long a `slow` request keeps its key in flight.
SLOW_SECONDS = 1.0
#: Stripe's own limit.
_KEY_LENGTH_MAX = 255
_ONE = r"/v1/payment_intents/(?P<id>[^/]{1,255})"
_ROUTES = (
    ("POST", re.compile(r"/v1/payment_intents"), "create"),
    ("POST", re.compile(_ONE + "/confirm"), "confirm"),
    ("POST", re.compile(_ONE + "/cancel"), "cancel"),
    ("GET", re.compile(_ONE), "retrieve"),
    ("GET", re.compile(r"/v1/payment_intents"), "list"),
)
#: What we understand, and what real clients send and a sandbox may ignore.
_IGNORED = frozenset(
    {
        "automatic_payment_methods",
        "capture_method",
        "confirmation_method",
        "description",
        "error_on_requires_action",
        "expand",
        "off_session",
        "payment_method_types",
        "receipt_email",
        "return_url",
        "setup_future_usage",
        "statement_descriptor_suffix",
    }
)
_PARAMETERS: Mapping[str, frozenset[str]] = {
    "create": _IGNORED
    | {"amount", "currency", "payment_method", "customer", "metadata", "confirm"},
    "confirm": _IGNORED | {"payment_method"},
    "cancel": frozenset({"cancellation_reason", "expand"}),
    "retrieve": frozenset({"client_secret", "expand"}),
    "list": frozenset({"limit", "created", "starting_after", "customer", "expand"}),
}
_KEY_MISMATCH = (
    "Keys for idempotent requests can only be used with the same parameters they were first used "
    "with. Try using a key other than '{key}' if you meant to execute a different request."
)


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request as the server read it; header names are in lower case."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: str


@dataclass(frozen=True, slots=True)
class _Call:
    operation: str
    identifier: str
    parameters: Parameters
    fingerprint: str
    key: str | None


class App:
    """
    Answers requests; many threads at once.

    Crash safety: a request's whole effect (the intent, the capture, the answer under its key) is
    one line of the journal, on the disk before the answer is given. Killed before it: nothing
    happened, and the key is free. Killed after it: a repeated request is answered from the key.
    """

    def __init__(self, book: Book, pause: Callable[[float], object]) -> None:
        self._book = book
        self._pause = pause
        self._faults = Faults()
        self._in_flight: set[str] = set()
        self._counts: dict[str, Counter[str]] = {}
        self._admin = Admin(book, self._counts)

    def now(self) -> float:
        """Return the sandbox's time, for the Date header."""
        return self._book.now()

    def answer(self, request: Request) -> Reply:
        """Answer one request. Never raises for what a client may send."""
        if request.path.startswith("/sandbox/"):
            return self._admin.answer(request.method, request.path, request.query, request.body)
        operation = "other"
        try:
            operation, identifier = _routed(request)
            reply = self._handled(_call(request, operation, identifier))
        except RequestRefused as refused:
            reply = Reply(refused.status, refused.body())
        except OSError as error:
            failed = gateway_failed(f"The sandbox cannot write its journal: {error}")
            reply = Reply(failed.status, failed.body())
        self._count(operation, reply)
        request_id = ("Request-Id", f"req_{secrets.token_hex(7)}")
        return replace(reply, headers=(request_id, *reply.headers))

    def _count(self, operation: str, reply: Reply) -> None:
        outcome = str(reply.status)
        if reply.delivery is not Delivery.ANSWER:
            outcome = reply.delivery.value
        elif reply.replayed:
            outcome = f"{reply.status}_replayed"
        with self._book.lock:
            self._counts.setdefault(operation, Counter())[outcome] += 1

    def _handled(self, call: _Call) -> Reply:
        with self._book.lock:
            intent = self._subject(call)
            choice = self._faults.choose(self._book.faults, _target(call, intent))
            reply = self._not_executed(call, intent, choice) or self._answered_before(call)
            if reply is not None:
                return reply
            if call.key:
                self._in_flight.add(call.key)
        try:
            return self._executed(call, intent, choice)
        finally:
            with self._book.lock:
                self._in_flight.discard(call.key or "")

    def _subject(self, call: _Call) -> Intent | None:
        """Return the intent the call is about; a new one for create, none for list."""
        if call.operation == "list":
            return None
        if call.operation == "create":
            if len(self._book.intents) >= INTENTS_MAX:
                raise gateway_failed(
                    f"The sandbox holds {INTENTS_MAX} payment intents, its limit. "
                    "Start it with a new --journal.",
                    status=503,
                )
            return payment_intents.new_intent(call.parameters, self._book.now())
        return self._found(call.identifier)

    def _found(self, identifier: str) -> Intent:
        intent = self._book.intents.get(identifier)
        if intent is None:
            raise missing_resource("payment_intent", identifier, param="intent", status=404)
        return intent

    def _not_executed(self, call: _Call, intent: Intent | None, choice: Choice) -> Reply | None:
        """Return the answer of a fault that strikes before the idempotency layer."""
        reply = refusal(choice.fault, call.key)
        if reply is None:
            return None
        record: JsonObject = {}
        if intent is not None and call.operation in {"confirm", "cancel"}:
            record["intent"] = intent.counted(call.operation, call.key).as_record()
        self._record(record, choice)
        return reply

    def _answered_before(self, call: _Call) -> Reply | None:
        """Return what the idempotency layer knows about the key."""
        if not call.key:
            return None
        if call.key in self._in_flight:
            return in_use(call.key)
        saved = self._book.answer_under(call.key)
        if saved is None:
            return None
        if saved.fingerprint != call.fingerprint:
            message = _KEY_MISMATCH.format(key=call.key)
            raise RequestRefused(400, {"type": "idempotency_error", "message": message})
        headers = (("Idempotency-Key", call.key), ("Idempotent-Replayed", "true"))
        return Reply(saved.status, saved.body.encode(), headers, replayed=True)

    def _executed(self, call: _Call, intent: Intent | None, choice: Choice) -> Reply:
        if choice.fault is Fault.SLOW:
            self._pause(SLOW_SECONDS)
        with self._book.lock:
            executed = self._run(call, intent, choice)
            record = dict(executed.record)
            if call.key:
                record["answer"] = _saved(call, executed, self._book.now())
            position = self._record(record, choice)
        self._book.sync(position)
        headers = (("Idempotency-Key", call.key),) if call.key else ()
        return delivered(Reply(executed.status, executed.body, headers), choice.fault)

    def _record(self, record: JsonObject, choice: Choice) -> int:
        if choice.plan is not None:
            record["faults"] = choice.plan
        return self._book.record(record) if record else 0

    def _run(self, call: _Call, intent: Intent | None, choice: Choice) -> Executed:
        if call.operation == "list":
            return or_failed(self._listed(call.parameters), choice.fault)
        if call.operation == "retrieve":
            shown = self._found(call.identifier).shown
            return or_failed(Executed(200, encoded(shown)), choice.fault)
        if call.operation != "create":
            intent = self._found(call.identifier)
        assert intent is not None
        counted = intent.counted(call.operation, call.key)
        counted_only = {} if call.operation == "create" else {"intent": counted.as_record()}
        if choice.fault is Fault.ERROR_BEFORE_CHARGE:
            return failed(counted_only)
        try:
            executed = self._changed(call, counted, choice).executed
        except RequestRefused as refused:
            executed = Executed(refused.status, refused.body(), counted_only)
        return or_failed(executed, choice.fault)

    def _changed(self, call: _Call, intent: Intent, choice: Choice) -> payment_intents.Change:
        parameters, now = call.parameters, self._book.now()
        if call.operation == "cancel":
            reason = parameters.text("cancellation_reason")
            return payment_intents.cancelled(intent, reason, now)
        if call.operation == "create" and not parameters.flag("confirm"):
            return payment_intents.created(intent)
        token = parameters.payment_method() or intent.token
        payment_intents.check_confirmable(intent, token)
        return payment_intents.confirmed(intent, token, choice.named, now)

    def _listed(self, parameters: Parameters) -> Executed:
        first, last = parameters.created_bounds()
        after, customer = parameters.text("starting_after"), parameters.text("customer")
        limit = parameters.limit()
        if after and after not in self._book.intents:
            raise missing_resource("payment_intent", after, param="starting_after", status=400)
        page: list[JsonObject] = []
        seen_cursor = not after
        for identifier, intent in reversed(self._book.intents.items()):
            in_time = first <= intent.shown["created"] <= last
            if seen_cursor and in_time and customer in {"", intent.shown["customer"]}:
                page.append(intent.shown)
            seen_cursor = seen_cursor or identifier == after
            if len(page) > limit:
                break
        return Executed(200, encoded(_page(page[:limit], has_more=len(page) > limit)))


def _routed(request: Request) -> tuple[str, str]:
    for method, pattern, operation in _ROUTES:
        match = pattern.fullmatch(request.path)
        if match and method == request.method:
            return operation, match.groupdict().get("id", "")
    raise invalid_request(
        f"Unrecognized request URL ({request.method}: {request.path}).", status=404
    )


def _call(request: Request, operation: str, identifier: str) -> _Call:
    _check_authorised(request.headers.get("authorization", ""))
    key = request.headers.get("idempotency-key") if request.method == "POST" else None
    if key and len(key) > _KEY_LENGTH_MAX:
        raise invalid_request(f"An idempotency key has at most {_KEY_LENGTH_MAX} characters.")
    parameters = Parameters(request.body if request.method == "POST" else request.query)
    parameters.allow(_PARAMETERS[operation])
    parameters.payment_method()
    return _Call(operation, identifier, parameters, parameters.fingerprint(request.path), key)


def _check_authorised(authorization: str) -> None:
    scheme, _, credentials = authorization.partition(" ")
    if scheme.lower() not in {"bearer", "basic"} or not credentials.strip():
        raise invalid_request(
            "You did not provide an API key. Any key will do: 'Authorization: Bearer YOUR_KEY'.",
            status=401,
        )


def _target(call: _Call, intent: Intent | None) -> Target:
    if intent is None:
        return Target(call.operation)
    metadata = intent.shown["metadata"]
    touches_card = call.operation == "confirm" or (
        call.operation == "create" and call.parameters.flag("confirm")
    )
    # A payment that is done is refused by its state, whatever its card would do.
    touches_card = touches_card and payment_intents.is_confirmable(intent)
    token = (call.parameters.payment_method() or intent.token) if touches_card else ""
    return Target(call.operation, token, intent.confirms, metadata)


def _saved(call: _Call, executed: Executed, now: float) -> JsonObject:
    answer = SavedAnswer(call.fingerprint, executed.status, executed.body.decode(), now)
    return {
        "key": call.key,
        "answer": {
            "fingerprint": answer.fingerprint,
            "status": answer.status,
            "body": answer.body,
            "saved_at": answer.saved_at,
        },
    }


def _page(data: list[JsonObject], *, has_more: bool) -> JsonObject:
    return {"object": "list", "url": "/v1/payment_intents", "has_more": has_more, "data": data}
