"""
A book to import: customers, their payment methods and subscriptions, read from a file's text.

Owns what the values of a book mean together, and that a book is taken whole or not at all. Not
here: reading files, ids and rows of the database (the importer derives ids from the references),
and which gateways exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from enum import StrEnum
from functools import cached_property
from zoneinfo import available_timezones

from billing_jobs.domain import book_fields
from billing_jobs.domain.billing import SubscriptionTerms
from billing_jobs.domain.book_csv import csv_rows
from billing_jobs.domain.book_json import JsonLines, json_rows
from billing_jobs.domain.book_rows import (
    CustomerRows,
    Place,
    Problem,
    Problems,
    Row,
    quoted,
)
from billing_jobs.domain.countries import country
from billing_jobs.domain.errors import BookInvalid, InputError
from billing_jobs.domain.periods import Anchor, Interval, IntervalUnit, index_of

#: A book is read and checked in memory, some 2 KB a line; larger ones are imported in parts.
LINES_MAX = 1_000_000
#: A line of all columns at their longest is far below; this bounds files without line breaks.
CHARACTERS_MAX = 400_000_000

# Longer than the name of any column; what is longer is quoted, and cut.
_FIELD_CHARACTERS_MAX = 30
_BYTE_ORDER_MARK = "\ufeff"
# Stands in for values that were refused; nothing that holds it ever leaves this module.
_BLANK_CURRENCY = "EUR"
# The end of a month and before every date that a book may hold, so that it contradicts nothing.
_BLANK_DATE = date(1969, 12, 31)

# Column to attribute: what lines of one customer, or of one payment method, must repeat alike.
_CUSTOMER_REPEATED = {
    column: column for column in ("name", "email", "country", "timezone", "locale", "currency")
}
_METHOD_REPEATED = {"gateway": "gateway", "payment_token": "token"}
_DIFFERS = "differs from another line of the same customer"


class BookFormat(StrEnum):
    """How the text of a book is written."""

    #: One line a subscription.
    CSV = "csv"
    #: One document, customers with their elements.
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Customer:
    """Who is billed; the time zone is the one in which days begin and end."""

    reference: str
    # Not in repr: that is what logs and tracebacks show of a customer.
    name: str = field(repr=False)
    email: str = field(repr=False)
    country: str
    timezone: str
    locale: str
    currency: str


@dataclass(frozen=True, slots=True)
class PaymentMethod:
    """A way of paying, kept by a gateway; we hold its token only."""

    reference: str
    customer: str
    gateway: str
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Subscription:
    """
    What a customer is billed for, and when.

    Without `bill_from` the period that contains the day of the import is the first one billed;
    no period starts after `ends_on`.
    """

    reference: str
    customer: str
    payment_method: str | None
    terms: SubscriptionTerms
    interval: Interval
    anchor: Anchor
    bill_from: date | None = None
    ends_on: date | None = None
    net_days: int = 0


@dataclass(frozen=True, slots=True)
class Book:
    """A book without a single problem, in the order of the file."""

    customers: tuple[Customer, ...]
    payment_methods: tuple[PaymentMethod, ...]
    subscriptions: tuple[Subscription, ...]


def parse_book(text: str, *, file_format: BookFormat | str, file_name: str) -> Book:
    """
    The book in the text, or BookInvalid with every problem as "file:line: field: reason".

    Only the first problems are spelled out (PROBLEMS_SHOWN_MAX); the last entry counts the rest.
    """
    wanted = _checked_format(file_format)
    text = text.removeprefix(_BYTE_ORDER_MARK)
    problems = Problems()
    # A spreadsheet's repeated customer lines are its way of writing a list; JSON has lists.
    assembly = _Assembly(repeats_allowed=wanted is BookFormat.CSV)
    for rows in _rows(text, wanted, problems):
        assembly.add(rows)
        if problems.too_many:
            break
    book = assembly.book()
    if not problems.count and not book.customers:
        problems.add(Problem(1, "customer", "there is none: an empty book is not imported"))
    if problems.count:
        raise _book_invalid(text, file_name, problems)
    return book


def first_index(subscription: Subscription, today: date) -> int:
    """The index of the first period to bill, for a book imported on that day (customer's zone)."""
    day = today if subscription.bill_from is None else subscription.bill_from
    return max(0, index_of(subscription.anchor, subscription.interval, day))


class _Assembly:
    """Collects rows into a book and says where they contradict each other."""

    def __init__(self, *, repeats_allowed: bool) -> None:
        self._repeats_allowed = repeats_allowed
        self._customers: dict[str, tuple[Customer, Place]] = {}
        self._methods: dict[str, tuple[PaymentMethod, Place]] = {}
        self._subscriptions: dict[str, tuple[Subscription, Place]] = {}
        # The payment method that a customer's first line named, which the others must repeat.
        self._method_of: dict[str, tuple[str, Place]] = {}

    def book(self) -> Book:
        """What was collected."""
        return Book(
            customers=tuple(customer for customer, _ in self._customers.values()),
            payment_methods=tuple(method for method, _ in self._methods.values()),
            subscriptions=tuple(subscription for subscription, _ in self._subscriptions.values()),
        )

    def add(self, rows: CustomerRows) -> None:
        """Take a customer with what stands beside it."""
        customer = self._read_customer(rows.customer)
        # Kept even if other fields are wrong, so that a contradiction is told in the same round.
        if customer.reference:
            self._keep_customer(customer, rows.customer)
        for row in rows.methods:
            method = self._read_method(row, customer.reference)
            if method.reference and customer.reference:
                self._keep_method(method, row)
        references = [row.values.get("payment_method") or "" for row in rows.methods]
        if self._repeats_allowed and customer.reference:
            self._check_same_method(customer.reference, references, rows.customer)
        for row in rows.subscriptions:
            subscription = self._read_subscription(row, customer, references)
            _check_order(subscription, row)
            if subscription.reference:
                self._keep_subscription(subscription, row)

    @cached_property
    def _timezone(self) -> Callable[[str], str]:
        # The names are listed from the disk: once a book, and not for a text without a customer.
        return book_fields.timezone_in(available_timezones())

    def _read_customer(self, row: Row) -> Customer:
        return Customer(
            reference=row.need("customer", book_fields.reference, ""),
            name=row.need("name", book_fields.name, ""),
            email=row.need("email", book_fields.email, ""),
            country=row.need("country", country, ""),
            timezone=row.need("timezone", self._timezone, ""),
            locale=row.need("locale", book_fields.locale, ""),
            currency=row.need("currency", book_fields.currency, ""),
        )

    def _keep_customer(self, customer: Customer, row: Row) -> None:
        known, place = self._customers.setdefault(customer.reference, (customer, row.place))
        if place == row.place:
            return
        if not self._repeats_allowed:
            row.refuse("customer", f"{quoted(customer.reference)} is used twice", place)
        else:
            _refuse_differences(row, place, _CUSTOMER_REPEATED, (known, customer))

    def _read_method(self, row: Row, customer: str) -> PaymentMethod:
        return PaymentMethod(
            reference=row.need("payment_method", book_fields.reference, ""),
            customer=customer,
            gateway=row.need("gateway", book_fields.gateway, ""),
            token=row.need("payment_token", book_fields.token, ""),
        )

    def _keep_method(self, method: PaymentMethod, row: Row) -> None:
        known, place = self._methods.setdefault(method.reference, (method, row.place))
        if place == row.place:
            return
        if known.customer != method.customer:
            reason = f"{quoted(method.reference)} belongs to another customer"
            row.refuse("payment_method", reason, place)
        elif not self._repeats_allowed:
            row.refuse("payment_method", f"{quoted(method.reference)} is used twice", place)
        else:
            _refuse_differences(row, place, _METHOD_REPEATED, (known, method))

    def _check_same_method(self, customer: str, references: list[str], row: Row) -> None:
        named = references[0] if references else ""
        if references and not named:
            return  # it is missing, and that has been said
        known, place = self._method_of.setdefault(customer, (named, row.place))
        if known != named:
            row.refuse("payment_method", _DIFFERS, place)

    def _read_subscription(self, row: Row, customer: Customer, methods: list[str]) -> Subscription:
        method = row.values.get("payment_method") or (methods[0] if methods else None)
        if method is not None and method not in methods:
            reason = f"{quoted(method)} is none of this customer's payment methods"
            row.refuse("payment_method", reason)
        return Subscription(
            reference=row.need("subscription", book_fields.reference, ""),
            customer=customer.reference,
            payment_method=method,
            terms=_read_terms(row, customer.currency or _BLANK_CURRENCY),
            interval=Interval(
                row.need("interval", book_fields.interval_unit, IntervalUnit.MONTH),
                row.may("interval_count", book_fields.interval_count, 1),
            ),
            anchor=_read_anchor(row),
            bill_from=row.may("bill_from", book_fields.day, None),
            ends_on=row.may("ends_on", book_fields.day, None),
            net_days=row.may("net_days", book_fields.net_days, 0),
        )

    def _keep_subscription(self, subscription: Subscription, row: Row) -> None:
        reference = subscription.reference
        _, place = self._subscriptions.setdefault(reference, (subscription, row.place))
        if place != row.place:
            row.refuse("subscription", f"{quoted(reference)} is used twice", place)


def _refuse_differences(
    row: Row,
    place: Place,
    columns: Mapping[str, str],
    pair: tuple[object, object],
) -> None:
    for column, attribute in columns.items():
        first, repeated = (getattr(element, attribute) for element in pair)
        # A value that was refused is blank here; it contradicts nothing.
        if first and repeated and first != repeated:
            row.refuse(column, _DIFFERS, place)


def _read_terms(row: Row, currency: str) -> SubscriptionTerms:
    description = row.need("description", book_fields.description, "")
    amount_minor = row.need("amount_minor", book_fields.amount_minor, 0)
    quantity = row.may("quantity", book_fields.quantity, 1)
    tax_rate_ppm = row.may("tax_rate_ppm", book_fields.tax_rate_ppm, 0)
    try:
        return SubscriptionTerms(
            description=description,
            unit_amount_minor=amount_minor,
            currency=currency,
            quantity=quantity,
            tax_rate_ppm=tax_rate_ppm,
        )
    except InputError as error:
        row.refuse("amount_minor", f"with its quantity and tax, {error.message}")
        return SubscriptionTerms(description, 0, currency)


def _read_anchor(row: Row) -> Anchor:
    start = row.need("anchor_date", book_fields.day, _BLANK_DATE)
    month_end = row.may("month_end", book_fields.truth, default=False)
    try:
        return Anchor(start, month_end=month_end)
    except InputError as error:
        row.refuse("month_end", error.message)
        return Anchor(start)


def _check_order(subscription: Subscription, row: Row) -> None:
    start, bill_from = subscription.anchor.date, subscription.bill_from
    ends_on = subscription.ends_on
    if subscription.anchor.month_end and subscription.interval.months == 0:
        row.refuse("month_end", "weeks do not end with months; leave it empty or use month")
    if ends_on is not None and ends_on < start:
        row.refuse("ends_on", f"{ends_on} lies before the anchor_date {start}")
    if bill_from is not None and bill_from < start:
        row.refuse("bill_from", f"{bill_from} lies before the anchor_date {start}")
    if bill_from is not None and ends_on is not None and ends_on < bill_from:
        row.refuse(
            "ends_on", f"{ends_on} lies before bill_from {bill_from}: nothing is ever billed"
        )


def _checked_format(wanted: str) -> BookFormat:
    try:
        return BookFormat(wanted)
    except ValueError as error:
        known = " or ".join(BookFormat)
        raise InputError(f"a book is read as {known}, not as {quoted(wanted)}") from error


def _rows(text: str, file_format: BookFormat, problems: Problems) -> Iterator[CustomerRows]:
    lines = max(text.count("\n"), text.count("\r"))
    if lines > LINES_MAX or len(text) > CHARACTERS_MAX:
        reason = (
            f"has {lines} lines and {len(text)} characters; a book has at most {LINES_MAX} lines "
            f"and {CHARACTERS_MAX} characters: import it in parts"
        )
        problems.add(Problem(1, "size", reason))
        return iter(())
    return csv_rows(text, problems) if file_format is BookFormat.CSV else json_rows(text, problems)


def _book_invalid(text: str, file_name: str, problems: Problems) -> BookInvalid:
    lines = JsonLines(text)
    located = [(lines.line_of(problem.place, problem.field), problem) for problem in problems.kept]
    located.sort(key=lambda pair: pair[0])
    told = [_told(problem, f"{file_name}:{line}", lines) for line, problem in located]
    hidden = problems.count - len(told)
    if hidden:
        stopped = "; reading stopped there" if problems.too_many else ""
        told.append(f"and {hidden} more{stopped}")
    noun = "problem" if problems.count == 1 else "problems"
    heading = (
        f"{file_name} was not imported, because of {problems.count} {noun}; nothing was changed. "
        "Repair the file and import it again:"
    )
    return BookInvalid(heading, told)


def _told(problem: Problem, where: str, lines: JsonLines) -> str:
    other = problem.other
    seen = "" if other is None else f" (see line {lines.line_of(other, problem.field)})"
    plain = problem.field.isidentifier() and len(problem.field) <= _FIELD_CHARACTERS_MAX
    label = problem.field if plain else quoted(problem.field)
    return f"{where}: {label}: {problem.reason}{seen}"
