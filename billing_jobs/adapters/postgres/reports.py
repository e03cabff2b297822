"""
Numbers for people: where jobs and money stand.

Owns reads only.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from billing_jobs.adapters.postgres.engine import Database, statements
from billing_jobs.domain.job import JobState, JobView
from billing_jobs.ports import CurrencyAmounts, PaymentView, ServerState, Totals, Unsettled

SQL = statements("reports")


class PostgresReports:
    """`Reports` over Postgres."""

    def __init__(self, database: Database) -> None:
        """Take the way to the database."""
        self._database = database

    def job_counts(self) -> dict[str, dict[str, int]]:
        """Count jobs by kind and state."""
        counts: dict[str, dict[str, int]] = {}
        for row in self._rows("job_counts"):
            counts.setdefault(row["kind"], {})[row["state"]] = row["jobs"]
        return counts

    def unsettled(self, *, horizon_seconds: float, stuck_seconds: float) -> Unsettled:
        """Count what is not at its end."""
        return Unsettled(
            **self._row("unsettled", horizon_seconds=horizon_seconds, stuck_seconds=stuck_seconds)
        )

    def amounts(self) -> dict[str, CurrencyAmounts]:
        """Add up what was invoiced and charged, per currency."""
        return {
            row["currency"]: CurrencyAmounts(row["invoiced"], row["charged"])
            for row in self._rows("amounts")
        }

    def payments(self) -> list[PaymentView]:
        """Return every payment in the books."""
        return [PaymentView(**row) for row in self._rows("payments")]

    def totals(self) -> Totals:
        """Count what happened."""
        return Totals(**self._row("totals"))

    def first_completed_at(self, *, since: datetime) -> datetime | None:
        """Return when the first job after a moment was completed."""
        at = self._row("first_completed", since=since)["at"]
        assert at is None or isinstance(at, datetime)
        return at

    def jobs(
        self, *, state: str | None, kind: str | None, after: UUID | None, limit: int
    ) -> list[JobView]:
        """Return a page of jobs, newest first."""
        rows = self._rows("list_jobs", state=state, kind=kind, after=after, limit=limit)
        return [JobView(**{**row, "state": JobState(row["state"])}) for row in rows]

    def server(self) -> ServerState:
        """Return what the server says about itself."""
        ping = self._row("ping")
        # The table is there and empty after the first migration was taken back.
        rows = self._rows("revision") if ping["migrated"] else []
        return ServerState(
            ping["version"], ping["now"], revision=rows[0]["version_num"] if rows else None
        )

    def _rows(self, name: str, **parameters: object) -> list[dict[str, Any]]:
        with self._database.connection() as connection:
            return connection.execute(SQL[name], parameters).fetchall()

    def _row(self, name: str, **parameters: object) -> Mapping[str, Any]:
        return self._rows(name, **parameters)[0]
