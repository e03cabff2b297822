"""The example books are what their generator makes, can be imported, and show what they should."""

from __future__ import annotations

import re
import runpy
import unicodedata
from collections import Counter
from datetime import date
from pathlib import Path

import pytest

from billing_jobs.domain.billing import draft_invoice
from billing_jobs.domain.book import Book, first_index, parse_book
from billing_jobs.domain.book_rows import COLUMNS, REQUIRED_COLUMNS
from billing_jobs.domain.currencies import exponent
from billing_jobs.domain.errors import BookInvalid
from billing_jobs.domain.periods import IntervalUnit, due_indexes, period_at

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
FORMAT_PAGE = ROOT / "docs" / "reference" / "book-format.md"
ERROR_PAGE = ROOT / "docs" / "errors" / "book-invalid.md"

SPECIAL_TOKENS = {
    "pm_sandbox_decline_insufficient_funds": 10,
    "pm_sandbox_decline_expired_card": 3,
    "pm_sandbox_hang_after_charge_x1": 3,
    "pm_sandbox_error_after_charge_x1": 3,
    "pm_sandbox_error_before_charge_x1": 3,
    "pm_sandbox_busy_x2": 6,
    "pm_sandbox_reset_after_charge_x1": 2,
    "pm_sandbox_unknown_method": 2,
}
SCRIPTS = (
    "LATIN",
    "CYRILLIC",
    "GREEK",
    "ARABIC",
    "HEBREW",
    "DEVANAGARI",
    "CJK",
    "HANGUL",
    "HIRAGANA",
    "KATAKANA",
    "THAI",
)


def example(name: str) -> Book:
    """A committed example, parsed."""
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    return parse_book(text, file_format=name.rpartition(".")[2], file_name=name)


@pytest.mark.parametrize(("name", "maker"), [("book.csv", "book_csv"), ("book.json", "book_json")])
def test_the_committed_book_is_what_the_generator_makes(name: str, maker: str) -> None:
    """An edit by hand would be lost by the next run, and nobody would know which one was right."""
    made = runpy.run_path(str(EXAMPLES / "make_book.py"))[maker]()

    assert made.encode() == (EXAMPLES / name).read_bytes()


def test_the_generator_writes_both_files_beside_itself(tmp_path: Path) -> None:
    """Called from anywhere, also in a path with spaces."""
    copy = tmp_path / "with a space" / "make_book.py"
    copy.parent.mkdir()
    copy.write_bytes((EXAMPLES / "make_book.py").read_bytes())

    runpy.run_path(str(copy), run_name="__main__")

    for name in ("book.csv", "book.json"):
        assert (copy.parent / name).read_bytes() == (EXAMPLES / name).read_bytes()


def test_the_example_book_shows_the_whole_world() -> None:
    """Scripts, decimals and zones that break programs are in the first book anybody imports."""
    book = example("book.csv")
    names = "".join(customer.name for customer in book.customers)
    scripts = {unicodedata.name(character, "").split(" ")[0] for character in names}
    currencies = {customer.currency for customer in book.customers}

    assert len(book.customers) == 200
    assert set(SCRIPTS) <= scripts
    assert len(currencies) >= 25
    assert {exponent(currency) for currency in currencies} == {0, 2, 3}
    assert len({customer.timezone for customer in book.customers}) >= 40


def test_the_example_book_has_the_anchors_that_are_got_wrong() -> None:
    """31st, 29 February, ends of months, every interval."""
    subscriptions = example("book.csv").subscriptions
    anchors = {subscription.anchor for subscription in subscriptions}

    assert {anchor.date.day for anchor in anchors} >= {28, 29, 30, 31}
    assert date(2024, 2, 29) in {anchor.date for anchor in anchors}
    assert any(anchor.month_end for anchor in anchors)
    assert {subscription.interval.unit for subscription in subscriptions} == set(IntervalUnit)
    assert any(subscription.terms.quantity > 1 for subscription in subscriptions)
    assert any(subscription.ends_on for subscription in subscriptions)


