"""
The lease on a running job: how long its owner may trust it, and when to renew.

Owns the arithmetic; the store renews, the worker's heartbeat calls it.

The trust window starts before the claim was sent, so that the time the claim took is on the safe
side: trusted until `asked_at + ttl - margin`, on a clock that also counts while the machine sleeps.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Renewals in one ttl: two may fail before the lease is in danger.
RENEWALS_PER_TTL = 4

#: Part of the ttl that is given up, for clocks that run at slightly different rates.
MARGIN = 0.1


@dataclass(frozen=True, slots=True)
class TrustWindow:
    """
    Until when the owner may believe that it still owns the lease.

    `asked_at_seconds` is read from the owner's own steady clock before the claim or renewal was
    sent.
    """

    asked_at_seconds: float
    ttl_seconds: float

    @property
    def trusted_until_seconds(self) -> float:
        """
        Return the end of the window on the owner's clock.

        >>> TrustWindow(asked_at_seconds=100.0, ttl_seconds=20.0).trusted_until_seconds
        118.0
        """
        return self.asked_at_seconds + self.ttl_seconds * (1 - MARGIN)

    def trusts(self, now_seconds: float) -> bool:
        """Say whether the lease can be believed at this moment."""
        return now_seconds < self.trusted_until_seconds


def renewal_interval_seconds(ttl_seconds: float) -> float:
    """
    Return how often the owner renews.

    >>> renewal_interval_seconds(20.0)
    5.0
    """
    return ttl_seconds / RENEWALS_PER_TTL
