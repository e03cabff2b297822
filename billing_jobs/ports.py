"""
What the rules need of the world, as Protocols.

Owns the shapes only. Adapters fulfil them, `bootstrap.py` puts them together, `testing.py` offers
the ones in memory; both pass the same contract suites.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Protocol
from uuid import UUID

from billing_jobs.domain.book import Book
from billing_jobs.domain.job import (
    AttemptView,
    ClaimedJob,
    JobState,
    JobView,
    NewJob,
    Recorded,
    Recording,
)
from billing_jobs.domain.ledger import (
    ChargeAttempt,
    DueSubscription,
    Effect,
    NothingDue,
    Notice,
)
from billing_jobs.domain.mail import Mail
from billing_jobs.domain.payment import GatewayObject, PaymentInstruction

#: A caller's own open transaction: opaque here, only the Postgres adapter knows what it is.
Transaction = object


class Clock(Protocol):
    """The clocks of this process. The database's clock decides; these serve waiting and logs."""

    def now(self) -> datetime:
        """Return the time of day in UTC."""

    def steady_seconds(self) -> float:
        """Return a clock that never goes back and also counts while the machine sleeps."""

    def new_id(self) -> UUID:
        """Return a new time-ordered id, distinct over threads and processes."""


class Doorbell(Protocol):
    """Tells workers that a queue may have work. A ring may be lost, late or doubled."""

    def ring(self, queue: str) -> bool:
        """
        Ring unless enough rings wait already; say whether the broker can be reached.

        Never raises for a broker that is down, and returns within the ring's time-out.
        """


class Lease(Protocol):
    """The executor's hold on its job."""

    def check(self) -> None:
        """Raise `LeaseLost` unless the job is provably still ours. Call it before calling out."""


@dataclass(frozen=True, slots=True)
class RescuePolicy:
    """What an expired lease means: kinds that go to a person; all others are made pending again."""

    bury_kinds: Collection[str]


class JobStore(Protocol):
    """The jobs. Every write of a running job is guarded by (id, token)."""

    def insert(
        self, jobs: Sequence[NewJob], transaction: Transaction | None = None
    ) -> list[Recorded]:
        """Record jobs with their first audit row; a known business key gives the first job's id."""

    def claim(
        self, queue: str, kinds: Collection[str], *, limit: int, ttl_seconds: float, worker: str
    ) -> list[ClaimedJob]:
        """Take up to `limit` due jobs of open lanes, most urgent first, then oldest."""

    def renew(self, job: ClaimedJob, *, ttl_seconds: float) -> bool:
        """Prolong the lease; False when the job is no longer ours."""

    def record(
        self,
        job: ClaimedJob,
        recording: Recording,
        *,
        effects: Sequence[Effect] = (),
        then: Sequence[NewJob] = (),
    ) -> None:
        """Write the end of a run with its effects and follow-up jobs, or raise `LeaseLost`."""

    def rescue(self, policy: RescuePolicy, *, limit: int, ttl_seconds: float) -> list[UUID]:
        """Free jobs whose lease expired, once the server has been up for a full ttl."""

    def expire(self, *, limit: int) -> list[UUID]:
        """Cancel pending jobs whose `expires_at` has passed."""

    def due_queues(self) -> list[str]:
        """Return the queues in which an open lane has a due job."""

    def next_due_seconds(self) -> float | None:
        """Return how far away the next `run_at` of an open lane is; 0 when due, None when none."""

    def cancel(self, job_id: UUID, *, actor: str, reason: str) -> JobState | None:
        """Cancel a pending job, or ask a running one to stop; None when it is too late."""

    def replay(self, job_id: UUID, *, actor: str, reason: str) -> bool:
        """Make a dead letter pending again under the same keys."""

    def resolve(self, job_id: UUID, *, actor: str, reason: str) -> bool:
        """Close a dead letter as cancelled; False also while a call of it is in doubt."""

    def get(self, job_id: UUID) -> JobView | None:
        """Return one job."""

    def attempts(self, job_id: UUID) -> list[AttemptView]:
        """Return the runs of one job, oldest first."""


