"""Invoices and reminders over a real Postgres: once, in order, with numbers without gaps."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID, uuid4

import pytest
from support.books import bill, book_text, query

from billing_jobs import lifecycle
from billing_jobs.adapters.postgres.books import PostgresBooks
from billing_jobs.adapters.postgres.engine import Database
from billing_jobs.adapters.postgres.reports import PostgresReports
from billing_jobs.domain.book import parse_book
from billing_jobs.domain.errors import BookInvalid, MailNotSent, MailOutcomeUnknown
from billing_jobs.domain.job import JobState, JobView
from billing_jobs.lifecycle import Engine
from billing_jobs.maintenance.bill_due import bill_due
from billing_jobs.testing import WORKER, FakeGateway, MemoryMailer, rescue_now, run_until_idle


def run(engine: Engine, kind: str, **arguments: object) -> JobView:
    """Enqueue a job, run everything, and return it."""
    recorded = lifecycle.enqueue(engine, kind, arguments)
    run_until_idle(engine)
    view = engine.store.get(recorded.id)
    assert view is not None
    return view


def subscription(database_url: str) -> UUID:
    """Return the only subscription's id."""
    return UUID(str(query(database_url, "SELECT id FROM subscriptions")[0][0]))


def test_a_book_is_billed_once_however_often_it_is_asked(engine: Engine, database_url: str) -> None:
    """A second run finds every period billed: no second invoice, no number taken."""
    bill(engine, database_url, *["pm_sandbox_ok"] * 5)

    assert bill_due(engine) == 0
    query(database_url, "DELETE FROM job_keys")
    run(engine, "invoice", subscription_id=subscription(database_url))

    numbers = query(database_url, "SELECT number FROM invoices ORDER BY number")
    assert numbers == [(1,), (2,), (3,), (4,), (5,)]
    assert query(database_url, "SELECT count(*) FROM billing_periods") == [(5,)]


def test_an_invoice_holds_its_lines_tax_and_postings(engine: Engine, database_url: str) -> None:
    """Line, tax per rate and total agree, and the ledger carries the same."""
    bill(engine, database_url, "pm_sandbox_ok")

    assert query(database_url, "SELECT net_minor, tax_minor FROM invoice_lines") == [(4900, 931)]
    assert query(database_url, "SELECT rate_ppm, base_minor, tax_minor FROM invoice_taxes") == [
        (190_000, 4900, 931)
    ]
    postings = query(database_url, "SELECT account, amount_minor FROM ledger_entries ORDER BY 1")
    assert postings == [("receivable", 5831), ("revenue", -4900), ("tax", -931)]


def test_missed_periods_are_billed_oldest_first(engine: Engine, database_url: str) -> None:
    """After an outage every missed period gets its own invoice, in order, and then it stops."""
    bill(engine, database_url, "pm_sandbox_ok")
    query(
        database_url,
        "UPDATE subscriptions SET next_index = next_index - 4, "
        "next_period_start = (next_period_start - interval '4 months')::date, "
        "next_period_start_at = next_period_start_at - interval '4 months'",
    )
    query(database_url, "DELETE FROM ledger_entries")
    query(database_url, "DELETE FROM jobs WHERE kind = 'charge'")
    query(database_url, "DELETE FROM billing_periods")
    query(database_url, "DELETE FROM invoice_lines")
    query(database_url, "DELETE FROM invoice_taxes")
    query(database_url, "DELETE FROM invoices")
    query(database_url, "DELETE FROM job_keys")

    assert bill_due(engine) == 1
    run_until_idle(engine)

    starts = query(database_url, "SELECT lower(period) FROM invoices ORDER BY number")
    assert len(starts) == 4
    assert starts == sorted(starts)


