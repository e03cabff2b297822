"""A worker that is told to stop: what runs is finished or handed back, and nothing new is begun."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from uuid import uuid4

import billiard.pool
import pytest
from support.cluster import Cluster, cluster
from support.processes import says
from support.waiting import until

from billing_jobs import lifecycle
from billing_jobs.domain.job import ClaimedJob
from billing_jobs.embedded.postgres import EmbeddedPostgres
from billing_jobs.lifecycle import Engine
from billing_jobs.worker.hand_back import HandBack
from billing_jobs.worker.shutdown import HAND_BACK_SECONDS

#: A worker is gone so long after its last job or its deadline, also on a busy machine.
GONE_SECONDS = 10.0


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> Iterator[Cluster]:
    """A cluster without a beat; each test starts workers of its own, in queues of its own."""
    with cluster(tmp_path_factory.mktemp("stop"), postgres_server, graceful=False) as started:
        yield started


def test_a_stopping_worker_finishes_its_job_and_claims_nothing_more(made: Cluster) -> None:
    """
    A deploy must cost no work and no attempt, also where the system signals every process.

    One worker gets its signal alone, from an impatient person, in the other each child gets it too.
    """
    queues = ("default", "maintenance")
    workers = [made.processes.launch_worker("-Q", queue) for queue in queues]
    for worker in workers:
        made.processes.wait_ready(worker)
    running = [made.gated(f"running in {queue}", queue=queue) for queue in queues]
    for queue in queues:
        made.ring(queue)
    until(lambda: all(made.running_on(f"running in {queue}") for queue in queues), "running jobs")
    waiting = [made.gated(f"waiting in {queue}", queue=queue) for queue in queues]

    for _ in range(2):
        os.kill(workers[0].pid, signal.SIGTERM)
    os.killpg(workers[1].pid, signal.SIGTERM)
    for worker, queue in zip(workers, queues, strict=True):
        until(partial(says, made.processes.log_of(worker), "worker.draining"), "the stop")
        made.open_gate(f"running in {queue}")

    assert [worker.wait(GONE_SECONDS) for worker in workers] == [0, 0]
    fates = "SELECT DISTINCT state, attempt, crash_count FROM jobs WHERE id = ANY(%s)"
    assert made.query(fates, running) == [("completed", 1, 0)]
    assert made.query(fates, waiting) == [("pending", 0, 0)]


def test_what_is_not_finished_at_the_deadline_is_handed_back_and_spends_nothing(
    made: Cluster,
) -> None:
    """
    A supervisor kills what outlives its grace: by then every job must be in safe hands.

    One job hears the interruption, one is in a call that has taken money, one does not listen.
    """
    (invoice_id,) = made.bill("pm_sandbox_hang_after_charge_x1")
    settings = {"stop_deadline_seconds": "1s", "gateway_read_timeout_seconds": "20s"}
    worker = made.processes.worker("-Q", "charges,reminders", settings=settings, concurrency=3)
    listening = made.gated("listening", queue="reminders")
    stubborn = made.gated("stubborn", kind="test_stubborn", queue="reminders")
    for queue in ("charges", "reminders", "reminders"):
        made.ring(queue)
    until(lambda: made.running_on("listening") and made.running_on("stubborn"), "running jobs")
    until(lambda: made.captures(invoice_id), "the capture")

    os.killpg(worker.pid, signal.SIGTERM)
    started = time.monotonic()
    worker.wait(1.0 + HAND_BACK_SECONDS + GONE_SECONDS)

    assert time.monotonic() - started > 1.0, "it did not wait for its deadline"
    fates = "SELECT kind, state, attempt, crash_count FROM jobs WHERE id = ANY(%s) ORDER BY kind"
    # What does not listen is killed, and found by its lease.
    assert made.query(fates, [listening, stubborn]) == [
        ("test_gated", "pending", 0, 0),
        ("test_stubborn", "running", 1, 0),
    ]
    (run,) = made.engine.store.attempts(listening)
    assert run.outcome == "handed_back"
    # Whoever runs the charge next looks at the gateway before it sends.
    assert made.query("SELECT state FROM charge_attempts") == [("sending",)]
    assert lifecycle.run_next(made.engine, "charges", "next")
    made.paid(invoice_id)
    assert len(made.captures(invoice_id)) == 1


def test_an_executor_that_ends_its_process_by_itself_is_no_stop(engine: Engine) -> None:
    """Handed back, it would run and end the next process for ever; as a crash it is counted."""
    job = _claimed(engine)
    keeper = HandBack(engine.keeper, engine.store, lambda: False)

    with pytest.raises(SystemExit), keeper.hold(job, 0.0):
        sys.exit("an executor's own idea")

    view = engine.store.get(job.id)
    assert view is not None
    assert view.state == "running"


def test_a_stop_does_not_hand_back_what_belongs_to_another_by_now(engine: Engine) -> None:
    """A worker that was frozen before it was stopped may find its job in other hands."""
    job = _claimed(engine)
    keeper = HandBack(engine.keeper, engine.store, lambda: True)

    with pytest.raises(SystemExit), keeper.hold(replace(job, token=job.token - 1), 0.0):
        sys.exit()

    view = engine.store.get(job.id)
    assert view is not None
    assert (view.state, view.attempt) == ("running", 1)


def test_the_limit_of_a_childs_last_wait_is_still_where_we_set_it() -> None:
    """It is a private name of billiard: under another one, many stops would take half a minute."""
    waits = vars(billiard.pool.Worker)["_ensure_messages_consumed"]

    assert "GUARANTEE_MESSAGE_CONSUMPTION_RETRY_LIMIT" in waits.__code__.co_names
    assert billiard.pool.GUARANTEE_MESSAGE_CONSUMPTION_RETRY_INTERVAL == 0.1


def _claimed(engine: Engine) -> ClaimedJob:
    lifecycle.enqueue(engine, "charge", {"invoice_id": uuid4()})
    kinds = engine.registry.of_queue("charges")
    (job,) = engine.store.claim("charges", kinds, limit=1, ttl_seconds=20.0, worker="here")
    return job
