"""
What a single value of a book may be; each check returns the value or raises InputError.

Names, addresses and tokens are never quoted in a reason: error texts end in logs and tickets, and
those hold no personal data. Not here: what values mean together (book.py).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from datetime import date
from difflib import get_close_matches

from billing_jobs.domain.billing import NET_DAYS_MAX, QUANTITY_MAX, TAX_RATE_PPM_MAX
from billing_jobs.domain.book_rows import quoted
from billing_jobs.domain.currencies import exponent
from billing_jobs.domain.errors import AmountInvalid, InputError
from billing_jobs.domain.money import MINOR_MAX
from billing_jobs.domain.periods import INTERVAL_COUNT_MAX, IntervalUnit

#: Longest texts; an invoice prints them on one line or two.
NAME_CHARACTERS_MAX = 200
DESCRIPTION_CHARACTERS_MAX = 200
#: RFC 5321: a path of 256 with its brackets, and a local part of 64.
EMAIL_CHARACTERS_MAX = 254
EMAIL_LOCAL_CHARACTERS_MAX = 64
#: References name rows of the caller's own system; a UUID with a prefix needs a third of it.
REFERENCE_CHARACTERS_MAX = 100
GATEWAY_CHARACTERS_MAX = 40
#: Tokens of payment gateways are short; card data pasted with its frame is not.
TOKEN_CHARACTERS_MAX = 255
#: Outside these years an anchor is a typing error.
DATE_MIN = date(1970, 1, 1)
DATE_MAX = date(2199, 12, 31)

_WHOLE = re.compile(r"-?[0-9]{1,19}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_REFERENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/+=-]*")
_GATEWAY = re.compile(r"[a-z][a-z0-9_-]*")
_TOKEN = re.compile(r"[!-~]+")
# ISO/IEC 7812 allows up to 19 digits, and people write them in groups.
_CARD_NUMBER = re.compile(r"[0-9](?:[ -]?[0-9]){11,18}")
_LOCALE = re.compile(r"[a-z]{2,3}(?:[-_][A-Z][a-z]{3})?(?:[-_](?:[A-Z]{2}|[0-9]{3}))?")
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_EMAIL = re.compile(rf"(?P<local>{_ATOM}(?:\.{_ATOM})*)@{_LABEL}(?:\.{_LABEL})+")

# Control characters, halves of a pair that no encoding can store, and line breaks in disguise.
_REFUSED_CATEGORIES = frozenset({"Cc", "Cs", "Zl", "Zp"})
# Names that the tz database lists and that mean another thing on each machine, or nothing.
_NO_PLACES = frozenset({"Factory", "localtime", "posixrules"})


def name(text: str) -> str:
    """A customer's name, in any script."""
    return _line(text, NAME_CHARACTERS_MAX)


def description(text: str) -> str:
    """What the invoice line says."""
    return _line(text, DESCRIPTION_CHARACTERS_MAX)


def reference(text: str) -> str:
    """The caller's own name of a thing; ids are derived from it."""
    if len(text) > REFERENCE_CHARACTERS_MAX or not _REFERENCE.fullmatch(text):
        raise InputError(
            f"{quoted(text)} is not a reference: up to {REFERENCE_CHARACTERS_MAX} ASCII letters, "
            "digits and . _ : @ / + = -, the first one a letter or digit",
        )
    return text


def email(text: str) -> str:
    """An address that mail can be sent to."""
    match = _EMAIL.fullmatch(text) if len(text) <= EMAIL_CHARACTERS_MAX else None
    if match is None or len(match["local"]) > EMAIL_LOCAL_CHARACTERS_MAX:
        raise InputError(
            "is not an e-mail address of the form name@example.com "
            "(ASCII only; an international domain is written as xn--…)",
        )
    return text


def locale(text: str) -> str:
    """Language, script and region with underscores: de_DE, zh_Hant_TW, ar."""
    if not _LOCALE.fullmatch(text):
        raise InputError(f"{quoted(text)} is not a locale such as de_DE, zh_Hant_TW or ar")
    return text.replace("-", "_")


def currency(text: str) -> str:
    """A currency of ISO 4217 that has minor units."""
    exponent(text)
    return text


