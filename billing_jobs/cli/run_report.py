"""
What `billing-jobs up` tells: progress while jobs run, and the summary at the end.

Owns the comparison of the gateway's journal with our books, and the words. Reads only.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Protocol

import urllib3

from billing_jobs.domain.errors import ServerFailed
from billing_jobs.domain.money import Money
from billing_jobs.ports import PaymentView, Reports, Totals, Unsettled

#: A run is idle when nothing is due within this horizon.
HORIZON_SECONDS = 60.0

#: A running job whose lease has been over for this long is stuck: nobody rescues it.
STUCK_SECONDS = 60.0

#: How long the gateway may take to show its journal.
JOURNAL_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Summary:
    """How a run ended. Amounts in minor units, by currency."""

    first_completed_seconds: float | None
    jobs: Mapping[str, int]
    amounts: Mapping[str, Mapping[str, int]]
    journal_equal: bool
    differences: tuple[str, ...]
    dead_letters: int
    unfinished: int
    unknown_charges: int
    stuck: int
    totals: Mapping[str, int]

    @property
    def healthy(self) -> bool:
        """Whether everything is at its end and the journal agrees with the books."""
        return self.journal_equal and not (self.unfinished or self.unknown_charges or self.stuck)


class Display(Protocol):
    """Shows a run to somebody."""

    def note(self, text: str) -> None:
        """Tell one thing that happened."""

    def progress(self, totals: Totals, unsettled: Unsettled) -> None:
        """Show where the run stands."""

    def summary(self, summary: Summary) -> None:
        """Show how the run ended; the last thing shown."""

    def close(self) -> None:
        """End the display."""


class PlainDisplay:
    """One line a change, for pipes and logs."""

    def __init__(self) -> None:
        """Start with nothing said."""
        self._last = ""

    def note(self, text: str) -> None:
        """Print a line."""
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    def progress(self, totals: Totals, unsettled: Unsettled) -> None:
        """Print a line when something changed."""
        line = progress_line(totals, unsettled)
        if line != self._last:
            self._last = line
            self.note(line)

    def summary(self, summary: Summary) -> None:
        """Print the summary."""
        self.note("\n".join(summary_lines(summary)))

    def close(self) -> None:
        """Nothing to end."""


class JsonDisplay(PlainDisplay):
    """One JSON object a line, for programs."""

    def note(self, text: str) -> None:
        """Print a note as JSON."""
        _print_json({"event": "note", "text": text})

    def progress(self, totals: Totals, unsettled: Unsettled) -> None:
        """Print a change as JSON."""
        line = {"event": "progress", **asdict(totals), **asdict(unsettled)}
        text = json.dumps(line)
        if text != self._last:
            self._last = text
            _print_json(line)

    def summary(self, summary: Summary) -> None:
        """Print the summary as one line, the last one of the output."""
        _print_json({"event": "summary", "healthy": summary.healthy, **asdict(summary)})


class LiveDisplay:
    """One line that moves, on a terminal."""

    def __init__(self) -> None:
        """Take the terminal."""
        from rich.console import Console  # noqa: PLC0415 - only for terminals
        from rich.status import Status  # noqa: PLC0415

        self._console = Console()
        self._status = Status("starting", console=self._console)
        self._status.start()

    def note(self, text: str) -> None:
        """Print a line above the moving one."""
        self._console.print(text, highlight=False, markup=False)

    def progress(self, totals: Totals, unsettled: Unsettled) -> None:
        """Move the line."""
        self._status.update(progress_line(totals, unsettled))

    def summary(self, summary: Summary) -> None:
        """Print the summary below."""
        self.note("\n".join(summary_lines(summary)))

    def close(self) -> None:
        """Give the terminal back."""
        self._status.stop()


def display(*, as_json: bool) -> Display:
    """Return the display that suits the output."""
    if as_json:
        return JsonDisplay()
    return LiveDisplay() if sys.stdout.isatty() else PlainDisplay()


def progress_line(totals: Totals, unsettled: Unsettled) -> str:
    """Say in one line where the run stands."""
    return (
        f"{totals.invoices} invoices, {totals.charges} charged, {totals.declined} declined, "
        f"{totals.retries} retries, {unsettled.unknown_charges} unknown, {totals.mails} mails, "
        f"{totals.dead_letters} dead letters; {unsettled.jobs} jobs to go"
    )


def summarise(reports: Reports, *, started_at: datetime, sandbox_url: str | None) -> Summary:
    """Take stock: jobs, amounts, and the gateway's own journal beside our books."""
    counts: Counter[str] = Counter()
    for states in reports.job_counts().values():
        counts.update(states)
    unsettled = reports.unsettled(horizon_seconds=HORIZON_SECONDS, stuck_seconds=STUCK_SECONDS)
    captures = [] if sandbox_url is None else journal(sandbox_url)
    payments = reports.payments()
    differences = () if sandbox_url is None else compare(captures, payments)
    totals = reports.totals()
    first = reports.first_completed_at(since=started_at)
    return Summary(
        first_completed_seconds=(
            None if first is None else round((first - started_at).total_seconds(), 3)
        ),
        jobs=dict(sorted(counts.items())),
        amounts=_amounts(reports, captures),
        journal_equal=not differences,
        differences=differences,
        dead_letters=totals.dead_letters,
        unfinished=unsettled.jobs,
        unknown_charges=unsettled.unknown_charges,
        stuck=unsettled.stuck,
        totals=asdict(totals),
    )


