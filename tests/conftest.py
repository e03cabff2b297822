"""What every test may ask for: a migrated database of its own, an engine on it, a broker."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import psycopg
import pytest

from billing_jobs.adapters.postgres.engine import Database
from billing_jobs.cli import migrations
from billing_jobs.embedded.postgres import EmbeddedPostgres
from billing_jobs.embedded.valkey import EmbeddedValkey
from billing_jobs.lifecycle import Engine
from billing_jobs.testing import (
    FakeGateway,
    MemoryMailer,
    embedded_postgres,
    embedded_valkey,
    postgres_engine,
)

TEMPLATE = "template_billing"
_numbers = count()


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """One real Postgres for the tests of this process, with a migrated template database."""
    with embedded_postgres(tmp_path_factory.mktemp("pg")) as server:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {TEMPLATE}")
        migrations.upgrade(_url(server, TEMPLATE))
        yield server


@pytest.fixture
def database_url(postgres_server: EmbeddedPostgres) -> Iterator[str]:
    """A migrated database of the test's own, dropped afterwards."""
    name = f"test_{next(_numbers)}"
    with psycopg.connect(postgres_server.dsn, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
        try:
            yield _url(postgres_server, name)
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """The way to the test's own database."""
    opened = Database(database_url)
    yield opened
    opened.close()


@pytest.fixture
def gateway() -> FakeGateway:
    """A gateway in memory, with a journal."""
    return FakeGateway()


@pytest.fixture
def mailer() -> MemoryMailer:
    """A mailer that keeps what it was given."""
    return MemoryMailer()


@pytest.fixture
def engine(database_url: str, gateway: FakeGateway, mailer: MemoryMailer) -> Iterator[Engine]:
    """An engine over the test's own database, with a gateway and a mailer in memory."""
    with postgres_engine(database_url, gateway=gateway, mailer=mailer) as made:
        yield made


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedValkey]:
    """A real Valkey of the test's own."""
    with embedded_valkey(tmp_path) as server:
        yield server


def _url(server: EmbeddedPostgres, name: str) -> str:
    return server.url.replace("/postgres?", f"/{name}?")
