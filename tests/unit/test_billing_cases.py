"""Billing that went wrong in real systems gets its right answer from production's functions."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from support.case_lists import billing_cases, ids_in_tests, pending, told

from billing_jobs.domain.billing import (
    LAST_DAY_OF_MONTH,
    DueTerms,
    Item,
    SubscriptionTerms,
    draft,
    draft_invoice,
    due_date,
)
from billing_jobs.domain.errors import AmountInvalid
from billing_jobs.domain.money import Money
from billing_jobs.domain.periods import (
    Anchor,
    Interval,
    IntervalUnit,
    due_indexes,
    index_of,
    instant_of,
    local_date,
    period_at,
)

Case = dict[str, Any]
Answer = Callable[[Case], Case]
PPM_A_PERCENT = 10_000


def anchor_and_interval(given: Case) -> tuple[Anchor, Interval]:
    """What a case says about its calendar."""
    anchor = Anchor(date.fromisoformat(given["anchor_date"]), given.get("month_end", False))
    return anchor, Interval(IntervalUnit(given["interval"]))


def starts(given: Case, count: int) -> list[str]:
    """The first starts of a calendar, as text."""
    anchor, interval = anchor_and_interval(given)
    return [str(period_at(anchor, interval, index).start) for index in range(count)]


def period_starts(given: Case) -> Case:
    """Boundaries from the anchor; one list for each variant."""
    if "variants" in given:
        return {"period_starts": [starts(each, each["count"]) for each in given["variants"]]}
    return {"period_starts": starts(given, given["count"])}


def period_starts_until(given: Case) -> Case:
    """All boundaries up to the end date, asked long after it."""
    anchor, interval = anchor_and_interval(given)
    end = date.fromisoformat(given["end_date"])
    due = due_indexes(
        anchor, interval, first_index=0, today=end + timedelta(days=1000), ends_on=end
    )
    return {"period_starts": [str(period_at(anchor, interval, index).start) for index in due]}


def invoices_by_run(given: Case) -> list[list[list[str]]]:
    """What each run writes, when a run continues where the one before ended."""
    anchor, interval = anchor_and_interval(given)
    price = Money.from_decimal_string(given["price"], given["currency"])
    terms = SubscriptionTerms("Plan", price.minor, price.currency)
    runs, next_index = [], 0
    for today in map(date.fromisoformat, given["run_dates"]):
        due = due_indexes(anchor, interval, first_index=next_index, today=today)
        next_index = due.stop
        written = []
        for period in (period_at(anchor, interval, index) for index in due):
            total = Money(draft_invoice(terms, period).total_minor, price.currency)
            written.append([str(period.start), str(period.end), total.to_decimal_string()])
        runs.append(written)
    return runs


def due_invoices(given: Case) -> Case:
    """Period and amount of each invoice, over all runs."""
    return {"invoices": [invoice for run in invoices_by_run(given) for invoice in run]}


def due_invoices_by_run(given: Case) -> Case:
    """How many invoices each run writes."""
    counts = [len(run) for run in invoices_by_run(given)]
    return {"by_run": dict(zip(given["run_dates"], counts, strict=True))}


def next_after_late_run(given: Case) -> Case:
    """The boundary after the one that was executed for; when it ran is not asked."""
    anchor, interval = anchor_and_interval(given)
    index = index_of(anchor, interval, date.fromisoformat(given["executed_for"]))
    return {"next": str(period_at(anchor, interval, index + 1).start)}


def resolve_times(given: Case) -> Case:
    """Stored instants shown in a zone, and local times turned into instants."""
    zone = ZoneInfo(given["tz"])
    stored = datetime.fromisoformat(given["a_utc_stored"])
    resolved = {
        f"{which}_utc": instant_of(datetime.fromisoformat(given[f"{which}_local_schedule"]), zone)
        for which in ("b", "c")
    }
    return {
        "a_valid": stored.utcoffset() == timedelta(),
        "a_local": stored.astimezone(zone).isoformat(),
    } | {key: instant.isoformat().replace("+00:00", "Z") for key, instant in resolved.items()}


def local_today(given: Case) -> Case:
    """Today in the recipient's zone."""
    now = datetime.fromisoformat(given["now"]).astimezone(UTC)
    return {"today": str(local_date(now, ZoneInfo(given["tz"])))}


