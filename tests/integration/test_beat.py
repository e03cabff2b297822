"""The beat as a process: it rings for what is due, frees what is stuck, and says when it cannot."""

from __future__ import annotations

import doctest
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import psycopg
import pytest
from redis import Redis
from support.cluster import TEMPLATE, Cluster, cluster
from support.kinds import plug_in
from support.processes import Processes, kill, says
from support.waiting import until

from billing_jobs import lifecycle
from billing_jobs.embedded.postgres import EmbeddedPostgres
from billing_jobs.lifecycle import Engine, Options
from billing_jobs.testing import RecordingDoorbell, postgres_engine
from billing_jobs.worker import beat
from billing_jobs.worker.beat import LOOK_SECONDS, Dispatcher

#: A bug in one step that nobody foresaw.
BROKEN_DISPATCHER = """
from billing_jobs.worker import beat

def ring_due(engine):
    raise ZeroDivisionError

beat.ring_due = ring_due
"""

#: A job in the hands of a worker that is no more.
ABANDON = """
    UPDATE jobs
    SET state = 'running', attempt = 1, token = nextval('job_tokens'), worker = 'gone@test',
        started_at = now(), lease_until = now()
    WHERE id = %s
"""


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> Iterator[Cluster]:
    """A cluster with two beats and no worker: what they ring for stays where it can be seen."""
    with cluster(tmp_path_factory.mktemp("beat"), postgres_server) as started:
        started.processes.beats(2)
        yield started


def test_two_beats_ring_for_what_is_due_and_leave_few_rings_behind(made: Cluster) -> None:
    """A lost ring is made good by any beat; ten beats must not be ten times the noise."""
    job_id = made.gated("due", queue="maintenance")

    until(lambda: made.rings("maintenance") >= 2, "two rings")
    for number in range(10):
        _looked(made, f"look {number}")

    # Two rings may wait by the settings; each beat may have counted before the other one rang.
    assert made.rings("maintenance") <= 4
    _end(made, job_id)


def test_a_job_that_is_not_due_rings_nobody_before_its_time(made: Cluster) -> None:
    """Retries and reminders wait for hours; a bell before the time wakes a worker for nothing."""
    job_id = made.gated("later", queue="invoices", delay_seconds=3600)
    for number in range(5):
        _looked(made, f"early look {number}")
    early = made.rings("invoices")

    made.query("UPDATE jobs SET run_at = clock_timestamp() WHERE id = %s", job_id)
    until(lambda: made.rings("invoices"), "a ring")

    assert early == 0
    _end(made, job_id)


def test_a_frozen_broker_does_not_keep_a_beat_from_freeing_jobs(made: Cluster) -> None:
    """Celery's own beat hangs in its producer with the broker; ours has a lease to look after."""
    job_id = made.gated("abandoned", queue="reminders")
    pid = made.broker.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        made.query(ABANDON, job_id)
        until(lambda: made.state(job_id) == "pending", "a rescue")
    finally:
        os.kill(pid, signal.SIGCONT)

    (run,) = made.engine.store.attempts(job_id)
    assert (run.outcome, run.worker) == ("lease_expired", "gone@test")
    _end(made, job_id)


def test_when_a_beat_is_killed_the_others_go_on(made: Cluster) -> None:
    """No beat is the leader: there is nothing to elect and nothing to wait for."""
    kill(made.processes.beat())

    job_id = made.gated("after the kill", queue="charges")
    until(lambda: made.rings("charges"), "a ring")
    _end(made, job_id)


def test_a_beat_waits_for_its_database_works_once_it_is_there_and_stops_when_told(
    made: Cluster, postgres_server: EmbeddedPostgres
) -> None:
    """Everything starts at the same moment after a power cut; the order must not matter."""
    url = postgres_server.url.replace("/postgres?", "/comes_later?")
    process = made.processes.launch_beat(settings={"database_url": url})
    log = made.processes.log_of(process)
    until(lambda: says(log, "beat.step_failed"), "a step that failed")

    with psycopg.connect(postgres_server.dsn, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE comes_later TEMPLATE {TEMPLATE}")
        try:
            with postgres_engine(url) as engine:
                lifecycle.enqueue(engine, "reminder", {"invoice_id": uuid4()})
                until(lambda: made.rings("reminders"), "a ring")
            status = made.processes.stop(process)
        finally:
            connection.execute("DROP DATABASE comes_later WITH (FORCE)")

    assert status == 0
    assert log.read_text().count("beat.stopped") == 1


def test_a_beat_whose_dispatcher_died_ends_and_says_why(made: Cluster, tmp_path: Path) -> None:
    """Alive and useless is the worst: no retry runs, and the supervisor sees a process."""
    plugins = plug_in(tmp_path, ["broken_dispatcher"])
    (plugins / "broken_dispatcher.py").write_text(BROKEN_DISPATCHER)
    path = f"{plugins}:{made.processes.environment['PYTHONPATH']}"
    with Processes(tmp_path, made.processes.settings, {"PYTHONPATH": path}) as processes:
        process = processes.launch_beat()

        assert process.wait(timeout=30) == 1
        assert says(processes.log_of(process), "the dispatcher's thread died; beat ends")


def test_a_turn_rings_once_a_queue_and_says_when_to_look_again(engine: Engine) -> None:
    """The pause follows the next due job, never shorter than asked and never long."""
    doorbell = engine.doorbell
    assert isinstance(doorbell, RecordingDoorbell)
    dispatcher = Dispatcher(engine, interval_seconds=0.05)
    assert dispatcher.turn() == LOOK_SECONDS
    for priority in (0, 4, 9):
        options = Options(delay_seconds=0.12, priority=priority)
        lifecycle.enqueue(engine, "charge", {"invoice_id": uuid4()}, options)

    pause = dispatcher.turn()
    quiet = list(doorbell.rings)
    until(lambda: engine.store.next_due_seconds() == 0, "due jobs")
    again = dispatcher.turn()

    assert 0.05 <= pause <= 0.12
    assert quiet == []
    assert doorbell.rings == ["charges"]
    assert again == 0.05
    assert not dispatcher.alive
    dispatcher.stop()
    assert dispatcher.stopped


def test_the_numbers_in_the_texts_are_true() -> None:
    """A formula in a docstring is read as a promise."""
    tried = doctest.testmod(beat)

    assert tried.failed == 0
    assert tried.attempted > 0


def _looked(made: Cluster, name: str) -> None:
    """Wait until a beat has looked at what is due once more: it rings for a new job."""
    job_id = made.gated(name, queue="default")
    until(lambda: made.rings("default"), f"a ring for {name}")
    assert made.engine.store.cancel(job_id, actor="test", reason="seen") == "cancelled"
    with Redis(unix_socket_path=str(made.broker.socket)) as client:
        client.delete("default")


def _end(made: Cluster, job_id: UUID) -> None:
    """Take the job and its rings away, for the other tests."""
    assert made.engine.store.cancel(job_id, actor="test", reason="seen") == "cancelled"
    with Redis(unix_socket_path=str(made.broker.socket)) as client:
        client.flushall()
