"""
What an executor may say about its run. Expected answers are values; exceptions are broken promises.

Owns the five outcomes and nothing else: `retry.py` decides what they mean for the job, the store
writes it down.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from billing_jobs.domain.ledger import Effect


@dataclass(frozen=True, slots=True)
class FollowUp:
    """
    A job enqueued in the transaction that records the outcome.

    `key` is the business key; a job that exists already under it is not made again.
    """

    kind: str
    arguments: Mapping[str, object]
    key: str | None = None
    after_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Completed:
    """Done. The result is a small JSON object without personal data."""

    result: Mapping[str, object] = field(default_factory=dict)
    effects: tuple[Effect, ...] = ()
    then: tuple[FollowUp, ...] = ()


@dataclass(frozen=True, slots=True)
class RetryLater:
    """
    Try again after attempt² seconds, or after `after_seconds` if that is later.

    `outage` says that nothing was sent to the outside: the run is not spent, it counts on a counter
    of its own, so that an outage buries nothing.
    """

    reason: str
    after_seconds: float | None = None
    outage: bool = False
    effects: tuple[Effect, ...] = ()
    fingerprint: str | None = None


@dataclass(frozen=True, slots=True)
class Defer:
    """Wait without spending an attempt."""

    reason: str
    after_seconds: float
    effects: tuple[Effect, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """
    This input can never succeed.

    `needs_person` sends it to the dead letters, where a person may repair the cause and replay it;
    otherwise the job ends `failed`.
    """

    reason: str
    needs_person: bool = False
    effects: tuple[Effect, ...] = ()


@dataclass(frozen=True, slots=True)
class Unknown:
    """
    The outside may have acted, and nobody knows yet.

    The job ends `completed` with the attempt's id as its result: the charge attempt and its
    reconcile ladder own the debt from here.
    """

    reason: str
    reference: str
    effects: tuple[Effect, ...] = ()
    then: tuple[FollowUp, ...] = ()


Outcome = Completed | RetryLater | Defer | Refused | Unknown
