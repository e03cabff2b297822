"""
Reads a book in JSON: customers, each with its payment methods and subscriptions.

Owns the shape of the document and the lines of its elements. Not here: what a value may be
(book_fields.py) and what the elements mean together (book.py).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

from billing_jobs.domain.book_rows import (
    CUSTOMER_COLUMNS,
    METHOD_COLUMNS,
    SUBSCRIPTION_COLUMNS,
    CustomerRows,
    Place,
    Problem,
    Problems,
    Row,
)
from billing_jobs.domain.errors import InputError

_DOCUMENT = "document"
_ELEMENT = "element"
_CUSTOMERS = "customers"
_METHODS = "payment_methods"
_SUBSCRIPTIONS = "subscriptions"

_WHOLE_COLUMNS = frozenset(
    {"amount_minor", "quantity", "interval_count", "tax_rate_ppm", "net_days"},
)
_TRUTH_COLUMNS = frozenset({"month_end"})
# More digits than any amount has; Python itself refuses to read numbers of thousands of digits.
_DIGITS_MAX = 20

_SPACE = re.compile(r"[ \t\n\r]*")


class _Object(dict[str, object]):
    """A JSON object that remembers which of its keys stood twice."""

    doubled: tuple[str, ...] = ()


class _NotWhole(str):
    """A number as it was written, such as 19.99, 1.0e3 or NaN: it must never become a float."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class _Shape:
    """One kind of element: columns by key, keys by column, and the keys that hold lists."""

    columns: Mapping[str, str]
    labels: Mapping[str, str]
    lists: tuple[str, ...] = ()


def _shape(
    columns: tuple[str, ...], renamed: Mapping[str, str], lists: tuple[str, ...] = ()
) -> _Shape:
    labels = {column: renamed.get(column, column) for column in columns}
    return _Shape({key: column for column, key in labels.items()}, labels, lists)


# A reference needs no prefix in JSON: the element it stands in says whose it is.
_CUSTOMER = _shape(CUSTOMER_COLUMNS, {"customer": "reference"}, (_METHODS, _SUBSCRIPTIONS))
_METHOD = _shape(METHOD_COLUMNS, {"payment_method": "reference", "payment_token": "token"})
_SUBSCRIPTION = _shape(
    (*SUBSCRIPTION_COLUMNS, "payment_method"),
    {"subscription": "reference"},
)
_BOOK = _Shape({}, {}, (_CUSTOMERS,))


def json_rows(text: str, problems: Problems) -> Iterator[CustomerRows]:
    """Each customer with its elements."""
    try:
        document = json.loads(
            text,
            object_pairs_hook=_object,
            parse_float=_NotWhole,
            parse_constant=_NotWhole,
            parse_int=_whole,
        )
    except json.JSONDecodeError as error:
        reason = f"is not JSON: {error.msg} (column {error.colno})"
        problems.add(Problem(error.lineno, _DOCUMENT, reason))
    except RecursionError:
        problems.add(Problem(1, _DOCUMENT, "is nested too deeply to be a book"))
    else:
        yield from _book_rows(document, problems)


@dataclass(slots=True)
class JsonLines:
    """Finds the line on which an element of a well-formed document stands."""

    text: str
    _known: dict[int, Mapping[str | int, int]] = field(default_factory=dict)

    def line_of(self, place: Place, key: str) -> int:
        """The line of that key of the element; of the element itself, if it has no such key."""
        if isinstance(place, int):
            return place
        offset = _skip_space(self.text, 0)
        for step in (*place, key):
            offset = self._children(offset).get(step, offset)
        return self.text.count("\n", 0, offset) + 1

    def _children(self, start: int) -> Mapping[str | int, int]:
        # Kept by offset, or each of two hundred problems would walk the list of customers again.
        if start not in self._known:
            self._known[start] = dict(_children(self.text, start))
        return self._known[start]


def _book_rows(document: object, problems: Problems) -> Iterator[CustomerRows]:
    book = _checked_object(document, (), _BOOK, problems)
    if book is None:
        return
    if _CUSTOMERS not in book:
        problems.add(Problem((), _CUSTOMERS, "is missing"))
    for place, element in _elements(book, (), _CUSTOMERS, problems):
        customer = _checked_object(element, place, _CUSTOMER, problems)
        if customer is not None:
            yield CustomerRows(
                _row(customer, place, _CUSTOMER, problems),
                _rows(customer, place, (_METHODS, _METHOD), problems),
                _rows(customer, place, (_SUBSCRIPTIONS, _SUBSCRIPTION), problems),
            )


