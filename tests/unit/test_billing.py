"""An invoice adds up to the last cent, whatever its rates, and is due on a civil date."""

from __future__ import annotations

from datetime import date
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from billing_jobs.domain.billing import (
    LAST_DAY_OF_MONTH,
    LINES_MAX,
    MONTH_OFFSET_MAX,
    NET_DAYS_MAX,
    PPM,
    QUANTITY_MAX,
    TAX_RATE_PPM_MAX,
    DueTerms,
    Item,
    SubscriptionTerms,
    draft,
    draft_invoice,
    due_date,
)
from billing_jobs.domain.errors import AmountInvalid, InputError, UnknownCurrency
from billing_jobs.domain.money import MINOR_MAX
from billing_jobs.domain.periods import Period

# The machine may be busy: a slow example is no failure.
unhurried = settings(deadline=None)
JANUARY = Period(date(2026, 1, 31), date(2026, 2, 28))

items = st.builds(
    Item,
    description=st.just("Seat"),
    unit_amount_minor=st.integers(0, 10**9),
    quantity=st.integers(1, 1000),
    tax_rate_ppm=st.sampled_from([0, 2_048, 70_000, 107_500, 190_000, 256_000, PPM]),
)


def test_one_period_of_a_subscription_is_one_line_with_its_tax() -> None:
    """The everyday invoice: five seats at 19.99 and 19 %."""
    terms = SubscriptionTerms("Seats", 1999, "EUR", quantity=5, tax_rate_ppm=190_000)

    invoice = draft_invoice(terms, JANUARY)

    (line,) = invoice.lines
    (tax,) = invoice.taxes
    assert line.item.description == "Seats"
    assert line.item.period == JANUARY
    assert (line.net_minor, line.tax_minor) == (9995, 1899)
    assert (tax.tax_rate_ppm, tax.base_minor, tax.tax_minor) == (190_000, 9995, 1899)
    assert (invoice.subtotal_minor, invoice.tax_minor, invoice.total_minor) == (9995, 1899, 11_894)
    assert invoice.currency == "EUR"


def test_a_short_period_costs_the_full_price() -> None:
    """A month clamped to 28 days is a month; proration is for changes, not for calendars."""
    terms = SubscriptionTerms("Line", 1000, "EUR")

    short, long = (
        draft_invoice(terms, Period(date(2026, month, 28), date(2026, month + 1, 28)))
        for month in (2, 3)
    )

    assert short.total_minor == long.total_minor == 1000


def test_tax_is_rounded_once_per_rate_and_not_per_line() -> None:
    """Ten lines of 0.03 at 19 % owe 6 cents; rounded line by line it would be 10."""
    invoice = draft([Item("Call", 3, tax_rate_ppm=190_000)] * 10, "EUR")

    assert invoice.tax_minor == 6
    assert [line.tax_minor for line in invoice.lines] == [1, 1, 1, 1, 1, 1, 0, 0, 0, 0]


def test_each_rate_has_its_own_tax_in_rising_order() -> None:
    """The authorities ask for base and tax of each rate."""
    invoice = draft(
        [
            Item("Book", 2499, tax_rate_ppm=107_500),
            Item("Shipping", 644),
            Item("Bookmark", 100, tax_rate_ppm=107_500),
        ],
        "USD",
    )

    assert [(tax.tax_rate_ppm, tax.base_minor, tax.tax_minor) for tax in invoice.taxes] == [
        (0, 644, 0),
        (107_500, 2599, 279),
    ]
    assert [line.tax_minor for line in invoice.lines] == [268, 0, 11]
    assert invoice.total_minor == 2499 + 644 + 100 + 279


@unhurried
@given(st.lists(items, min_size=1, max_size=20))
def test_an_invoice_adds_up_exactly(chosen: list[Item]) -> None:
    """Lines, taxes and totals are three views of one sum; a cent between them is a support case."""
    invoice = draft(chosen, "EUR")

    assert invoice.subtotal_minor == sum(line.net_minor for line in invoice.lines)
    assert invoice.subtotal_minor == sum(tax.base_minor for tax in invoice.taxes)
    assert invoice.tax_minor == sum(line.tax_minor for line in invoice.lines)
    assert invoice.tax_minor == sum(tax.tax_minor for tax in invoice.taxes)
    assert invoice.total_minor == invoice.subtotal_minor + invoice.tax_minor
    assert [line.item for line in invoice.lines] == chosen
    rates = [tax.tax_rate_ppm for tax in invoice.taxes]
    assert rates == sorted(set(rates))


