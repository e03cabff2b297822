"""Workers that are killed or frozen in the middle of a charge, and what the others make of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from support.cluster import Cluster, cluster
from support.crash_points import happened, plan_crash
from support.processes import kill
from support.waiting import until

from billing_jobs.embedded.postgres import EmbeddedPostgres

HANGING = "pm_sandbox_hang_after_charge_x1"
ATTEMPTS = "SELECT id, state, token, resolved_at FROM charge_attempts ORDER BY id"


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> Iterator[Cluster]:
    """A cluster with a beat, no worker, and processes that can be stopped at a step."""
    plugins = ("support.kinds_plugin", "support.crash_points")
    directory = tmp_path_factory.mktemp("death")
    with cluster(directory, postgres_server, plugins=plugins, graceful=False) as started:
        started.processes.beat()
        yield started


def test_a_worker_killed_while_the_gateway_has_charged_and_not_answered(made: Cluster) -> None:
    """
    Nobody is left who knows of the charge: the next worker must ask before it charges.

    The whole process group is killed, as by the system when memory is out.
    """
    (invoice_id,) = made.bill(HANGING)
    first = made.processes.worker(settings={"gateway_read_timeout_seconds": "20s"})
    until(lambda: made.captures(invoice_id), "the capture")

    kill(first)
    second = made.processes.worker()

    made.paid(invoice_id)
    kill(second)
    assert len(made.captures(invoice_id)) == 1
    assert made.unbalanced() == []
    states = "SELECT state FROM charge_attempts WHERE invoice_id = %s"
    assert made.query(states, invoice_id) == [("succeeded",)]
    outcomes = made.query("SELECT outcome, spent FROM job_attempts ORDER BY token DESC LIMIT 2")
    assert outcomes == [("completed", True), ("lease_expired", False)]


def test_a_worker_frozen_past_its_lease_writes_nothing_when_it_goes_on(made: Cluster) -> None:
    """
    A paused machine wakes up with a lease that is another's: what it knows is stale by then.

    One run is frozen in its call, with the money taken, the other before its call: the first must
    not write, the second must not call.
    """
    in_call, before_call = made.bill(HANGING, "pm_sandbox_ok")
    plan_crash(made.directory, before_call, "keep_object", number=signal.SIGSTOP)
    confirms = _confirms(made)
    frozen = made.processes.worker(concurrency=2, settings={"gateway_read_timeout_seconds": "5s"})
    until(lambda: made.captures(in_call), "the capture")
    until(lambda: happened(made.directory, before_call), "a run stopped before its call")
    os.killpg(frozen.pid, signal.SIGSTOP)

    awake = made.processes.worker()
    made.paid(in_call)
    made.paid(before_call)
    settled = made.query(ATTEMPTS)
    os.killpg(frozen.pid, signal.SIGCONT)

    log = made.processes.log_of(frozen)
    until(lambda: log.read_text().count("write.fenced") == 2, f"two fenced writes in {log}")
    assert [len(made.captures(invoice)) for invoice in (in_call, before_call)] == [1, 1]
    assert settled == made.query(ATTEMPTS)
    assert made.unbalanced() == []
    assert _confirms(made) - confirms == 2
    witness = made.query("SELECT count(*) FROM attempt_evidence WHERE source = 'stale owner'")
    assert witness == [(1,)]
    for worker in (frozen, awake):
        kill(worker)


def _confirms(made: Cluster) -> int:
    """Count the requests that may take money, whatever came of them."""
    return sum(made.sandbox.requests()["routes"].get("confirm", {}).values())