def _rows(
    parent: _Object,
    place: tuple[str | int, ...],
    of: tuple[str, _Shape],
    problems: Problems,
) -> tuple[Row, ...]:
    key, shape = of
    rows = []
    for at, element in _elements(parent, place, key, problems):
        found = _checked_object(element, at, shape, problems)
        if found is not None:
            rows.append(_row(found, at, shape, problems))
    return tuple(rows)


def _row(element: _Object, place: Place, shape: _Shape, problems: Problems) -> Row:
    values: dict[str, str | None] = {}
    row = Row(place, values, problems, shape.labels)
    for key, column in shape.columns.items():
        try:
            values[column] = _text(element.get(key), column)
        except InputError as error:
            row.refuse(column, error.message)
            values[column] = None
    return row


def _text(value: object, column: str) -> str:
    """The value as CSV would spell it; the type must be the column's own."""
    if value is None:
        return ""
    if column in _WHOLE_COLUMNS:
        if type(value) in {int, _NotWhole}:
            return str(value)
        raise InputError(f"must be a whole number without quotes, not {_kind(value)}")
    if column in _TRUTH_COLUMNS:
        if isinstance(value, bool):
            return "true" if value else "false"
        raise InputError(f"must be true or false without quotes, not {_kind(value)}")
    if type(value) is not str:
        raise InputError(f"must be a text in quotes, not {_kind(value)}")
    return value


def _elements(
    parent: _Object,
    place: tuple[str | int, ...],
    key: str,
    problems: Problems,
) -> Iterator[tuple[tuple[str | int, ...], object]]:
    found = parent.get(key)
    if found is None:
        return
    if not isinstance(found, list):
        problems.add(Problem(place, key, f"must be a list, not {_kind(found)}"))
        return
    for index, element in enumerate(found):
        yield (*place, key, index), element


def _checked_object(
    element: object, place: Place, shape: _Shape, problems: Problems
) -> _Object | None:
    if not isinstance(element, _Object):
        what = _ELEMENT if place else _DOCUMENT
        problems.add(Problem(place, what, f"must be an object, not {_kind(element)}"))
        return None
    known = [*shape.columns, *shape.lists]
    for key in element:
        if key not in known:
            close = get_close_matches(key.lower(), known, n=1)
            meant = f"; did you mean {close[0]}?" if close else ""
            problems.add(Problem(place, key, f"unknown key{meant}"))
    for key in element.doubled:
        problems.add(Problem(place, key, "this key stands twice in the element"))
    return element


def _object(pairs: list[tuple[str, object]]) -> _Object:
    element = _Object(pairs)
    if len(element) < len(pairs):
        times = Counter(key for key, _ in pairs)
        element.doubled = tuple(key for key, count in times.items() if count > 1)
    return element


def _whole(text: str) -> int | _NotWhole:
    return int(text) if len(text) <= _DIGITS_MAX else _NotWhole(text)


_KINDS: Mapping[type, str] = {
    bool: "true or false",
    int: "a number",
    _NotWhole: "a number",
    str: "a text",
    list: "a list",
    _Object: "an object",
}


def _kind(value: object) -> str:
    return _KINDS.get(type(value), "null")


# Numbers stay text, so that no digit string is too long for it.
_SCANNER = json.JSONDecoder(parse_int=str, parse_float=str)


def _children(text: str, start: int) -> Iterator[tuple[str | int, int]]:
    """The keys or indexes of the container at `start`, with the offsets of their values."""
    if text[start] not in "[{":
        return
    at = _skip_space(text, start + 1)
    index = 0
    while text[at] not in "]}":
        key: str | int = index
        if text[start] == "{":
            key, at = _SCANNER.raw_decode(text, at)
            at = _skip_space(text, _skip_space(text, at) + 1)
        yield key, at
        _, at = _SCANNER.raw_decode(text, at)
        at = _skip_space(text, at)
        if text[at] == ",":
            at = _skip_space(text, at + 1)
        index += 1


def _skip_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None, "Bug: a pattern that matches nothing must match everywhere"
    return match.end()
