"""A book is imported whole or not at all, and contradictions are told with both lines."""

from __future__ import annotations

import re
from datetime import date

import pytest
from support.book_texts import SOUND, csv_text, other, problems_of, read_csv

from billing_jobs.domain import book as book_module
from billing_jobs.domain.billing import SubscriptionTerms
from billing_jobs.domain.book import (
    Customer,
    PaymentMethod,
    Subscription,
    first_index,
    parse_book,
)
from billing_jobs.domain.book_rows import COLUMNS, PROBLEMS_COUNTED_MAX, PROBLEMS_SHOWN_MAX
from billing_jobs.domain.errors import BookInvalid, InputError
from billing_jobs.domain.periods import Anchor, Interval, IntervalUnit

OPTIONAL = frozenset(
    {
        "payment_method",
        "gateway",
        "payment_token",
        "quantity",
        "interval_count",
        "month_end",
        "bill_from",
        "ends_on",
        "tax_rate_ppm",
        "net_days",
    },
)


def test_a_line_of_csv_holds_customer_payment_method_and_subscription() -> None:
    """Every column arrives where it belongs."""
    book = read_csv({})

    assert book.customers == (
        Customer(
            "c-1", "Žofie Křížková", "zofie@example.com", "CZ", "Europe/Prague", "cs_CZ", "CZK"
        ),
    )
    assert book.payment_methods == (PaymentMethod("pm-1", "c-1", "sandbox", "pm_sandbox_ok"),)
    assert book.subscriptions == (
        Subscription(
            reference="s-1",
            customer="c-1",
            payment_method="pm-1",
            terms=SubscriptionTerms("Plan", 49900, "CZK", quantity=2, tax_rate_ppm=210_000),
            interval=Interval(IntervalUnit.MONTH, 3),
            anchor=Anchor(date(2025, 1, 31), month_end=True),
            bill_from=date(2025, 4, 30),
            ends_on=date(2026, 12, 31),
            net_days=14,
        ),
    )


def test_optional_columns_may_be_left_out() -> None:
    """A small book needs twelve columns; the rest has defaults."""
    needed = [column for column in COLUMNS if column not in OPTIONAL]
    text = "\n".join([",".join(needed), ",".join(SOUND[column] for column in needed)])

    (subscription,) = parse_book(text, file_format="csv", file_name="book.csv").subscriptions

    assert subscription.payment_method is None
    assert subscription.terms == SubscriptionTerms("Plan", 49900, "CZK")
    assert subscription.interval == Interval(IntervalUnit.MONTH)
    assert subscription.anchor == Anchor(date(2025, 1, 31))
    assert (subscription.bill_from, subscription.ends_on) == (None, None)
    assert subscription.net_days == 0


def test_a_customer_with_two_subscriptions_repeats_his_columns() -> None:
    """That is how a spreadsheet writes a list; it is one customer, not two."""
    book = read_csv({}, {"subscription": "s-2", "description": "Second"})

    assert len(book.customers) == len(book.payment_methods) == 1
    assert [subscription.reference for subscription in book.subscriptions] == ["s-1", "s-2"]


def test_a_byte_order_mark_carriage_returns_and_empty_lines_are_no_problem() -> None:
    """Spreadsheets of one large vendor write all three."""
    text = "\ufeff" + csv_text({}).replace("\n", "\r\n") + "\r\n,,,\r\n\r\n"

    assert parse_book(text, file_format="csv", file_name="book.csv") == read_csv({})


def test_every_problem_of_every_line_is_told_at_once() -> None:
    """One round of repair, not one for each cell."""
    problems = problems_of(
        csv_text(other(1, amount_minor="x", currency="EUT"), other(2), other(3, email="x"))
    )

    assert [problem.split(": ")[:2] for problem in problems] == [
        ["book.csv:2", "currency"],
        ["book.csv:2", "amount_minor"],
        ["book.csv:4", "email"],
    ]


def test_the_message_says_that_nothing_was_changed_and_what_to_do() -> None:
    """All or nothing is a promise that must be visible when it matters."""
    with pytest.raises(BookInvalid) as caught:
        read_csv({"email": "x", "name": ""})

    assert caught.value.message == (
        "book.csv was not imported, because of 2 problems; nothing was changed. "
        "Repair the file and import it again:"
    )


def test_repr_shows_neither_tokens_nor_personal_data() -> None:
    """What a traceback or a log line shows of a book is references."""
    shown = repr(read_csv({}))

    assert "c-1" in shown
    assert not [column for column in ("name", "email", "payment_token") if SOUND[column] in shown]


