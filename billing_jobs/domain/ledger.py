"""
What the world remembers of a run: effects, applied in the transaction that records the outcome.

Owns the values. The ledger adapter turns them into rows; a unique conflict there means "already
done".
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from enum import StrEnum
from uuid import UUID

from billing_jobs.domain.billing import InvoiceDraft, SubscriptionTerms
from billing_jobs.domain.payment import AttemptState, GatewayObject
from billing_jobs.domain.periods import Anchor, Interval, Period


@dataclass(frozen=True, slots=True)
class ChargeAnswered:
    """
    What is now known about a charge attempt.

    `probe_after_seconds` plans the next look-up of an unknown; `needs_person` says that the ladder
    of look-ups is used up.
    """

    attempt_id: UUID
    state: AttemptState
    reason: str
    answer: GatewayObject | None = None
    probe_after_seconds: float | None = None
    needs_person: bool = False


@dataclass(frozen=True, slots=True)
class InvoiceIssued:
    """One subscription period has been billed: the whole invoice, its number taken last."""

    invoice_id: UUID
    subscription_id: UUID
    index: int
    period: Period
    next_period: Period
    next_due_at: datetime
    draft: InvoiceDraft
    issued_on: date
    due_on: date


class NoticeState(StrEnum):
    """Where a mail to a customer stands."""

    #: Written down, not sent.
    QUEUED = "queued"
    #: DATA has begun; from here on the outcome is unknown until it is recorded.
    SENDING = "sending"
    #: Accepted by the mail server.
    SENT = "sent"
    #: Refused for good.
    BOUNCED = "bounced"
    #: Called off before sending.
    CANCELLED = "cancelled"
    #: The connection was lost after DATA.
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class NoticeAnswered:
    """What became of a notice."""

    notice_id: UUID
    state: NoticeState
    reason: str


Effect = ChargeAnswered | InvoiceIssued | NoticeAnswered


@dataclass(frozen=True, slots=True)
class ChargeAttempt:
    """
    One try to collect a debt, as the executor needs it. Amounts in minor units of `currency`.

    `number` counts the tries of one invoice from 1; `sent` says that the call was declared before,
    so its outcome must be looked up. `object_reference` is the gateway's id of the payment object,
    if known.
    """

    id: UUID
    invoice_id: UUID
    number: int
    state: AttemptState
    amount_minor: int
    currency: str
    key: str
    object_id: UUID
    object_key: str
    object_reference: str | None
    payment_token: str
    reason: str | None
    first_sent_at: datetime | None
    probe_count: int = 0
    #: False when nothing is due any more: it is looked up, never sent.
    collectible: bool = True


@dataclass(frozen=True, slots=True)
class NothingDue:
    """
    There is nothing to charge, and why: paid, void, disputed, no payment method.

    `needs_person` says that money is owed all the same and somebody must look.
    """

    reason: str
    needs_person: bool = False


@dataclass(frozen=True, slots=True)
class DueSubscription:
    """A subscription and its next period to bill, read by the database's clock."""

    id: UUID
    tenant: str
    terms: SubscriptionTerms
    anchor: Anchor
    interval: Interval
    zone: str
    net_days: int
    #: The index of the next period to bill, counted from the anchor.
    index: int
    #: The last day on which a period may begin; None for no end.
    ends_on: date | None
    active: bool
    #: The civil date in the subscription's zone.
    today: date


@dataclass(frozen=True, slots=True)
class Notice:
    """A mail that shall be sent once, with the facts read again at this moment."""

    id: UUID
    message_id: str
    state: NoticeState
    recipient: str
    name: str
    number: str
    step: str
    open_minor: int
    currency: str
    due_on: date
    #: Why it must not be sent (paid, void), or None.
    obsolete: str | None
