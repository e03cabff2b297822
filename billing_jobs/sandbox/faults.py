"""
Which fault strikes which request: by payment token, by script, by rate with a seed.

Owns the names of the faults and the choice. How a fault is carried out is in `app.py`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from billing_jobs.sandbox.answers import JsonObject, invalid_request

_TOKEN = re.compile(r"pm_sandbox_(?P<name>[a-z][a-z0-9_]*?)(?:_x(?P<count>[0-9]{1,4}))?")
_DECLINE = re.compile(r"decline_(?P<code>[a-z][a-z0-9_]{0,60})")
#: A script is for a test, not a data base.
_ENTRIES_MAX = 100
_COUNT_MAX = 1_000_000
_OPERATIONS = frozenset({"create", "confirm", "cancel", "retrieve", "list"})


class Fault(StrEnum):
    """What can go wrong. The names are those of the payment tokens."""

    #: 429 with Retry-After, not executed.
    BUSY = "busy"
    #: 409 as if another request with the same key were still running, not executed.
    IN_FLIGHT = "in_flight"
    #: 401, not executed.
    UNAUTHORIZED = "unauthorized"
    #: 403, not executed.
    FORBIDDEN = "forbidden"
    #: No answer; the request was lost before anything happened.
    HANG_BEFORE_CHARGE = "hang_before_charge"
    #: Connection cut; the request was lost before anything happened.
    RESET_BEFORE_CHARGE = "reset_before_charge"
    #: 500 kept under the key; nothing happened.
    ERROR_BEFORE_CHARGE = "error_before_charge"
    #: Executed a second late, so that the key is in flight meanwhile.
    SLOW = "slow"
    #: 402; `decline_<code>` in tokens and scripts.
    DECLINE = "decline"
    #: Accepted, the outcome comes by POST /sandbox/settle.
    PROCESSING = "processing"
    #: The customer must authenticate.
    REQUIRES_ACTION = "requires_action"
    #: Half of the amount is captured.
    PARTIAL = "partial"
    #: Executed, no answer.
    HANG_AFTER_CHARGE = "hang_after_charge"
    #: Executed, connection cut.
    RESET_AFTER_CHARGE = "reset_after_charge"
    #: Executed, 500 kept under the key.
    ERROR_AFTER_CHARGE = "error_after_charge"
    #: Executed, answered 200 with HTML, as a proxy in between does.
    GARBAGE_AFTER_CHARGE = "garbage_after_charge"
    #: Executed; the answer names another currency.
    WRONG_CURRENCY = "wrong_currency"
    #: Executed; the answer names another amount.
    WRONG_AMOUNT = "wrong_amount"


#: Only a confirm has a card to decline.
CONFIRM_ONLY = frozenset({Fault.DECLINE, Fault.PROCESSING, Fault.REQUIRES_ACTION, Fault.PARTIAL})


@dataclass(frozen=True, slots=True)
class Named:
    """A fault as tokens and scripts write it."""

    fault: Fault
    decline_code: str = ""


@dataclass(frozen=True, slots=True)
class TokenRule:
    """What a payment token says: this fault for the first `count` confirms; None is always."""

    named: Named | None
    count: int | None = None

    def strikes(self, confirms: int) -> Named | None:
        """Return the fault for the confirm after `confirms` earlier ones."""
        if self.count is not None and confirms >= self.count:
            return None
        return self.named


@dataclass(frozen=True, slots=True)
class Target:
    """The request that a fault may strike."""

    operation: str
    #: Empty where no card is touched.
    token: str = ""
    #: Earlier confirms of the same payment intent.
    confirms: int = 0
    metadata: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """The fault that strikes, if any, and the plan as it stands afterwards."""

    named: Named | None
    #: Set when a script entry was used up by one.
    plan: JsonObject | None = None

    @property
    def fault(self) -> Fault | None:
        """The fault without its decline code."""
        return self.named.fault if self.named else None


def token_rule(token: str) -> TokenRule | None:
    """
    Read a payment token; None for a token that the sandbox does not know.

    >>> token_rule("pm_sandbox_busy_x2")
    TokenRule(named=Named(fault=<Fault.BUSY: 'busy'>, decline_code=''), count=2)
    """
    match = _TOKEN.fullmatch(token)
    if match is None:
        return None
    count = int(match["count"]) if match["count"] else None
    if match["name"] == "ok":
        return TokenRule(None, count)
    named = _named(match["name"])
    return TokenRule(named, count) if named else None


def _named(name: object) -> Named | None:
    decline = _DECLINE.fullmatch(str(name))
    if decline:
        return Named(Fault.DECLINE, decline["code"])
    try:
        fault = Fault(str(name))
    except ValueError:
        return None
    return Named(fault) if fault is not Fault.DECLINE else None


class Faults:
    """
    The plan in force. A script entry comes before the token, the token before a rate.

    Called with the book's lock held. Draws by rate depend on the seed, the request and how often
    the same one came before, never on the order in which threads arrive.
    """

    def __init__(self) -> None:
        self._arrivals: Counter[str] = Counter()

    def choose(self, plan: JsonObject, target: Target) -> Choice:
        """Return what strikes this request."""
        for index, entry in enumerate(plan.get("script", [])):
            if _matches(entry, target):
                return Choice(_named(entry["fault"]), _used(plan, index))
        rule = token_rule(target.token)
        named = rule.strikes(target.confirms) if rule else None
        return Choice(named or self._drawn(plan, target))

    def _drawn(self, plan: JsonObject, target: Target) -> Named | None:
        rates = [rate for rate in plan.get("rates", []) if rate["operation"] == target.operation]
        if not rates:
            return None
        identity = f"{target.operation} {json.dumps(dict(target.metadata or {}), sort_keys=True)}"
        self._arrivals[identity] += 1
        left = _fraction(f"{plan.get('seed', 0)} {identity} {self._arrivals[identity]}")
        for rate in rates:
            left -= rate["share"]
            if left < 0:
                return _named(rate["fault"])
        return None


def _matches(entry: JsonObject, target: Target) -> bool:
    if entry["operation"] != target.operation or entry["count"] == 0:
        return False
    metadata = target.metadata or {}
    return all(metadata.get(name) == value for name, value in entry["match"].items())


def _used(plan: JsonObject, index: int) -> JsonObject | None:
    entry = plan["script"][index]
    if entry["count"] is None:
        return None
    script = list(plan["script"])
    script[index] = {**entry, "count": entry["count"] - 1}
    return {**plan, "script": script}


def _fraction(text: str) -> float:
    """Return a number in [0, 1) that depends on nothing but the text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6]) / 2**48


