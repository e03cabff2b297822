"""A broker that is down, frozen, or killed and back: no call waits for it and no work is lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from uuid import UUID, uuid4

import pytest
from support.caller import Caller
from support.cluster import Cluster, cluster
from support.waiting import until

from billing_jobs.embedded.postgres import EmbeddedPostgres

#: What a caller may lose to a broker, beside the time that Postgres takes.
CALL_SECONDS = 0.3

#: Calls in a row: only the first may meet a warm connection.
CALLS = 4

#: How long a worker may take to work again after its broker came back.
WORKING_AGAIN_SECONDS = 15.0

#: Measures what the row costs, so that the rest of a call is what the broker cost.
MEASURED_STORE = """
import time
from dataclasses import replace
from billing_jobs.tasks import charge
from billing_jobs.worker import app

class MeasuredStore:
    def __init__(self, store):
        self.store, self.seconds = store, 0.0
    def insert(self, *given):
        started = time.monotonic()
        try:
            return self.store.insert(*given)
        finally:
            self.seconds = time.monotonic() - started
    def __getattr__(self, name):
        return getattr(self.store, name)

made = app.runtime()
store = MeasuredStore(made.engine.store)
app.use(replace(made, engine=replace(made.engine, store=store)))

def call(invoice_id):
    started = time.monotonic()
    job_id = charge.delay(invoice_id).id
    return job_id, time.monotonic() - started - store.seconds
"""

IN_A_THREAD = """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor() as threads:
    answer = threads.submit(call, '{}').result()
answer
"""


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> Iterator[Cluster]:
    """A cluster with a beat and two workers of one child each."""
    with cluster(tmp_path_factory.mktemp("broker"), postgres_server, graceful=False) as started:
        workers = [started.processes.launch_worker() for _ in range(2)]
        started.processes.beat()
        for worker in workers:
            started.processes.wait_ready(worker)
        yield started


@pytest.fixture(scope="module")
def caller(made: Cluster) -> Iterator[Caller]:
    """
    A service whose calls are measured.

    It waits for a ring as long as the default says, and forgets a broken broker at once, so that
    each of its calls meets it again.
    """
    settings = {"RING_PAUSE_SECONDS": "0s", "RING_TIMEOUT_SECONDS": "200ms"}
    variables = {f"BILLING_JOBS_{name}": value for name, value in settings.items()}
    with made.calling(made.environment | variables) as started:
        started.value(MEASURED_STORE)
        yield started


@pytest.mark.parametrize("trouble", ["stopped", "frozen"])
@pytest.mark.timing
def test_a_call_returns_at_once_whatever_the_broker_does_and_its_job_runs_later(
    trouble: str, made: Cluster, caller: Caller
) -> None:
    """A checkout that hangs on a message queue loses the customer; a lost row loses the money."""
    # The first call opens both connections, so that the trouble meets a warm one.
    _call(caller)
    (_stop if trouble == "stopped" else _freeze)(made)
    try:
        calls = [_call(caller) for _ in range(CALLS)]
    finally:
        (_start if trouble == "stopped" else _thaw)(made)

    assert all(seconds < CALL_SECONDS for _, seconds in calls), calls
    # No such invoice: refused for good, which is the end of a run.
    assert [made.ended(job_id) for job_id, _ in calls] == ["failed"] * CALLS


@pytest.mark.timing
def test_a_call_that_has_to_connect_to_a_frozen_broker_returns_at_once(
    made: Cluster, caller: Caller
) -> None:
    """A thread that never rang meets the frozen broker while it connects, a path of its own."""
    _call(caller)
    _freeze(made)
    try:
        job_id, seconds = _call(caller, IN_A_THREAD)
    finally:
        _thaw(made)

    assert seconds < CALL_SECONDS
    assert made.ended(job_id) == "failed"


def test_workers_work_again_soon_after_their_broker_was_killed_and_retries_run(
    made: Cluster,
) -> None:
    """Everything the broker held is gone; a worker that stays deaf is a queue that stands still."""
    processes = list(made.processes.running)
    retried = made.enqueue("test_broken_shortly", {}, key=str(uuid4()))
    until(lambda: made.query("SELECT 1 FROM job_attempts WHERE job_id = %s", retried), "a retry")
    pid = made.broker.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until(lambda: made.broker.pid is None, "the end of the broker")
    made.broker.stop()

    made.broker.start()
    names = [f"after {uuid4()}" for _ in range(2)]
    for name in names:
        made.gated(name)

    # Each gated job fills a worker, so the two of them run only when both workers take rings.
    until(
        lambda: all(made.running_on(name) for name in names),
        "both workers at work",
        deadline_seconds=WORKING_AGAIN_SECONDS,
    )
    assert len({made.running_on(name) for name in names}) == 2
    for name in names:
        made.open_gate(name)
    assert made.ended(retried) == "dead_letter"
    assert [process.poll() for process in processes] == [None] * len(processes)


def _call(caller: Caller, snippet: str = "call('{}')") -> tuple[UUID, float]:
    job_id, seconds = caller.value(snippet.format(uuid4()))
    return UUID(job_id), float(seconds)


def _stop(made: Cluster) -> None:
    made.broker.stop()


def _start(made: Cluster) -> None:
    made.broker.start()


def _freeze(made: Cluster) -> None:
    _signal(made, signal.SIGSTOP)


def _thaw(made: Cluster) -> None:
    _signal(made, signal.SIGCONT)


def _signal(made: Cluster, number: signal.Signals) -> None:
    pid = made.broker.pid
    assert pid is not None
    os.kill(pid, number)
