"""
Connections to a real Postgres: forks, servers that go away, deadlocks, callers' own transactions.

What the statements do is in `tests/contract`.
"""

from __future__ import annotations

import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from uuid import UUID, uuid4

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import Session
from support.job_benches import PostgresBench, new_job, postgres_bench
from support.threads import at_once

from billing_jobs import lifecycle
from billing_jobs.adapters.postgres.engine import (
    CONFLICT_RETRIES,
    Connection,
    Database,
    driver_connection,
    statements,
)
from billing_jobs.adapters.postgres.jobs import PostgresJobStore
from billing_jobs.adapters.postgres.ledger import PostgresLedger
from billing_jobs.domain.errors import (
    EnqueueError,
    InputError,
    StoreUnavailable,
    UnknownJobKind,
)
from billing_jobs.embedded.postgres import EmbeddedPostgres
from billing_jobs.lifecycle import Engine
from billing_jobs.testing import RecordingDoorbell, embedded_postgres, engine_over

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


@pytest.fixture
def service(bench: PostgresBench) -> Engine:
    """An engine such as another service has, over the same database."""
    return engine_over(bench.store, PostgresLedger(bench.database))


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
        for ask in (lambda: nowhere.run(one), lambda: lent(nowhere)):
            with pytest.raises(StoreUnavailable, match="Check BILLING_JOBS_DATABASE_URL") as caught:
                ask()
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
        with pytest.raises(StoreUnavailable), database.connection() as connection:
            before = backend(connection)
            bench.sql("SELECT pg_terminate_backend(%(pid)s, 5000)", pid=before)
            one(connection)

        with database.connection() as connection:
            assert backend(connection) != before


