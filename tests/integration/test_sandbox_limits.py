"""
The bounds of the sandbox gateway's sockets, made small in a server of this process.

Every limit must refuse or delay, and never lose what was done.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread

import pytest
import urllib3
from support.scripted import request_bytes

from billing_jobs.sandbox import server as server_module
from billing_jobs.sandbox.app import App
from billing_jobs.sandbox.book import Book
from billing_jobs.sandbox.journal import Journal
from billing_jobs.sandbox.server import SandboxServer

_HEADERS = {
    "Authorization": "Bearer sk_test",
    "Content-Type": "application/x-www-form-urlencoded",
}


@contextmanager
def server_here(tmp_path: Path, host: str = "127.0.0.1") -> Iterator[SandboxServer]:
    """Run the server in this process, where its limits can be made small."""
    stopping = threading.Event()
    journal = Journal(tmp_path / "journal")
    app = App(Book(journal, time.monotonic), stopping.wait)
    server = SandboxServer((host, 0), app, stopping)
    accepting = Thread(target=server.run)
    accepting.start()
    yield server
    server.stop()
    accepting.join(20)
    journal.close()
    assert not accepting.is_alive()


def test_connections_above_the_limit_wait_for_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many clients are slow clients, not lost ones; and a stop ends the waiting."""
    monkeypatch.setattr(server_module, "CONNECTIONS_MAX", 1)
    health = request_bytes("/sandbox/health")
    with ExitStack() as connections, server_here(tmp_path) as server:
        first, second, third = (
            connections.enter_context(socket.create_connection(("127.0.0.1", server.port), 20))
            for _ in range(3)
        )
        for connection in (first, second, third):
            connection.sendall(health)
        assert first.recv(20).startswith(b"HTTP/1.1 200")
        second.settimeout(0.2)
        with pytest.raises(TimeoutError):
            second.recv(20)

        first.close()

        second.settimeout(20)
        assert second.recv(20).startswith(b"HTTP/1.1 200")


def test_an_intent_too_many_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of the sandbox has a bound, and the refusal says what to do."""
    monkeypatch.setattr("billing_jobs.sandbox.app.INTENTS_MAX", 0)
    with server_here(tmp_path) as server, urllib3.PoolManager(retries=False) as http:
        url = f"http://127.0.0.1:{server.port}/v1/payment_intents"
        answer = http.request("POST", url, body="amount=1&currency=eur", headers=_HEADERS)

    assert answer.status == 503
    assert "--journal" in answer.json()["error"]["message"]


def test_a_bug_is_told_and_closes_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A client then knows nothing, which is the truth; the operator reads why."""

    def broken(_app: App, _request: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(App, "answer", broken)
    with (
        server_here(tmp_path) as server,
        socket.create_connection(("127.0.0.1", server.port), 20) as connection,
    ):
        connection.sendall(request_bytes("/v1/payment_intents"))

        assert connection.recv(100) == b""

    assert "a bug" in capsys.readouterr().err


def test_it_listens_on_ipv6_too(tmp_path: Path) -> None:
    """`localhost` is ::1 on some machines."""
    with server_here(tmp_path, "::1") as server, urllib3.PoolManager(retries=False) as http:
        assert http.request("GET", f"http://[::1]:{server.port}/sandbox/health").status == 200
