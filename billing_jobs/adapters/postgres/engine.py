"""
Connections to Postgres: one pool a process, made after fork, with time-outs.

Owns the pool, the reading of named SQL and the translation of driver errors. Owns no statement.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

import psycopg
import sqlalchemy
from psycopg.rows import DictRow, dict_row
from sqlalchemy.engine import Engine

from billing_jobs.domain.errors import InputError, StoreUnavailable

Connection = psycopg.Connection[DictRow]
T = TypeVar("T")

#: A transaction that lost a deadlock or a serialization race is run again this often.
CONFLICT_RETRIES = 3

#: SQLSTATEs after which the same transaction may simply be run again.
CONFLICT_STATES = frozenset({"40001", "40P01"})

#: Connections older than this are replaced, in seconds: a failed-over address is noticed.
RECYCLE_SECONDS = 1800


class Database:
    """
    The way to one Postgres database.

    Safe to make before a fork: the pool is opened by the first use in each process, keyed by pid,
    and a pool that was inherited is forgotten, never used and never closed.
    """

    def __init__(
        self,
        url: str,
        *,
        pool_size: int = 5,
        statement_timeout_seconds: float = 30.0,
        lock_timeout_seconds: float = 5.0,
        prepared_statements: bool = True,
    ) -> None:
        """Keep the address; nothing is opened."""
        self.url = url
        self._pool_size = pool_size
        self._timeouts = (statement_timeout_seconds, lock_timeout_seconds)
        self._prepared = prepared_statements
        self._engine: tuple[int, Engine] | None = None
        self._lock = threading.Lock()

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """
        Lend a connection in autocommit mode: each statement is a transaction of its own.

        Raises `StoreUnavailable` when Postgres cannot be reached or went away. Crash safety:
        nothing is written by lending; a statement whose answer was lost may or may not have been
        committed.
        """
        try:
            proxied = self._pool().raw_connection()
        except (sqlalchemy.exc.OperationalError, psycopg.OperationalError) as error:
            raise _unavailable(error) from error
        try:
            yield _driver(proxied)
        except psycopg.OperationalError as error:
            if _is_conflict(error) or error.sqlstate in {"55P03", "57014"}:
                raise
            proxied.invalidate()
            raise _unavailable(error) from error
        except psycopg.errors.ReadOnlySqlTransaction as error:
            # A standby, or a server that guards its full disk; a new connection may find another.
            proxied.invalidate()
            raise _unavailable(error) from error
        except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn) as error:
            raise StoreUnavailable(
                f"The schema is not the one this version needs: {error.diag.message_primary}. "
                "Run `billing-jobs db upgrade`; nothing was lost."
            ) from error
        finally:
            proxied.close()

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """
        Lend a connection inside one transaction, committed at the end, rolled back on an error.

        Crash safety: all or nothing; when the answer to the commit is lost, `StoreUnavailable` is
        raised and the rows must be read again by key.
        """
        with self.connection() as connection, connection.transaction():
            yield connection

    def run(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in a transaction, and again when it lost a deadlock: it must be repeatable."""
        for _ in range(CONFLICT_RETRIES):
            try:
                with self.transaction() as connection:
                    return work(connection)
            except psycopg.OperationalError as error:
                if not _is_conflict(error):
                    raise
        with self.transaction() as connection:
            return work(connection)

    def close(self) -> None:
        """Close this process's pool; the next use opens it again."""
        with self._lock:
            engine, self._engine = self._engine, None
        if engine is not None and engine[0] == os.getpid():
            engine[1].dispose()

    def _pool(self) -> Engine:
        with self._lock:
            if self._engine is None or self._engine[0] != os.getpid():
                if self._engine is not None:
                    self._engine[1].dispose(close=False)
                self._engine = (os.getpid(), self._open())
            return self._engine[1]

    def _open(self) -> Engine:
        arguments: dict[str, object] = {"connect_timeout": 5}
        if self._prepared:
            statement, lock = (int(seconds * 1000) for seconds in self._timeouts)
            arguments["options"] = f"-c statement_timeout={statement} -c lock_timeout={lock}"
            arguments["prepare_threshold"] = 2
        else:
            # Behind a transaction pooler neither start-up options nor prepared statements survive;
            # the role's own settings must carry the time-outs.
            arguments["prepare_threshold"] = None
        return sqlalchemy.create_engine(
            self.url,
            isolation_level="AUTOCOMMIT",
            pool_size=self._pool_size,
            max_overflow=self._pool_size,
            pool_pre_ping=True,
            pool_recycle=RECYCLE_SECONDS,
            connect_args=arguments,
        )


def driver_connection(transaction: object) -> Connection:
    """
    Find the psycopg connection under a caller's own connection or session.

    Takes a psycopg connection, a SQLAlchemy connection or a SQLAlchemy session.
    """
    if isinstance(transaction, psycopg.Connection):
        return transaction
    found = transaction
    if hasattr(found, "connection") and callable(found.connection):
        found = found.connection()
    if isinstance(found, sqlalchemy.Connection):
        if not found.in_transaction():
            # SQLAlchemy begins at its own first statement and commits only what it began: without
            # this, a job that is sent past it would be rolled back in silence.
            found.begin()
        driver = found.connection.driver_connection
        if isinstance(driver, psycopg.Connection):
            return driver
    name = f"{type(transaction).__module__}.{type(transaction).__qualname__}"
    raise InputError(
        f"Cannot enqueue through a {name}. "
        "Give a psycopg connection, or a SQLAlchemy connection or session on postgresql+psycopg."
    )


@cache
def statements(name: str) -> Mapping[str, str]:
    """Read the named statements of `<name>.sql` beside this module."""
    text = files("billing_jobs.adapters.postgres").joinpath(f"{name}.sql").read_text("utf-8")
    found: dict[str, str] = {}
    for part in text.split("-- name: ")[1:]:
        title, _, body = part.partition("\n")
        found[title.strip()] = body.strip().removesuffix(";")
    return found


def _driver(proxied: Any) -> Connection:  # noqa: ANN401 - SQLAlchemy's proxy is untyped here
    driver = proxied.driver_connection
    assert isinstance(driver, psycopg.Connection)
    driver.row_factory = dict_row
    return driver


def _is_conflict(error: psycopg.OperationalError) -> bool:
    return error.sqlstate in CONFLICT_STATES


def _unavailable(error: Exception) -> StoreUnavailable:
    first = str(error.__cause__ or error).strip().splitlines() or [type(error).__name__]
    return StoreUnavailable(
        f"Postgres cannot be reached: {first[0][:200]}. "
        "Check BILLING_JOBS_DATABASE_URL and that the server runs; nothing was lost."
    )
