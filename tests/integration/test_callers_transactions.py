"""
Enqueue inside a caller's own transaction: psycopg, a SQLAlchemy connection, a SQLAlchemy session.

The job and what the caller writes are there together or not at all.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from uuid import UUID, uuid4

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import Session
from support.job_benches import PostgresBench, new_job, postgres_bench

from billing_jobs import lifecycle
from billing_jobs.adapters.postgres.engine import (
    driver_connection,
)
from billing_jobs.adapters.postgres.ledger import PostgresLedger
from billing_jobs.domain.errors import (
    EnqueueError,
    InputError,
    UnknownJobKind,
)
from billing_jobs.embedded.postgres import EmbeddedPostgres
from billing_jobs.lifecycle import Engine
from billing_jobs.testing import RecordingDoorbell, engine_over

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


def test_a_callers_long_transaction_costs_others_an_error_and_not_a_hang(
    bench: PostgresBench,
) -> None:
    """Somebody enqueued a key and went to lunch before the commit."""
    with own_psycopg(bench.database.url) as (transaction, _):
        bench.store.insert([new_job(key="k")], transaction)

        with (
            bench.impatient(lock_seconds=0.05) as store,
            pytest.raises(EnqueueError, match="lock timeout"),
        ):
            store.insert([new_job(key="k")])

    assert bench.store.insert([new_job(key="k")])[0].created


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