def test_two_workers_with_the_same_period_make_one_invoice(
    engine: Engine, database_url: str
) -> None:
    """A unique conflict means 'already done' and is success, not a dead letter."""
    bill(engine, database_url, "pm_sandbox_ok")
    query(
        database_url,
        "UPDATE subscriptions SET next_index = next_index - 1, "
        "next_period_start = (SELECT lower(period) FROM invoices), "
        "next_period_start_at = now() - interval '1 hour'",
    )
    query(database_url, "DELETE FROM job_keys")

    view = run(engine, "invoice", subscription_id=subscription(database_url))

    assert view.state is JobState.COMPLETED
    assert query(database_url, "SELECT count(*) FROM invoices") == [(1,)]


def test_a_period_that_has_not_begun_is_not_billed(engine: Engine, database_url: str) -> None:
    """Execution time never feeds the schedule: the job waits, and nobody else is kept out."""
    bill(engine, database_url, "pm_sandbox_ok")

    view = run(engine, "invoice", subscription_id=subscription(database_url))

    assert view.state is JobState.PENDING
    begins = query(database_url, "SELECT next_period_start_at FROM subscriptions")[0][0]
    assert isinstance(begins, datetime)
    assert abs((view.run_at - begins).total_seconds()) < 120


@pytest.mark.parametrize(
    ("period", "state", "says"),
    [("2020-01-31", "completed", "billed already"), ("2999-01-31", "failed", "not the next one")],
)
def test_periods_are_billed_in_order(
    engine: Engine, database_url: str, period: str, state: str, says: str
) -> None:
    """An older period is done; a later one cannot be billed before those between."""
    bill(engine, database_url, "pm_sandbox_ok")

    view = run(engine, "invoice", subscription_id=subscription(database_url), period=period)

    assert view.state == state
    assert says in str(view.result or view.error)


def test_an_ended_subscription_is_not_billed(engine: Engine, database_url: str) -> None:
    """Nothing after the end date, whoever asks."""
    bill(engine, database_url, "pm_sandbox_ok")
    query(database_url, "UPDATE subscriptions SET ends_on = next_period_start - 1")

    view = run(engine, "invoice", subscription_id=subscription(database_url))

    assert view.result is not None
    assert view.result["outcome"] == "ended"


def test_a_subscription_ends_with_its_last_period(engine: Engine, database_url: str) -> None:
    """The last invoice closes the subscription, so that nobody looks at it again."""
    database = Database(database_url)
    text = book_text("pm_sandbox_ok").replace("true,,,190000", "true,,2199-12-31,190000")
    PostgresBooks(database).add(
        parse_book(text, file_format="csv", file_name="b.csv"), tenant="default"
    )
    database.close()
    query(database_url, "UPDATE subscriptions SET ends_on = next_period_start")

    bill_due(engine)
    run_until_idle(engine)

    assert query(database_url, "SELECT state FROM subscriptions") == [("cancelled",)]
    assert query(database_url, "SELECT count(*) FROM invoices") == [(1,)]


def test_an_unknown_subscription_fails(engine: Engine) -> None:
    """There is nothing to bill, ever."""
    assert run(engine, "invoice", subscription_id=uuid4()).state is JobState.FAILED


def test_a_free_invoice_is_paid_without_a_charge(
    engine: Engine, database_url: str, gateway: FakeGateway
) -> None:
    """A zero total never reaches the gateway."""
    bill(engine, database_url, "pm_sandbox_ok", amount=0)
    run_until_idle(engine)

    assert query(database_url, "SELECT state FROM invoices") == [("paid",)]
    assert query(database_url, "SELECT count(*) FROM jobs WHERE kind = 'charge'") == [(0,)]
    assert gateway.journal == []


def test_a_reminder_is_sent_once_a_step(
    engine: Engine, database_url: str, mailer: MemoryMailer
) -> None:
    """Two calls, and a call whose key was forgotten, make one mail."""
    (invoice_id,) = bill(engine, database_url, "pm_sandbox_decline_do_not_honor")
    query(database_url, "DELETE FROM jobs WHERE kind = 'charge'")
    run(engine, "reminder", invoice_id=invoice_id)
    run(engine, "reminder", invoice_id=invoice_id)
    query(database_url, "DELETE FROM job_keys")

    again = run(engine, "reminder", invoice_id=invoice_id)

    assert again.result is not None
    assert again.result["outcome"] == "sent"
    (mail,) = mailer.sent
    assert mail.subject == "Invoice INV-000001: 58.31 EUR open"
    assert mail.message_id.endswith("@example.com>")