def minor(text: str, currency: str) -> int:
    """A decimal string in minor units."""
    return Money.from_decimal_string(text, currency).minor


def to_gateway_minor(given: Case) -> Case:
    """Decimal strings to minor units and back."""
    amounts = [minor(text, currency) for text, currency in given["amounts"]]
    answer: Case = {"minor": amounts}
    if "from_gateway" in given:
        back = [Money(amount, currency) for amount, currency in given["from_gateway"]]
        return answer | {"back": [money.to_decimal_string() for money in back]}
    return answer | {"multiple_of_10": all(amount % 10 == 0 for amount in amounts)}


def to_gateway_major(given: Case) -> Case:
    """Minor units to decimal strings."""
    ledger = [Money(amount, currency) for amount, currency in given["ledger"]]
    return {"major": [money.to_decimal_string() for money in ledger]}


def rescale(given: Case) -> Case:
    """A number stored with decimals of its own."""
    decimals, currency = given["stored_decimals"], given["currency"]
    money = Money.from_scaled(given["stored"], decimals=decimals, currency=currency)
    return {"minor": money.minor}


def to_minor_with_sweep(given: Case) -> Case:
    """Prices that floats get wrong, and every price of a range."""
    lowest, highest = (minor(text, "USD") for text in given["sweep"])
    prices = range(lowest, highest + 1)
    read_back = (minor(f"{price // 100}.{price % 100:02}", "USD") for price in prices)
    return {
        "minor": [minor(text, "USD") for text in given["amounts"]],
        "sweep_mismatches": sum(map(int.__ne__, prices, read_back)),
    }


def to_minor(given: Case) -> Case:
    """Amounts that do not fit 32 bits."""
    amounts = [minor(text, given["currency"]) for text in given["amounts"]]
    return {"minor": amounts, "accepted": True}


def running_sum(given: Case) -> Case:
    """A start and its changes."""
    total = Money.from_decimal_string(given["start"], given["currency"])
    for text in given["deltas"]:
        total += Money.from_decimal_string(text, given["currency"])
    return {"total": total.to_decimal_string()}


def order_total(given: Case) -> Case:
    """A percentage off, rounded once, and the shipping."""
    (line,) = (Money.from_decimal_string(text, given["currency"]) for text in given["lines"])
    discount = line.fraction(int(given["discount_percent"]), 100)
    total = line - discount + Money.from_decimal_string(given["shipping"], given["currency"])
    return {
        "discount": discount.to_decimal_string(),
        "total": total.to_decimal_string(),
        "minor": total.minor,
    }


def quantise_split(given: Case) -> Case:
    """Rounded first, then split into units and cents."""
    digits, decimals = given["amount"].replace(".", ""), len(given["amount"].partition(".")[2])
    money = Money.from_scaled(int(digits), decimals=decimals, currency=given["currency"])
    units, cents = money.to_decimal_string().split(".")
    return {"amount": money.to_decimal_string(), "units": int(units), "cents": int(cents)}


def milliunits(given: Case) -> Case:
    """Thousandths of a currency without decimals."""
    money = Money.from_scaled(given["value"], decimals=3, currency=given["currency"])
    return {"amount": money.to_decimal_string(), "minor": money.minor}


def tax_exclusive(given: Case) -> Case:
    """Net, tax and total of lines at one rate."""
    currency, rate_ppm = given["currency"], int(given["rate"]) * PPM_A_PERCENT
    items = []
    for line in given["lines"]:
        full = Money.from_decimal_string(line["unit"], currency) * line["qty"]
        net = full.fraction(100 - int(line.get("discount_percent", "0")), 100)
        items.append(Item("Line", net.minor, tax_rate_ppm=rate_ppm))
    invoice = draft(items, currency)
    amounts = {
        "net": invoice.subtotal_minor,
        "tax": invoice.tax_minor,
        "total": invoice.total_minor,
    }
    return {key: Money(value, currency).to_decimal_string() for key, value in amounts.items()}


