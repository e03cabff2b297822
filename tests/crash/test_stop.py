"""A worker that is told to stop: what runs is finished or handed back, and nothing new is begun."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator

import billiard.pool
import pytest
from support.cluster import Cluster, cluster
from support.processes import says
from support.waiting import until

from billing_jobs.embedded.postgres import EmbeddedPostgres

#: A worker is gone so long after its last job or its deadline, also on a busy machine.
GONE_SECONDS = 10.0

HANGING = "pm_sandbox_hang_after_charge_x1"


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> Iterator[Cluster]:
    """A cluster with a beat; each test starts a worker of its own."""
    with cluster(tmp_path_factory.mktemp("stop"), postgres_server) as started:
        yield started


@pytest.mark.parametrize("whom", ["the main process", "the whole group"])
def test_a_stopping_worker_finishes_its_job_and_claims_nothing_more(
    whom: str, made: Cluster
) -> None:
    """A deploy must cost no work and no attempt, also where the system signals every process."""
    worker = made.processes.worker()
    running = made.gated(f"running, {whom}")
    made.ring("default")
    until(lambda: made.running_on(f"running, {whom}"), "a running job")
    waiting = made.gated(f"waiting, {whom}")

    _tell(worker, whole_group=whom == "the whole group")
    until(lambda: says(made.processes.log_of(worker), "worker.draining"), "the stop")
    made.open_gate(f"running, {whom}")

    assert worker.wait(GONE_SECONDS) == 0
    assert made.query(
        "SELECT state, attempt, crash_count FROM jobs WHERE id = ANY(%s) ORDER BY state",
        [running, waiting],
    ) == [("completed", 1, 0), ("pending", 0, 0)]
    made.query("UPDATE jobs SET run_at = 'infinity' WHERE id = %s", waiting)


def test_what_is_not_finished_at_the_deadline_is_handed_back_and_spends_nothing(
    made: Cluster,
) -> None:
    """
    A supervisor kills what outlives its grace: by then every job must be in safe hands.

    One job hears the interruption, one is in a call that has taken money, one does not listen.
    """
    (invoice_id,) = made.bill(HANGING)
    settings = {"stop_deadline_seconds": "1s", "gateway_read_timeout_seconds": "20s"}
    worker = made.processes.worker(settings=settings, concurrency=3)
    listening = made.gated("listening")
    stubborn = made.gated("stubborn", kind="test_stubborn")
    for queue in ("charges", "default", "default"):
        made.ring(queue)
    until(lambda: made.running_on("listening") and made.running_on("stubborn"), "running jobs")
    until(lambda: made.captures(invoice_id), "the capture")

    _tell(worker, whole_group=True)
    started = time.monotonic()
    worker.wait(1.0 + 3.0 + GONE_SECONDS)

    seconds = time.monotonic() - started
    assert seconds > 1.0, "it did not wait for its deadline"
    assert made.query(
        "SELECT kind, state, attempt, crash_count FROM jobs "
        "WHERE kind LIKE 'test_%%' AND run_at < 'infinity' AND state <> 'completed' "
        "OR kind = 'charge' ORDER BY kind"
    ) == [
        ("charge", "pending", 0, 0),
        ("test_gated", "pending", 0, 0),
        ("test_stubborn", "running", 1, 0),
    ]
    for name in ("listening", "stubborn"):
        made.open_gate(name)
    made.start(concurrency=2)
    started_here = made.processes.running[-2:]
    made.paid(invoice_id)
    assert len(made.captures(invoice_id)) == 1
    assert [made.ended(job_id) for job_id in (listening, stubborn)] == ["completed"] * 2
    outcomes = made.query(
        "SELECT outcome, spent FROM job_attempts WHERE job_id = ANY(%s) ORDER BY token",
        [listening, stubborn],
    )
    assert sorted(outcomes) == [
        ("completed", True),
        ("completed", True),
        ("handed_back", False),
        ("lease_expired", False),
    ]
    for process in started_here:
        made.processes.stop(process)


def test_the_limit_of_a_childs_last_wait_is_still_where_we_set_it() -> None:
    """It is a private name of billiard: under another one, many stops would take half a minute."""
    waits = billiard.pool.Worker._ensure_messages_consumed  # noqa: SLF001

    assert "GUARANTEE_MESSAGE_CONSUMPTION_RETRY_LIMIT" in waits.__code__.co_names
    assert billiard.pool.GUARANTEE_MESSAGE_CONSUMPTION_RETRY_INTERVAL == 0.1


def _tell(worker: subprocess.Popen[bytes], *, whole_group: bool) -> None:
    (os.killpg if whole_group else os.kill)(worker.pid, signal.SIGTERM)