def checked_plan(value: JsonObject) -> JsonObject:
    """Return the plan of a POST /sandbox/faults, or refuse it with the reason."""
    unknown = sorted(set(value) - {"script", "rates", "seed"})
    if unknown:
        raise invalid_request(f"Unknown field {unknown[0]!r}: a plan has script, rates and seed.")
    seed = value.get("seed", 0)
    if not isinstance(seed, int):
        raise invalid_request("The seed is an integer.")
    script = [_checked_entry(entry) for entry in _entries(value, "script")]
    rates = [_checked_rate(rate) for rate in _entries(value, "rates")]
    return {"script": script, "rates": rates, "seed": seed}


def _entries(value: JsonObject, name: str) -> list[JsonObject]:
    entries = value.get(name, [])
    if not isinstance(entries, list) or len(entries) > _ENTRIES_MAX:
        raise invalid_request(f"{name} is a list of at most {_ENTRIES_MAX} objects.")
    if not all(isinstance(entry, dict) for entry in entries):
        raise invalid_request(f"{name} is a list of objects.")
    return entries


def _checked_entry(entry: JsonObject) -> JsonObject:
    _check_struck(entry)
    count: Any = entry.get("count", 1)
    match: Any = entry.get("match", {})
    if count is not None and not (isinstance(count, int) and 0 < count <= _COUNT_MAX):
        raise invalid_request(f"A count is between 1 and {_COUNT_MAX}, or null for always.")
    if not isinstance(match, dict):
        raise invalid_request("match is an object of metadata that the payment intent must have.")
    wanted = {str(name): str(text) for name, text in match.items()}
    kept = {"operation": entry["operation"], "fault": entry["fault"]}
    return {**kept, "count": count, "match": wanted}


def _checked_rate(rate: JsonObject) -> JsonObject:
    _check_struck(rate)
    share: Any = rate.get("share")
    if not isinstance(share, int | float) or not 0 <= share <= 1:
        raise invalid_request("A share is a number between 0 and 1.")
    return {"operation": rate["operation"], "fault": rate["fault"], "share": share}


def _check_struck(entry: JsonObject) -> None:
    operation = entry.get("operation")
    if operation not in _OPERATIONS:
        known = ", ".join(sorted(_OPERATIONS))
        raise invalid_request(f"Unknown operation {operation!r}: there are {known}.")
    named = _named(entry.get("fault"))
    if named is None:
        known = ", ".join(fault for fault in Fault if fault is not Fault.DECLINE)
        raise invalid_request(
            f"Unknown fault {entry.get('fault')!r}: there are decline_<code>, {known}."
        )
    if named.fault in CONFIRM_ONLY and operation != "confirm":
        raise invalid_request(f"The fault {named.fault} is for confirm only.")
