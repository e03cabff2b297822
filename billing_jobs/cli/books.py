"""
`billing-jobs import FILE`: a book of customers, payment methods and subscriptions, all or nothing.

Owns the reading of the file. What a book may hold is `domain/book.py`.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

import billing_jobs
from billing_jobs.cli import connect, console
from billing_jobs.domain.book import Book, BookFormat, parse_book
from billing_jobs.domain.errors import BookInvalid

#: A larger file is no book.
BYTES_MAX = 256 * 1024 * 1024


def import_book(
    file: Annotated[Path, typer.Argument(help="The book, CSV or JSON by its suffix.")],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Import a book of customers, payment methods and subscriptions: all of it or nothing."""
    book = read(file)
    with connect.runtime() as runtime:
        report = runtime.books.add(book, tenant=runtime.settings.tenant)
    if as_json:
        console.print_json(asdict(report))
        return
    console.say(
        f"{report.customers} customers, {report.payment_methods} payment methods and "
        f"{report.subscriptions} subscriptions are new or changed; "
        f"{report.unchanged} subscriptions are unchanged."
    )


app = import_book


def read(path: Path) -> Book:
    """
    Read and check a book.

    Raises `BookInvalid` with every problem, or when the file cannot be read at all.
    """
    suffix = path.suffix.lower().removeprefix(".")
    if suffix not in {item.value for item in BookFormat}:
        raise BookInvalid(f"{path} is no book: its name must end in .csv or .json.")
    try:
        if path.stat().st_size > BYTES_MAX:
            raise BookInvalid(f"{path} is larger than {BYTES_MAX} bytes; split it.")
        text = path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise BookInvalid(f"{path} is not UTF-8 (byte {error.start}); save it as UTF-8.") from error
    except OSError as error:
        raise BookInvalid(f"{path} cannot be read: {error.strerror}.") from error
    return parse_book(text, file_format=suffix, file_name=path.name)


def example() -> Path:
    """Return the example book: beside the package in a checkout, inside it in the wheel."""
    package = Path(billing_jobs.__file__).parent
    inside = package / "_examples" / "book.csv"
    return inside if inside.is_file() else package.parent / "examples" / "book.csv"