def test_the_example_book_misbehaves_as_often_as_it_says() -> None:
    """The numbers of a demo are read off these; each special customer has one subscription."""
    book = example("book.csv")
    tokens = Counter(method.token for method in book.payment_methods)
    special = {method.customer for method in book.payment_methods if method.token in SPECIAL_TOKENS}
    per_customer = Counter(subscription.customer for subscription in book.subscriptions)
    refused_mail = {
        customer.reference
        for customer in book.customers
        if customer.email.endswith("@tempfail.example.com")
    }

    assert {token: tokens[token] for token in SPECIAL_TOKENS} == SPECIAL_TOKENS
    assert set(tokens) == {*SPECIAL_TOKENS, "pm_sandbox_ok"}
    assert {per_customer[customer] for customer in special} == {1}
    assert len(refused_mail) == 2
    assert refused_mail <= special


@pytest.mark.parametrize("name", ["book.csv", "book.json"])
def test_example_mail_goes_to_nobody(name: str) -> None:
    """RFC 2606 keeps these domains free of people."""
    for customer in example(name).customers:
        assert re.fullmatch(r"[\x21-\x7e]+@(tempfail\.)?example\.(com|org|net)", customer.email)


@pytest.mark.parametrize("name", ["book.csv", "book.json"])
@pytest.mark.parametrize("today", [date(2026, 2, 28), date(2031, 3, 31), date(2096, 2, 29)])
def test_each_example_subscription_bills_one_period_on_the_day_of_import(
    name: str, today: date
) -> None:
    """The book works in any year, and a demo does not begin with years of arrears."""
    for subscription in example(name).subscriptions:
        due = due_indexes(
            subscription.anchor,
            subscription.interval,
            first_index=first_index(subscription, today),
            today=today,
            ends_on=subscription.ends_on,
        )
        period = period_at(subscription.anchor, subscription.interval, due.start)

        assert len(due) == 1
        assert today in period
        assert draft_invoice(subscription.terms, period).total_minor > 0


def test_the_small_example_shows_what_only_json_can() -> None:
    """A second payment method, and a customer without one."""
    book = example("book.json")
    methods = Counter(method.customer for method in book.payment_methods)

    assert len(book.customers) == 12
    assert max(methods.values()) == 2
    assert len(methods) == 11
    assert sum(subscription.payment_method is None for subscription in book.subscriptions) == 1


def test_the_page_on_the_format_names_every_column_and_which_are_needed() -> None:
    """A column that is missing on the page does not exist for its reader."""
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*)\|", FORMAT_PAGE.read_text("utf-8"), re.MULTILINE)

    assert tuple(column for column, _ in rows) == COLUMNS
    assert {column for column, default in rows if not default.strip()} == set(REQUIRED_COLUMNS)


@pytest.mark.parametrize("file_format", ["csv", "json"])
def test_the_books_on_the_page_can_be_imported(file_format: str) -> None:
    """People copy the example before they read the table."""
    blocks = re.findall(rf"```{file_format}\n(.*?)```", FORMAT_PAGE.read_text("utf-8"), re.DOTALL)

    assert len(blocks) == 1
    assert parse_book(blocks[0], file_format=file_format, file_name="page").subscriptions


def test_the_message_on_the_error_page_is_the_one_that_is_printed() -> None:
    """Somebody who searches for the text of the error finds the page."""
    lines = re.findall(r"```csv\n(.*?)```", FORMAT_PAGE.read_text("utf-8"), re.DOTALL)[0].split(
        "\n"
    )
    lines[2] = lines[2].replace(",CZ,", ",UK,").replace("9900,", "19.99,").replace("c-1", "c-3")
    lines[2] = lines[2].replace("pm-1", "pm-3").replace("s-2", "s-9")
    lines[3] = lines[1].replace("Žofie", "Sofie").replace("s-1", "s-3")

    with pytest.raises(BookInvalid) as caught:
        parse_book("\n".join(lines), file_format="csv", file_name="book.csv")

    assert str(caught.value) in ERROR_PAGE.read_text("utf-8")
