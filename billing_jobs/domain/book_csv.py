"""
Reads a book in CSV: one line a subscription, with its customer and payment method beside it.

Owns the header, the lines and their numbers. Not here: what a value may be (book_fields.py) and
whether two lines contradict each other (book.py).
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from billing_jobs.domain.book_rows import (
    COLUMNS,
    METHOD_COLUMNS,
    REQUIRED_COLUMNS,
    CustomerRows,
    Problem,
    Problems,
    Row,
)

_LINE = "line"
_HEADER = "header"
_NO_COLUMNS = "the file is empty: its first line names the columns"
_SEMICOLONS = "the columns are separated by semicolons; export with commas"


def csv_rows(text: str, problems: Problems) -> Iterator[CustomerRows]:
    """Each line as three rows of the same values: customer, payment method, subscription."""
    records = _records(text, problems)
    header_line, header = next(records, (1, []))
    columns = [column.strip() for column in header]
    if not _check_header(header_line, columns, problems):
        return
    for line, cells in records:
        if len(cells) != len(columns):
            reason = f"has {len(cells)} fields, but the header has {len(columns)}"
            problems.add(Problem(line, _LINE, reason))
            continue
        yield _line_rows(line, dict(zip(columns, cells, strict=True)), problems)


def _line_rows(line: int, values: dict[str, str | None], problems: Problems) -> CustomerRows:
    # Three rows, not one: a bad amount must not hide that the customer contradicts another line.
    customer, method, subscription = (Row(line, values, problems) for _ in range(3))
    has_method = any(values.get(column) for column in METHOD_COLUMNS)
    return CustomerRows(customer, (method,) if has_method else (), (subscription,))


def _records(text: str, problems: Problems) -> Iterator[tuple[int, list[str]]]:
    """The number of each record's first line, with its cells; empty lines are passed over."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    line = 1
    try:
        for cells in reader:
            if any(cells):
                yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        # Where a quote is wrong nobody can say where the next record begins.
        problems.add(Problem(line, _LINE, f"{error}; nothing after this line was read"))


def _check_header(line: int, columns: Sequence[str], problems: Problems) -> bool:
    """Whether the lines below can be read at all."""
    missing = [column for column in REQUIRED_COLUMNS if column not in columns]
    doubled = [column for column, times in Counter(columns).items() if times > 1]
    if not columns or (len(columns) == 1 and ";" in columns[0]):
        problems.add(Problem(line, _HEADER, _NO_COLUMNS if not columns else _SEMICOLONS))
        return False
    for column in columns:
        if column not in COLUMNS:
            problems.add(Problem(line, column, f"unknown column{_meant(column)}"))
    for column in doubled:
        problems.add(Problem(line, column, "this column stands twice in the header"))
    for column in missing:
        problems.add(Problem(line, column, "this column is missing from the header"))
    return not missing and not doubled


def _meant(column: str) -> str:
    close = get_close_matches(column.lower(), COLUMNS, n=1)
    return f"; did you mean {close[0]}?" if close else ""
