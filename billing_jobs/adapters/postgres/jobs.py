"""
The jobs in Postgres: each change of state is one guarded statement of `jobs.sql`.

Owns the calls and the checking of row counts. The rules live in `lifecycle.py`, the statements in
`jobs.sql`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from uuid import UUID

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from billing_jobs.adapters.postgres.engine import (
    Connection,
    Database,
    driver_connection,
    statements,
)
from billing_jobs.adapters.postgres.ledger import PostgresLedger
from billing_jobs.domain.errors import (
    EnqueueError,
    LeaseLost,
    RecordRefused,
    StoreUnavailable,
)
from billing_jobs.domain.job import (
    CRASHES_MAX,
    AttemptView,
    ClaimedJob,
    JobState,
    JobView,
    NewJob,
    Recorded,
    Recording,
    check_end,
)
from billing_jobs.domain.ledger import Effect
from billing_jobs.ports import RescuePolicy, Transaction

SQL = statements("jobs")

#: Who rescues and expires, in the audit trail.
DISPATCHER = "dispatcher"

#: Rows a statement when many jobs are recorded at once.
INSERT_BATCH = 1000

#: What of a driver's error is told: its first line says it all.
ERROR_CHARS = 300


class PostgresJobStore:
    """`JobStore` over Postgres."""

    def __init__(self, database: Database, ledger: PostgresLedger) -> None:
        """Take the way to the database, and the ledger that applies effects."""
        self._database = database
        self._ledger = ledger

    def insert(
        self, jobs: Sequence[NewJob], transaction: Transaction | None = None
    ) -> list[Recorded]:
        """
        Record jobs, in the caller's transaction if one is given.

        Raises `EnqueueError` when Postgres refuses or cannot be reached.

        Crash safety: one transaction, the caller's or ours; a crash before its commit leaves
        nothing. Twice with one business key makes one job, and both calls learn its id.
        """
        try:
            if transaction is not None:
                return _insert(driver_connection(transaction), jobs)
            return self._database.run(lambda connection: _insert(connection, jobs))
        except (psycopg.Error, StoreUnavailable) as error:
            raise EnqueueError(
                f"The job was not recorded: {_first_line(error)}. "
                "Nothing is half done; call again with the same arguments."
            ) from error

    def claim(
        self, queue: str, kinds: Collection[str], *, limit: int, ttl_seconds: float, worker: str
    ) -> list[ClaimedJob]:
        """
        Take due jobs.

        Crash safety: one statement; jobs whose claim was committed while the answer got lost are
        rescued when their lease expires.
        """
        with self._connection() as connection:
            rows = connection.execute(
                SQL["claim"],
                {
                    "queue": queue,
                    "kinds": sorted(kinds),
                    "limit": limit,
                    "ttl_seconds": ttl_seconds,
                    "worker": worker,
                },
            ).fetchall()
        return [ClaimedJob(**row) for row in rows]

    def renew(self, job: ClaimedJob, *, ttl_seconds: float) -> bool:
        """
        Prolong the lease.

        Crash safety: one statement; without it the lease expires and the job is rescued.
        """
        with self._connection() as connection:
            cursor = connection.execute(
                SQL["renew"], {"id": job.id, "token": job.token, "ttl_seconds": ttl_seconds}
            )
            return cursor.rowcount == 1

    def record(
        self,
        job: ClaimedJob,
        recording: Recording,
        *,
        effects: Sequence[Effect] = (),
        then: Sequence[NewJob] = (),
    ) -> None:
        """
        Write the end of a run.

        Raises `LeaseLost` for a stale owner, `RecordRefused` when Postgres refuses an effect or a
        follow-up, and `StoreUnavailable`.

        Crash safety: one transaction guarded by the token. A crash before its commit leaves the job
        running until it is rescued; written twice, the second write finds no row and raises
        `LeaseLost`.
        """
        check_end(recording)

        def write(connection: Connection) -> None:
            # A run that is buried without a word about its call leaves the effect open: the money
            # may have moved, so the job must not be cancelled after a replay.
            closes_effect = bool(effects) or recording.state is JobState.COMPLETED
            parameters = _recording(job, recording) | {"closes_effect": closes_effect}
            cursor = connection.execute(SQL["record"], parameters)
            if cursor.fetchone() is None:
                raise LeaseLost(
                    f"Job {job.id} is no longer held under token {job.token}; "
                    "nothing was written. Another worker owns it now."
                )
            if then:
                _insert(connection, then)
            for effect in effects:
                self._ledger.apply(connection, job, effect)

        with _refusals(job):
            self._database.run(write)

    def rescue(self, policy: RescuePolicy, *, limit: int, ttl_seconds: float) -> list[UUID]:
        """
        Free jobs whose lease expired.

        Crash safety: one statement; run twice, the second finds nothing.
        """
        return self._ids(
            "rescue",
            bury_kinds=sorted(policy.bury_kinds),
            limit=limit,
            ttl_seconds=ttl_seconds,
            crashes_max=CRASHES_MAX,
            actor=DISPATCHER,
        )

    def expire(self, *, limit: int) -> list[UUID]:
        """
        Cancel pending jobs that came too late.

        Crash safety: one statement; run twice, the second finds nothing.
        """
        return self._ids("expire", limit=limit, actor=DISPATCHER)

    def due_queues(self) -> list[str]:
        """Return the queues with due jobs; reads only."""
        with self._connection() as connection:
            rows = connection.execute(SQL["due_queues"]).fetchall()
        return sorted(row["queue"] for row in rows)

    def next_due_seconds(self) -> float | None:
        """Return how far away the next due job is; reads only."""
        with self._connection() as connection:
            row = connection.execute(SQL["next_due"]).fetchone()
        seconds = None if row is None else row["seconds"]
        return None if seconds is None else max(0.0, seconds)

    def cancel(self, job_id: UUID, *, actor: str, reason: str) -> JobState | None:
        """
        Cancel a pending job, or ask a running one.

        Crash safety: one statement; twice, the second finds nothing to do.
        """
        with self._connection() as connection:
            row = connection.execute(
                SQL["cancel"], {"id": job_id, "actor": actor, "reason": reason}
            ).fetchone()
        return None if row is None else JobState(row["state"])

    def replay(self, job_id: UUID, *, actor: str, reason: str) -> bool:
        """
        Make a dead letter pending again.

        Crash safety: one statement; twice, the second finds no dead letter.
        """
        return bool(self._ids("replay", id=job_id, actor=actor, reason=reason))

    def resolve(self, job_id: UUID, *, actor: str, reason: str) -> bool:
        """
        Close a dead letter.

        Crash safety: one statement; twice, the second finds no dead letter.
        """
        return bool(self._ids("resolve", id=job_id, actor=actor, reason=reason))

    def get(self, job_id: UUID) -> JobView | None:
        """Return one job."""
        with self._connection() as connection:
            row = connection.execute(SQL["get"], {"id": job_id}).fetchone()
        return None if row is None else JobView(**{**row, "state": JobState(row["state"])})

    def attempts(self, job_id: UUID) -> list[AttemptView]:
        """Return the runs of one job."""
        with self._connection() as connection:
            rows = connection.execute(SQL["attempts"], {"id": job_id}).fetchall()
        return [AttemptView(**row) for row in rows]

    def _ids(self, name: str, **parameters: object) -> list[UUID]:
        with self._connection() as connection:
            return [row["id"] for row in connection.execute(SQL[name], parameters).fetchall()]

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        with _timeouts(), self._database.connection() as connection:
            yield connection


@contextmanager
def _timeouts() -> Iterator[None]:
    """Tell a statement that waited too long, or lost too many races, like a lost connection."""
    try:
        yield
    except psycopg.OperationalError as error:
        raise StoreUnavailable(
            f"Postgres did not answer in time: {_first_line(error)}. "
            "Look for long transactions in pg_stat_activity; nothing was lost."
        ) from error


@contextmanager
def _refusals(job: ClaimedJob) -> Iterator[None]:
    try:
        with _timeouts():
            yield
    except psycopg.Error as error:
        raise RecordRefused(
            f"What job {job.id} ({job.kind}) wanted to write was refused: {_first_line(error)}. "
            "Nothing was written; repair the executor or the rows it names, then replay the job."
        ) from error


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].removesuffix(".")[:ERROR_CHARS]


def _insert(connection: Connection, jobs: Sequence[NewJob]) -> list[Recorded]:
    distinct: dict[UUID, NewJob] = {}
    for job in jobs:
        distinct.setdefault(job.id, job)
    # Sorted by key, so that two callers that record the same keys wait for each other in one order.
    ordered = sorted(distinct.values(), key=lambda job: (job.tenant, job.kind, job.key or ""))
    made: set[UUID] = set()
    known: dict[UUID, UUID] = {}
    for start in range(0, len(ordered), INSERT_BATCH):
        batch = ordered[start : start + INSERT_BATCH]
        # The caller's own connection may make rows of another shape.
        cursor = connection.cursor(row_factory=dict_row)
        made.update(row["id"] for row in cursor.execute(SQL["insert"], _columns(batch)))
        known.update(_known(connection, [job for job in batch if job.id not in made]))
    return [_recorded(job, made, known) for job in jobs]


def _recorded(job: NewJob, made: set[UUID], known: Mapping[UUID, UUID]) -> Recorded:
    created = job.id in made
    # The same id again in one call made nothing.
    made.discard(job.id)
    return Recorded(known.get(job.id, job.id), created=created, queue=job.queue)


def _known(connection: Connection, jobs: Sequence[NewJob]) -> dict[UUID, UUID]:
    keyed = [job for job in jobs if job.key is not None]
    if not keyed:
        return {}
    rows = connection.cursor(row_factory=dict_row).execute(
        SQL["known_keys"],
        {
            "tenants": [job.tenant for job in keyed],
            "kinds": [job.kind for job in keyed],
            "keys": [job.key for job in keyed],
        },
    )
    return {keyed[row["position"] - 1].id: row["job_id"] for row in rows}


def _columns(jobs: Sequence[NewJob]) -> dict[str, object]:
    return {
        "ids": [job.id for job in jobs],
        "tenants": [job.tenant for job in jobs],
        "kinds": [job.kind for job in jobs],
        "queues": [job.queue for job in jobs],
        "lanes": [job.lane for job in jobs],
        "keys": [job.key for job in jobs],
        "priorities": [job.priority for job in jobs],
        "max_attempts": [job.max_attempts for job in jobs],
        "run_ats": [job.run_at for job in jobs],
        "delays": [job.delay_seconds for job in jobs],
        "expires_ats": [job.expires_at for job in jobs],
        "parent_ids": [job.parent_id for job in jobs],
        "actors": [job.actor for job in jobs],
        "arguments": [json.dumps(dict(job.arguments)) for job in jobs],
    }


def _recording(job: ClaimedJob, recording: Recording) -> dict[str, object]:
    return {
        "id": job.id,
        "token": job.token,
        "attempt": job.attempt,
        "worker": job.worker,
        "verb": recording.verb.value,
        "state": recording.state.value,
        "outcome": recording.outcome,
        "delay_seconds": recording.delay_seconds or 0.0,
        "spend": recording.spend,
        "outages": recording.outages,
        "result": None if recording.result is None else Jsonb(dict(recording.result)),
        "error": recording.error,
        "error_fingerprint": recording.error_fingerprint,
        "reason": recording.reason,
    }
