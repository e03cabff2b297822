"""
What an invoice for one subscription period holds, and when it is due.

Owns lines, tax and totals in whole minor units: tax is exclusive, taken per rate on the sum of the
line nets, rounded once, and handed back to the lines so that a refund by lines is exact. Not here:
invoice numbers and states, coupons, credit, proration, tax-inclusive prices.
"""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from billing_jobs.domain.errors import AmountInvalid, InputError
from billing_jobs.domain.money import Money, allocate, checked_minor, round_half_up
from billing_jobs.domain.periods import Period

#: Parts per million in one: a rate of 19 % is 190_000.
PPM = 1_000_000
#: No tax takes more than the net it is taken on.
TAX_RATE_PPM_MAX = PPM
#: Seats, devices, litres: above this a quantity is a typing error.
QUANTITY_MAX = 1_000_000
#: Ten years; longer terms of payment are a typing error.
NET_DAYS_MAX = 3650
#: The same ten years in months.
MONTH_OFFSET_MAX = 120
#: Every month ends on this day or before, so it names the end of the month.
LAST_DAY_OF_MONTH = 31
#: Lines of one invoice; a document with more cannot be read by a person.
LINES_MAX = 1000

_MONTHS_A_YEAR = 12


@dataclass(frozen=True, slots=True)
class Item:
    """One thing to bill: a quantity at a unit price before tax, for a period or once."""

    description: str
    unit_amount_minor: int
    quantity: int = 1
    tax_rate_ppm: int = 0
    period: Period | None = None

    def __post_init__(self) -> None:
        if checked_minor(self.unit_amount_minor) < 0:
            raise AmountInvalid(f"a price must not be negative: {self.unit_amount_minor}")
        _check_whole("a quantity", self.quantity, 1, QUANTITY_MAX)
        _check_whole("a tax rate in parts per million", self.tax_rate_ppm, 0, TAX_RATE_PPM_MAX)
        checked_minor(self.net_minor)

    @property
    def net_minor(self) -> int:
        """The price before tax."""
        return self.unit_amount_minor * self.quantity


@dataclass(frozen=True, slots=True)
class SubscriptionTerms:
    """What a subscription sells in each of its periods."""

    description: str
    unit_amount_minor: int
    currency: str
    quantity: int = 1
    tax_rate_ppm: int = 0

    def __post_init__(self) -> None:
        # An unbillable subscription is refused when it is made, not when its first period is due.
        net_minor = self.item().net_minor
        Money(net_minor + _tax_minor(net_minor, self.tax_rate_ppm), self.currency)

    def item(self, period: Period | None = None) -> Item:
        """What is billed for a period."""
        return Item(
            description=self.description,
            unit_amount_minor=self.unit_amount_minor,
            quantity=self.quantity,
            tax_rate_ppm=self.tax_rate_ppm,
            period=period,
        )


@dataclass(frozen=True, slots=True)
class DraftLine:
    """A line of an invoice, with its share of the tax of its rate."""

    item: Item
    net_minor: int
    tax_minor: int


@dataclass(frozen=True, slots=True)
class DraftTax:
    """The tax of one rate over all lines that carry it."""

    tax_rate_ppm: int
    base_minor: int
    tax_minor: int


@dataclass(frozen=True, slots=True)
class InvoiceDraft:
    """What an invoice will hold; it has no number and no date yet."""

    currency: str
    lines: tuple[DraftLine, ...]
    taxes: tuple[DraftTax, ...]
    subtotal_minor: int
    tax_minor: int
    total_minor: int


def draft_invoice(terms: SubscriptionTerms, period: Period) -> InvoiceDraft:
    """The invoice of one subscription period; a clamped period costs the full price."""
    return draft([terms.item(period)], terms.currency)


