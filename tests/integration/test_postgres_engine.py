"""
Connections to a real Postgres: forks, servers that go away, deadlocks, time-outs.

What the statements do is in `tests/contract`.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from support.job_benches import PostgresBench, new_job, postgres_bench
from support.threads import at_once

from billing_jobs import lifecycle
from billing_jobs.adapters.postgres.engine import (
    CONFLICT_RETRIES,
    Connection,
    Database,
    statements,
)
from billing_jobs.adapters.postgres.jobs import PostgresJobStore
from billing_jobs.adapters.postgres.ledger import PostgresLedger
from billing_jobs.domain.errors import (
    EnqueueError,
    StoreUnavailable,
)
from billing_jobs.embedded.postgres import EmbeddedPostgres
from billing_jobs.testing import embedded_postgres, engine_over

#: So short that a test does not wait, and long enough to be a time-out and no accident.
SHORT_SECONDS = 0.05

Opened = AbstractContextManager[tuple[object, Callable[[], None]]]


@pytest.fixture(scope="module")
def module_bench(postgres_server: EmbeddedPostgres) -> Iterator[PostgresBench]:
    """One migrated database for the module."""
    with postgres_bench(postgres_server) as made:
        yield made


@pytest.fixture
def bench(module_bench: PostgresBench) -> PostgresBench:
    """A store over an empty database."""
    module_bench.clear()
    return module_bench


@contextmanager
def opened(database: Database) -> Iterator[Database]:
    """Close a database at the end."""
    try:
        yield database
    finally:
        database.close()


def backend(connection: Connection) -> int:
    """Return the number of the server's process behind a connection."""
    row = connection.execute("SELECT pg_backend_pid() AS pid").fetchone()
    assert row is not None
    pid = row["pid"]
    assert isinstance(pid, int)
    return pid


def one(connection: Connection) -> object:
    """Ask the server for a one."""
    row = connection.execute("SELECT 1 AS one").fetchone()
    assert row is not None
    return row["one"]


def test_a_connection_makes_rows_by_name_and_commits_each_statement(bench: PostgresBench) -> None:
    """What is written through it is seen by others at once."""
    with bench.database.connection() as first, bench.database.connection() as second:
        first.execute("INSERT INTO job_keys VALUES ('t', 'k', 'b', gen_random_uuid())")

        assert second.execute("SELECT business_key FROM job_keys").fetchall() == [
            {"business_key": "b"}
        ]


def test_a_transaction_is_all_or_nothing(bench: PostgresBench) -> None:
    """An error of ours in the middle leaves nothing behind."""
    write = "INSERT INTO job_keys VALUES ('t', 'k', 'b', gen_random_uuid())"

    def broken() -> None:
        with bench.database.transaction() as connection:
            connection.execute(write)
            raise KeyError("ours")

    with pytest.raises(KeyError):
        broken()
    assert bench.sql("SELECT * FROM job_keys") == []
    bench.database.run(lambda connection: connection.execute(write))
    assert len(bench.sql("SELECT * FROM job_keys")) == 1