@pytest.mark.parametrize("column", ["name", "email", "country", "timezone", "locale", "currency"])
def test_two_lines_of_a_customer_must_agree(column: str) -> None:
    """Which of the two would be billed is nobody's to guess."""
    values = {"name": "Ann", "email": "ann@example.com", "country": "DE", "locale": "de"}
    values |= {"timezone": "Europe/Berlin", "currency": "EUR"}

    problems = problems_of(csv_text({}, {"subscription": "s-2", column: values[column]}))

    assert problems == (
        f"book.csv:3: {column}: differs from another line of the same customer (see line 2)",
    )


@pytest.mark.parametrize(
    ("column", "value"),
    [("gateway", "stripe"), ("payment_token", "pm_2"), ("payment_method", "pm-2")],
)
def test_two_lines_of_a_customer_name_one_payment_method(column: str, value: str) -> None:
    """A spreadsheet has no room for two; JSON has."""
    problems = problems_of(csv_text({}, {"subscription": "s-2", column: value}))

    assert problems == (
        f"book.csv:3: {column}: differs from another line of the same customer (see line 2)",
    )


def test_a_line_without_the_payment_method_of_the_others_contradicts_them() -> None:
    """An empty cell would silently leave one of two subscriptions unpaid."""
    nothing = {"payment_method": "", "gateway": "", "payment_token": ""}

    problems = problems_of(csv_text({}, {"subscription": "s-2"} | nothing))

    assert problems == (
        "book.csv:3: payment_method: differs from another line of the same customer (see line 2)",
    )


def test_a_contradiction_is_told_although_the_lines_have_other_problems() -> None:
    """One round of repair; a value that was refused contradicts nothing."""
    problems = problems_of(
        csv_text(
            {"amount_minor": "x", "country": "UK"},
            {"name": "Ann", "gateway": "x y", "payment_token": "pm_2", "country": "GB"},
        )
    )

    assert [problem.split(": ")[:2] for problem in problems] == [
        ["book.csv:2", "country"],
        ["book.csv:2", "amount_minor"],
        ["book.csv:3", "name"],
        ["book.csv:3", "gateway"],
        ["book.csv:3", "payment_token"],
        ["book.csv:3", "subscription"],
    ]


def test_a_payment_method_belongs_to_one_customer() -> None:
    """Else one person pays another's bills."""
    problems = problems_of(csv_text(other(1), other(2, payment_method="pm-1")))

    assert problems == (
        "book.csv:3: payment_method: 'pm-1' belongs to another customer (see line 2)",
    )


@pytest.mark.parametrize("method", ["pm-1", "pm-2"])
def test_a_line_that_lost_its_customer_or_reference_is_blamed_for_that_only(method: str) -> None:
    """Whose payment method it is, and whether it is a second one, cannot be said."""
    lost = {"customer": "", "subscription": "", "payment_method": method}

    problems = problems_of(csv_text({}, lost, lost | {"payment_method": "pm-3", "name": "Ann"}))

    assert problems == (
        "book.csv:3: customer: is missing",
        "book.csv:3: subscription: is missing",
        "book.csv:4: customer: is missing",
        "book.csv:4: subscription: is missing",
    )


def test_a_missing_reference_of_a_payment_method_is_one_problem_a_line() -> None:
    """It is neither another customer's nor a second one."""
    lost = {"payment_method": ""}

    problems = problems_of(
        csv_text(other(1), other(1, subscription="s-9") | lost, other(2) | lost, other(3) | lost)
    )

    assert problems == tuple(f"book.csv:{line}: payment_method: is missing" for line in (3, 4, 5))


def test_a_subscription_may_begin_be_billed_and_end_on_one_day() -> None:
    """One period only; the dates are in order."""
    day = "2025-04-30"

    book = read_csv({"anchor_date": day, "bill_from": day, "ends_on": day})

    assert len(book.subscriptions) == 1


def test_a_subscription_has_a_reference_of_its_own() -> None:
    """Ids are derived from references; the second line would vanish in the first."""
    problems = problems_of(csv_text(other(1), other(2, subscription="s-1")))

    assert problems == ("book.csv:3: subscription: 's-1' is used twice (see line 2)",)


@pytest.mark.parametrize(
    ("header", "told"),
    [
        ("e-mail", "book.csv:1: 'e-mail': unknown column; did you mean email?"),
        ("\u4e2d", "book.csv:1: \u4e2d: unknown column"),
        ("x" * 50, f"book.csv:1: '{'x' * 39}: unknown column"),
    ],
)
def test_an_unknown_column_is_refused(header: str, told: str) -> None:
    """A misspelt column would silently be a default for everybody."""
    text = csv_text({}).replace("net_days", header, 1)

    assert problems_of(text) == (told,)


def test_missing_and_doubled_columns_are_told_together() -> None:
    """Nothing below such a header can be trusted, so the lines are not read."""
    text = csv_text({"amount_minor": "x"}).replace("email", "name", 1)

    assert problems_of(text) == (
        "book.csv:1: name: this column stands twice in the header",
        "book.csv:1: email: this column is missing from the header",
    )