class Ledger(Protocol):
    """What is owed, tried, paid and told. Every write of a run is guarded by its job's token."""

    def next_collection_number(self, invoice_id: UUID, transaction: Transaction | None) -> int:
        """Return the number of the next try to collect an invoice, from 1."""

    def next_period_start(
        self, subscription_id: UUID, transaction: Transaction | None
    ) -> date | None:
        """Return the first day of the next period to bill; None for an unknown subscription."""

    def open_charge(
        self, job: ClaimedJob, invoice_id: UUID, gateway: str
    ) -> ChargeAttempt | NothingDue:
        """Write the next attempt down, or return the one that is still live."""

    def declare_call(self, job: ClaimedJob, attempt: ChargeAttempt) -> None:
        """Commit that the gateway will be called; from here on the outcome is unknown."""

    def keep_object(self, job: ClaimedJob, attempt: ChargeAttempt, reference: str) -> None:
        """Commit the gateway's id of the payment object before it is confirmed."""

    def keep_evidence(self, attempt_id: UUID, *, source: str, raw: str) -> None:
        """Keep what the gateway said, whoever owns the job now."""

    def attempt_in_doubt(self, job: ClaimedJob, attempt_id: UUID) -> ChargeAttempt | None:
        """Return an attempt whose outcome is unknown or comes later; None when it is known."""

    def due_subscription(self, subscription_id: UUID) -> DueSubscription | None:
        """Return a subscription with its next period to bill."""

    def due_subscriptions(self, *, after: UUID | None, limit: int) -> list[tuple[UUID, str, date]]:
        """Page through subscriptions whose next period has begun: id, tenant, period start."""

    def open_notice(
        self, job: ClaimedJob, invoice_id: UUID, step: str, domain: str
    ) -> Notice | None:
        """Write a notice down, or return the one there is; None for an unknown invoice."""

    def begin_data(self, job: ClaimedJob, notice: Notice) -> None:
        """Commit that the mail is about to be handed over."""


class PaymentGateway(Protocol):
    """A gateway with one stable object a debt. Failures are `GatewayError`s, by what is known."""

    @property
    def name(self) -> str:
        """The gateway's name in keys and rows."""

    def create(self, instruction: PaymentInstruction, *, key: str) -> GatewayObject:
        """Create an unconfirmed object; moves no money."""

    def confirm(
        self, reference: str, *, key: str, payment_token: str | None = None
    ) -> GatewayObject:
        """Collect the money from a payment method; a decline is an answer, not an error."""

    def retrieve(self, reference: str) -> GatewayObject:
        """Read one object; never moves money."""

    def find(
        self, *, metadata_key: str, metadata_value: str, created_since: datetime
    ) -> list[GatewayObject]:
        """Look objects up by what we wrote on them; never moves money."""


class Mailer(Protocol):
    """Sends one mail to one recipient. Failures are `MailError`s, by what is known."""

    def send(self, mail: Mail, before_data: Callable[[], None]) -> None:
        """Send; `before_data` is called when the recipient was accepted, right before DATA."""


class JobEvents(Protocol):
    """Shows the life of each job to watchers (Flower). Lossy, never in the way."""

    def send(self, event: str, job: ClaimedJob, fields: Mapping[str, object]) -> None:
        """Tell that a job was received, started, succeeded, failed or retried."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What executors must know of the settings."""

    mail_from: str
    reconcile_ladder_seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Ports:
    """What an executor may use. Made once a process; `lease` is the one of the running job."""

    ledger: Ledger
    gateway: PaymentGateway
    mailer: Mailer
    clock: Clock
    policy: Policy
    lease: Lease


@dataclass(frozen=True, slots=True)
class BookReport:
    """What an import wrote; `unchanged` counts subscriptions that were there already."""

    customers: int
    payment_methods: int
    subscriptions: int
    unchanged: int


class Books(Protocol):
    """Takes a book of customers and subscriptions."""

    def add(self, book: Book, *, tenant: str) -> BookReport:
        """Write a book, all of it or nothing."""


@dataclass(frozen=True, slots=True)
class CurrencyAmounts:
    """Sums of one currency, in its minor units."""

    invoiced: int
    charged: int


@dataclass(frozen=True, slots=True)
class PaymentView:
    """Money in the books, by the gateway's own reference."""

    gateway_reference: str
    currency: str
    amount_minor: int


@dataclass(frozen=True, slots=True)
class Totals:
    """How much happened so far; `retries` counts runs that were made again."""

    invoices: int
    charges: int
    declined: int
    retries: int
    unknown_outcomes: int
    dead_letters: int
    mails: int


@dataclass(frozen=True, slots=True)
class Unsettled:
    """What is not at its end: jobs running or due, unknown charges, jobs without an owner."""

    jobs: int
    unknown_charges: int
    stuck: int


@dataclass(frozen=True, slots=True)
class ServerState:
    """What the database says about itself; `revision` is None before the first migration."""

    version: int
    now: datetime
    revision: str | None


class Reports(Protocol):
    """Numbers for people; reads only."""

    def job_counts(self) -> dict[str, dict[str, int]]:
        """Count jobs by kind and state."""

    def unsettled(self, *, horizon_seconds: float, stuck_seconds: float) -> Unsettled:
        """Count what is not at its end."""

    def amounts(self) -> dict[str, CurrencyAmounts]:
        """Add up what was invoiced and charged, per currency."""

    def payments(self) -> list[PaymentView]:
        """Return every payment in the books."""

    def totals(self) -> Totals:
        """Count what happened."""

    def first_completed_at(self, *, since: datetime) -> datetime | None:
        """Return when the first job after a moment was completed."""

    def jobs(
        self, *, state: str | None, kind: str | None, after: UUID | None, limit: int
    ) -> list[JobView]:
        """Return a page of jobs, newest first."""

    def server(self) -> ServerState:
        """Return what the server says about itself."""
