"""Money is exact: whole minor units, one rounding, no unit lost in a split, no float let in."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from billing_jobs.domain.currencies import EXPONENTS, WITHOUT_MINOR_UNIT, exponent
from billing_jobs.domain.errors import AmountInvalid, UnknownCurrency
from billing_jobs.domain.money import (
    MINOR_MAX,
    MINOR_MIN,
    PARTS_MAX,
    SCALE_DECIMALS_MAX,
    Money,
    allocate,
    checked_minor,
    round_half_up,
)

# The machine may be busy: a slow example is no failure.
unhurried = settings(deadline=None)
minors = st.integers(MINOR_MIN, MINOR_MAX)
currencies = st.sampled_from(sorted(EXPONENTS))


@pytest.mark.parametrize(("decimals", "codes"), [(0, 17), (2, 139), (3, 7), (4, 2)])
def test_as_many_currencies_have_these_decimals_as_iso_4217_says(decimals: int, codes: int) -> None:
    """A code that slipped into the wrong row would be billed a hundred times too high or low."""
    assert sum(found == decimals for found in EXPONENTS.values()) == codes


@pytest.mark.parametrize(
    ("code", "decimals"),
    [
        ("JPY", 0),
        ("KRW", 0),
        ("ISK", 0),
        ("UGX", 0),
        ("IDR", 2),
        ("HUF", 2),
        ("TWD", 2),
        ("KWD", 3),
        ("TND", 3),
        ("CLF", 4),
        ("UYW", 4),
    ],
)
def test_a_currency_that_is_often_got_wrong_has_its_iso_exponent(code: str, decimals: int) -> None:
    """CLDR prints some of these otherwise, and gateways have tables of their own."""
    assert exponent(code) == decimals


@pytest.mark.parametrize("code", sorted(WITHOUT_MINOR_UNIT))
def test_a_unit_without_minor_units_is_refused(code: str) -> None:
    """Nobody is billed in gold or in test codes, and 13 codes of the list are of that kind."""
    with pytest.raises(UnknownCurrency, match=rf"'{code}' has no minor unit"):
        exponent(code)

    assert len(WITHOUT_MINOR_UNIT) == 13


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("EUT", r"did you mean EUR( or|\?)"),
        ("eur", r"did you mean EUR\?"),
        (" usd", r"did you mean USD\?"),
        ("BGN", r"did you mean EUR\?"),
        ("HRK", r"did you mean EUR\?"),
        ("§§§", "three capital letters, for example EUR"),
        ("E" * 1000, r"^.{1,120}$"),
    ],
)
def test_an_unknown_currency_names_what_was_meant(code: str, hint: str) -> None:
    """The person repairs the book at once instead of looking up a standard."""
    with pytest.raises(UnknownCurrency, match=hint):
        exponent(code)


@pytest.mark.parametrize(
    "value",
    [19.99, 1999.0, True, Decimal(1999), Decimal("19.99"), "1999", "19.99", None, Fraction(1, 3)],
)
def test_what_is_not_an_integer_in_minor_units_is_no_amount(value: object) -> None:
    """A float that looks right today is a cent off tomorrow, and True is not one cent."""
    with pytest.raises(
        AmountInvalid, match=r"integers in minor units, for example 1999 for 19\.99"
    ):
        checked_minor(value)
    with pytest.raises(AmountInvalid):
        Money(cast("int", value), "EUR")


@pytest.mark.parametrize("value", [MINOR_MAX + 1, MINOR_MIN - 1, 10**400])
def test_an_amount_beyond_64_bits_is_refused(value: int) -> None:
    """The column is a bigint; the refusal must come before the database's, and be readable."""
    with pytest.raises(AmountInvalid, match="out of range"):
        checked_minor(value)


def test_arithmetic_that_leaves_64_bits_is_refused() -> None:
    """A sum that wrapped or was refused by the database half-way would be found too late."""
    most = Money(MINOR_MAX, "EUR")

    with pytest.raises(AmountInvalid):
        most + Money(1, "EUR")
    with pytest.raises(AmountInvalid):
        most * 2
    with pytest.raises(AmountInvalid):
        -Money(MINOR_MIN, "EUR")


def test_money_knows_only_real_currencies() -> None:
    """A typing error in a currency must not become a column of its own in a report."""
    with pytest.raises(UnknownCurrency):
        Money(1, "XXX")


def test_money_of_one_currency_adds_subtracts_and_multiplies() -> None:
    """The plain arithmetic of an invoice."""
    price = Money(1999, "EUR")

    assert price + Money(1, "EUR") == Money(2000, "EUR")
    assert price - Money(2000, "EUR") == Money(-1, "EUR")
    assert price * 3 == Money(5997, "EUR")
    assert -price == Money(-1999, "EUR")
    assert price.fraction(10, 100) == Money(200, "EUR")


