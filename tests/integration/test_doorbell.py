"""Rings over a real broker: few, small, quick, and never a reason to wait."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from redis import Redis
from support.scripted import ScriptedServer, scripted_server
from support.waiting import until

from billing_jobs.adapters.doorbell import DRAIN_TASK, BrokerDoorbell
from billing_jobs.embedded.valkey import EmbeddedValkey

#: What a caller loses to a broker at most; the setting below it is 200 ms.
RING_SECONDS = 0.3


class Clock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        """Start at nought."""
        self.seconds = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.seconds


def doorbell(url: str, clock: Clock | None = None, *, backlog: int = 2) -> BrokerDoorbell:
    """Make one with the limits of the defaults."""
    return BrokerDoorbell(
        url,
        backlog=backlog,
        timeout_seconds=0.2,
        pause_seconds=5.0,
        steady_seconds=clock or Clock(),
    )


def test_a_ring_is_one_small_message_that_says_where_to_look(broker: EmbeddedValkey) -> None:
    """No argument and no id of a job travels: a message that is lost or read tells nothing."""
    assert doorbell(broker.url).ring("charges")

    (message,) = _waiting(broker, "charges")

    assert message["headers"]["task"] == DRAIN_TASK
    assert message["headers"]["eta"] is None
    assert message["headers"]["ignore_result"] is True
    assert len(json.dumps(message)) < 4096


def test_no_more_rings_wait_in_a_queue_than_are_of_use(broker: EmbeddedValkey) -> None:
    """A thousand calls while all workers are busy must not leave a thousand bells to clear."""
    bell = doorbell(broker.url)

    answers = [bell.ring("charges") for _ in range(10)] + [bell.ring("reminders")]

    assert answers == [True] * 11
    assert [len(_waiting(broker, queue)) for queue in ("charges", "reminders")] == [2, 1]


def test_a_flushed_broker_takes_the_next_ring_at_once(broker: EmbeddedValkey) -> None:
    """A queue behind an exchange of its own would lose its binding and every message after it."""
    bell = doorbell(broker.url)
    assert bell.ring("charges")
    with Redis(unix_socket_path=str(broker.socket)) as client:
        client.flushall()

    assert bell.ring("charges")

    assert len(_waiting(broker, "charges")) == 1


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.timing
def test_a_frozen_broker_costs_one_time_out_and_then_nothing_for_a_while(
    *, warm: bool, broker: EmbeddedValkey
) -> None:
    """Connections stay open and the kernel accepts new ones: without limits each call hangs."""
    clock = Clock()
    bell = doorbell(broker.url, clock)
    assert not warm or bell.ring("charges")
    with _frozen(broker):
        first, *later = [_timed(bell) for _ in range(5)]
        clock.seconds = 6.0
        after_the_pause = _timed(bell)

    assert [rang for rang, _ in (first, *later, after_the_pause)] == [False] * 6
    assert first[1] < RING_SECONDS
    assert after_the_pause[1] < RING_SECONDS
    assert sum(seconds for _, seconds in later) < 0.05
    clock.seconds = 12.0
    assert bell.ring("charges")


@pytest.mark.timing
def test_a_broker_that_is_down_is_noticed_at_once_and_found_again(broker: EmbeddedValkey) -> None:
    """The closed port is the easy case, and the one in which Celery tries again for seconds."""
    clock = Clock()
    bell = doorbell(broker.url, clock)
    broker.stop()

    rang, seconds = _timed(bell)
    broker.start()

    assert not rang
    assert seconds < RING_SECONDS
    assert not bell.ring("charges"), "still within the pause"
    clock.seconds = 6.0
    assert bell.ring("charges")


@pytest.mark.timing
def test_a_name_that_does_not_resolve_costs_no_more() -> None:
    """A typing error in the address must not look like a slow shop."""
    rang, seconds = _timed(doorbell("redis://broker.invalid:6379/0"))

    assert not rang
    assert seconds < 2.0


def test_a_server_that_is_no_broker_is_a_ring_lost_and_not_an_error() -> None:
    """A port that somebody else took answers nonsense; the row is written all the same."""

    def nonsense(connection: socket.socket, _server: ScriptedServer) -> None:
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with scripted_server(nonsense) as server:
        assert not doorbell(f"redis://127.0.0.1:{server.port}/0").ring("charges")


def test_a_broker_that_answers_slowly_is_left_alone_for_a_while(broker: EmbeddedValkey) -> None:
    """Each step within its time-out, and all of them on each call, is a shop that feels broken."""

    def slowly(client: socket.socket, server: ScriptedServer) -> None:
        with socket.socket(socket.AF_UNIX) as behind:
            behind.connect(str(broker.socket))
            while not server.over.is_set():
                for source in select.select([client, behind], [], [], 0.1)[0]:
                    server.over.wait(0.08 if source is client else 0)
                    other = behind if source is client else client
                    other.sendall(source.recv(65_536))

    with scripted_server(slowly) as server:
        bell = BrokerDoorbell(
            f"redis://127.0.0.1:{server.port}/0",
            backlog=2,
            timeout_seconds=0.2,
            pause_seconds=60.0,
            steady_seconds=time.monotonic,
        )
        slow, quick = _timed(bell), _timed(bell)

    assert slow[0]
    assert slow[1] > 0.2
    assert not quick[0]
    assert quick[1] < 0.05


def test_a_full_broker_is_a_ring_lost_and_not_an_error(broker: EmbeddedValkey) -> None:
    """It refuses to write rather than to forget; somebody will make room, the rows can wait."""
    bell = doorbell(broker.url)
    with Redis(unix_socket_path=str(broker.socket)) as client:
        client.config_set("maxmemory", "1mb")
        assert not bell.ring("charges")
        client.config_set("maxmemory", "0")

    assert doorbell(broker.url).ring("charges")


def test_threads_ring_side_by_side_with_a_connection_each(broker: EmbeddedValkey) -> None:
    """A web server rings from many threads; a shared connection mixes up their answers."""
    bell = doorbell(broker.url, backlog=1000)
    answers: list[bool] = []
    start, counted = threading.Barrier(8), threading.Event()

    def ring() -> None:
        start.wait()
        answers.extend(bell.ring("charges") for _ in range(20))
        counted.wait(30)

    threads = [threading.Thread(target=ring) for _ in range(8)]
    for thread in threads:
        thread.start()
    until(lambda: len(answers) == 160, "all rings")
    connections = _ringers(broker).count(f"billing_jobs-ring-{os.getpid()}")
    counted.set()
    for thread in threads:
        thread.join()

    assert answers == [True] * 160
    # A channel of kombu's may open a second one for its first PING; shared, it would have fewer.
    assert connections >= 8
    assert len(_waiting(broker, "charges")) == 160


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_child_rings_over_a_connection_of_its_own(broker: EmbeddedValkey) -> None:
    """Two processes on one socket read each other's answers."""
    bell = doorbell(broker.url)
    assert bell.ring("charges")
    child = os.fork()
    if child == 0:  # pragma: no cover - the child
        rang = bell.ring("invoices")
        os._exit(0 if rang and f"billing_jobs-ring-{os.getpid()}" in _ringers(broker) else 1)

    _, status = os.waitpid(child, 0)

    assert status == 0
    assert bell.ring("reminders")
    assert [len(_waiting(broker, queue)) for queue in ("charges", "invoices", "reminders")] == [
        1,
        1,
        1,
    ]


def _ringers(broker: EmbeddedValkey) -> list[str]:
    """Return the names under which connections are open."""
    with Redis(unix_socket_path=str(broker.socket)) as client:
        return [str(connection["name"]) for connection in client.client_list()]


def _timed(bell: BrokerDoorbell) -> tuple[bool, float]:
    started = time.monotonic()
    return bell.ring("charges"), time.monotonic() - started


def _waiting(broker: EmbeddedValkey, queue: str) -> list[dict[str, Any]]:
    with Redis(unix_socket_path=str(broker.socket)) as client:
        return [json.loads(item) for item in client.lrange(queue, 0, -1)]


@contextmanager
def _frozen(broker: EmbeddedValkey) -> Iterator[None]:
    pid = broker.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
