"""The commands that an operator types, in this process, on a real database and a real broker."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from support.books import bill, book_text, query
from support.command_line import Run, runner

from billing_jobs import lifecycle
from billing_jobs.cli import migrations
from billing_jobs.embedded.valkey import EmbeddedValkey
from billing_jobs.lifecycle import Engine
from billing_jobs.testing import run_until_idle


@pytest.fixture
def run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    database_url: str,
    broker: EmbeddedValkey,
) -> Run:
    """The command line on the test's own database and broker."""
    typed = runner(tmp_path, monkeypatch, capsys)
    monkeypatch.setenv("BILLING_JOBS_DATABASE_URL", database_url)
    monkeypatch.setenv("BILLING_JOBS_BROKER_URL", broker.url)
    return typed


def dead_letter(engine: Engine, database_url: str) -> UUID:
    """Return a charge that waits for a person."""
    (invoice_id,) = bill(engine, database_url, "pm_sandbox_unknown_method")
    recorded = lifecycle.enqueue(engine, "charge", {"invoice_id": invoice_id})
    run_until_idle(engine)
    return recorded.id


def test_import_tells_what_is_new(run: Run, tmp_path: Path) -> None:
    """Twice the same book: the second time nothing is new."""
    book = tmp_path / "small.csv"
    book.write_text(book_text("pm_sandbox_ok", "pm_sandbox_ok"))

    first = run("import", str(book), "--json")
    second = run("import", str(book))

    assert json.loads(first.out)["subscriptions"] == 2
    assert "2 subscriptions are unchanged" in second.out


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("book.txt", b"", "must end in .csv or .json"),
        ("book.csv", b"\xff\xfe", "is not UTF-8"),
        ("missing.csv", None, "cannot be read"),
        ("book.csv", b"customer\n", "was not imported"),
    ],
)
def test_import_refuses_what_is_no_book(
    run: Run, tmp_path: Path, database_url: str, name: str, content: bytes | None, says: str
) -> None:
    """Bad input is an error of one screen, exit 2, and nothing is imported."""
    if content is not None:
        (tmp_path / name).write_bytes(content)

    ended = run("import", str(tmp_path / name))

    assert ended.status == 2
    assert says in ended.err
    assert query(database_url, "SELECT count(*) FROM customers") == [(0,)]


def test_status_shows_jobs_and_money(run: Run, engine: Engine, database_url: str) -> None:
    """The first thing typed at 3 a.m.: counts by kind and state, amounts by currency."""
    bill(engine, database_url, "pm_sandbox_ok")
    run_until_idle(engine)

    table, document = run("status"), json.loads(run("status", "--json").out)

    assert table.status == 0
    assert "58.31" in table.out
    assert document["amounts"]["EUR"] == {"invoiced": 5831, "charged": 5831}
    assert document["jobs"]["charge"] == {"completed": 1}
    assert document["up"] is None


def test_status_is_unhealthy_while_a_job_is_stuck(
    run: Run, engine: Engine, database_url: str
) -> None:
    """A running job without an owner that nobody rescues must be seen by scripts."""
    bill(engine, database_url, "pm_sandbox_ok")
    engine.store.claim("charges", ["charge"], limit=1, ttl_seconds=1.0, worker="gone")
    query(
        database_url,
        "UPDATE jobs SET lease_until = now() - interval '1 hour' WHERE state = 'running'",
    )

    assert run("status").status == 1
    assert "no owner" in run("doctor").out


def test_jobs_are_listed_shown_and_found(run: Run, engine: Engine, database_url: str) -> None:
    """From the list to one job with its runs, as a table and as JSON."""
    job_id = dead_letter(engine, database_url)

    listed = json.loads(run("jobs", "list", "--state", "dead_letter", "--json").out)
    shown = json.loads(run("jobs", "show", str(job_id), "--json").out)

    assert [item["id"] for item in listed] == [str(job_id)]
    assert [item["outcome"] for item in shown["attempts"]] == ["refused"]
    assert str(job_id) in run("jobs", "show", str(job_id)).out
    assert "dead_letter" in run("jobs", "list").out
    assert run("jobs", "show", str(uuid4())).status == 3


