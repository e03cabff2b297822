"""
PaymentGateway in memory, with the faults of the sandbox and its payment tokens.

Passes the same contract suite as the real adapter against the real sandbox, so that a test with it
means the same. Nothing waits here: what hangs there raises at once.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from billing_jobs.adapters.gateway.checks import check_instant, check_key, check_reference
from billing_jobs.domain.errors import (
    GatewayAuthentication,
    GatewayBusy,
    GatewayError,
    GatewayNotSent,
    GatewayOutcomeUnknown,
    GatewayRefusedRequest,
)
from billing_jobs.domain.payment import GatewayObject, ObjectStatus, PaymentInstruction

_TOKEN = re.compile(r"pm_sandbox_(?P<fault>[a-z][a-z0-9_]*?)(?:_x(?P<count>[0-9]{1,4}))?")
_DECLINE = "decline_"
_AMOUNT_MAX = 99_999_999
_CONFIRMABLE = frozenset(
    {ObjectStatus.UNCONFIRMED, ObjectStatus.DECLINED, ObjectStatus.REQUIRES_ACTION}
)
_AFTER = frozenset(
    {"hang_after_charge", "reset_after_charge", "error_after_charge", "garbage_after_charge"}
)
_STATUS_BY_FAULT = {
    "processing": ObjectStatus.PENDING,
    "requires_action": ObjectStatus.REQUIRES_ACTION,
}
_BEFORE = frozenset(
    {
        "busy",
        "in_flight",
        "unauthorized",
        "forbidden",
        "hang_before_charge",
        "reset_before_charge",
        "error_before_charge",
        "not_sent",
    }
)
#: Executed, but the answer is about something else.
_LIES = frozenset({"wrong_amount", "wrong_currency"})
#: Every fault by name; `decline_<code>` besides. `not_sent` is for `script` only.
FAULTS = _BEFORE | _AFTER | _STATUS_BY_FAULT.keys() | _LIES | {"partial", "slow"}
#: Answers that the gateway keeps under the key: it had begun to execute.
_SAVED = frozenset({"error_before_charge", "error_after_charge"})
#: Strikes before the idempotency layer is asked.
_NOT_EXECUTED = _BEFORE - _SAVED


@dataclass(frozen=True, slots=True)
class Capture:
    """Money that was really taken."""

    charge_reference: str
    reference: str
    amount_minor: int
    currency: str
    metadata: tuple[tuple[str, str], ...]
    key: str


@dataclass(slots=True)
class _Stored:
    told: GatewayObject
    token: str
    metadata: tuple[tuple[str, str], ...]
    created_at: datetime | None
    confirms: int = 0


@dataclass(slots=True)
class _Scripted:
    operation: str
    fault: str
    left: int


@dataclass(frozen=True, slots=True)
class _Saved:
    request: tuple[object, ...]
    told: GatewayObject | None


class FakeGateway:
    """
    A gateway that lives as long as the test.

    `journal` holds every capture, `calls` every call as (operation, reference or empty, key or
    empty). Without a clock all objects are new enough for every `find`.

    Crash safety: none, it is memory. Twice is harmless as with the real one.
    """

    def __init__(self, clock: Callable[[], datetime] | None = None) -> None:
        self.journal: list[Capture] = []
        self.calls: list[tuple[str, str, str]] = []
        self._clock = clock
        self._lock = threading.RLock()
        self._objects: dict[str, _Stored] = {}
        self._saved: dict[str, _Saved] = {}
        self._scripts: list[_Scripted] = []
        self._numbers: Counter[str] = Counter()

    @property
    def name(self) -> str:
        """The gateway's name in keys and rows."""
        return "fake"

    def script(self, operation: str, fault: str, *, count: int = 1) -> None:
        """Let the next `count` calls of an operation meet a fault; it comes before the token's."""
        if fault not in FAULTS and not fault.startswith(_DECLINE):
            raise ValueError(f"No fault {fault!r}; there are {', '.join(sorted(FAULTS))}.")
        self._scripts.append(_Scripted(operation, fault, count))

    def forget_keys(self) -> None:
        """Forget every idempotency key, as gateways do after a day."""
        self._saved.clear()

    def settle(self, reference: str, outcome: str = "ok") -> None:
        """End a payment that is pending or waits for the customer: ok or decline_<code>."""
        with self._lock:
            self._collect(self._objects[reference], "" if outcome == "ok" else outcome, key="")

    def create(self, instruction: PaymentInstruction, *, key: str) -> GatewayObject:
        """Create an unconfirmed object; moves no money."""
        check_key(key)
        with self._lock:
            self.calls.append(("create", "", key))
            _check_instruction(instruction)
            fault = self._scripted("create", key=key)
            request = ("create", instruction)
            return self._answered(request, key, fault, lambda: self._made(instruction))

    def confirm(
        self, reference: str, *, key: str, payment_token: str | None = None
    ) -> GatewayObject:
        """Collect the money; a decline is an answer with its decline code."""
        check_key(key)
        check_reference(reference)
        with self._lock:
            self.calls.append(("confirm", reference, key))
            stored = self._found(reference)
            token = payment_token or stored.token
            _check_token(token)
            fault = self._scripted("confirm", key=key) or _token_fault(stored, token)
            request = ("confirm", reference, payment_token)
            if key not in self._saved or fault in _NOT_EXECUTED:
                stored.confirms += 1
            return self._answered(
                request, key, fault, lambda: self._confirmed(stored, token, fault, key)
            )

    def retrieve(self, reference: str) -> GatewayObject:
        """Read one object."""
        check_reference(reference)
        with self._lock:
            self.calls.append(("retrieve", reference, ""))
            stored = self._found(reference)
            self._check_readable("retrieve")
            return stored.told

    def find(
        self, *, metadata_key: str, metadata_value: str, created_since: datetime
    ) -> list[GatewayObject]:
        """Look objects up by what we wrote on them, newest first."""
        check_instant(created_since)
        with self._lock:
            self.calls.append(("list", "", ""))
            self._check_readable("list")
            return [
                stored.told
                for stored in reversed(self._objects.values())
                if dict(stored.metadata).get(metadata_key) == metadata_value
                and (stored.created_at is None or stored.created_at >= created_since)
            ]

    def close(self) -> None:
        """Nothing is open."""

    def _scripted(self, operation: str, *, key: str = "") -> str:
        """Return the scripted fault; what would strike at execution passes a replay by."""
        is_replay = key in self._saved
        for script in self._scripts:
            strikes = script.operation == operation and script.left > 0
            if strikes and not (is_replay and script.fault not in _NOT_EXECUTED):
                script.left -= 1
                return script.fault
        return ""

    def _check_readable(self, operation: str) -> None:
        fault = self._scripted(operation)
        if fault in _BEFORE | _AFTER:
            raise _raised(fault, operation)

    def _answered(
        self,
        request: tuple[object, ...],
        key: str,
        fault: str,
        execute: Callable[[], GatewayObject],
    ) -> GatewayObject:
        """Go through the idempotency layer as a gateway does, faults included."""
        operation = str(request[0])
        if fault in _NOT_EXECUTED:
            raise _raised(fault, operation)
        saved = self._saved.get(key)
        if saved is not None:
            return _replayed(saved, request)
        if fault == "error_before_charge":
            self._saved[key] = _Saved(request, None)
            raise _raised(fault, operation)
        told = execute()
        self._saved[key] = _Saved(request, None if fault in _SAVED else told)
        if fault in _AFTER or (fault in _LIES and operation == "create"):
            raise _raised(fault, operation)
        return _as_told(told, fault)

    def _made(self, instruction: PaymentInstruction) -> GatewayObject:
        told = GatewayObject(
            reference=self._new_reference("pi"),
            status=ObjectStatus.UNCONFIRMED,
            amount_minor=instruction.amount_minor,
            amount_received_minor=0,
            currency=instruction.currency.upper(),
            raw="{}",
        )
        created_at = self._clock() if self._clock else None
        self._objects[told.reference] = _Stored(
            told, instruction.payment_token or "", instruction.metadata, created_at
        )
        return told

    def _confirmed(self, stored: _Stored, token: str, fault: str, key: str) -> GatewayObject:
        if stored.told.status not in _CONFIRMABLE:
            raise GatewayOutcomeUnknown(
                f"The gateway says that {stored.told.reference} is {stored.told.status}. The money "
                "may have moved: look the object up before anything else."
            )
        stored.token = token
        return self._collect(stored, fault, key=key)

    def _collect(self, stored: _Stored, fault: str, *, key: str) -> GatewayObject:
        told = replace(stored.told, decline_code=None, charge_reference=None)
        if fault.startswith(_DECLINE):
            told = replace(
                told,
                status=ObjectStatus.DECLINED,
                decline_code=fault.removeprefix(_DECLINE),
                charge_reference=self._new_reference("ch"),
            )
        elif fault in _STATUS_BY_FAULT:
            told = replace(told, status=_STATUS_BY_FAULT[fault])
        else:
            told = self._captured(stored, told, partial=fault == "partial", key=key)
        stored.told = told
        return told

    def _captured(
        self, stored: _Stored, told: GatewayObject, *, partial: bool, key: str
    ) -> GatewayObject:
        received = (told.amount_minor + 1) // 2 if partial else told.amount_minor
        charge = self._new_reference("ch")
        self.journal.append(
            Capture(charge, told.reference, received, told.currency, stored.metadata, key)
        )
        return replace(
            told,
            status=ObjectStatus.SUCCEEDED,
            amount_received_minor=received,
            charge_reference=charge,
        )

    def _found(self, reference: str) -> _Stored:
        stored = self._objects.get(reference)
        if stored is None:
            raise GatewayRefusedRequest(
                f"The gateway knows no {reference}. No money moved; sending it again is useless."
            )
        return stored

    def _new_reference(self, prefix: str) -> str:
        self._numbers[prefix] += 1
        return f"{prefix}_fake_{self._numbers[prefix]:06d}"