def test_a_paid_invoice_is_never_reminded(
    engine: Engine, database_url: str, mailer: MemoryMailer
) -> None:
    """The facts are read again when the mail is about to leave."""
    (invoice_id,) = bill(engine, database_url, "pm_sandbox_ok")
    run_until_idle(engine)

    view = run(engine, "reminder", invoice_id=invoice_id)

    assert view.result is not None
    assert view.result["outcome"] == "cancelled"
    assert mailer.sent == []


def test_a_disputed_invoice_is_never_reminded(
    engine: Engine, database_url: str, mailer: MemoryMailer
) -> None:
    """A dispute locks reminders as well."""
    (invoice_id,) = bill(engine, database_url, "pm_sandbox_ok")
    query(database_url, "UPDATE invoices SET disputed = true")

    run(engine, "reminder", invoice_id=invoice_id)

    assert mailer.sent == []


def test_a_mail_that_may_have_been_sent_is_not_sent_again(
    engine: Engine, database_url: str, mailer: MemoryMailer
) -> None:
    """A connection lost after DATA is unknown: the step is over."""
    (invoice_id,) = bill(engine, database_url, "pm_sandbox_decline_do_not_honor")
    query(database_url, "DELETE FROM jobs WHERE kind = 'charge'")
    mailer.fail_next(MailOutcomeUnknown("lost"), after_data=True)

    view = run(engine, "reminder", invoice_id=invoice_id)

    assert view.result is not None
    assert view.result["outcome"] == "unknown"
    assert query(database_url, "SELECT state FROM notices") == [("unknown",)]


def test_a_worker_that_dies_after_data_began_leaves_the_mail_in_doubt(
    engine: Engine, database_url: str, mailer: MemoryMailer
) -> None:
    """At most once: better a missing reminder than a doubled one."""
    (invoice_id,) = bill(engine, database_url, "pm_sandbox_decline_do_not_honor")
    query(database_url, "DELETE FROM jobs WHERE kind = 'charge'")
    lifecycle.enqueue(engine, "reminder", {"invoice_id": invoice_id})
    (job,) = engine.store.claim("reminders", ["reminder"], limit=1, ttl_seconds=0, worker=WORKER)
    notice = engine.ports.ledger.open_notice(job, invoice_id, "due", "example.com")
    assert notice is not None
    engine.ports.ledger.begin_data(job, notice)

    rescue_now(engine)
    run_until_idle(engine)

    assert query(database_url, "SELECT state FROM notices") == [("unknown",)]
    assert mailer.sent == []


def test_a_mail_server_that_is_busy_is_tried_again(
    engine: Engine, database_url: str, mailer: MemoryMailer
) -> None:
    """Provably not taken, before DATA or at it: the notice waits in the queue."""
    (invoice_id,) = bill(engine, database_url, "pm_sandbox_decline_do_not_honor")
    query(database_url, "DELETE FROM jobs WHERE kind = 'charge'")
    mailer.fail_next(MailNotSent("421 busy"), after_data=True)

    view = run(engine, "reminder", invoice_id=invoice_id)

    assert view.attempt == 2
    assert len(mailer.sent) == 1


def test_a_repaired_address_is_used_by_the_next_run(
    engine: Engine, database_url: str, mailer: MemoryMailer
) -> None:
    """The facts are read again at each run, the recipient among them."""
    (invoice_id,) = bill(engine, database_url, "pm_sandbox_decline_do_not_honor")
    query(database_url, "DELETE FROM jobs WHERE kind = 'charge'")
    mailer.fail_next(MailNotSent("421 busy"))
    lifecycle.enqueue(engine, "reminder", {"invoice_id": invoice_id})
    lifecycle.run_next(engine, "reminders", WORKER)

    query(database_url, "UPDATE customers SET email = 'new@example.com'")
    run_until_idle(engine)

    assert [mail.recipient for mail in mailer.sent] == ["new@example.com"]


