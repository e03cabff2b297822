"""
`billing-jobs doctor`: healthy, or which part is not and what to do about it.

Owns the checks; each is small, reads only, and says the next step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from billing_jobs.bootstrap import Runtime
from billing_jobs.cli import connect, console, migrations, run_report
from billing_jobs.domain.errors import BillingJobsError

#: The oldest Postgres that we test with, as the server numbers it.
POSTGRES_MIN = 150_000

#: Clocks of the database and of this machine may differ by this much before it is worth a word.
SKEW_MAX_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found."""

    check: str
    healthy: bool
    says: str


Check = Callable[[Runtime], str | None]


def doctor(*, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Check the database, the schema, the broker and what is stuck; exit 1 when unhealthy."""
    with connect.runtime() as runtime:
        findings = [_examine(name, check, runtime) for name, check in CHECKS]
    if as_json:
        console.print_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            console.say(f"{'ok' if finding.healthy else 'BAD':4} {finding.check}: {finding.says}")
    raise typer.Exit(0 if all(finding.healthy for finding in findings) else 1)


app = doctor


def _examine(name: str, check: Check, runtime: Runtime) -> Finding:
    try:
        trouble = check(runtime)
    except BillingJobsError as error:
        trouble = error.message
    return Finding(name, trouble is None, trouble or "fine")


def _database(runtime: Runtime) -> str | None:
    state = runtime.reports.server()
    if state.version < POSTGRES_MIN:
        return f"Postgres {state.version} is too old; use 15 or newer"
    skew = abs((state.now - runtime.engine.clock.now()).total_seconds())
    if skew > SKEW_MAX_SECONDS:
        return f"the clocks differ by {skew:.1f} s; harmless for jobs, but logs will mislead"
    return None


def _schema(runtime: Runtime) -> str | None:
    revision = runtime.reports.server().revision
    if revision != migrations.head():
        return (
            f"at {revision or 'nothing'}, needs {migrations.head()}: run `billing-jobs db upgrade`"
        )
    return None


def _broker(runtime: Runtime) -> str | None:
    if runtime.engine.doorbell.ring("maintenance"):
        return None
    return "cannot be reached; no work is lost, the dispatcher rings when it is back"


def _stuck(runtime: Runtime) -> str | None:
    unsettled = runtime.reports.unsettled(
        horizon_seconds=0.0, stuck_seconds=run_report.STUCK_SECONDS
    )
    if unsettled.stuck:
        return f"{unsettled.stuck} running jobs have no owner: is a beat running?"
    return None


def _unknown(runtime: Runtime) -> str | None:
    unsettled = runtime.reports.unsettled(
        horizon_seconds=0.0, stuck_seconds=run_report.STUCK_SECONDS
    )
    if unsettled.unknown_charges:
        return f"{unsettled.unknown_charges} charges have an unknown outcome and are looked up"
    return None


CHECKS: tuple[tuple[str, Check], ...] = (
    ("database", _database),
    ("schema", _schema),
    ("broker", _broker),
    ("stuck jobs", _stuck),
    ("unknown charges", _unknown),
)
