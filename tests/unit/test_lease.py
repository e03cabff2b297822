"""How long the owner of a job may trust its lease, by its own clock."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from billing_jobs.domain.lease import (
    MARGIN,
    RENEWALS_PER_TTL,
    TrustWindow,
    renewal_interval_seconds,
)

#: How much faster or slower one clock may run than another before the margin is used up.
DRIFT = 0.05

ttls = st.floats(0.1, 3600.0)


def test_the_window_opens_before_the_claim_was_sent_and_closes_before_the_lease() -> None:
    """The time that the claim took is on the safe side, and so is a clock that runs late."""
    window = TrustWindow(asked_at_seconds=100.0, ttl_seconds=20.0)

    assert window.trusted_until_seconds == 118.0
    assert window.trusts(100.0)
    assert window.trusts(117.999)
    assert not window.trusts(118.0)
    assert not window.trusts(1e9)


@given(asked=st.floats(0, 1e6), ttl=ttls, answered_after=st.floats(0, 100), held=st.floats(0, 2))
def test_nobody_trusts_a_lease_that_the_database_calls_expired(
    asked: float, ttl: float, answered_after: float, held: float
) -> None:
    """The database counts from when it saw the claim, the owner from before it was sent."""
    window = TrustWindow(asked, ttl)
    elapsed = held * ttl

    assert not window.trusts(asked + answered_after + ttl)
    if window.trusts(asked + elapsed):
        # The owner's clock may even run slow: the lease has not expired by the database's.
        assert elapsed * (1 + DRIFT) <= answered_after + ttl


@given(ttl=ttls)
def test_two_renewals_may_fail_before_the_lease_is_in_danger(ttl: float) -> None:
    """A short failover of the database must not cost every running job its lease."""
    window = TrustWindow(0.0, ttl)

    assert window.trusts(3 * renewal_interval_seconds(ttl))


def test_the_figures_are_the_promised_ones() -> None:
    """A ttl of 20 s: renewed every 5 s, trusted for 18 s."""
    assert (RENEWALS_PER_TTL, MARGIN) == (4, 0.1)
    assert renewal_interval_seconds(20.0) == 5.0
