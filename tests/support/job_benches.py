"""
A job store in the hands of a test: time that passes at once, lanes, open effects, the audit trail.

Owns what no port does. What both stores promise is in `tests/contract`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol
from uuid import UUID, uuid4

import psycopg

from billing_jobs.adapters.clock import SystemClock
from billing_jobs.adapters.memory.jobs import MemoryJobStore
from billing_jobs.adapters.postgres.engine import Database, statements
from billing_jobs.adapters.postgres.jobs import PostgresJobStore
from billing_jobs.adapters.postgres.ledger import PostgresLedger
from billing_jobs.domain.errors import LeaseLost
from billing_jobs.domain.job import ClaimedJob, JobState, JobView, NewJob, Recording, Verb
from billing_jobs.domain.ledger import ChargeAnswered, Effect
from billing_jobs.domain.payment import AttemptState
from billing_jobs.embedded.postgres import EmbeddedPostgres
from billing_jobs.ports import JobStore, RescuePolicy
from billing_jobs.testing import FrozenClock

#: The migrated database that `tests/conftest.py` makes.
TEMPLATE = "template_billing"

KIND = "work"
KINDS = (KIND,)
TTL_SECONDS = 20.0


@dataclass(frozen=True)
class AuditLine:
    """What the audit trail says of one change, the same for both stores."""

    verb: str
    from_state: str | None
    to_state: str
    attempt: int
    held: bool
    actor: str
    reason: str | None


class JobBench(Protocol):
    """A store, and what a test may do to it."""

    @property
    def store(self) -> JobStore:
        """The store."""

    def now(self) -> datetime:
        """Return the time by the clock that decides."""

    def pass_seconds(self, seconds: float) -> None:
        """Let time pass at once."""

    def pause_lane(self, lane: str) -> None:
        """Let nobody claim from a lane."""

    def close_lane(self, lane: str, seconds: float) -> None:
        """Let nobody claim from a lane for a while."""

    def open_lane(self, lane: str) -> None:
        """Undo both."""

    def open_effect(self, job: ClaimedJob) -> bool:
        """Declare a call to the outside; False for a stale owner."""

    def audit(self, job_id: UUID) -> list[AuditLine]:
        """Return the audit trail of a job."""

    def standings(self) -> dict[UUID, tuple[str, int]]:
        """Return the state and the version of every job."""


class MemoryBench:
    """The store in memory, on a clock that stands still."""

    def __init__(self) -> None:
        """Start with nothing in it."""
        self.clock = FrozenClock()
        self.store = MemoryJobStore(self.clock, _refuse)

    def now(self) -> datetime:
        """Return the time that stands still."""
        return self.clock.now()

    def pass_seconds(self, seconds: float) -> None:
        """Move the clock."""
        self.clock.advance(seconds)

    def pause_lane(self, lane: str) -> None:
        """Let nobody claim from a lane."""
        self.store.pause_lane(lane)

    def close_lane(self, lane: str, seconds: float) -> None:
        """Let nobody claim from a lane for a while."""
        self.store.close_lane(lane, seconds)

    def open_lane(self, lane: str) -> None:
        """Undo both."""
        self.store.open_lane(lane)

    def open_effect(self, job: ClaimedJob) -> bool:
        """Declare a call to the outside; False for a stale owner."""
        try:
            self.store.open_effect(job)
        except LeaseLost:
            return False
        return True

    def audit(self, job_id: UUID) -> list[AuditLine]:
        """Return the audit trail of a job."""
        return [
            AuditLine(
                line.verb,
                line.from_state,
                line.to_state,
                line.attempt,
                line.token is not None,
                line.actor,
                line.reason,
            )
            for line in self.store.audit(job_id)
        ]

    def standings(self) -> dict[UUID, tuple[str, int]]:
        """Return the state and the version of every job."""
        return {view.id: (view.state, view.version) for view in self.store.all_jobs()}


class PostgresBench:
    """The store in Postgres. Time passes by moving every row into the past."""

    def __init__(self, database: Database) -> None:
        """Take a migrated database of one's own."""
        self.database = database
        self.store = PostgresJobStore(database, PostgresLedger(database))

    def now(self) -> datetime:
        """Return the time of the server's clock."""
        rows = self.sql("SELECT clock_timestamp() AS now")
        now = rows[0]["now"]
        assert isinstance(now, datetime)
        return now.astimezone(UTC)

    def pass_seconds(self, seconds: float) -> None:
        """Move every moment that is waited for into the past."""
        step = "make_interval(secs => %(seconds)s)"
        columns = ("run_at", "expires_at", "lease_until")
        moved = ", ".join(f"{column} = {column} - {step}" for column in columns)
        self.sql(f"UPDATE jobs SET {moved}", seconds=seconds)
        self.sql(f"UPDATE lanes SET closed_until = closed_until - {step}", seconds=seconds)

    def pause_lane(self, lane: str) -> None:
        """Let nobody claim from a lane."""
        self.sql("UPDATE lanes SET paused = true, paused_reason = 'x' WHERE lane = %(l)s", l=lane)

    def close_lane(self, lane: str, seconds: float) -> None:
        """Let nobody claim from a lane for a while."""
        self.sql(
            "UPDATE lanes SET closed_until = clock_timestamp() + make_interval(secs => %(s)s) "
            "WHERE lane = %(lane)s",
            lane=lane,
            s=seconds,
        )

    def open_lane(self, lane: str) -> None:
        """Undo both."""
        self.sql("UPDATE lanes SET paused = false, closed_until = NULL WHERE lane = %(l)s", l=lane)

    def open_effect(self, job: ClaimedJob) -> bool:
        """Declare a call to the outside; False for a stale owner."""
        with self.database.connection() as connection:
            cursor = connection.execute(
                statements("jobs")["open_effect"], {"id": job.id, "token": job.token}
            )
            return cursor.rowcount == 1

    def audit(self, job_id: UUID) -> list[AuditLine]:
        """Return the audit trail of a job."""
        rows = self.sql(
            "SELECT verb, from_state, to_state, attempt, token IS NOT NULL AS held, actor, reason "
            "FROM job_audit WHERE job_id = %(id)s ORDER BY sequence",
            id=job_id,
        )
        return [AuditLine(**row) for row in rows]

    def standings(self) -> dict[UUID, tuple[str, int]]:
        """Return the state and the version of every job."""
        rows = self.sql("SELECT id, state, version FROM jobs")
        return {row["id"]: (row["state"], row["version"]) for row in rows}

    @contextmanager
    def impatient(self, lock_seconds: float) -> Iterator[PostgresJobStore]:
        """Lend a store that waits for no lock longer than this."""
        database = Database(self.database.url, lock_timeout_seconds=lock_seconds)
        try:
            yield PostgresJobStore(database, PostgresLedger(database))
        finally:
            database.close()

    def sql(self, text: str, **parameters: object) -> list[dict[str, Any]]:
        """Run a statement; tests look where no port does."""
        with self.database.connection() as connection:
            cursor = connection.execute(text, parameters)
            return cursor.fetchall() if cursor.description else []

    def clear(self) -> None:
        """Forget every job; a database of its own for each test would cost a second."""
        for table in ("jobs", "job_keys", "job_attempts", "job_audit"):
            self.sql(f"DELETE FROM {table}")
        self.sql("DELETE FROM lanes WHERE lane <> queue")
        self.sql("UPDATE lanes SET paused = false, closed_until = NULL")


