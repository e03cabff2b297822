"""The database goes away under running jobs and comes back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster import cluster
from support.waiting import until

from billing_jobs.cli import migrations
from billing_jobs.embedded.postgres import EmbeddedPostgres
from billing_jobs.testing import embedded_postgres

SLOW = ["pm_sandbox_slow"] * 3 + ["pm_sandbox_hang_after_charge_x1", "pm_sandbox_ok"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    """A Postgres that nobody else uses, for it is going to be restarted."""
    with embedded_postgres(tmp_path) as started:
        migrations.upgrade(started.url)
        yield started


def test_a_restart_of_postgres_under_running_jobs_loses_nothing_and_leaves_nothing_stuck(
    server: EmbeddedPostgres, tmp_path: Path
) -> None:
    """A failover in the night: calls are on the wire, commits are on their way, nobody is awake."""
    with cluster(tmp_path, server, template="postgres") as made:
        invoices = made.bill(*SLOW)
        gate = made.gated("over the restart")
        broken = made.enqueue("test_broken_shortly", {})
        made.start(concurrency=3)
        processes = list(made.processes.running)
        until(lambda: made.running_on("over the restart"), "a running job")
        until(lambda: made.sandbox.requests()["routes"].get("create"), "a charge on its way")

        server.stop("immediate")
        server.start()
        made.open_gate("over the restart")

        for invoice_id in invoices:
            made.paid(invoice_id)
        assert made.ended(gate) == "completed"
        assert made.ended(broken) == "dead_letter"
        assert [len(made.captures(invoice_id)) for invoice_id in invoices] == [1] * len(invoices)
        assert made.unbalanced() == []
        assert made.query("SELECT count(*) FROM jobs WHERE state = 'running'") == [(0,)]
        assert [process.poll() for process in processes] == [None] * len(processes)