def journal(sandbox_url: str) -> list[PaymentView]:
    """
    Read every capture from the gateway's journal.

    Raises `ServerFailed` when the sandbox does not answer.
    """
    try:
        answer = urllib3.request(
            "GET", f"{sandbox_url}/sandbox/journal", timeout=JOURNAL_SECONDS, retries=False
        )
        captures = answer.json()["data"]
    except (urllib3.exceptions.HTTPError, ValueError, KeyError) as error:
        raise ServerFailed(
            f"The sandbox gateway at {sandbox_url} did not show its journal: {error}. "
            "Look at its log in the data directory."
        ) from error
    return [
        PaymentView(item["charge"], str(item["currency"]).upper(), int(item["amount"]))
        for item in captures
    ]


def compare(captures: list[PaymentView], payments: list[PaymentView]) -> tuple[str, ...]:
    """Return each difference between the gateway's journal and our books, as a sentence."""
    theirs, ours = Counter(captures), Counter(payments)
    missing = [f"{_told(item)} is in the journal only" for item in (theirs - ours).elements()]
    extra = [f"{_told(item)} is in our books only" for item in (ours - theirs).elements()]
    return (*missing, *extra)


def summary_lines(summary: Summary) -> list[str]:
    """Return the summary for a person."""
    return [
        "",
        _first_line(summary.first_completed_seconds),
        f"Jobs: {', '.join(f'{count} {state}' for state, count in summary.jobs.items())}",
        f"Totals: {', '.join(f'{count} {name}' for name, count in summary.totals.items())}",
        "Amounts (invoiced, charged, gateway's journal):",
        *(_amount_line(currency, sums) for currency, sums in summary.amounts.items()),
        f"Journal and books: {'equal' if summary.journal_equal else 'DIFFERENT'}",
        *summary.differences,
    ]


def _amounts(reports: Reports, captures: list[PaymentView]) -> dict[str, dict[str, int]]:
    collected: Counter[str] = Counter()
    for capture in captures:
        collected[capture.currency] += capture.amount_minor
    amounts = reports.amounts()
    return {
        currency: {
            "invoiced": amounts[currency].invoiced if currency in amounts else 0,
            "charged": amounts[currency].charged if currency in amounts else 0,
            "journal": collected[currency],
        }
        for currency in sorted(amounts.keys() | collected.keys())
    }


def _first_line(seconds: float | None) -> str:
    return "No job was completed" if seconds is None else f"First completed job after {seconds} s"


def _amount_line(currency: str, sums: Mapping[str, int]) -> str:
    texts = (Money(minor, currency).to_decimal_string() for minor in sums.values())
    return f"  {currency}  " + "  ".join(f"{text:>14}" for text in texts)


def _told(item: PaymentView) -> str:
    amount = Money(item.amount_minor, item.currency).to_decimal_string()
    return f"{item.gateway_reference} over {amount} {item.currency}"


def _print_json(value: Mapping[str, object]) -> None:
    sys.stdout.write(json.dumps(value, default=str) + "\n")
    sys.stdout.flush()
