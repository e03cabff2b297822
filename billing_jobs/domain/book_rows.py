"""
What the readers of a book hand over: rows of text with their place, and the problems met.

Owns the names of the columns, the collecting of problems and the taking of a checked value out of
a row. Not here: the formats (book_csv.py, book_json.py), what a value may be (book_fields.py) and
what the rows mean together (book.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from billing_jobs.domain.errors import InputError

T = TypeVar("T")

#: A line of a CSV file, or the path to an element of a JSON file.
Place = int | tuple[str | int, ...]

#: Columns that tell about the customer.
CUSTOMER_COLUMNS = ("customer", "name", "email", "country", "timezone", "locale", "currency")
#: Columns that tell about the way of paying.
METHOD_COLUMNS = ("payment_method", "gateway", "payment_token")
#: Columns that tell about the subscription.
SUBSCRIPTION_COLUMNS = (
    "subscription",
    "description",
    "amount_minor",
    "quantity",
    "interval",
    "interval_count",
    "anchor_date",
    "month_end",
    "bill_from",
    "ends_on",
    "tax_rate_ppm",
    "net_days",
)
#: Every column of a CSV book, in the order of the documentation.
COLUMNS = CUSTOMER_COLUMNS + METHOD_COLUMNS + SUBSCRIPTION_COLUMNS
#: Columns without which nobody can be billed; the others may be left out or empty.
REQUIRED_COLUMNS = (
    *CUSTOMER_COLUMNS,
    "subscription",
    "description",
    "amount_minor",
    "interval",
    "anchor_date",
)

#: A person repairs the first screens of problems, not the thousandth line.
PROBLEMS_SHOWN_MAX = 200
#: Past this many the file is of another kind, and reading on would only take time.
PROBLEMS_COUNTED_MAX = 10_000

# How much of a wrong value is quoted back, so that a pasted paragraph does not bury the reason.
_QUOTED_CHARACTERS_MAX = 40


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, and perhaps a second place that it contradicts."""

    place: Place
    field: str
    reason: str
    other: Place | None = None


@dataclass(slots=True)
class Problems:
    """The problems met so far: the first ones kept, the others counted."""

    kept: list[Problem] = field(default_factory=list)
    count: int = 0

    def add(self, problem: Problem) -> None:
        """Keep the problem while there is room, and count it."""
        self.count += 1
        if len(self.kept) < PROBLEMS_SHOWN_MAX:
            self.kept.append(problem)

    @property
    def too_many(self) -> bool:
        """Whether reading on is useless."""
        return self.count >= PROBLEMS_COUNTED_MAX


@dataclass(slots=True)
class Row:
    """
    Fields by the name of their CSV column; None is a value that the reader has already refused.

    `labels` gives the name under which the file knows a column, where that is another one.
    """

    place: Place
    values: Mapping[str, str | None]
    problems: Problems
    labels: Mapping[str, str] = field(default_factory=dict)

    def need(self, column: str, check: Callable[[str], T], blank: T) -> T:
        """The checked value; where it is missing or wrong a problem is added and blank returned."""
        if self.values.get(column, "") == "":
            self.refuse(column, "is missing")
            return blank
        return self.may(column, check, blank)

    def may(self, column: str, check: Callable[[str], T], default: T) -> T:
        """The checked value, or the default where the file gives none or a wrong one."""
        text = self.values.get(column)
        if not text:
            return default
        try:
            return check(text)
        except InputError as error:
            self.refuse(column, error.message)
            return default

    def refuse(self, column: str, reason: str, other: Place | None = None) -> None:
        """Add a problem of this row."""
        label = self.labels.get(column, column)
        self.problems.add(Problem(self.place, label, reason, other))


@dataclass(frozen=True, slots=True)
class CustomerRows:
    """A customer with what the file says beside it."""

    customer: Row
    methods: tuple[Row, ...]
    subscriptions: tuple[Row, ...]


def quoted(value: str) -> str:
    """The value as a message may show it: short, and with control characters spelled out."""
    return ascii(value)[:_QUOTED_CHARACTERS_MAX]