def test_a_lost_deadlock_is_run_again(bench: PostgresBench) -> None:
    """Two transactions take the same rows in opposite order, and both get done."""
    bench.store.insert([new_job(key="a"), new_job(key="b")])
    both_hold = threading.Barrier(2)
    runs: list[str] = []

    def work(first: str, second: str) -> Callable[[Connection], None]:
        def lock(connection: Connection) -> None:
            runs.append(first)
            connection.execute("SET LOCAL deadlock_timeout = '20ms'")
            for key in (first, second):
                connection.execute(
                    "UPDATE jobs SET version = version + 1 WHERE business_key = %s", (key,)
                )
                if not both_hold.broken and len(runs) <= 2:
                    both_hold.wait(30)

        return lock

    def run(number: int) -> None:
        keys = ("a", "b") if number else ("b", "a")
        bench.database.run(work(*keys))

    at_once(2, run)

    assert len(runs) > 2
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
"""


def test_a_forked_child_has_connections_of_its_own(bench: PostgresBench) -> None:
    """Two processes on one socket would read each other's answers; nor may one close the other's."""
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", FORKED, bench.database.url],
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


@contextmanager
def own_psycopg(url: str) -> Iterator[tuple[object, Callable[[], None]]]:
    """A psycopg connection such as a service has: rows are tuples, a transaction is open."""
    plain = url.replace("postgresql+psycopg://", "postgresql://")
    with psycopg.connect(plain) as connection:
        yield connection, connection.commit
        connection.rollback()


@contextmanager
def own_connection(url: str) -> Iterator[tuple[object, Callable[[], None]]]:
    """A SQLAlchemy connection of a service."""
    engine = sqlalchemy.create_engine(url)
    with engine.connect() as connection:
        yield connection, connection.commit
    engine.dispose()


@contextmanager
def own_session(url: str) -> Iterator[tuple[object, Callable[[], None]]]:
    """A SQLAlchemy session of a service."""
    engine = sqlalchemy.create_engine(url)
    with Session(engine) as session:
        yield session, session.commit
    engine.dispose()


callers = pytest.mark.parametrize("caller", [own_psycopg, own_connection, own_session])


@callers
def test_a_job_enqueued_in_a_callers_transaction_is_there_after_its_commit(
    service: Engine, bench: PostgresBench, caller: Callable[[str], Opened]
) -> None:
    """The invoice and its charge exist together; until then no worker sees the job."""
    with caller(bench.database.url) as (transaction, commit):
        recorded = lifecycle.enqueue(
            service, "charge", {"invoice_id": uuid4()}, transaction=transaction
        )
        assert service.store.get(recorded.id) is None
        assert claimable(bench) == []

        commit()

    assert claimable(bench) == [recorded.id]
    assert rings(service) == []


@callers
def test_a_job_enqueued_in_a_callers_transaction_is_gone_with_its_rollback(
    service: Engine, bench: PostgresBench, caller: Callable[[str], Opened]
) -> None:
    """Not even its business key is left: the caller may try again."""
    arguments = {"invoice_id": uuid4()}
    with caller(bench.database.url) as (transaction, _):
        recorded = lifecycle.enqueue(service, "charge", arguments, transaction=transaction)

    assert service.store.get(recorded.id) is None
    again = lifecycle.enqueue(service, "charge", arguments)
    assert again.created
    assert again.id != recorded.id


@callers
def test_a_refused_enqueue_leaves_the_callers_transaction_usable(
    service: Engine, bench: PostgresBench, caller: Callable[[str], Opened]
) -> None:
    """Wrong input is found before anything is sent to the database."""
    with caller(bench.database.url) as (transaction, commit):
        with pytest.raises(UnknownJobKind):
            lifecycle.enqueue(service, "chrage", {}, transaction=transaction)
        recorded = lifecycle.enqueue(
            service, "charge", {"invoice_id": uuid4()}, transaction=transaction
        )
        commit()

    assert claimable(bench) == [recorded.id]


def test_a_callers_connection_keeps_its_own_rows_and_mode(bench: PostgresBench) -> None:
    """We are a guest there."""
    with own_psycopg(bench.database.url) as (transaction, _):
        assert isinstance(transaction, psycopg.Connection)
        bench.store.insert([new_job(key="k")], transaction)

        assert transaction.execute("SELECT 1").fetchone() == (1,)
        assert not transaction.autocommit


def test_a_callers_transaction_that_has_failed_is_an_enqueue_error(bench: PostgresBench) -> None:
    """The caller swallowed an error of its own; the job must not seem recorded."""
    with own_psycopg(bench.database.url) as (transaction, _):
        assert isinstance(transaction, psycopg.Connection)
        with pytest.raises(psycopg.errors.DivisionByZero):
            transaction.execute("SELECT 1 / 0")

        with pytest.raises(EnqueueError, match="current transaction is aborted"):
            bench.store.insert([new_job()], transaction)


def test_each_kind_of_connection_leads_to_its_driver(bench: PostgresBench) -> None:
    """The same connection, not a second one: else the job would not be in the transaction."""
    with own_psycopg(bench.database.url) as (plain, _):
        assert driver_connection(plain) is plain
    with own_connection(bench.database.url) as (connection, _):
        assert isinstance(connection, sqlalchemy.Connection)
        assert driver_connection(connection) is connection.connection.driver_connection
    with own_session(bench.database.url) as (session, _):
        assert isinstance(session, Session)
        driver = session.connection().connection.driver_connection
        assert driver_connection(session) is driver


class Lookalike:
    """Has a `connection`, but leads nowhere."""

    connection = "postgres"


@contextmanager
def strangers() -> Iterator[list[object]]:
    """Things that are no connection to Postgres."""
    engine = sqlalchemy.create_engine("sqlite://")
    with engine.connect() as lite, Session(engine) as session:
        plain = sqlite3.connect(":memory:")
        yield ["postgresql://", Lookalike(), engine, lite, session, plain, psycopg]
        plain.close()
    engine.dispose()


def test_what_is_no_connection_to_postgres_is_refused_by_name() -> None:
    """A job written into another database, or into none, would never run."""
    with strangers() as refused:
        for stranger in refused:
            name = f"{type(stranger).__module__}.{type(stranger).__qualname__}"
            with pytest.raises(InputError, match=f"Cannot enqueue through a {name}"):
                driver_connection(stranger)


def claimable(bench: PostgresBench) -> list[UUID]:
    """Claim the charges that a worker sees."""
    jobs = bench.store.claim("charges", ["charge"], limit=9, ttl_seconds=20.0, worker="w1")
    return [job.id for job in jobs]


def rings(engine: Engine) -> list[str]:
    """Return the rings so far."""
    assert isinstance(engine.doorbell, RecordingDoorbell)
    return engine.doorbell.rings


def lent(database: Database) -> None:
    """Ask for a connection outside a transaction."""
    with database.connection() as connection:
        one(connection)
