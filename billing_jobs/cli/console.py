"""
What commands print: tables for people, JSON for programs, diagnostics apart from both.

Results go to stdout and everything else to stderr, so that a pipe carries results only. Colours and
frames appear on a terminal and not with NO_COLOR. No control character of a value reaches the
terminal: an error text of a customer's system could otherwise rewrite the screen.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Final

import typer

from billing_jobs.domain.errors import BillingJobsError

PACKAGE: Final = "billing-jobs"
#: An error fills one screen and no more.
_SCREEN_LINES: Final = 40
#: Where nobody looks at a screen, a row is one line, however long.
_PIPE_WIDTH: Final = 100_000
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def new_app(summary: str = "") -> typer.Typer:
    """Return a group of commands, as a command's module offers it under the name `app`."""
    return typer.Typer(
        help=summary,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )


def say(text: str) -> None:
    """Print a line of the result."""
    sys.stdout.write(f"{text}\n")


def note(text: str) -> None:
    """Print a line about the result; programs do not read it."""
    sys.stderr.write(f"{text}\n")


def print_json(value: object) -> None:
    """Print one JSON document; what JSON does not know is printed as its text."""
    say(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def print_records(
    records: Sequence[Mapping[str, object]], *, columns: Sequence[str], as_json: bool
) -> None:
    """Print records: whole ones as a JSON array, or these columns of them as a table."""
    if as_json:
        print_json(records)
    else:
        print_table(columns, [[record.get(column) for column in columns] for record in records])


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows below their headings; None is empty."""
    from rich import box, console, table, text  # noqa: PLC0415 - not needed for --help or --json

    on_screen = sys.stdout.isatty()
    grid = table.Table(
        box=box.SIMPLE_HEAD if on_screen else None, pad_edge=False, header_style="bold"
    )
    for column in columns:
        grid.add_column(column, overflow="fold")
    for row in rows:
        grid.add_row(*(text.Text(_printable(cell)) for cell in row))
    printer = console.Console(file=sys.stdout, width=None if on_screen else _PIPE_WIDTH)
    with printer.capture() as captured:
        printer.print(grid)
    for line in captured.get().splitlines():
        say(line.rstrip())


def print_error(error: BillingJobsError, *, debug: bool) -> None:
    """Print on one screen what happened, where it is explained, and how to see more."""
    lines = str(error).splitlines()
    note(f"Error: {lines[0] if lines else type(error).__name__}")
    for line in lines[1:_SCREEN_LINES]:
        note(line)
    if len(lines) > _SCREEN_LINES:
        note(f"  ... and {len(lines) - _SCREEN_LINES} more lines")
    note(f"Explained in docs/errors/{error.code}.md")
    if not debug:
        note("For the traceback: billing-jobs --debug ...")


def version() -> str:
    """Return the version of the installed package."""
    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        return "unknown"


def _printable(cell: object) -> str:
    return "" if cell is None else _CONTROL.sub(lambda match: repr(match[0])[1:-1], str(cell))
