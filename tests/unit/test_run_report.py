"""What `up` says: progress and summary, for a person and for a program."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from billing_jobs.cli import run_report
from billing_jobs.cli.run_report import Summary
from billing_jobs.domain.errors import ServerFailed
from billing_jobs.ports import PaymentView, Totals, Unsettled

TOTALS = Totals(
    invoices=3, charges=2, declined=1, retries=4, unknown_outcomes=1, dead_letters=1, mails=1
)


def summary(**changes: object) -> Summary:
    """A run that went well, but for the changes."""
    values: dict[str, object] = {
        "first_completed_seconds": 1.5,
        "jobs": {"completed": 5, "dead_letter": 1},
        "amounts": {"JPY": {"invoiced": 500, "charged": 500, "journal": 500}},
        "journal_equal": True,
        "differences": (),
        "dead_letters": 1,
        "unfinished": 0,
        "unknown_charges": 0,
        "stuck": 0,
        "totals": {"invoices": 3},
    }
    return Summary(**{**values, **changes})  # type: ignore[arg-type] # by name


@pytest.mark.parametrize(
    "change",
    [{"journal_equal": False}, {"stuck": 1}, {"unfinished": 1}, {"unknown_charges": 1}],
)
def test_a_run_is_healthy_when_everything_is_at_its_end(change: dict[str, object]) -> None:
    """Dead letters are an end; a stuck job, an open one or a different journal is not."""
    assert summary().healthy
    assert not summary(**change).healthy


def test_the_journal_is_compared_capture_by_capture() -> None:
    """Equal sums are not enough: each capture must be in the books, once, to the minor unit."""
    same = PaymentView("ch_1", "EUR", 100)
    theirs = [same, PaymentView("ch_2", "EUR", 50), PaymentView("ch_3", "JPY", 7)]
    ours = [same, PaymentView("ch_2", "EUR", 49), PaymentView("ch_3", "JPY", 7)]

    differences = run_report.compare(theirs, ours)

    assert differences == (
        "ch_2 over 0.50 EUR is in the journal only",
        "ch_2 over 0.49 EUR is in our books only",
    )
    assert run_report.compare([same], [same]) == ()
    assert run_report.compare([same, same], [same]) != ()


def test_programs_get_json_lines_and_the_summary_last(capsys: pytest.CaptureFixture[str]) -> None:
    """A line a change, nothing twice, and one object at the end."""
    shown = run_report.display(as_json=True)

    shown.note("starting")
    shown.progress(TOTALS, Unsettled(2, 1, 0))
    shown.progress(TOTALS, Unsettled(2, 1, 0))
    shown.summary(summary())
    shown.close()

    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["event"] for line in lines] == ["note", "progress", "summary"]
    assert lines[-1]["amounts"]["JPY"]["journal"] == 500
    assert lines[-1]["healthy"] is True


def test_pipes_get_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """Amounts are printed with the digits of their currency."""
    shown = run_report.display(as_json=False)

    shown.progress(TOTALS, Unsettled(2, 1, 0))
    shown.progress(TOTALS, Unsettled(2, 1, 0))
    shown.summary(summary(journal_equal=False, differences=("ch_1 is missing",)))
    shown.close()

    out = capsys.readouterr().out
    assert out.count("3 invoices, 2 charged, 1 declined") == 1
    assert "500" in out
    assert "DIFFERENT" in out
    assert "ch_1 is missing" in out


def test_a_terminal_gets_a_moving_line(capsys: pytest.CaptureFixture[str]) -> None:
    """The live display gives the terminal back, also when it is closed twice."""
    shown = run_report.LiveDisplay()

    shown.note("started [not markup]")
    shown.progress(TOTALS, Unsettled(2, 1, 0))
    shown.summary(summary())
    shown.close()
    shown.close()

    assert "started [not markup]" in capsys.readouterr().out


def test_a_gateway_that_is_away_is_a_clear_error() -> None:
    """Without the journal there is no comparison, and no summary pretends there was."""
    with pytest.raises(ServerFailed, match="did not show its journal"):
        run_report.journal("http://127.0.0.1:9")


class _Reports:
    """Numbers without a database."""

    def job_counts(self) -> dict[str, dict[str, int]]:
        """Two kinds."""
        return {"charge": {"completed": 2}, "invoice": {"completed": 1}}

    def unsettled(self, **_: float) -> Unsettled:
        """Nothing to go."""
        return Unsettled(0, 0, 0)

    def amounts(self) -> dict[str, object]:
        """No money."""
        return {}

    def payments(self) -> list[PaymentView]:
        """No money."""
        return []

    def totals(self) -> Totals:
        """Some of everything."""
        return TOTALS

    def first_completed_at(self, *, since: datetime) -> datetime | None:
        """Nothing new."""
        assert since.tzinfo is not None
        return None


def test_without_a_sandbox_there_is_no_journal_to_compare() -> None:
    """A run on a real gateway is summed up from our books alone."""
    reports: object = _Reports()

    made = run_report.summarise(
        reports,  # type: ignore[arg-type] # the few numbers a summary reads
        started_at=datetime(2026, 1, 1, tzinfo=UTC),
        sandbox_url=None,
    )

    assert made.jobs == {"completed": 3}
    assert made.first_completed_seconds is None
    assert made.journal_equal