@unhurried
@given(st.lists(items, min_size=1, max_size=20))
def test_tax_is_off_by_half_a_unit_per_rate_at_most(chosen: list[Item]) -> None:
    """And by less than one on a line, so that a refund of a line is right as well."""
    invoice = draft(chosen, "EUR")

    for tax in invoice.taxes:
        exact = Fraction(tax.base_minor * tax.tax_rate_ppm, PPM)
        assert abs(tax.tax_minor - exact) <= Fraction(1, 2)
    for line in invoice.lines:
        exact = Fraction(line.net_minor * line.item.tax_rate_ppm, PPM)
        assert abs(line.tax_minor - exact) <= Fraction(3, 2)


def test_an_invoice_of_zero_is_an_invoice() -> None:
    """A free plan is settled without the gateway, but it is written."""
    invoice = draft([Item("Free plan", 0, tax_rate_ppm=190_000)], "EUR")

    assert (invoice.total_minor, invoice.tax_minor) == (0, 0)


@pytest.mark.parametrize("count", [0, LINES_MAX + 1])
def test_the_number_of_lines_is_bounded(count: int) -> None:
    """No line is no invoice, and thousands are a report."""
    with pytest.raises(InputError, match=f"1 to {LINES_MAX} lines"):
        draft([Item("Seat", 1)] * count, "EUR")


def test_a_line_beyond_64_bits_is_refused() -> None:
    """Price and quantity may each be right, and their product still no amount."""
    with pytest.raises(AmountInvalid, match="out of range"):
        Item("Seat", MINOR_MAX, quantity=2)


def test_a_negative_price_is_refused() -> None:
    """Credits are lines of their own kind, decided elsewhere."""
    with pytest.raises(AmountInvalid, match="must not be negative: -1"):
        Item("Seat", -1)


@pytest.mark.parametrize("quantity", [0, -1, QUANTITY_MAX + 1, 1.5, True])
def test_a_quantity_is_a_whole_number_within_bounds(quantity: int) -> None:
    """Half a seat is a price, not a quantity."""
    with pytest.raises(InputError, match=f"a quantity is a whole number from 1 to {QUANTITY_MAX}"):
        Item("Seat", 1, quantity=quantity)


@pytest.mark.parametrize("rate", [-1, TAX_RATE_PPM_MAX + 1, 0.19])
def test_a_tax_rate_is_in_whole_parts_per_million(rate: int) -> None:
    """0.19 meant as 19 % must not be taken as nearly nothing."""
    with pytest.raises(InputError, match="a tax rate in parts per million is a whole number"):
        Item("Seat", 1, tax_rate_ppm=rate)


def test_terms_that_could_never_be_billed_are_refused_when_made() -> None:
    """Not in the night of the first invoice."""
    with pytest.raises(AmountInvalid, match="out of range"):
        SubscriptionTerms("Seat", MINOR_MAX, "EUR", quantity=2)
    with pytest.raises(AmountInvalid, match="out of range"):
        SubscriptionTerms("Seat", MINOR_MAX, "EUR", tax_rate_ppm=1)
    with pytest.raises(UnknownCurrency):
        SubscriptionTerms("Seat", 1, "EUX")


@pytest.mark.parametrize(
    ("issued", "net_days", "due"),
    [
        ("2026-01-31", 0, "2026-01-31"),
        ("2026-01-31", 30, "2026-03-02"),
        ("2024-02-15", 14, "2024-02-29"),
    ],
)
def test_a_due_date_is_so_many_days_after_the_issue(issued: str, net_days: int, due: str) -> None:
    """Plain civil days: no time of day and no zone takes part."""
    assert due_date(date.fromisoformat(issued), net_days) == date.fromisoformat(due)


@pytest.mark.parametrize(
    ("terms", "due"),
    [
        (DueTerms(day_of_month=LAST_DAY_OF_MONTH), "2026-12-31"),
        (DueTerms(day_of_month=LAST_DAY_OF_MONTH, then_days=30), "2027-01-30"),
        (DueTerms(net_days=30, day_of_month=LAST_DAY_OF_MONTH), "2027-01-31"),
        (DueTerms(day_of_month=LAST_DAY_OF_MONTH, month_offset=2), "2027-02-28"),
        (DueTerms(day_of_month=10, month_offset=1), "2027-01-10"),
    ],
)
def test_terms_of_payment_may_name_a_day_of_a_month(terms: DueTerms, due: str) -> None:
    """The end of the month first, then the months: 10 December plus two months is 28 February."""
    assert terms.due_on(date(2026, 12, 10)) == date.fromisoformat(due)


@pytest.mark.parametrize(
    "wrong",
    [
        {"net_days": -1},
        {"net_days": NET_DAYS_MAX + 1},
        {"then_days": NET_DAYS_MAX + 1},
        {"month_offset": MONTH_OFFSET_MAX + 1},
        {"day_of_month": 0},
        {"day_of_month": LAST_DAY_OF_MONTH + 1},
    ],
)
def test_terms_of_payment_are_bounded(wrong: dict[str, int]) -> None:
    """An invoice due in a hundred years is a typing error."""
    with pytest.raises(InputError, match="is a whole number from"):
        DueTerms(**wrong)
