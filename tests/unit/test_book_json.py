"""A book in JSON: the same book, exact numbers, and the line of each problem."""

from __future__ import annotations

import json

import pytest
from support.book_texts import problems_of, read_csv

from billing_jobs.domain.book import (
    BookFormat,
    parse_book,
)

CUSTOMER = {
    "reference": "c-1",
    "name": "Žofie Křížková",
    "email": "zofie@example.com",
    "country": "CZ",
    "timezone": "Europe/Prague",
    "locale": "cs_CZ",
    "currency": "CZK",
}
METHOD = {"reference": "pm-1", "gateway": "sandbox", "token": "pm_sandbox_ok"}
SUBSCRIPTION = {
    "reference": "s-1",
    "description": "Plan",
    "amount_minor": 49900,
    "interval": "month",
    "anchor_date": "2025-01-31",
}


def json_problems(document: object) -> tuple[str, ...]:
    """The same for a JSON document, one element a line."""
    return problems_of(json.dumps(document, indent=1), "json")


def test_json_holds_the_same_book() -> None:
    """The two formats are two spellings of one thing."""
    subscription = SUBSCRIPTION | {
        "quantity": 2,
        "interval_count": 3,
        "month_end": True,
        "bill_from": "2025-04-30",
        "ends_on": "2026-12-31",
        "tax_rate_ppm": 210000,
        "net_days": 14,
    }
    document = {
        "customers": [CUSTOMER | {"payment_methods": [METHOD], "subscriptions": [subscription]}]
    }

    book = parse_book(json.dumps(document), file_format="json", file_name="book.json")

    assert book == read_csv({})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"customers": [\n1,]}', "book.json:2: document: is not JSON: "),
        ("", "book.json:1: document: is not JSON: "),
        ("[" * 100_000, "book.json:1: document: is nested too deeply"),
        ("[]", "book.json:1: document: must be an object, not a list"),
        ("{}", "book.json:1: customers: is missing"),
        ('{"customers": 5}', "book.json:1: customers: must be a list, not a number"),
        ('{"customers": null}', "book.json:1: customer: there is none"),
        ('{"customers": [\n3]}', "book.json:2: element: must be an object, not a number"),
        ('{"customers": [{"subscriptions": [\n3]}]}', "book.json:2: element: must be an object"),
        ('{"customer": [],\n"customers": []}', "customer: unknown key; did you mean customers?"),
        ('{\n"x1": [], "customers": []}', "book.json:2: x1: unknown key"),
    ],
)
def test_a_document_of_another_shape_is_refused(text: str, told: str) -> None:
    """JSON that is well-formed can still be another program's."""
    problems = problems_of(text, "json")

    assert any(told in problem for problem in problems)


@pytest.mark.parametrize(
    ("key", "written", "told"),
    [
        ("amount_minor", "19.99", "amount_minor: '19.99' is not an integer in minor units"),
        ("amount_minor", "1.0e3", "amount_minor: '1.0e3' is not an integer in minor units"),
        ("amount_minor", "1999.0", "amount_minor: '1999.0' is not an integer in minor units"),
        ("amount_minor", "NaN", "amount_minor: 'NaN' is not an integer in minor units"),
        ("amount_minor", "9" * 5000, "is not an integer in minor units"),
        ("amount_minor", '"1999"', "must be a whole number without quotes, not a text"),
        ("amount_minor", "true", "must be a whole number without quotes, not true or false"),
        ("amount_minor", "[1]", "must be a whole number without quotes, not a list"),
        ("amount_minor", "null", "amount_minor: is missing"),
        ("month_end", "1", "month_end: must be true or false without quotes, not a number"),
        ("month_end", '"true"', "must be true or false without quotes, not a text"),
        ("description", "5", "description: must be a text in quotes, not a number"),
        ("description", "1.5", "description: must be a text in quotes, not a number"),
        ("description", '{"en": "Plan"}', "must be a text in quotes, not an object"),
        ("description", '"P\\ud800"', "has a control character (U+D800)"),
        ("payment_method", '"pm-9"', "'pm-9' is none of this customer's payment methods"),
        ("quantiy", "5", "quantiy: unknown key; did you mean quantity?"),
        ("reference", '"s-1",\n"reference": "s-2"', "this key stands twice in the element"),
    ],
)
def test_a_json_value_of_the_wrong_type_is_refused_with_its_line(
    key: str, written: str, told: str
) -> None:
    """No number may pass through a float, and no text may be guessed to be a number."""
    plain = {name: json.dumps(value) for name, value in SUBSCRIPTION.items()}
    members = ",\n".join(f'"{name}": {value}' for name, value in (plain | {key: written}).items())
    customer = json.dumps(CUSTOMER | {"payment_methods": [METHOD]})[:-1]
    text = f'{{"customers": [\n{customer},\n"subscriptions": [{{\n{members}}}]}}]}}'

    problems = problems_of(text, "json")

    assert any(told in problem for problem in problems)
    line = int(problems[0].split(":")[1])
    assert f'"{key}"' in text.splitlines()[line - 1]


def test_a_missing_key_is_told_with_the_line_of_its_element() -> None:
    """There is no line for what is not there."""
    document = {"customers": [CUSTOMER | {"subscriptions": [{"reference": "s-1"}]}]}

    problems = json_problems(document)

    line = json.dumps(document, indent=1).splitlines().index("    {") + 1
    assert problems[0] == f"book.json:{line}: description: is missing"


def test_problems_are_told_in_the_order_of_the_lines() -> None:
    """One pass through the file with the list beside it."""
    problems = json_problems({"customers": [CUSTOMER | {"name": 5}], "more": 1})

    assert [problem.split(": ")[1] for problem in problems] == ["name", "more"]


def test_references_of_json_are_unique() -> None:
    """JSON has lists, so a repeated customer or payment method is a mistake."""
    first = CUSTOMER | {"payment_methods": [METHOD, METHOD], "subscriptions": [SUBSCRIPTION]}
    second = first | {"payment_methods": [METHOD | {"reference": "pm-2"}]}

    problems = json_problems({"customers": [first, second]})

    assert [problem.split(": ", 1)[1] for problem in problems] == [
        "reference: 'pm-1' is used twice (see line 13)",
        "reference: 'c-1' is used twice (see line 4)",
        "reference: 's-1' is used twice (see line 25)",
    ]


def test_a_subscription_names_one_of_several_payment_methods_or_gets_the_first() -> None:
    """The office pays by debit, the rest by card."""
    methods = [METHOD, METHOD | {"reference": "pm-2"}]
    subscriptions = [SUBSCRIPTION, SUBSCRIPTION | {"reference": "s-2", "payment_method": "pm-2"}]
    document = {
        "customers": [CUSTOMER | {"payment_methods": methods, "subscriptions": subscriptions}]
    }

    book = parse_book(json.dumps(document), file_format=BookFormat.JSON, file_name="book.json")

    assert [subscription.payment_method for subscription in book.subscriptions] == ["pm-1", "pm-2"]


def test_a_customer_may_have_neither_payment_method_nor_subscription() -> None:
    """He is billed by a service later on, or pays by transfer."""
    book = parse_book(
        json.dumps({"customers": [CUSTOMER]}), file_format="json", file_name="book.json"
    )

    assert (len(book.customers), book.payment_methods, book.subscriptions) == (1, (), ())