def test_lines_below_a_doubled_column_are_not_read() -> None:
    """Which of the two cells counts is nobody's to guess."""
    header, line = csv_text({"amount_minor": "x"}).splitlines()

    assert problems_of(f"{header},name\n{line},Ann\n") == (
        "book.csv:1: name: this column stands twice in the header",
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "book.csv:1: header: the file is empty: its first line names the columns"),
        ("\n\n", "book.csv:1: header: the file is empty: its first line names the columns"),
        (
            ";".join(COLUMNS),
            "book.csv:1: header: the columns are separated by semicolons; export with commas",
        ),
        (
            ",".join(COLUMNS) + "\n",
            "book.csv:1: customer: there is none: an empty book is not imported",
        ),
    ],
)
def test_a_file_without_lines_or_commas_says_so(text: str, told: str) -> None:
    """An empty import that reports success hides a failed export."""
    assert problems_of(text) == (told,)


def test_a_line_with_too_few_or_too_many_fields_is_refused() -> None:
    """An unquoted comma in a name shifts every field behind it."""
    text = csv_text({}) + "c-2,Ann\n" + ",".join(["x"] * 23)

    assert problems_of(text) == (
        "book.csv:3: line: has 2 fields, but the header has 22",
        "book.csv:4: line: has 23 fields, but the header has 22",
    )


@pytest.mark.parametrize("broken", ['"c-2"x,', '"c-2', f'"{"c" * 140_000}"'])
def test_a_broken_quote_stops_the_reading_at_its_line(broken: str) -> None:
    """Behind it nobody can tell fields from text; the line where it began is named."""
    (problem,) = problems_of(csv_text({}) + broken)

    assert problem.startswith("book.csv:3: line: ")
    assert problem.endswith("; nothing after this line was read")


def test_a_quoted_line_break_does_not_shift_the_line_numbers() -> None:
    """The number must be the editor's, not the record's."""
    problems = problems_of(csv_text(other(1, name="A\nn"), other(2, email="x")))

    assert [problem.split(": ")[0] for problem in problems] == ["book.csv:2", "book.csv:4"]


def test_the_first_problems_are_told_and_the_others_counted() -> None:
    """A book of the wrong kind must not print a million lines."""
    lines = [other(number, email="x") for number in range(PROBLEMS_SHOWN_MAX + 5)]

    problems = problems_of(csv_text(*lines))

    assert len(problems) == PROBLEMS_SHOWN_MAX + 1
    assert problems[-1] == "and 5 more"


def test_reading_stops_when_nearly_everything_is_wrong() -> None:
    """Suggestions cost time; ten thousand of them repair nothing."""
    line = csv_text({"email": "x"}).splitlines()[1]
    text = "\n".join([",".join(COLUMNS), *[line] * (PROBLEMS_COUNTED_MAX + 500)])

    problems = problems_of(text)

    told = re.fullmatch(r"and ([0-9]+) more; reading stopped there", problems[-1])
    assert told is not None
    assert PROBLEMS_COUNTED_MAX <= int(told[1]) + PROBLEMS_SHOWN_MAX < PROBLEMS_COUNTED_MAX + 5


@pytest.mark.parametrize(("limit", "value"), [("LINES_MAX", 1), ("CHARACTERS_MAX", 10)])
def test_a_book_beyond_the_bounds_is_refused_before_it_is_read(
    limit: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of ten gigabytes ends in a sentence, not in a killed process."""
    monkeypatch.setattr(book_module, limit, value)

    (problem,) = problems_of(csv_text({}))

    assert problem.startswith("book.csv:1: size: has 2 lines and ")
    assert problem.endswith("import it in parts")


def test_an_unknown_format_is_refused() -> None:
    """The message names what can be read."""
    with pytest.raises(InputError, match="a book is read as csv or json, not as 'xlsx'"):
        parse_book("", file_format="xlsx", file_name="book.xlsx")


@pytest.mark.parametrize(
    ("bill_from", "today", "index"),
    [
        (None, date(2025, 1, 1), 0),
        (None, date(2025, 2, 27), 0),
        (None, date(2025, 2, 28), 1),
        (None, date(2031, 3, 30), 73),
        (date(2025, 3, 31), date(2031, 3, 30), 2),
        (date(2025, 4, 29), date(2025, 1, 1), 2),
    ],
)
def test_billing_begins_with_the_period_of_the_import_or_of_bill_from(
    bill_from: date | None, today: date, index: int
) -> None:
    """A book of any age can be imported without years of invoices that another system wrote."""
    (subscription,) = read_csv(
        {"interval_count": "", "bill_from": "" if bill_from is None else str(bill_from)}
    ).subscriptions

    assert first_index(subscription, today) == index