def allocation(given: Case) -> Case:
    """Shares by weight, and their sum."""
    currency = given["currency"]
    weights = [
        weight if isinstance(weight, int) else minor(weight, currency)
        for weight in given["weights"]
    ]
    shares = Money.from_decimal_string(given["amount"], currency).allocate(weights)
    return {
        "shares": [share.to_decimal_string() for share in shares],
        "sum": sum(shares[1:], start=shares[0]).to_decimal_string(),
    }


def mixed_currencies(given: Case) -> Case:
    """Lines in two currencies and no rate."""
    first, second = (Money.from_decimal_string(*line) for line in given["lines"])
    with pytest.raises(AmountInvalid, match="convert one of them first, at an explicit rate"):
        first + second
    return {"error": "currency_mismatch"}


def due_by(issued: date, rule: str | dict[str, int]) -> date:
    """The due date by a rule in the words of the cases."""
    if isinstance(rule, str):
        last = {"on_receipt": None, "end_of_month": LAST_DAY_OF_MONTH}[rule]
        return DueTerms(day_of_month=last).due_on(issued)
    if set(rule) == {"net"}:
        return due_date(issued, rule["net"])
    return DueTerms(
        net_days=rule.get("days_then_eom", 0),
        day_of_month=rule.get("day_of_month", LAST_DAY_OF_MONTH),
        month_offset=rule.get("month_offset", rule.get("months_after_eom", 0)),
        then_days=rule.get("eom_plus_days", 0),
    ).due_on(issued)


def due_dates(given: Case) -> Case:
    """One rule or a list of them."""
    issued = date.fromisoformat(given["issued"])
    if "rule" in given:
        return {"due": str(due_by(issued, given["rule"]))}
    return {"due": [str(due_by(issued, rule)) for rule in given["rules"]]}


#: How each case is asked of the product. A pending case moves here, or to a test of its own.
ANSWERS: dict[str, Answer] = {
    "D01": period_starts,
    "D02": due_invoices,
    "D04": period_starts,
    "D06": period_starts,
    "D09": period_starts,
    "D16": resolve_times,
    "D36": period_starts_until,
    "D40": due_invoices_by_run,
    "D45": next_after_late_run,
    "D83": local_today,
    "D84": to_gateway_minor,
    "D85": to_gateway_minor,
    "D87": rescale,
    "D88": to_gateway_major,
    "D89": to_minor_with_sweep,
    "D91": running_sum,
    "D92": order_total,
    "D93": quantise_split,
    "D94": milliunits,
    "D95": to_minor,
    "D97": tax_exclusive,
    "D98": tax_exclusive,
    "D101": tax_exclusive,
    "D110": allocation,
    "D112": allocation,
    "D119": mixed_currencies,
    "D150": due_dates,
    "D151": due_dates,
    "D152": due_dates,
}


@pytest.mark.parametrize("case_id", list(ANSWERS))
def test_a_billing_case_has_the_right_answer(case_id: str) -> None:
    """Each of these cost somebody money once; input and answer are read from the case itself."""
    case = billing_cases()[case_id]

    assert ANSWERS[case_id](case["input"]) == case["expected"], case["why"]


def test_every_billing_case_is_tested_or_pending_and_never_both() -> None:
    """A case that fell between the lists would be forgotten without a sound."""
    cases = set(billing_cases())
    tested = {case_id for case_id in ids_in_tests() if case_id.startswith("D")}
    waiting = set(pending("billing"))

    assert set(ANSWERS) <= tested
    assert tested & waiting == set(), "a tested case must leave tests/cases/pending.json"
    assert cases - tested - waiting == set(), "test it, or name it in tests/cases/pending.json"
    assert (tested | waiting) - cases == set(), "no such case"


def test_every_pending_billing_case_says_what_it_waits_for() -> None:
    """A list without reasons is a list nobody works off."""
    assert all(reason.startswith("needs ") for reason in pending("billing").values())


def test_pending_billing_cases_are_printed() -> None:
    """Reported as an expected failure, for those are in the summary of every run."""
    waiting = pending("billing")
    if waiting:
        pytest.xfail(told(waiting))