def test_nothing_listens_is_told_at_once() -> None:
    """With what to look at, and without a stack of somebody else's library."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with opened(
        Database(f"postgresql+psycopg://nobody:secret@127.0.0.1:{port}/billing")
    ) as nowhere:
        for ask in (lent, run_one):
            with pytest.raises(StoreUnavailable, match="Check BILLING_JOBS_DATABASE_URL") as caught:
                ask(nowhere)
            assert "secret" not in caught.value.message
        store = PostgresJobStore(nowhere, PostgresLedger(nowhere))
        with pytest.raises(EnqueueError, match="not recorded"):
            store.insert([new_job()])
        with pytest.raises(EnqueueError, match="not recorded"):
            lifecycle.enqueue(
                engine_over(store, PostgresLedger(nowhere)), "charge", {"invoice_id": uuid4()}
            )


def test_a_server_that_stops_and_comes_back_is_noticed_and_found_again(tmp_path: Path) -> None:
    """G1: a restart in the middle of a transaction; the same pool works again, by itself."""
    with embedded_postgres(tmp_path) as server, opened(Database(server.url)) as database:
        database.run(one)

        def interrupted(connection: Connection) -> object:
            one(connection)
            server.stop("immediate")
            return one(connection)

        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            database.run(interrupted)
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            database.run(one)

        server.start()

        assert database.run(one) == 1


def test_connections_that_died_in_the_pool_are_replaced_unnoticed(bench: PostgresBench) -> None:
    """A failover while nobody was looking costs the next caller nothing."""
    with opened(Database(bench.database.url)) as database:
        with database.connection() as connection:
            before = backend(connection)
        bench.sql("SELECT pg_terminate_backend(%(pid)s, 5000)", pid=before)

        with database.connection() as connection:
            assert backend(connection) != before


def test_a_connection_that_dies_in_use_is_not_used_again(bench: PostgresBench) -> None:
    """Whether its last statement was committed nobody knows; the error says so by its name."""
    with opened(Database(bench.database.url)) as database:
        seen: list[int] = []

        def work(connection: Connection) -> object:
            seen.append(backend(connection))
            bench.sql("SELECT pg_terminate_backend(%(pid)s, 5000)", pid=seen[0])
            return one(connection)

        with pytest.raises(StoreUnavailable):
            database.run(work)

        assert database.run(backend) != seen[0]
        assert len(seen) == 1


def test_a_lost_deadlock_is_run_again(bench: PostgresBench) -> None:
    """Two transactions take the same rows in opposite order, and both get done."""
    bench.store.insert([new_job(key="a"), new_job(key="b")])
    both_hold, one_is_done, runs = threading.Barrier(2), threading.Event(), [0, 0]
    touch = "UPDATE jobs SET version = version + 1 WHERE business_key = %s"

    def run(number: int) -> None:
        keys = ("a", "b") if number else ("b", "a")

        def work(connection: Connection) -> None:
            runs[number] += 1
            # Else the loser may take its first row before the winner wakes up, and lose again.
            assert runs[number] == 1 or one_is_done.wait(30)
            connection.execute("SET LOCAL deadlock_timeout = '20ms'")
            connection.execute(touch, (keys[0],))
            if runs[number] == 1:
                both_hold.wait(30)
            connection.execute(touch, (keys[1],))

        bench.database.run(work)
        one_is_done.set()

    at_once(2, run)

    assert sorted(runs) == [1, 2]
    assert [row["version"] for row in bench.sql("SELECT version FROM jobs")] == [3, 3]


@pytest.mark.parametrize(
    ("error", "runs"),
    [
        (psycopg.errors.SerializationFailure("lost"), CONFLICT_RETRIES + 1),
        (psycopg.errors.DeadlockDetected("lost"), CONFLICT_RETRIES + 1),
        (psycopg.errors.LockNotAvailable("busy"), 1),
        (psycopg.errors.QueryCanceled("slow"), 1),
        (psycopg.errors.CheckViolation("wrong"), 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_only_a_lost_race_is_run_again_and_not_for_ever(
    bench: PostgresBench, error: psycopg.Error, runs: int
) -> None:
    """What failed for another reason would fail again; what always loses is told."""
    seen = []

    def work(_connection: Connection) -> None:
        seen.append(1)
        raise error

    with pytest.raises(type(error)):
        bench.database.run(work)

    assert len(seen) == runs
    assert bench.database.run(one) == 1


def test_a_statement_that_takes_too_long_is_cut_and_its_connection_kept(
    bench: PostgresBench,
) -> None:
    """A time-out says nothing about the server: reconnecting would only add to its load."""
    impatient = Database(bench.database.url, statement_timeout_seconds=SHORT_SECONDS, pool_size=1)
    with opened(impatient):
        with impatient.connection() as connection:
            before = backend(connection)
        with pytest.raises(psycopg.errors.QueryCanceled), impatient.connection() as connection:
            connection.execute("SELECT pg_sleep(30)")

        with impatient.connection() as connection:
            assert backend(connection) == before


@pytest.mark.parametrize(
    ("prepared", "statement", "lock", "threshold"),
    [(True, "7s", "3s", 2), (False, "0", "0", None)],
)
def test_the_time_outs_go_with_the_connection_unless_a_pooler_would_refuse_them(
    bench: PostgresBench, statement: str, lock: str, threshold: int | None, *, prepared: bool
) -> None:
    """PgBouncer takes neither start-up options nor prepared statements."""
    database = Database(
        bench.database.url,
        statement_timeout_seconds=7,
        lock_timeout_seconds=3,
        prepared_statements=prepared,
    )
    with opened(database), database.connection() as connection:
        shown = [
            row[name]
            for name in ("statement_timeout", "lock_timeout")
            for row in connection.execute(f"SHOW {name}")
        ]

        assert shown == [statement, lock]
        assert connection.prepare_threshold == threshold


def test_a_schema_that_is_not_there_says_how_to_get_it(postgres_server: EmbeddedPostgres) -> None:
    """The first thing that a new installation forgets."""
    with opened(Database(postgres_server.url)) as database:
        store = PostgresJobStore(database, PostgresLedger(database))

        with pytest.raises(StoreUnavailable, match="billing-jobs db upgrade"):
            store.due_queues()


def test_closing_is_not_the_end(bench: PostgresBench) -> None:
    """A supervisor closes before it forks, and goes on afterwards."""
    with opened(Database(bench.database.url)) as database:
        with database.connection() as connection:
            before = backend(connection)
        database.close()
        database.close()

        with database.connection() as connection:
            assert backend(connection) != before


FORKED = """
import os, sys
from billing_jobs.adapters.postgres.engine import Database

def backend(database):
    with database.connection() as connection:
        return connection.execute("SELECT pg_backend_pid() AS pid").fetchone()["pid"]

def in_child(work):
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

database = Database(sys.argv[1])
parents = backend(database)

def use():
    assert backend(database) != parents
    assert backend(database) == backend(database)
    database.close()

def close_only():
    database.close()

assert [in_child(use), in_child(use), in_child(close_only)] == [0, 0, 0]
assert backend(database) == parents
database.close()
"""


def test_a_forked_child_has_connections_of_its_own(bench: PostgresBench) -> None:
    """Two processes on one socket read each other's answers; nor may one close the other's."""
    # What was inherited is forgotten and not closed, of which psycopg warns.
    warnings = ("-W", "error", "-W", "ignore::ResourceWarning")
    ended = subprocess.run(
        [sys.executable, *warnings, "-c", FORKED, bench.database.url],
        check=False,
        capture_output=True,
        text=True,
        timeout=90,
    )

    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_named_statements_of_a_file_are_read_once_and_whole() -> None:
    """A statement that lost its end would be run with it, on every row."""
    found = statements("jobs")

    assert list(found)[:3] == ["insert", "known_keys", "claim"]
    assert found is statements("jobs")
    assert [name for name, text in found.items() if text.endswith(";") or not text] == []
    assert found["own"].endswith("FOR SHARE")


def lent(database: Database) -> None:
    """Use a connection outside a transaction."""
    with database.connection() as connection:
        one(connection)


def run_one(database: Database) -> None:
    """Use a connection inside a transaction."""
    database.run(one)
