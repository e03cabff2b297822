"""
`billing-jobs status`: what runs, and where jobs and money stand.

Owns the words; the numbers are reports of the database.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from billing_jobs.cli import connect, console, run_report
from billing_jobs.config import load_settings
from billing_jobs.domain.money import Money
from billing_jobs.embedded.data_dir import DataDir


def status(*, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Show what runs, and where jobs and money stand; exit 1 when a job is stuck."""
    holder = DataDir(load_settings().data_dir).holder()
    with connect.runtime() as runtime:
        unsettled = runtime.reports.unsettled(
            horizon_seconds=run_report.HORIZON_SECONDS, stuck_seconds=run_report.STUCK_SECONDS
        )
        counts, amounts = runtime.reports.job_counts(), runtime.reports.amounts()
        totals = runtime.reports.totals()
    if as_json:
        console.print_json(
            {
                "up": None if holder is None else {"pid": holder.pid, **holder.facts},
                "jobs": counts,
                "amounts": {currency: asdict(sums) for currency, sums in amounts.items()},
                "totals": asdict(totals),
                "unsettled": asdict(unsettled),
            }
        )
    else:
        running = "not running" if holder is None else f"running, pid {holder.pid}"
        console.say(f"up: {running}")
        console.say(run_report.progress_line(totals, unsettled))
        console.print_table(
            ("kind", "state", "jobs"),
            [(kind, state, n) for kind, states in counts.items() for state, n in states.items()],
        )
        console.print_table(
            ("currency", "invoiced", "charged"),
            [
                (
                    currency,
                    Money(sums.invoiced, currency).to_decimal_string(),
                    Money(sums.charged, currency).to_decimal_string(),
                )
                for currency, sums in amounts.items()
            ],
        )
    raise typer.Exit(1 if unsettled.stuck else 0)


app = status