def test_money_of_two_currencies_is_never_added() -> None:
    """100 dollars and 50 euro are not 150 of anything."""
    with pytest.raises(AmountInvalid, match="USD and EUR cannot be added"):
        Money(10_000, "USD") + Money(5_000, "EUR")
    with pytest.raises(AmountInvalid, match="EUR and JPY cannot be added"):
        Money(10_000, "EUR") - Money(5_000, "JPY")


@pytest.mark.parametrize("factor", [1.1, Decimal("1.1"), True, "2"])
def test_money_is_multiplied_by_whole_numbers_only(factor: object) -> None:
    """Anything else needs a fraction, which says how it rounds."""
    with pytest.raises(AmountInvalid, match=r"fraction\(numerator, denominator\)"):
        Money(1999, "EUR") * cast("int", factor)


@pytest.mark.parametrize(
    ("text", "currency", "minor"),
    [
        ("19.99", "EUR", 1999),
        ("19.9", "EUR", 1990),
        ("19", "EUR", 1900),
        ("-0.05", "EUR", -5),
        ("0", "EUR", 0),
        ("500", "JPY", 500),
        ("1.234", "KWD", 1234),
        ("1.2345", "CLF", 12345),
        ("92233720368547758.07", "USD", MINOR_MAX),
    ],
)
def test_a_decimal_string_is_read_exactly(text: str, currency: str, minor: int) -> None:
    """Strings are how amounts cross borders; no digit may be lost on the way."""
    assert Money.from_decimal_string(text, currency).minor == minor


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".5",
        "5.",
        "1,000.00",
        "1 000",
        "+5",
        "--5",
        "1e3",
        "1.0e3",
        "\u0665",
        "NaN",
        "Infinity",
        "1_000",
        " 5",
        "5\n",
        "0x10",
        "12345678901234567890",
        19.99,
        None,
        5,
    ],
)
def test_what_is_no_decimal_amount_is_refused(text: object) -> None:
    """A guess at grouping or an exponent would be a guess about money."""
    with pytest.raises(AmountInvalid, match="is not a decimal amount"):
        Money.from_decimal_string(cast("str", text), "EUR")


@pytest.mark.parametrize(
    ("text", "currency"), [("0.001", "EUR"), ("5.0", "JPY"), ("1.0000", "KWD")]
)
def test_more_decimals_than_the_currency_has_are_refused(text: str, currency: str) -> None:
    """To round here would hide that somebody calculated in other units."""
    with pytest.raises(AmountInvalid, match=f"but {currency} has"):
        Money.from_decimal_string(text, currency)


def test_a_decimal_string_beyond_64_bits_is_refused() -> None:
    """Nineteen digits can still be too many once the cents are counted."""
    with pytest.raises(AmountInvalid, match="out of range"):
        Money.from_decimal_string("92233720368547758.08", "USD")


def test_a_number_with_decimals_of_its_own_is_rounded_once() -> None:
    """Prices stored with four decimals are not a hundred times the price."""
    assert Money.from_scaled(600_000, decimals=4, currency="USD") == Money(6000, "USD")
    assert Money.from_scaled(1_149_984, decimals=4, currency="CHF") == Money(11_500, "CHF")
    assert Money.from_scaled(-25, decimals=1, currency="JPY") == Money(-3, "JPY")


@pytest.mark.parametrize("decimals", [-1, SCALE_DECIMALS_MAX + 1])
def test_a_scale_out_of_bounds_is_refused(decimals: int) -> None:
    """A number with a thousand decimals is a programming error, and slow."""
    with pytest.raises(AmountInvalid, match="decimals must lie between 0 and"):
        Money.from_scaled(1, decimals=decimals, currency="EUR")


@pytest.mark.parametrize(
    ("minor", "currency", "text"),
    [
        (1999, "EUR", "19.99"),
        (5, "EUR", "0.05"),
        (-5, "EUR", "-0.05"),
        (500, "JPY", "500"),
        (-500, "JPY", "-500"),
        (50, "KWD", "0.050"),
        (MINOR_MIN, "CLF", "-922337203685477.5808"),
    ],
)
def test_money_is_written_with_all_its_decimals(minor: int, currency: str, text: str) -> None:
    """0.05 must not be printed as 0.5, and yen have no decimals to print."""
    assert Money(minor, currency).to_decimal_string() == text


@unhurried
@given(minors, currencies)
def test_what_is_written_is_read_back(minor: int, currency: str) -> None:
    """Export and import of every amount of every currency lose nothing."""
    money = Money(minor, currency)

    assert Money.from_decimal_string(money.to_decimal_string(), currency) == money


