"""
Money: a whole number of minor units of one currency.

Owns exact arithmetic, the one rounding rule (half up, away from zero) and the splitting of an
amount without losing a unit. No float, no Decimal: decimal strings come in and go out. Not here:
what is owed (billing.py) and how an amount is printed for a locale.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from billing_jobs.domain.currencies import exponent
from billing_jobs.domain.errors import AmountInvalid

#: Postgres keeps amounts as bigint; what does not fit there is refused here, before any arithmetic.
MINOR_MAX = 2**63 - 1
MINOR_MIN = -(2**63)

#: Bounds the work of one split; far more parts than an invoice has lines or a period has days.
PARTS_MAX = 100_000

#: Decimals that a stored number may have of its own; the widest scale seen in price lists is 12.
SCALE_DECIMALS_MAX = 18

# 19 digits hold the largest bigint; the exponent table knows no more than 4 decimals.
_DECIMAL = re.compile(r"(?P<sign>-?)(?P<units>[0-9]{1,19})(?:\.(?P<decimals>[0-9]{1,4}))?")
_QUOTED_CHARACTERS_MAX = 40


def checked_minor(value: object) -> int:
    """The value, if it is an integer in minor units that fits 64 bits; else AmountInvalid."""
    if type(value) is not int:
        raise AmountInvalid(
            f"{_quoted(value)} is not an amount: amounts are integers in minor units, "
            "for example 1999 for 19.99 EUR and 500 for 500 JPY",
        )
    if not MINOR_MIN <= value <= MINOR_MAX:
        raise AmountInvalid(
            f"an amount of {value.bit_length()} bits is out of range: "
            f"minor units go from {MINOR_MIN} to {MINOR_MAX}",
        )
    return value


def round_half_up(numerator: int, denominator: int) -> int:
    """
    The quotient as a whole number, exactly; a half goes away from zero.

    >>> round_half_up(12385, 10), round_half_up(-12385, 10), round_half_up(124, 10)
    (1239, -1239, 12)
    """
    if type(numerator) is not int or type(denominator) is not int:
        raise AmountInvalid(
            f"{_quoted(numerator)} / {_quoted(denominator)} is not a fraction of whole numbers",
        )
    if denominator == 0:
        raise AmountInvalid("an amount cannot be divided by zero")
    magnitude = (2 * abs(numerator) + abs(denominator)) // (2 * abs(denominator))
    return magnitude if (numerator < 0) == (denominator < 0) else -magnitude


def allocate(total_minor: int, weights: Sequence[int]) -> tuple[int, ...]:
    """
    Split by weight so that the shares sum to the total; odd units go to the largest remainders.

    Equal remainders favour the earlier share; a negative total is split like its opposite.

    >>> allocate(100, [1, 1, 1]), allocate(-5, [1, 3])
    ((34, 33, 33), (-1, -4))
    """
    checked_minor(total_minor)
    weight_sum = _checked_weight_sum(weights)
    if weight_sum == 0:
        if total_minor != 0:
            raise AmountInvalid(f"{total_minor} cannot be split over weights that are all zero")
        return (0,) * len(weights)
    magnitude = abs(total_minor)
    shares = [magnitude * weight // weight_sum for weight in weights]
    # sorted() is stable, which is what gives equal remainders to the earlier share.
    by_remainder = sorted(
        range(len(weights)),
        key=lambda index: -(magnitude * weights[index] % weight_sum),
    )
    for index in by_remainder[: magnitude - sum(shares)]:
        shares[index] += 1
    return tuple(shares) if total_minor >= 0 else tuple(-share for share in shares)


@dataclass(frozen=True, slots=True)
class Money:
    """So many minor units of a currency: Money(1999, "EUR") is 19.99 euro."""

    minor: int
    currency: str

    def __post_init__(self) -> None:
        checked_minor(self.minor)
        exponent(self.currency)

    @classmethod
    def from_decimal_string(cls, text: str, currency: str) -> Self:
        """Read "19.99"; more decimals than the currency has are refused, never rounded away."""
        decimals = exponent(currency)
        match = _decimal_match(text)
        if match is None:
            raise AmountInvalid(
                f"{_quoted(text)} is not a decimal amount: write digits with a point "
                "and no grouping, for example 1234.50",
            )
        given = match["decimals"] or ""
        if len(given) > decimals:
            raise AmountInvalid(
                f"{_quoted(text)} has {len(given)} decimals, but {currency} has {decimals}",
            )
        minor = int(match["units"] + given.ljust(decimals, "0"))
        return cls(-minor if match["sign"] else minor, currency)

    @classmethod
    def from_scaled(cls, value: int, *, decimals: int, currency: str) -> Self:
        """Read a number stored with decimals of its own: 600000 with 4 is 60; rounded half up."""
        if not 0 <= decimals <= SCALE_DECIMALS_MAX:
            raise AmountInvalid(f"decimals must lie between 0 and {SCALE_DECIMALS_MAX}: {decimals}")
        minor = round_half_up(checked_minor(value) * 10 ** exponent(currency), 10**decimals)
        return cls(minor, currency)

    def to_decimal_string(self) -> str:
        """Write with all decimals of the currency: "19.99", "500", "-0.050"; for machines."""
        decimals = exponent(self.currency)
        sign = "-" if self.minor < 0 else ""
        digits = str(abs(self.minor)).rjust(decimals + 1, "0")
        if decimals == 0:
            return sign + digits
        return f"{sign}{digits[:-decimals]}.{digits[-decimals:]}"

    def fraction(self, numerator: int, denominator: int) -> Self:
        """This amount times a fraction, rounded half up once."""
        return type(self)(round_half_up(self.minor * numerator, denominator), self.currency)

    def allocate(self, weights: Sequence[int]) -> tuple[Self, ...]:
        """Split by weight as `allocate` does; the shares sum to this amount."""
        return tuple(type(self)(share, self.currency) for share in allocate(self.minor, weights))

    def __add__(self, other: Money) -> Self:
        return type(self)(self.minor + self._same_currency(other), self.currency)

    def __sub__(self, other: Money) -> Self:
        return type(self)(self.minor - self._same_currency(other), self.currency)

    def __mul__(self, quantity: int) -> Self:
        if type(quantity) is not int:
            raise AmountInvalid(
                f"money is multiplied by whole numbers only, not by {_quoted(quantity)}; "
                "use fraction(numerator, denominator)",
            )
        return type(self)(self.minor * quantity, self.currency)

    def __neg__(self) -> Self:
        return type(self)(-self.minor, self.currency)

    def _same_currency(self, other: Money) -> int:
        if other.currency != self.currency:
            raise AmountInvalid(
                f"{self.currency} and {other.currency} cannot be added or set off: "
                "convert one of them first, at an explicit rate",
            )
        return other.minor


def _decimal_match(text: object) -> re.Match[str] | None:
    # A float must not slip in here: 19.99 is a promise of exactness that it cannot keep.
    return _DECIMAL.fullmatch(text) if isinstance(text, str) else None


def _checked_weight_sum(weights: Sequence[int]) -> int:
    if not 1 <= len(weights) <= PARTS_MAX:
        raise AmountInvalid(
            f"an amount is split into 1 to {PARTS_MAX} parts, not into {len(weights)}",
        )
    for weight in weights:
        if type(weight) is not int or weight < 0:
            raise AmountInvalid(
                f"a weight must be a whole number that is not negative, not {_quoted(weight)}",
            )
    return sum(weights)


def _quoted(value: object) -> str:
    return repr(value)[:_QUOTED_CHARACTERS_MAX]