def timezone_in(zones: AbstractSet[str]) -> Callable[[str], str]:
    """A check for names of the tz database, with those that this machine knows."""
    known = frozenset(zones) - _NO_PLACES

    def timezone(text: str) -> str:
        if text not in known:
            hint = _meant(text, known) or "; write a name such as Europe/Berlin"
            raise InputError(f"{quoted(text)} is not a zone of the tz database{hint}")
        return text

    return timezone


def gateway(text: str) -> str:
    """The name of a payment gateway's adapter."""
    if len(text) > GATEWAY_CHARACTERS_MAX or not _GATEWAY.fullmatch(text):
        raise InputError(f"{quoted(text)} is not a gateway's name such as sandbox or stripe")
    return text


def token(text: str) -> str:
    """What the gateway gave us in place of a card; a card's own number is refused."""
    if _CARD_NUMBER.fullmatch(text):
        raise InputError("looks like a card number: never import those, only a gateway's tokens")
    if len(text) > TOKEN_CHARACTERS_MAX or not _TOKEN.fullmatch(text):
        raise InputError(
            f"is not a payment token: up to {TOKEN_CHARACTERS_MAX} visible ASCII characters",
        )
    return text


def interval_unit(text: str) -> IntervalUnit:
    """Week, month, quarter or year."""
    try:
        return IntervalUnit(text)
    except ValueError as error:
        units = [str(unit) for unit in IntervalUnit]
        hint = _meant(text, units) or f"; write one of {', '.join(units)}"
        raise InputError(f"{quoted(text)} is not an interval{hint}") from error


def amount_minor(text: str) -> int:
    """A price of one unit, whole and in minor units."""
    if not _WHOLE.fullmatch(text):
        raise AmountInvalid(
            f"{quoted(text)} is not an integer in minor units: "
            "write 1999 for 19.99 EUR, and 500 for 500 JPY",
        )
    return _between(int(text), 0, MINOR_MAX)


def quantity(text: str) -> int:
    """How many units are sold."""
    return _between(_whole(text), 1, QUANTITY_MAX)


def interval_count(text: str) -> int:
    """How many units of time a period is long."""
    return _between(_whole(text), 1, INTERVAL_COUNT_MAX)


def tax_rate_ppm(text: str) -> int:
    """A tax rate in parts per million: 190000 for 19 %."""
    if not _WHOLE.fullmatch(text):
        raise InputError(
            f"{quoted(text)} is not a whole number of parts per million: write 190000 for 19 %",
        )
    return _between(int(text), 0, TAX_RATE_PPM_MAX)


def net_days(text: str) -> int:
    """Days from the issue of an invoice to its due date."""
    return _between(_whole(text), 0, NET_DAYS_MAX)


def truth(text: str) -> bool:
    """True or false, in small letters or as spreadsheets write them."""
    if text not in {"true", "TRUE", "false", "FALSE"}:
        raise InputError(f"{quoted(text)} is neither true nor false")
    return text in {"true", "TRUE"}


def day(text: str) -> date:
    """A civil date that exists, within the years of DATE_MIN to DATE_MAX."""
    if not _DATE.fullmatch(text):
        raise InputError(f"{quoted(text)} is not a date of the form 2026-01-31")
    try:
        value = date.fromisoformat(text)
    except ValueError as error:
        raise InputError(f"{text} does not exist") from error
    if not DATE_MIN <= value <= DATE_MAX:
        raise InputError(f"{text} lies outside {DATE_MIN} to {DATE_MAX}")
    return value


def _line(text: str, characters_max: int) -> str:
    if len(text) > characters_max:
        raise InputError(f"is {len(text)} characters long; at most {characters_max} are kept")
    # What is printable has nothing to refuse; the loop names what else stands there.
    for character in "" if text.isprintable() else text:
        if unicodedata.category(character) in _REFUSED_CATEGORIES:
            raise InputError(f"has a control character (U+{ord(character):04X})")
    if text != text.strip():
        raise InputError("begins or ends with a space")
    return text


def _whole(text: str) -> int:
    if not _WHOLE.fullmatch(text):
        raise InputError(f"{quoted(text)} is not a whole number")
    return int(text)


def _between(value: int, lowest: int, highest: int) -> int:
    if not lowest <= value <= highest:
        raise InputError(f"{value} lies outside {lowest} to {highest}")
    return value


def _meant(text: str, known: AbstractSet[str] | list[str]) -> str:
    close = get_close_matches(text, sorted(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
