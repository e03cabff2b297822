"""Texts of books for the tests: one sound line, and changes to it."""

from __future__ import annotations

from billing_jobs.domain.book import (
    Book,
    parse_book,
)
from billing_jobs.domain.book_rows import COLUMNS
from billing_jobs.domain.errors import BookInvalid

SOUND = {
    "customer": "c-1",
    "name": "Žofie Křížková",
    "email": "zofie@example.com",
    "country": "CZ",
    "timezone": "Europe/Prague",
    "locale": "cs-CZ",
    "currency": "CZK",
    "payment_method": "pm-1",
    "gateway": "sandbox",
    "payment_token": "pm_sandbox_ok",
    "subscription": "s-1",
    "description": "Plan",
    "amount_minor": "49900",
    "quantity": "2",
    "interval": "month",
    "interval_count": "3",
    "anchor_date": "2025-01-31",
    "month_end": "TRUE",
    "bill_from": "2025-04-30",
    "ends_on": "2026-12-31",
    "tax_rate_ppm": "210000",
    "net_days": "14",
}


def quoted_cell(cell: str) -> str:
    """A cell as spreadsheets write it."""
    return '"' + cell.replace('"', '""') + '"'


def csv_text(*changes: dict[str, str]) -> str:
    """A CSV book with one line for each dictionary of changes to the sound line."""
    lines = [
        ",".join(quoted_cell((SOUND | change)[column]) for column in COLUMNS) for change in changes
    ]
    return "\n".join([",".join(COLUMNS), *lines, ""])


def other(number: int, **changes: str) -> dict[str, str]:
    """A line of another customer."""
    references = {"customer": "c", "payment_method": "pm", "subscription": "s"}
    return {column: f"{short}-{number}" for column, short in references.items()} | changes


def read_csv(*changes: dict[str, str]) -> Book:
    """The book of those lines."""
    return parse_book(csv_text(*changes), file_format="csv", file_name="book.csv")


def answer_to(text: str, file_format: str = "csv") -> Book | tuple[str, ...]:
    """The book in the text, or what is wrong with it."""
    try:
        return parse_book(text, file_format=file_format, file_name=f"book.{file_format}")
    except BookInvalid as refusal:
        return refusal.problems


def problems_of(text: str, file_format: str = "csv") -> tuple[str, ...]:
    """What is wrong with the text; it must be something."""
    answer = answer_to(text, file_format)
    assert not isinstance(answer, Book), "the text was expected to be refused"
    return answer