def _token_fault(stored: _Stored, token: str) -> str:
    match = _TOKEN.fullmatch(token)
    if match is None or match["fault"] == "ok" or stored.told.status not in _CONFIRMABLE:
        return ""
    if match["count"] and stored.confirms >= int(match["count"]):
        return ""
    return match["fault"]


def _check_token(token: str) -> None:
    match = _TOKEN.fullmatch(token)
    known = match is not None and (
        match["fault"] == "ok"
        or match["fault"] in FAULTS - {"not_sent"}
        or match["fault"].startswith(_DECLINE)
    )
    if not known:
        raise GatewayRefusedRequest(
            "The gateway knows no such payment method. No money moved; sending it again is useless."
        )


def _check_instruction(instruction: PaymentInstruction) -> None:
    if instruction.payment_token:
        _check_token(instruction.payment_token)
    currency = instruction.currency
    if not (currency.isascii() and currency.isalpha() and len(currency) == 3):  # noqa: PLR2004
        raise GatewayRefusedRequest(f"The gateway knows no currency {currency!r}.")
    if not 0 < instruction.amount_minor <= _AMOUNT_MAX:
        raise GatewayRefusedRequest(f"The gateway takes no amount {instruction.amount_minor}.")


def _replayed(saved: _Saved, request: tuple[object, ...]) -> GatewayObject:
    if saved.request != request:
        raise GatewayRefusedRequest("The gateway saw this key with another body. Nothing was done.")
    if saved.told is None:
        raise _raised("error_before_charge", str(request[0]))
    return replace(saved.told, replayed=True)


def _as_told(told: GatewayObject, fault: str) -> GatewayObject:
    if fault == "wrong_currency":
        return replace(told, currency="XOF")
    if fault == "wrong_amount":
        return replace(told, amount_minor=int(f"1{told.amount_minor}"))
    return told


def _raised(fault: str, operation: str) -> GatewayError:
    text = f"The fake gateway was asked for {fault} at {operation}."
    if fault == "not_sent":
        return GatewayNotSent(text)
    if fault in {"unauthorized", "forbidden"}:
        return GatewayAuthentication(text)
    if fault in {"busy", "in_flight"}:
        return GatewayBusy(text, retry_after_seconds=1.0 if fault == "busy" else None)
    return GatewayOutcomeUnknown(text)