def draft(items: Sequence[Item], currency: str) -> InvoiceDraft:
    """
    The invoice over these items, taxes by rising rate.

    >>> seats = Item("Seats", 5555, tax_rate_ppm=230_000)
    >>> drafted = draft([seats, Item("Support", 1111, tax_rate_ppm=230_000)], "EUR")
    >>> drafted.subtotal_minor, drafted.tax_minor, [line.tax_minor for line in drafted.lines]
    (6666, 1533, [1278, 255])
    """
    if not 1 <= len(items) <= LINES_MAX:
        raise InputError(f"an invoice has 1 to {LINES_MAX} lines, not {len(items)}")
    line_taxes = [0] * len(items)
    taxes = []
    for rate in sorted({item.tax_rate_ppm for item in items}):
        positions = [at for at, item in enumerate(items) if item.tax_rate_ppm == rate]
        tax, shares = _tax_of_rate(rate, [items[at].net_minor for at in positions])
        taxes.append(tax)
        for at, share in zip(positions, shares, strict=True):
            line_taxes[at] = share
    subtotal = sum(item.net_minor for item in items)
    return InvoiceDraft(
        currency=currency,
        lines=tuple(
            DraftLine(item, item.net_minor, tax)
            for item, tax in zip(items, line_taxes, strict=True)
        ),
        taxes=tuple(taxes),
        subtotal_minor=subtotal,
        tax_minor=sum(line_taxes),
        # Money knows the currency and the 64 bits of the column that will hold the total.
        total_minor=Money(subtotal + sum(line_taxes), currency).minor,
    )


@dataclass(frozen=True, slots=True)
class DueTerms:
    """
    When an invoice is due: days after the issue, then perhaps a day of a month, then more days.

    A `day_of_month` of 31 is the end of the month: "30 days end of month" is net_days=30 and
    day_of_month=31, "end of month plus 30" is day_of_month=31 and then_days=30.
    """

    net_days: int = 0
    day_of_month: int | None = None
    month_offset: int = 0
    then_days: int = 0

    def __post_init__(self) -> None:
        _check_whole("a term of payment in days", self.net_days, 0, NET_DAYS_MAX)
        _check_whole("days after the end of a month", self.then_days, 0, NET_DAYS_MAX)
        _check_whole("months to the due date", self.month_offset, 0, MONTH_OFFSET_MAX)
        if self.day_of_month is not None:
            _check_whole("a day of the month", self.day_of_month, 1, LAST_DAY_OF_MONTH)

    def due_on(self, issued_on: date) -> date:
        """
        The due date of an invoice issued on that local date.

        >>> str(DueTerms(day_of_month=LAST_DAY_OF_MONTH, month_offset=1).due_on(date(2020, 6, 11)))
        '2020-07-31'
        """
        day = issued_on + timedelta(days=self.net_days)
        if self.day_of_month is not None:
            day = _day_of_month(day, self.month_offset, self.day_of_month)
        return day + timedelta(days=self.then_days)


def due_date(issued_on: date, net_days: int) -> date:
    """The civil date so many days after the issue (0: on receipt); no zone ever shifts it."""
    return DueTerms(net_days=net_days).due_on(issued_on)


def _tax_of_rate(rate_ppm: int, nets_minor: Sequence[int]) -> tuple[DraftTax, tuple[int, ...]]:
    base_minor = sum(nets_minor)
    tax_minor = _tax_minor(base_minor, rate_ppm)
    tax = DraftTax(tax_rate_ppm=rate_ppm, base_minor=base_minor, tax_minor=tax_minor)
    return tax, allocate(tax_minor, nets_minor)


def _tax_minor(base_minor: int, rate_ppm: int) -> int:
    return round_half_up(base_minor * rate_ppm, PPM)


def _day_of_month(day: date, months_later: int, day_of_month: int) -> date:
    year, month = divmod(day.year * _MONTHS_A_YEAR + day.month - 1 + months_later, _MONTHS_A_YEAR)
    return date(year, month + 1, min(day_of_month, monthrange(year, month + 1)[1]))


def _check_whole(what: str, value: object, lowest: int, highest: int) -> None:
    if type(value) is not int or not lowest <= value <= highest:
        raise InputError(f"{what} is a whole number from {lowest} to {highest}, not {value!r}")
