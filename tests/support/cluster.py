"""
A whole cluster for tests: own database, own broker, own gateway; workers and beat are real.

Owns the putting together and the usual looks from outside. The oracle for money is the gateway's
journal, never our tables.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
from redis import Redis
from support import books
from support.caller import Caller, caller
from support.kinds import plug_in, with_test_kinds
from support.processes import Processes
from support.waiting import DEADLINE_SECONDS, until
from support.wire import SandboxProcess, sandbox_process

from billing_jobs import lifecycle
from billing_jobs.adapters.doorbell import BrokerDoorbell
from billing_jobs.adapters.gateway.http import HttpGateway
from billing_jobs.config import child_environment
from billing_jobs.embedded.postgres import EmbeddedPostgres
from billing_jobs.embedded.valkey import EmbeddedValkey
from billing_jobs.lifecycle import Engine, Options
from billing_jobs.testing import embedded_valkey, postgres_engine

REPOSITORY = Path(__file__).parents[2]

#: The migrated database of the test session, see conftest.py.
TEMPLATE = "template_billing"

#: What makes a test quick: short leases, short time-outs, a short ladder. Nobody takes mails.
QUICK: Mapping[str, object] = {
    "lease_ttl_seconds": "2s",
    "gateway_read_timeout_seconds": "1s",
    "reconcile_ladder_seconds": "1s,2s,4s,60s",
    "outage_defer_seconds": "1s",
    "ring_pause_seconds": "100ms",
    "ring_timeout_seconds": "300ms",
    "smtp_url": "smtp://127.0.0.1:1",
    "log_format": "json",
}

ENDED = ("completed", "failed", "dead_letter", "cancelled")

_numbers = count()


@dataclass
class Cluster:
    """The servers, and the processes that a test starts on them."""

    directory: Path
    database_url: str
    broker: EmbeddedValkey
    sandbox: SandboxProcess
    processes: Processes
    #: For the test itself, on the same database and gateway; it rings nobody, so beat must run.
    engine: Engine

    def bill(self, *tokens: str) -> list[UUID]:
        """
        Bill a customer a token, without a ring; return the new invoices in the tokens' order.

        Where a beat or a worker may be quicker than the test, their charges are not waited for.
        """
        known = books.invoices(self.database_url)
        books.bill(self.engine, self.database_url, *tokens, first=len(known) + 1)
        return books.invoices(self.database_url)[len(known) :]

    def start(self, *options: str, concurrency: int = 1) -> None:
        """Start a beat and a worker, both at once, and wait until they work."""
        worker = self.processes.launch_worker(*options, concurrency=concurrency)
        self.processes.beat()
        self.processes.wait_ready(worker)

    def enqueue(self, kind: str, arguments: Mapping[str, object], **options: Any) -> UUID:  # noqa: ANN401 - passed on by name
        """Record a job without a ring."""
        return lifecycle.enqueue(self.engine, kind, arguments, Options(**options)).id

    def ring(self, queue: str) -> None:
        """Ring as a service does, for a test without a beat."""
        doorbell = BrokerDoorbell(
            self.broker.url,
            backlog=10,
            timeout_seconds=5.0,
            pause_seconds=0.0,
            steady_seconds=time.monotonic,
        )
        assert doorbell.ring(queue)

    def open_gate(self, name: str) -> None:
        """Let a job of the gated kind pass."""
        (self.directory / name).touch()

    def gated(self, name: str, *, kind: str = "test_gated", **options: Any) -> UUID:  # noqa: ANN401 - passed on by name
        """Record a job that runs until its gate is opened."""
        arguments = {"directory": str(self.directory), "name": name}
        return self.enqueue(kind, arguments, **options)

    def running_on(self, name: str) -> str:
        """Return the worker that runs a gated job by now; empty when none does."""
        path = self.directory / f"{name}.running"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def query(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Look into the database where no port does."""
        return books.query(self.database_url, sql, *parameters)

    def state(self, job_id: UUID) -> str:
        """Return the state of a job."""
        view = self.engine.store.get(job_id)
        return "" if view is None else view.state.value

    def ended(self, job_id: UUID, *, deadline_seconds: float = DEADLINE_SECONDS) -> str:
        """Return the state in which a job ends."""

        def look() -> str | None:
            state = self.state(job_id)
            return state if state in ENDED else None

        return until(look, f"the end of job {job_id}", deadline_seconds=deadline_seconds)

    def paid(self, invoice_id: UUID, *, deadline_seconds: float = DEADLINE_SECONDS) -> None:
        """Wait until an invoice is paid."""
        until(
            lambda: self.invoice_state(invoice_id) == "paid",
            f"invoice {invoice_id} paid",
            deadline_seconds=deadline_seconds,
        )

    def invoice_state(self, invoice_id: UUID) -> str:
        """Return the state of an invoice."""
        rows = self.query("SELECT state FROM invoices WHERE id = %s", invoice_id)
        return str(rows[0][0]) if rows else ""

    def captures(self, invoice_id: UUID) -> list[dict[str, Any]]:
        """Return what the gateway really took for an invoice."""
        return [
            capture
            for capture in self.sandbox.captures_on_disk()
            if capture["metadata"].get("invoice_id") == str(invoice_id)
        ]

    def unbalanced(self) -> list[tuple[Any, ...]]:
        """Return the transactions of the ledger whose sides do not add up; there are none."""
        return self.query(
            "SELECT transaction_id FROM ledger_entries "
            "GROUP BY transaction_id, currency HAVING sum(amount_minor) <> 0"
        )

    def messages(self) -> list[dict[str, Any]]:
        """Return every message that the broker holds, waiting or fetched and not acknowledged."""
        with Redis(unix_socket_path=str(self.broker.socket)) as client:
            lists = [key for key in client.keys("*") if client.type(key) == b"list"]
            waiting = [json.loads(item) for key in lists for item in client.lrange(key, 0, -1)]
            return waiting + [json.loads(item)[0] for item in client.hvals("unacked")]

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a process that has our settings."""
        return {**child_environment(self.processes.settings), **self.processes.environment}

    def rings(self, queue: str) -> int:
        """Return how many rings wait in a queue."""
        with Redis(unix_socket_path=str(self.broker.socket)) as client:
            return int(client.llen(queue))

    def calling(
        self, environment: Mapping[str, str] | None = None
    ) -> AbstractContextManager[Caller]:
        """Run a process of another service, with our settings unless others are given."""
        return caller(self.directory, self.environment if environment is None else environment)


@contextmanager
def cluster(
    directory: Path,
    server: EmbeddedPostgres,
    *,
    settings: Mapping[str, object] | None = None,
    plugins: Sequence[str] = ("support.kinds_plugin",),
    template: str = TEMPLATE,
    graceful: bool = True,
) -> Iterator[Cluster]:
    """Put a cluster together; no worker and no beat runs yet. `graceful` is for its end."""
    files = directory / "cluster files"
    files.mkdir()
    paths = [plug_in(directory, plugins), REPOSITORY / "tests", REPOSITORY]
    with ExitStack() as stack:
        url = stack.enter_context(database(server, template))
        broker = stack.enter_context(embedded_valkey(directory))
        sandbox = stack.enter_context(sandbox_process(directory))
        gateway = HttpGateway(sandbox.url, "sk_test", 3.0, 20.0)
        stack.callback(gateway.close)
        engine = stack.enter_context(postgres_engine(url, gateway=gateway))
        addresses = {
            "database_url": url,
            "broker_url": broker.url,
            "sandbox_url": sandbox.url,
        }
        processes = Processes(
            files,
            {**QUICK, **addresses, **(settings or {})},
            {"PYTHONPATH": ":".join(map(str, paths))},
            graceful=graceful,
        )
        stack.enter_context(processes)
        extended = replace(engine, registry=with_test_kinds())
        yield Cluster(files, url, broker, sandbox, processes, extended)


@contextmanager
def database(server: EmbeddedPostgres, template: str = TEMPLATE) -> Iterator[str]:
    """Make a copy of a migrated database, dropped at the end of the block; return its address."""
    name = f"cluster_{next(_numbers)}"
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
    try:
        yield server.url.replace("/postgres?", f"/{name}?")
    finally:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


__all__ = ["QUICK", "Caller", "Cluster", "cluster", "database"]
