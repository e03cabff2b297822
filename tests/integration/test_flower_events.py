"""What Flower is told: every job as a task of its own, with ids only, and only if asked to."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest
from celery import Celery
from support.cluster import Cluster, cluster
from support.waiting import until

from billing_jobs.adapters.clock import SystemClock
from billing_jobs.domain.job import ClaimedJob
from billing_jobs.embedded.postgres import EmbeddedPostgres
from billing_jobs.embedded.valkey import EmbeddedValkey
from billing_jobs.worker.events import SILENCE_SECONDS, TIMEOUT_SECONDS, CeleryJobEvents

#: How long one round of listening takes before it looks whether it is to end.
ROUND_SECONDS = 0.5


class Watcher:
    """Takes every event from the broker, as Flower does."""

    def __init__(self, url: str) -> None:
        """Start listening; `events` grows."""
        self.events: list[dict[str, Any]] = []
        self.listening, self._over = threading.Event(), threading.Event()
        self._app = Celery("watcher", broker=url, set_as_current=False)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._over.set()
        self._thread.join()
        self._app.close()

    def of(self, job_id: UUID) -> list[dict[str, Any]]:
        """Return the events of one job, in the order in which they came."""
        return [event for event in self.events if event.get("uuid") == str(job_id)]

    def _run(self) -> None:
        with self._app.connection_for_read() as connection:
            receiver = self._app.events.Receiver(connection, {"*": self.events.append})
            with receiver.consumer_context() as (drained, _channel, _consumers):
                self.listening.set()
                while not self._over.is_set():
                    try:
                        drained.drain_events(timeout=ROUND_SECONDS)
                    except TimeoutError:
                        continue


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> Iterator[Cluster]:
    """A cluster with a worker that tells events and one that does not, each with its queues."""
    with cluster(tmp_path_factory.mktemp("events"), postgres_server) as started:
        watched = started.processes.launch_worker("-E", "-Q", "charges,default")
        silent = started.processes.launch_worker("-Q", "reminders")
        for worker in (watched, silent):
            started.processes.wait_ready(worker)
        yield started


@pytest.fixture(scope="module")
def watcher(made: Cluster) -> Iterator[Watcher]:
    """Somebody who listens from the first job on."""
    started = Watcher(made.broker.url)
    assert started.listening.wait(30)
    yield started
    started.close()


def test_a_job_that_succeeds_is_received_started_and_succeeded_under_its_own_name(
    made: Cluster, watcher: Watcher
) -> None:
    """One drain runs many jobs; Flower must show the jobs, with ids and nothing personal."""
    (invoice_id,) = made.bill("pm_sandbox_ok")
    ((job_id,),) = made.query(
        "SELECT id FROM jobs WHERE kind = 'charge' AND arguments ->> 'invoice_id' = %s",
        str(invoice_id),
    )
    assert isinstance(job_id, UUID)
    made.ring("charges")

    until(lambda: len(watcher.of(job_id)) >= 3, "the events of a charge")
    received, started, succeeded = watcher.of(job_id)

    names = [event["type"] for event in (received, started, succeeded)]
    assert names == ["task-received", "task-started", "task-succeeded"]
    assert received["name"] == "billing.charge"
    assert received["kwargs"] == repr({"invoice_id": str(invoice_id)})
    assert received["args"] == "[]"
    assert received["hostname"] == "worker0@test"
    assert succeeded["result"] == "completed"


def test_a_job_that_fails_is_told_as_retried_and_failed_with_its_reason(
    made: Cluster, watcher: Watcher
) -> None:
    """Failures are what people open Flower for."""
    invoice_id = uuid4()
    refused = made.enqueue("charge", {"invoice_id": invoice_id})
    retried = made.enqueue("test_broken", {})
    for queue in ("charges", "default"):
        made.ring(queue)

    until(lambda: len(watcher.of(refused)) >= 3, "the events of a refused charge")
    until(lambda: len(watcher.of(retried)) >= 3, "the events of a job that runs again")

    assert watcher.of(refused)[-1]["type"] == "task-failed"
    assert str(invoice_id) in watcher.of(refused)[-1]["exception"]
    assert watcher.of(retried)[-1]["type"] == "task-retried"
    assert watcher.of(retried)[0]["retries"] == 0


def test_the_drain_itself_and_a_worker_without_the_option_tell_nothing(
    made: Cluster, watcher: Watcher
) -> None:
    """A bell is no task; and events cost, so they are only for those who watch."""
    silent = made.enqueue("reminder", {"invoice_id": uuid4()})
    made.ring("reminders")
    assert made.ended(silent) == "failed"
    told = made.enqueue("charge", {"invoice_id": uuid4()})
    made.ring("charges")

    until(lambda: len(watcher.of(told)) >= 3, "events that came later")

    assert watcher.of(silent) == []
    assert "billing.drain" not in {event.get("name") for event in watcher.events}


def test_a_broker_that_is_away_costs_events_and_no_job(broker: EmbeddedValkey) -> None:
    """Whoever looks on must not stop the work; after a while they are told again."""
    clock = SteppedClock()
    events, job = _events(broker, clock), _claimed(clock)
    events.send("started", job, {})
    broker.stop()
    for _ in range(2):
        events.send("succeeded", job, {"outcome": "completed"})
    broker.start()
    watcher = Watcher(broker.url)
    try:
        assert watcher.listening.wait(30)
        events.send("failed", job, {"exception": "told in the silence"})
        clock.seconds = SILENCE_SECONDS + 1

        events.send("succeeded", job, {"outcome": "completed"})

        until(lambda: watcher.of(job.id), "an event after the silence")
    finally:
        watcher.close()
    assert [event["type"] for event in watcher.of(job.id)] == ["task-succeeded"]


@pytest.mark.timing
def test_a_frozen_broker_costs_one_time_out_and_not_one_an_event(broker: EmbeddedValkey) -> None:
    """A job that waits for somebody to look at it is late for its customer."""
    clock = SteppedClock()
    events, job = _events(broker, clock), _claimed(clock)
    events.send("started", job, {})
    pid = broker.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)

    started = time.monotonic()
    for _ in range(10):
        events.send("succeeded", job, {"outcome": "completed"})
    seconds = time.monotonic() - started

    os.kill(pid, signal.SIGCONT)
    assert seconds < 3 * TIMEOUT_SECONDS


def _events(broker: EmbeddedValkey, clock: SystemClock) -> CeleryJobEvents:
    app = Celery("worker", broker=broker.url, set_as_current=False)
    return CeleryJobEvents(app, clock, hostname="worker@test")


class SteppedClock(SystemClock):
    """The clock of the process, whose steady time passes when the test says so."""

    seconds = 0.0

    def steady_seconds(self) -> float:
        """Return the time."""
        return self.seconds


def _claimed(clock: SystemClock) -> ClaimedJob:
    return ClaimedJob(
        id=clock.new_id(),
        kind="charge",
        queue="charges",
        tenant="default",
        arguments={"invoice_id": str(uuid4())},
        attempt=1,
        max_attempts=4,
        outage_count=0,
        token=1,
        lease_until=clock.now(),
        started_at=clock.now(),
        worker="worker@test",
    )
