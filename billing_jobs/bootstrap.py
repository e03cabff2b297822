"""
The composition root: settings in, a working engine out.

Owns the choice of adapters and the closing of the registry. Nothing is connected here: every
adapter opens its connections at first use, in the process that uses them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points

from billing_jobs.adapters.clock import SystemClock
from billing_jobs.adapters.doorbell import BrokerDoorbell
from billing_jobs.adapters.gateway.http import HttpGateway
from billing_jobs.adapters.heartbeat import HeartbeatKeeper
from billing_jobs.adapters.mail.smtp import SmtpMailer
from billing_jobs.adapters.postgres.books import PostgresBooks
from billing_jobs.adapters.postgres.engine import Database
from billing_jobs.adapters.postgres.jobs import PostgresJobStore
from billing_jobs.adapters.postgres.ledger import PostgresLedger
from billing_jobs.adapters.postgres.reports import PostgresReports
from billing_jobs.config import Settings
from billing_jobs.domain.errors import SettingsInvalid
from billing_jobs.domain.job import ClaimedJob
from billing_jobs.lifecycle import Engine, Limits
from billing_jobs.ports import Books, Clock, PaymentGateway, Policy, Ports, Reports
from billing_jobs.registry import Registry, registry

#: Other packages name modules here that register their kinds.
ENTRY_POINTS = "billing_jobs.jobs"

#: Our own kinds register themselves when these are imported.
EXECUTORS = ("charge", "invoice", "reconcile", "reminder")

#: The sandbox takes any key; it is no secret.
SANDBOX_KEY = "sk_sandbox"


class NoEvents:
    """`JobEvents` for a process that nobody watches."""

    def send(self, event: str, job: ClaimedJob, fields: Mapping[str, object]) -> None:
        """Tell nobody."""


class NoLease:
    """The lease outside a running job: there is nothing to lose."""

    def check(self) -> None:
        """Pass."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """One process's way to everything."""

    settings: Settings
    engine: Engine
    database: Database
    books: Books
    reports: Reports


def build(settings: Settings) -> Runtime:
    """
    Put a runtime together.

    Raises `SettingsInvalid` when an address is missing that the settings cannot default.
    """
    database = Database(
        database_url(settings),
        pool_size=settings.database_pool_size,
        statement_timeout_seconds=settings.statement_timeout_seconds,
        lock_timeout_seconds=settings.lock_timeout_seconds,
        prepared_statements=settings.prepared_statements,
    )
    return Runtime(
        settings=settings,
        engine=_engine(settings, database),
        database=database,
        books=PostgresBooks(database),
        reports=PostgresReports(database),
    )


def load_registry() -> Registry:
    """Import every module that registers kinds, then close the registry; once a process."""
    for name in EXECUTORS:
        import_module(f"billing_jobs.executors.{name}")
    for entry in entry_points(group=ENTRY_POINTS):
        entry.load()
    registry.close()
    return registry


def clock() -> Clock:
    """Return the clock of this process."""
    return SystemClock()


def database_url(settings: Settings) -> str:
    """Return the address of Postgres, or say how to get one."""
    if settings.database_url is None:
        raise SettingsInvalid(
            "No database is configured.",
            [
                "set BILLING_JOBS_DATABASE_URL to your Postgres",
                "or run `billing-jobs up`, which starts one and prints its address",
            ],
        )
    return settings.database_url.get_secret_value()


def broker_url(settings: Settings) -> str:
    """Return the address of the broker, or say how to get one."""
    if settings.broker_url is None:
        raise SettingsInvalid(
            "No broker is configured.",
            [
                "set BILLING_JOBS_BROKER_URL to your Redis or Valkey",
                "or run `billing-jobs up`, which starts one and prints its address",
            ],
        )
    return settings.broker_url.get_secret_value()


def _engine(settings: Settings, database: Database) -> Engine:
    steady = clock()
    ledger = PostgresLedger(database)
    store = PostgresJobStore(database, ledger)
    return Engine(
        registry=load_registry(),
        store=store,
        ports=Ports(
            ledger=ledger,
            gateway=_gateway(settings),
            mailer=SmtpMailer(
                settings.smtp_url.get_secret_value(),
                timeout_seconds=settings.mail_timeout_seconds,
                now=steady.now,
            ),
            clock=steady,
            policy=Policy(settings.mail_from, tuple(settings.reconcile_ladder_seconds)),
            lease=NoLease(),
        ),
        doorbell=BrokerDoorbell(
            broker_url(settings),
            backlog=settings.ring_backlog,
            timeout_seconds=settings.ring_timeout_seconds,
            pause_seconds=settings.ring_pause_seconds,
            steady_seconds=steady.steady_seconds,
        ),
        keeper=HeartbeatKeeper(
            store,
            steady,
            ttl_seconds=settings.lease_ttl_seconds,
            attempt_deadline_seconds=settings.attempt_deadline_seconds,
        ),
        events=NoEvents(),
        clock=steady,
        limits=_limits(settings),
        tenant=settings.tenant,
    )


def _limits(settings: Settings) -> Limits:
    return Limits(
        max_attempts=settings.max_attempts,
        lease_ttl_seconds=settings.lease_ttl_seconds,
        payload_bytes=settings.payload_limit_bytes,
        result_bytes=settings.result_limit_bytes,
        error_chars=settings.error_text_limit,
        outage_defer_seconds=settings.outage_defer_seconds,
    )


def _gateway(settings: Settings) -> PaymentGateway:
    if settings.gateway == "sandbox":
        return HttpGateway(
            settings.sandbox_url,
            SANDBOX_KEY,
            connect_timeout_seconds=settings.gateway_connect_timeout_seconds,
            read_timeout_seconds=settings.gateway_read_timeout_seconds,
        )
    raise SettingsInvalid(
        "The gateway cannot be used.",
        [f"gateway = {settings.gateway}: this version collects through the sandbox only"],
    )
