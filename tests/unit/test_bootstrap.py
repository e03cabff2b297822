"""The composition root: what it refuses, and that putting things together connects nothing."""

from __future__ import annotations

import pytest

from billing_jobs import bootstrap
from billing_jobs.config import load_settings
from billing_jobs.domain.errors import SettingsInvalid

ADDRESSES = {
    "database_url": "postgresql://app@127.0.0.1:1/none",
    "broker_url": "redis://127.0.0.1:1/0",
}


def test_a_runtime_is_put_together_without_a_connection() -> None:
    """Addresses at which nobody listens are no error before they are used."""
    made = bootstrap.build(load_settings(ADDRESSES, environ={}))

    assert made.engine.registry.names() == ["charge", "invoice", "reconcile_charge", "reminder"]
    assert made.engine.limits.max_attempts == 4
    assert made.engine.ports.gateway.name == "sandbox"
    made.engine.ports.lease.check()
    made.database.close()


@pytest.mark.parametrize("missing", ["database_url", "broker_url"])
def test_a_missing_address_says_the_ways_out(missing: str) -> None:
    """Set it, or run `up`."""
    given = {name: value for name, value in ADDRESSES.items() if name != missing}

    with pytest.raises(SettingsInvalid, match="billing-jobs up"):
        bootstrap.build(load_settings(given, environ={}))


def test_a_gateway_that_this_version_cannot_use_is_refused() -> None:
    """Better no start than money that is never collected."""
    given = {**ADDRESSES, "gateway": "stripe", "stripe_api_key": "sk_test_1"}

    with pytest.raises(SettingsInvalid, match="sandbox only"):
        bootstrap.build(load_settings(given, environ={}))