def test_a_refused_address_ends_the_step(
    engine: Engine, database_url: str, mailer: MemoryMailer
) -> None:
    """5xx is for good: bounced, not retried."""
    (invoice_id,) = bill(
        engine, database_url, "pm_sandbox_decline_do_not_honor", email="x{n}@bounce.example.com"
    )
    query(database_url, "DELETE FROM jobs WHERE kind = 'charge'")

    run(engine, "reminder", invoice_id=invoice_id, step="payment_failed")

    assert query(database_url, "SELECT state FROM notices") == [("bounced",)]
    assert mailer.sent == []


def test_a_reminder_of_nothing_fails(engine: Engine) -> None:
    """An unknown invoice has no customer."""
    assert run(engine, "reminder", invoice_id=uuid4()).state is JobState.FAILED


def test_a_book_imported_twice_changes_nothing(database: Database) -> None:
    """Ids are made of tenant and reference, so the second import finds the first."""
    books = PostgresBooks(database)
    book = parse_book(
        book_text("pm_sandbox_ok", "pm_sandbox_ok"), file_format="csv", file_name="b.csv"
    )

    first = books.add(book, tenant="default")
    second = books.add(book, tenant="default")

    assert (first.customers, first.payment_methods, first.subscriptions) == (2, 2, 2)
    assert (second.customers, second.payment_methods, second.subscriptions) == (0, 0, 0)
    assert second.unchanged == 2


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (",4900,", ",5900,", "subscription s1: unit_amount_minor 5900 contradicts 4900"),
        (",EUR,", ",USD,", "customer c1: currency USD contradicts EUR"),
    ],
)
def test_a_book_that_contradicts_an_earlier_one_is_refused_whole(
    database: Database, database_url: str, old: str, new: str, says: str
) -> None:
    """All or nothing: a change of plan is more than a new row, and nothing is half imported."""
    books, text = PostgresBooks(database), book_text("pm_sandbox_ok")
    books.add(parse_book(text, file_format="csv", file_name="b.csv"), tenant="default")
    changed = text.replace(old, new).replace("Customer 1", "Renamed")

    with pytest.raises(BookInvalid) as caught:
        books.add(parse_book(changed, file_format="csv", file_name="b.csv"), tenant="default")

    assert any(says in problem for problem in caught.value.problems)
    assert query(database_url, "SELECT name FROM customers") == [("Customer 1",)]


def test_reports_tell_what_happened(engine: Engine, database: Database, database_url: str) -> None:
    """Status and the summary of a run read these numbers."""
    reports = PostgresReports(database)
    before = reports.server()
    bill(engine, database_url, "pm_sandbox_ok", "pm_sandbox_decline_do_not_honor")
    waiting = reports.unsettled(horizon_seconds=60, stuck_seconds=60)
    run_until_idle(engine)

    assert waiting.jobs == 2
    assert reports.unsettled(horizon_seconds=60, stuck_seconds=60).jobs == 0
    assert reports.amounts()["EUR"].invoiced == 2 * 5831
    assert reports.amounts()["EUR"].charged == 5831
    assert [payment.amount_minor for payment in reports.payments()] == [5831]
    assert reports.job_counts()["charge"] == {"completed": 2}
    totals = reports.totals()
    assert (totals.invoices, totals.charges, totals.declined, totals.mails) == (2, 1, 1, 1)
    assert reports.first_completed_at(since=before.now) is not None
    assert before.revision is not None
    newest = reports.jobs(state=None, kind=None, after=None, limit=2)
    older = reports.jobs(state="completed", kind=None, after=newest[-1].id, limit=10)
    assert len({view.id for view in newest + older}) == 5