def test_a_dead_letter_is_replayed_or_resolved_with_a_reason(
    run: Run, engine: Engine, database_url: str
) -> None:
    """Both verbs are in the audit trail with who and why, and only fit a dead letter."""
    job_id = str(dead_letter(engine, database_url))

    replayed = run("jobs", "replay", job_id, "--reason", "repaired", "--actor", "ann")
    again = run("jobs", "replay", job_id, "--reason", "repaired")
    run_until_idle(engine)
    resolved = run("jobs", "resolve", job_id, "--reason", "written off")
    twice = run("jobs", "resolve", job_id, "--reason", "written off")

    assert (replayed.status, replayed.out) == (0, "pending\n")
    assert (resolved.status, resolved.out) == (0, "cancelled\n")
    assert (again.status, twice.status) == (4, 4)
    trail = query(
        database_url,
        "SELECT verb, actor, reason FROM job_audit WHERE job_id = %s AND verb IN "
        "('replay', 'resolve') ORDER BY sequence",
        job_id,
    )
    assert trail == [("replay", "ann", "repaired"), ("resolve", "cli", "written off")]


def test_a_job_is_cancelled_until_it_is_too_late(
    run: Run, engine: Engine, database_url: str
) -> None:
    """Pending at once; an ended job answers with a conflict."""
    (invoice_id,) = bill(engine, database_url, "pm_sandbox_ok")
    recorded = lifecycle.enqueue(engine, "charge", {"invoice_id": invoice_id})

    first = run("jobs", "cancel", str(recorded.id), "--reason", "wrong customer")
    second = run("jobs", "cancel", str(recorded.id), "--reason", "wrong customer")

    assert (first.status, first.out) == (0, "cancelled\n")
    assert second.status == 4
    assert "cannot be cancelled" in second.err


def test_db_goes_up_and_down(run: Run, database_url: str) -> None:
    """The schema's revision is shown, taken back after a question, and brought up again."""
    assert run("db", "current").status == 0
    assert run("db", "downgrade", "base", "--yes").status == 0

    missing = run("db", "current")
    assert missing.status == 1
    assert "no schema" in missing.out

    assert migrations.head() in run("db", "upgrade").out
    assert run("db", "current").status == 0
    assert query(database_url, "SELECT count(*) FROM jobs") == [(0,)]


def test_doctor_is_content_with_a_healthy_cluster(run: Run) -> None:
    """Every check says fine, and scripts see 0."""
    ended = run("doctor", "--json")

    assert ended.status == 0
    findings = json.loads(ended.out)
    assert [item["check"] for item in findings if not item["healthy"]] == []


def test_doctor_names_what_is_broken(
    run: Run, engine: Engine, database_url: str, broker: EmbeddedValkey
) -> None:
    """Broker away, schema behind, a charge in doubt: each has its own line and next step."""
    (invoice_id,) = bill(engine, database_url, "pm_sandbox_hang_after_charge")
    lifecycle.enqueue(engine, "charge", {"invoice_id": invoice_id})
    lifecycle.run_next(engine, "charges", "w")
    broker.kill()
    query(database_url, "UPDATE alembic_version SET version_num = '0001'")

    ended = run("doctor")

    assert ended.status == 1
    assert "BAD  schema: at 0001" in ended.out
    assert "BAD  broker: cannot be reached" in ended.out
    assert "1 charges have an unknown outcome" in ended.out


def test_a_database_that_is_away_is_exit_code_5(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts can tell an unreachable server from a wrong command."""
    monkeypatch.setenv("BILLING_JOBS_DATABASE_URL", "postgresql://u@127.0.0.1:1/none")

    assert run("status").status == 5
    assert run("doctor").status == 1


def test_nothing_configured_says_the_ways_out(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without settings and without a running `up` the error names both."""
    monkeypatch.delenv("BILLING_JOBS_DATABASE_URL")
    assert "billing-jobs up" in run("status").err

    monkeypatch.setenv("BILLING_JOBS_DATABASE_URL", "postgresql://u@127.0.0.1:1/none")
    monkeypatch.delenv("BILLING_JOBS_BROKER_URL")
    ended = run("status")
    assert ended.status == 2
    assert "No broker is configured" in ended.err


def test_down_without_up_says_so(run: Run, tmp_path: Path) -> None:
    """Nothing runs, nothing is removed, no error."""
    ended = run("down", "--data-dir", str(tmp_path / "none"))

    assert ended.status == 0
    assert "Nothing runs" in ended.out