@contextmanager
def postgres_bench(server: EmbeddedPostgres) -> Iterator[PostgresBench]:
    """Make a database, lend a bench on it, drop it."""
    name = f"bench_{uuid4().hex[:12]}"
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
        # Nobody pulls the plug here, and each commit would wait for the disk.
        connection.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
        database = Database(server.url.replace("/postgres?", f"/{name}?"), pool_size=16)
        try:
            yield PostgresBench(database)
        finally:
            database.close()
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def new_job(**changes: object) -> NewJob:
    """Return a job of the default queue, due at once, with what the test changes."""
    values: dict[str, object] = {
        "id": SystemClock().new_id(),
        "kind": KIND,
        "queue": "default",
        "arguments": {"n": 1},
        "tenant": "acme",
        "lane": "default",
        "max_attempts": 4,
        **changes,
    }
    return NewJob(**values)  # type: ignore[arg-type] # the test names fields of NewJob


def recording(verb: Verb = Verb.COMPLETE, **changes: object) -> Recording:
    """Return the end of a run by this verb, with what the test changes."""
    state = {
        Verb.COMPLETE: JobState.COMPLETED,
        Verb.RESCHEDULE: JobState.PENDING,
        Verb.DEFER: JobState.PENDING,
        Verb.FAIL: JobState.FAILED,
        Verb.BURY: JobState.DEAD_LETTER,
    }[verb]
    values: dict[str, object] = {
        "outcome": str(verb),
        "delay_seconds": 10.0 if state is JobState.PENDING else None,
        "spend": verb is not Verb.DEFER,
        "reason": f"because of {verb}",
        **changes,
    }
    return Recording(verb, state, **values)  # type: ignore[arg-type] # fields of Recording


def claim(bench: JobBench, limit: int = 1, worker: str = "w1") -> list[ClaimedJob]:
    """Claim from the default queue."""
    return bench.store.claim("default", KINDS, limit=limit, ttl_seconds=TTL_SECONDS, worker=worker)


def claim_one(bench: JobBench) -> ClaimedJob:
    """Claim the one job that must be due."""
    (job,) = claim(bench)
    return job


def rescue(bench: JobBench, *bury_kinds: str, limit: int = 100) -> list[UUID]:
    """Free what expired; any server has been up for a ttl of nothing."""
    return bench.store.rescue(RescuePolicy(bury_kinds), limit=limit, ttl_seconds=0.0)


def view(bench: JobBench, job_id: UUID) -> JobView:
    """Return a job that must be there."""
    found = bench.store.get(job_id)
    assert found is not None
    return found


def running(bench: JobBench, **changes: object) -> ClaimedJob:
    """Return a job in the hands of a worker."""
    bench.store.insert([new_job(**changes)])
    return claim_one(bench)


def crashed(bench: JobBench) -> ClaimedJob:
    """Claim the one job, and let its worker vanish."""
    job = claim_one(bench)
    bench.pass_seconds(TTL_SECONDS + 1)
    return job


def dead_letter(bench: JobBench) -> ClaimedJob:
    """Return a job that was buried."""
    job = running(bench)
    bench.store.record(job, recording(Verb.BURY, error="no card"))
    return job


def standing(bench: JobBench, job: ClaimedJob) -> tuple[JobState, int, int]:
    """Return where a job stands: its state, the attempts spent, the crashes."""
    found = view(bench, job.id)
    return found.state, found.attempt, found.crash_count


def last(bench: JobBench, job: ClaimedJob) -> AuditLine:
    """Return the youngest line of a job's audit trail."""
    return bench.audit(job.id)[-1]


def impossible_effect() -> Effect:
    """Return an effect that neither bench can apply."""
    return ChargeAnswered(uuid4(), AttemptState.DECLINED, "an attempt that does not exist")


def _refuse(job: ClaimedJob, effect: Effect) -> None:
    raise LeaseLost(f"Job {job.id} has no such attempt: {effect}.")
