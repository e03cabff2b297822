"""
A worker that dies at each step of a charge.

The write order of a charge promises that a crash after any step ends with the same capture, once.
Every step is tried on an invoice of its own, all in one cluster whose worker forks again.
"""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import pytest
from support.cluster import Cluster, cluster
from support.crash_points import STEPS, happened, plan_crash
from support.waiting import until

from billing_jobs.embedded.postgres import EmbeddedPostgres

#: Also with a gateway that charges and hangs: the crash hits a charge that is in doubt.
HANGING = "pm_sandbox_hang_after_charge_x1"
CASES = [(step, "pm_sandbox_ok") for step in STEPS] + [("record", HANGING)]


@pytest.fixture(scope="module")
def dying(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> Iterator[tuple[Cluster, dict[tuple[str, str], UUID]]]:
    """A cluster in which the run of each invoice dies once, each at another step."""
    plugins = ("support.kinds_plugin", "support.crash_points")
    directory = tmp_path_factory.mktemp("points")
    with cluster(directory, postgres_server, plugins=plugins, graceful=False) as made:
        invoices = dict(zip(CASES, made.bill(*(token for _, token in CASES)), strict=True))
        for (step, _), invoice_id in invoices.items():
            plan_crash(made.directory, invoice_id, step)
        made.start(concurrency=4)
        yield made, invoices


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def test_a_worker_that_dies_after_a_step_leaves_one_capture_and_a_paid_invoice(
    case: tuple[str, str], dying: tuple[Cluster, dict[tuple[str, str], UUID]]
) -> None:
    """Each step is the last one of some real crash; one that is forgotten is money taken twice."""
    made, invoices = dying

    made.paid(invoices[case])

    until(lambda: happened(made.directory, invoices[case]), "the planned crash")
    assert len(made.captures(invoices[case])) == 1
    assert made.unbalanced() == []
    payments = made.query(
        "SELECT sum(amount_minor) FROM payments WHERE invoice_id = %s", invoices[case]
    )
    assert payments == [(5831,)]
