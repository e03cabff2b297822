"""A gateway that lies, hangs or breaks, and a cluster that takes each debt once all the same."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import pytest
from support.cluster import Cluster, cluster

from billing_jobs.embedded.postgres import EmbeddedPostgres

#: Payment token → how the charge's first job ends, and the charge attempts that it takes.
FAULTS = {
    "pm_sandbox_hang_after_charge_x1": ("unknown", ["succeeded"]),
    "pm_sandbox_error_after_charge_x1": ("unknown", ["succeeded"]),
    "pm_sandbox_error_before_charge_x1": ("unknown", ["failed_not_sent", "succeeded"]),
    "pm_sandbox_reset_after_charge_x1": ("unknown", ["succeeded"]),
    "pm_sandbox_reset_before_charge_x1": ("unknown", ["failed_not_sent", "succeeded"]),
    "pm_sandbox_garbage_after_charge_x1": ("unknown", ["succeeded"]),
    "pm_sandbox_busy_x2": ("succeeded", ["succeeded"]),
}


@pytest.fixture(scope="module")
def billed(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> Iterator[tuple[Cluster, dict[str, UUID]]]:
    """A cluster that collects one invoice a fault, all at the same time."""
    with cluster(tmp_path_factory.mktemp("faults"), postgres_server, graceful=False) as made:
        invoices = dict(zip(FAULTS, made.bill(*FAULTS), strict=True))
        made.start(concurrency=2)
        yield made, invoices


@pytest.mark.parametrize("token", FAULTS)
def test_a_fault_of_the_gateway_costs_the_customer_the_debt_once_and_nobody_helps(
    token: str, billed: tuple[Cluster, dict[str, UUID]]
) -> None:
    """A time-out or a 500 says nothing about the money: taken for a decline, it is taken twice."""
    made, invoices = billed
    made.paid(invoices[token])
    outcome, states = FAULTS[token]

    (capture,) = made.captures(invoices[token])

    assert capture["amount"] == 5831
    assert made.unbalanced() == []
    attempts = made.query(
        "SELECT state FROM charge_attempts WHERE invoice_id = %s ORDER BY number", invoices[token]
    )
    assert [state for (state,) in attempts] == states
    first = made.query(
        "SELECT state, result ->> 'outcome' FROM jobs "
        "WHERE kind = 'charge' AND arguments ->> 'invoice_id' = %s ORDER BY created_at LIMIT 1",
        str(invoices[token]),
    )
    assert first == [("completed", outcome)]


def test_a_gateway_that_refuses_for_a_while_costs_no_attempt(
    billed: tuple[Cluster, dict[str, UUID]],
) -> None:
    """An outage of a minute must not fill the dead letters of every invoice of that minute."""
    made, invoices = billed
    busy = invoices["pm_sandbox_busy_x2"]
    made.paid(busy)

    runs = made.query(
        "SELECT run.attempt, run.spent, run.outcome FROM job_attempts AS run "
        "JOIN jobs ON jobs.id = run.job_id "
        "WHERE jobs.arguments ->> 'invoice_id' = %s ORDER BY run.token",
        str(busy),
    )

    assert runs == [(1, False, "not_sent"), (1, False, "not_sent"), (1, True, "completed")]