@pytest.mark.parametrize(
    ("numerator", "denominator", "rounded"),
    [
        (5, 10, 1),
        (-5, 10, -1),
        (4, 10, 0),
        (-4, 10, 0),
        (15, 10, 2),
        (25, 10, 3),
        (-25, 10, -3),
        (25, -10, -3),
        (-25, -10, 3),
        (0, -7, 0),
        (7, 7, 1),
    ],
)
def test_a_half_is_rounded_away_from_zero(numerator: int, denominator: int, rounded: int) -> None:
    """Half to even would turn 8.925 into 8.92; Python's own round does that."""
    assert round_half_up(numerator, denominator) == rounded


@unhurried
@given(st.integers(), st.integers().filter(bool))
def test_rounding_is_exact_for_numbers_of_any_size(numerator: int, denominator: int) -> None:
    """The result is within a half, and a half always moves away from zero."""
    exact = Fraction(numerator, denominator)

    rounded = round_half_up(numerator, denominator)

    assert abs(rounded - exact) <= Fraction(1, 2)
    if abs(rounded - exact) == Fraction(1, 2):
        assert abs(rounded) > abs(exact)
    assert round_half_up(-numerator, denominator) == -rounded


@pytest.mark.parametrize(("numerator", "denominator"), [(1.5, 1), (1, 2.0), (True, 1), ("1", 1)])
def test_only_whole_numbers_make_a_fraction(numerator: object, denominator: object) -> None:
    """A float let in here would be rounded as if it had been exact."""
    with pytest.raises(AmountInvalid, match="not a fraction of whole numbers"):
        round_half_up(cast("int", numerator), cast("int", denominator))


def test_nothing_is_divided_by_zero() -> None:
    """A period without days must not end in a traceback of Python's own."""
    with pytest.raises(AmountInvalid, match="divided by zero"):
        Money(1, "EUR").fraction(1, 0)


@pytest.mark.parametrize(
    ("total", "weights", "shares"),
    [
        (100, [1, 1, 1], (34, 33, 33)),
        (-100, [1, 1, 1], (-34, -33, -33)),
        (5, [0, 1, 0], (0, 5, 0)),
        (0, [0, 0], (0, 0)),
        (0, [3, 4], (0, 0)),
        (2, [1, 1, 1], (1, 1, 0)),
        (10, [1, 2, 4], (1, 3, 6)),
    ],
)
def test_odd_units_go_to_the_largest_remainders(
    total: int, weights: list[int], shares: tuple[int, ...]
) -> None:
    """The rule is written down once, so that two programs split alike."""
    assert allocate(total, weights) == shares


@unhurried
@given(minors, st.lists(st.integers(0, 10**12), min_size=1, max_size=40).filter(any))
def test_a_split_loses_nothing_and_is_fair(total: int, weights: list[int]) -> None:
    """Shares sum to the total, each within one unit of its exact part; no weight, no unit."""
    shares = allocate(total, weights)

    assert sum(shares) == total
    for share, weight in zip(shares, weights, strict=True):
        assert abs(share - Fraction(total * weight, sum(weights))) < 1
        assert weight or share == 0


@unhurried
@given(st.integers(0, MINOR_MAX), st.integers(1, 50))
def test_equal_weights_favour_the_earlier_share(total: int, parts: int) -> None:
    """Ties are broken by position and not by chance, or a re-run would differ."""
    shares = allocate(total, [1] * parts)

    assert list(shares) == sorted(shares, reverse=True)
    assert shares[0] - shares[-1] <= 1


def test_money_is_split_into_money() -> None:
    """The shares keep the currency."""
    shares = Money(1000, "CHF").allocate([1, 1, 1])

    assert shares == (Money(334, "CHF"), Money(333, "CHF"), Money(333, "CHF"))


@pytest.mark.parametrize("weights", [[], [1] * (PARTS_MAX + 1)])
def test_the_number_of_parts_is_bounded(weights: list[int]) -> None:
    """No parts is nobody to pay, and too many is a runaway loop."""
    with pytest.raises(AmountInvalid, match=f"into 1 to {PARTS_MAX} parts"):
        allocate(1, weights)


@pytest.mark.parametrize("weight", [-1, 1.0, True, "1"])
def test_a_weight_is_a_whole_number_that_is_not_negative(weight: object) -> None:
    """A negative weight would make one share larger than the whole."""
    with pytest.raises(AmountInvalid, match="a weight must be"):
        allocate(1, [cast("int", weight), 1])


@pytest.mark.parametrize("total", [MINOR_MAX + 1, 1.0, "1"])
def test_only_an_amount_is_split(total: object) -> None:
    """The same bounds as everywhere else, and no float by this door either."""
    with pytest.raises(AmountInvalid):
        allocate(cast("int", total), [1, 1])


def test_something_cannot_be_split_over_nothing() -> None:
    """A tax on lines that are all zero must be zero, or somebody miscounted."""
    with pytest.raises(AmountInvalid, match="all zero"):
        allocate(1, [0, 0])
