"""
What users import in their tests: a clock that stands still, real servers, an engine without Celery.

Owns the putting together. The fakes are the adapters in memory, which pass the same contract suites
as the real ones.

    with embedded_postgres(tmp_path) as server:
        with postgres_engine(server.url, gateway=FakeGateway(), mailer=MemoryMailer()) as engine:
            lifecycle.enqueue(engine, "charge", {"invoice_id": invoice_id})
            run_until_idle(engine)
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

from billing_jobs.adapters.clock import SystemClock
from billing_jobs.adapters.gateway.fake import FakeGateway
from billing_jobs.adapters.heartbeat import HeartbeatKeeper
from billing_jobs.adapters.mail.memory import MemoryMailer
from billing_jobs.adapters.postgres.engine import Database
from billing_jobs.adapters.postgres.jobs import PostgresJobStore
from billing_jobs.adapters.postgres.ledger import PostgresLedger
from billing_jobs.bootstrap import NoEvents, NoLease, load_registry
from billing_jobs.domain.job import ClaimedJob
from billing_jobs.embedded.binaries import find_postgres, find_valkey
from billing_jobs.embedded.postgres import EmbeddedPostgres
from billing_jobs.embedded.valkey import EmbeddedValkey
from billing_jobs.lifecycle import Engine, Limits, run_next
from billing_jobs.maintenance.rescue_expired import RESCUE_BATCH
from billing_jobs.ports import (
    Clock,
    JobStore,
    Ledger,
    Mailer,
    PaymentGateway,
    Policy,
    Ports,
    RescuePolicy,
)
from billing_jobs.registry import QUEUES, Registry

__all__ = [
    "FakeGateway",
    "FrozenClock",
    "MemoryMailer",
    "RecordingDoorbell",
    "RecordingEvents",
    "embedded_postgres",
    "embedded_valkey",
    "engine_over",
    "postgres_engine",
    "rescue_now",
    "run_until_idle",
]

#: The node name under which `run_until_idle` claims.
WORKER = "test-worker"

#: `run_until_idle` gives up after this long.
IDLE_SECONDS = 60.0

#: A job that is due later than this does not keep `run_until_idle` waiting.
HORIZON_SECONDS = 30.0

#: How long it waits at most before it looks again.
LOOK_SECONDS = 0.05

#: Limits that suit tests: short leases, no long pauses.
TEST_LIMITS = Limits(
    max_attempts=4,
    lease_ttl_seconds=20.0,
    payload_bytes=65_536,
    result_bytes=65_536,
    error_chars=2_000,
    outage_defer_seconds=1.0,
)

#: Ladder of look-ups that suits tests, in seconds.
TEST_LADDER = (0.05, 0.1, 0.2, 3600.0)


class FrozenClock:
    """`Clock` that moves only when it is told to; ids are as distinct as always."""

    def __init__(self, now: datetime = datetime(2026, 3, 31, 12, 0, tzinfo=UTC)) -> None:
        """Stand still at a moment."""
        self._now = now
        self._steady_seconds = 0.0

    def now(self) -> datetime:
        """Return the moment."""
        return self._now

    def steady_seconds(self) -> float:
        """Return the seconds advanced so far."""
        return self._steady_seconds

    def new_id(self) -> UUID:
        """Return a new id."""
        return SystemClock().new_id()

    def advance(self, seconds: float) -> None:
        """Move on."""
        self._now += timedelta(seconds=seconds)
        self._steady_seconds += seconds


class RecordingDoorbell:
    """`Doorbell` that remembers its rings; `broken` makes it a broker that is down."""

    def __init__(self) -> None:
        """Start silent."""
        self.rings: list[str] = []
        self.broken = False

    def ring(self, queue: str) -> bool:
        """Remember the ring."""
        if not self.broken:
            self.rings.append(queue)
        return not self.broken


class RecordingEvents:
    """`JobEvents` that remembers what watchers were told."""

    def __init__(self) -> None:
        """Start with nothing told."""
        self.told: list[tuple[str, UUID]] = []

    def send(self, event: str, job: ClaimedJob, fields: Mapping[str, object]) -> None:
        """Remember the event."""
        del fields
        self.told.append((event, job.id))


@contextmanager
def embedded_postgres(directory: Path) -> Iterator[EmbeddedPostgres]:
    """
    Run a real Postgres in an existing directory until the block ends.

    Crash safety: the server ends with this process, also when that is killed.
    """
    data, sockets = _private(directory, "pg"), _private(directory, "s")
    server = EmbeddedPostgres(
        data, socket_dir=sockets, binaries=find_postgres(), log=directory / "postgres.log"
    )
    server.start()
    try:
        yield server
    finally:
        server.stop("immediate")


@contextmanager
def embedded_valkey(directory: Path) -> Iterator[EmbeddedValkey]:
    """
    Run a real Valkey in an existing directory until the block ends.

    Crash safety: the server ends with this process, also when that is killed.
    """
    data, sockets = _private(directory, "vk"), _private(directory, "s")
    server = EmbeddedValkey(
        data, socket_dir=sockets, binary=find_valkey(), log=directory / "valkey.log"
    )
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def postgres_engine(
    database_url: str,
    *,
    gateway: PaymentGateway | None = None,
    mailer: Mailer | None = None,
    limits: Limits = TEST_LIMITS,
) -> Iterator[Engine]:
    """Put an engine over a migrated database together, until the block ends; no broker."""
    database = Database(database_url)
    ledger = PostgresLedger(database)
    store = PostgresJobStore(database, ledger)
    try:
        yield engine_over(store, ledger, gateway=gateway, mailer=mailer, limits=limits)
    finally:
        database.close()


def engine_over(  # noqa: PLR0913 - every port can be replaced in one line
    store: JobStore,
    ledger: Ledger,
    *,
    gateway: PaymentGateway | None = None,
    mailer: Mailer | None = None,
    limits: Limits = TEST_LIMITS,
    clock: Clock | None = None,
    registry: Registry | None = None,
) -> Engine:
    """Put an engine over any store and ledger together."""
    steady = clock or SystemClock()
    return Engine(
        registry=registry or load_registry(),
        store=store,
        ports=Ports(
            ledger=ledger,
            gateway=gateway or FakeGateway(),
            mailer=mailer or MemoryMailer(),
            clock=steady,
            policy=Policy("billing@example.com", TEST_LADDER),
            lease=NoLease(),
        ),
        doorbell=RecordingDoorbell(),
        keeper=HeartbeatKeeper(
            store,
            steady,
            ttl_seconds=limits.lease_ttl_seconds,
            attempt_deadline_seconds=300.0,
        ),
        events=NoEvents(),
        clock=steady,
        limits=limits,
        tenant="default",
    )


def run_until_idle(engine: Engine, *, idle_seconds: float = IDLE_SECONDS) -> int:
    """
    Run every due job of every queue in this process, also those that become due meanwhile.

    Ends when no job is due within the next half minute; raises `TimeoutError` after `idle_seconds`.
    Returns the number of runs.
    """
    waiting, ran = threading.Event(), 0
    deadline = SystemClock().steady_seconds() + idle_seconds
    while SystemClock().steady_seconds() < deadline:
        while any(run_next(engine, queue, WORKER) for queue in QUEUES):
            ran += 1
        seconds = engine.store.next_due_seconds()
        if seconds is None or seconds > HORIZON_SECONDS:
            return ran
        waiting.wait(min(seconds, LOOK_SECONDS))
    raise TimeoutError(f"Jobs were still due after {idle_seconds} s and {ran} runs.")


def rescue_now(engine: Engine) -> list[UUID]:
    """Rescue expired leases at once, without the caution that a beat needs."""
    policy = RescuePolicy(bury_kinds=engine.registry.buried_when_expired())
    return engine.store.rescue(policy, limit=RESCUE_BATCH, ttl_seconds=0.0)


def _private(directory: Path, name: str) -> Path:
    path = directory / name
    path.mkdir(mode=0o700, exist_ok=True)
    return path
