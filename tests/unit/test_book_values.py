"""Every wrong value of a book is told with its line, its field and the reason."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.book_texts import answer_to, csv_text, other, problems_of

from billing_jobs.domain.book import (
    Book,
    BookFormat,
    parse_book,
)
from billing_jobs.domain.book_rows import COLUMNS
from billing_jobs.domain.errors import BookInvalid

# The machine may be busy: a slow example is no failure. Each of these parses a whole book.
unhurried = settings(deadline=None, max_examples=50)


@pytest.mark.parametrize(
    ("column", "value", "told"),
    [
        ("customer", "", "customer: is missing"),
        ("customer", "c 1", "customer: 'c 1' is not a reference"),
        ("customer", "c" * 101, "is not a reference: up to 100 ASCII letters"),
        ("name", "", "name: is missing"),
        ("name", " Ann", "name: begins or ends with a space"),
        ("name", "Ann\x00", "name: has a control character (U+0000)"),
        ("name", "An\nn", "name: has a control character (U+000A)"),
        ("name", "An\u2028n", "name: has a control character (U+2028)"),
        ("name", "An\ud800n", "name: has a control character (U+D800)"),
        ("name", "A" * 201, "name: is 201 characters long; at most 200 are kept"),
        ("email", "zofie", "email: is not an e-mail address of the form name@example.com"),
        ("email", "zofie@localhost", "email: is not an e-mail address"),
        ("email", "a..b@example.com", "email: is not an e-mail address"),
        ("email", "a@example.com, b@example.com", "email: is not an e-mail address"),
        ("email", "žofie@example.com", "ASCII only"),
        ("email", f"{'a' * 65}@example.com", "email: is not an e-mail address"),
        ("email", f"a@{'a.' * 130}com", "email: is not an e-mail address"),
        ("country", "UK", "country: 'UK' is not an ISO 3166-1 country; did you mean GB?"),
        ("country", "cz", "did you mean CZ?"),
        ("country", "Czechia", "write its two capital letters, for example DE"),
        ("timezone", "Europe/Prag", "did you mean Europe/Prague?"),
        ("timezone", "localtime", "timezone: 'localtime' is not a zone of the tz database"),
        ("timezone", "\U0001f550", "write a name such as Europe/Berlin"),
        ("timezone", "../etc/passwd", "is not a zone of the tz database"),
        ("locale", "czech", "locale: 'czech' is not a locale such as de_DE"),
        ("currency", "CZKK", "currency: 'CZKK' is not an ISO 4217 currency; did you mean CZK"),
        ("currency", "XAU", "has no minor unit"),
        ("gateway", "", "gateway: is missing"),
        ("gateway", "Sand box", "gateway: 'Sand box' is not a gateway's name"),
        ("gateway", "g" * 41, "is not a gateway's name"),
        ("payment_token", "", "payment_token: is missing"),
        ("payment_token", "pm ok", "payment_token: is not a payment token"),
        ("payment_token", "p" * 256, "is not a payment token: up to 255 visible ASCII"),
        ("payment_token", "4242 4242 4242 4242", "looks like a card number"),
        ("payment_token", "4242424242424242", "looks like a card number"),
        ("payment_method", "", "payment_method: is missing"),
        ("subscription", "", "subscription: is missing"),
        ("description", "", "description: is missing"),
        ("description", "P" * 201, "description: is 201 characters long"),
        ("amount_minor", "", "amount_minor: is missing"),
        ("amount_minor", "19.99", "'19.99' is not an integer in minor units: write 1999 for 19.99"),
        ("amount_minor", "1.0e3", "amount_minor: '1.0e3' is not an integer in minor units"),
        ("amount_minor", "1,999", "is not an integer in minor units"),
        ("amount_minor", "-1", "amount_minor: -1 lies outside 0 to 9223372036854775807"),
        ("amount_minor", "9223372036854775808", "lies outside 0 to 9223372036854775807"),
        ("amount_minor", "9223372036854775807", "amount_minor: with its quantity and tax, "),
        ("amount_minor", "\u0661\u0669", "is not an integer in minor units"),
        ("quantity", "0", "quantity: 0 lies outside 1 to 1000000"),
        ("quantity", "1.5", "quantity: '1.5' is not a whole number"),
        ("interval", "monthly", "interval: 'monthly' is not an interval; did you mean month?"),
        ("interval", "\u6708", "write one of week, month, quarter, year"),
        ("interval_count", "61", "interval_count: 61 lies outside 1 to 60"),
        ("anchor_date", "", "anchor_date: is missing"),
        ("anchor_date", "31.01.2025", "'31.01.2025' is not a date of the form 2026-01-31"),
        ("anchor_date", "20250131", "is not a date of the form"),
        ("anchor_date", "2025-02-29", "anchor_date: 2025-02-29 does not exist"),
        ("anchor_date", "0225-01-31", "lies outside 1970-01-01 to 2199-12-31"),
        ("anchor_date", "2025-01-30", "month_end: 2025-01-30 is not the last day of its month"),
        ("anchor_date", "2025-05-31", "bill_from: 2025-04-30 lies before the anchor_date"),
        ("anchor_date", "2027-01-31", "ends_on: 2026-12-31 lies before the anchor_date"),
        ("month_end", "yes", "month_end: 'yes' is neither true nor false"),
        ("interval", "week", "month_end: weeks do not end with months"),
        ("bill_from", "2027-01-01", "ends_on: 2026-12-31 lies before bill_from 2027-01-01"),
        ("bill_from", "soon", "bill_from: 'soon' is not a date"),
        ("ends_on", "2026-02-30", "ends_on: 2026-02-30 does not exist"),
        ("tax_rate_ppm", "19%", "'19%' is not a whole number of parts per million"),
        ("tax_rate_ppm", "0.19", "write 190000 for 19 %"),
        ("tax_rate_ppm", "1000001", "tax_rate_ppm: 1000001 lies outside 0 to 1000000"),
        ("net_days", "-1", "net_days: -1 lies outside 0 to 3650"),
    ],
)
def test_a_wrong_value_is_refused_with_line_field_and_reason(
    column: str, value: str, told: str
) -> None:
    """The person who exported the file finds the cell without searching."""
    problems = problems_of(csv_text(other(1), other(2, **{column: value})))

    assert any(problem.startswith("book.csv:3: ") and told in problem for problem in problems)


def test_a_wrong_value_is_one_problem_and_not_two() -> None:
    """A date that was refused must not be said to contradict its neighbours as well."""
    assert problems_of(csv_text({"anchor_date": "2025-02-29"})) == (
        "book.csv:2: anchor_date: 2025-02-29 does not exist",
    )


def test_no_personal_data_stands_in_a_reason() -> None:
    """Error texts are pasted into tickets and logs."""
    changes = {"name": "Hidden\x01", "email": "hidden", "payment_token": "hidden token"}

    problems = problems_of(csv_text(changes))

    assert len(problems) == 3
    assert "hidden" not in "".join(problems).lower()


@unhurried
@given(st.text(max_size=300))
def test_no_text_at_all_breaks_the_readers(text: str) -> None:
    """Whatever a person drops on the command, the answer is a book or a list of problems."""
    for file_format in BookFormat:
        with pytest.raises(BookInvalid):
            parse_book(text, file_format=file_format, file_name="x")


@unhurried
@given(
    st.lists(st.sampled_from(COLUMNS), max_size=4, unique=True),
    st.text(st.characters(), max_size=12),
)
def test_no_value_at_all_breaks_the_checks(columns: list[str], value: str) -> None:
    """A cell may hold anything; what is accepted comes back, what is not is told with its line."""
    answer = answer_to(csv_text(dict.fromkeys(columns, value)))

    if isinstance(answer, Book):
        assert len(answer.subscriptions) == 1
    else:
        assert all(problem.startswith("book.csv:2: ") for problem in answer)
