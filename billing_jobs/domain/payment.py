"""
What a payment gateway can say, and the states of a charge attempt as data.

Owns the words between the charge executor, the ledger and the gateway adapters. Owns neither HTTP
nor SQL: adapters translate into these values, the ledger enforces the same table in the database.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from billing_jobs.domain.errors import IllegalTransition


class ObjectStatus(StrEnum):
    """Where a gateway's payment object stands."""

    #: Created or waiting to be confirmed: no money has moved by this object.
    UNCONFIRMED = "unconfirmed"
    #: The last confirm was declined; the object may be confirmed again.
    DECLINED = "declined"
    #: The customer must authenticate (SCA).
    REQUIRES_ACTION = "requires_action"
    #: Accepted, the outcome comes later (SEPA, ACH).
    PENDING = "pending"
    #: Money has been captured.
    SUCCEEDED = "succeeded"
    #: Called off for good.
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class GatewayObject:
    """
    One payment object as the gateway tells it.

    `amount_received_minor` is what was really captured, in minor units of `currency`; it may be
    less than `amount_minor`. `raw` is the redacted answer, kept as evidence. `replayed` says that
    the gateway answered from its idempotency cache.
    """

    reference: str
    status: ObjectStatus
    amount_minor: int
    amount_received_minor: int
    currency: str
    charge_reference: str | None = None
    decline_code: str | None = None
    replayed: bool = False
    raw: str = ""


@dataclass(frozen=True, slots=True)
class PaymentInstruction:
    """
    What one payment object shall collect, in minor units; identifiers only, no personal data.

    Without a `payment_token` the object gets its payment method when it is confirmed, so that the
    same object can be confirmed with another one later. The metadata lets a look-up find the object
    again when its id was lost: it holds at least `tenant` and `invoice_id`.
    """

    amount_minor: int
    currency: str
    metadata: tuple[tuple[str, str], ...]
    payment_token: str | None = None


class AttemptState(StrEnum):
    """Where one try to collect a debt stands."""

    #: Written down, nothing sent.
    CREATED = "created"
    #: The call is declared; from here on the outcome is unknown by definition.
    SENDING = "sending"
    #: Money arrived.
    SUCCEEDED = "succeeded"
    #: The gateway said no; a new try needs a new attempt.
    DECLINED = "declined"
    #: Accepted, the outcome comes later.
    PENDING = "pending"
    #: The customer must authenticate.
    REQUIRES_ACTION = "requires_action"
    #: Provably without effect; the same debt may be tried again.
    FAILED_NOT_SENT = "failed_not_sent"
    #: Money may have moved; the debt is locked until it is known.
    UNKNOWN = "unknown"
    #: Called off before anything was sent.
    CANCELLED = "cancelled"


_RESULTS = frozenset(
    {
        AttemptState.SUCCEEDED,
        AttemptState.DECLINED,
        AttemptState.PENDING,
        AttemptState.REQUIRES_ACTION,
        AttemptState.FAILED_NOT_SENT,
    }
)

#: from → to. The trigger on `charge_attempts` holds the same pairs; a test compares the two.
ATTEMPT_TRANSITIONS: dict[AttemptState, frozenset[AttemptState]] = {
    AttemptState.CREATED: frozenset({AttemptState.SENDING, AttemptState.CANCELLED}),
    AttemptState.SENDING: _RESULTS | {AttemptState.UNKNOWN},
    AttemptState.UNKNOWN: _RESULTS,
    AttemptState.PENDING: frozenset({AttemptState.SUCCEEDED, AttemptState.DECLINED}),
    AttemptState.REQUIRES_ACTION: frozenset(
        {
            AttemptState.PENDING,
            AttemptState.SUCCEEDED,
            AttemptState.DECLINED,
            AttemptState.CANCELLED,
        }
    ),
    AttemptState.SUCCEEDED: frozenset(),
    AttemptState.DECLINED: frozenset(),
    AttemptState.FAILED_NOT_SENT: frozenset(),
    AttemptState.CANCELLED: frozenset(),
}

#: States that lock the debt: while one stands, no other attempt starts.
LIVE_ATTEMPT_STATES = frozenset(
    {
        AttemptState.CREATED,
        AttemptState.SENDING,
        AttemptState.UNKNOWN,
        AttemptState.PENDING,
        AttemptState.REQUIRES_ACTION,
    }
)


def check_attempt_transition(source: AttemptState, target: AttemptState) -> None:
    """Raise `IllegalTransition` unless the table knows source → target."""
    if target not in ATTEMPT_TRANSITIONS[source]:
        raise IllegalTransition(
            f"Bug: a charge attempt cannot go from {source} to {target}. "
            "Look at ATTEMPT_TRANSITIONS for what is allowed."
        )
