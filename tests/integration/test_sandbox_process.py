"""
The sandbox gateway as a process: killed, restarted, stopped, fed nonsense.

Its journal is the oracle of all money tests. An oracle that forgets a charge would hide the very
mistake it is there to show.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from urllib.parse import urlencode

import pytest
import urllib3
from support.scripted import request_bytes
from support.wire import SandboxProcess, sandbox_process, wait_until

from billing_jobs.sandbox.journal import read_captures

_HEADERS = {
    "Authorization": "Bearer sk_test",
    "Content-Type": "application/x-www-form-urlencoded",
}


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxProcess]:
    """One process for the tests that do not stop it."""
    with sandbox_process(tmp_path_factory.mktemp("gateway")) as server:
        yield server


def create(sandbox: SandboxProcess, token: str = "pm_sandbox_ok", key: str = "") -> str:
    """Create a payment intent; return its id."""
    form = {"amount": 2000, "currency": "eur", "payment_method": token}
    headers = _HEADERS | ({"Idempotency-Key": key} if key else {})
    url = f"{sandbox.url}/v1/payment_intents"
    answer = sandbox.http.request("POST", url, body=urlencode(form), headers=headers, timeout=30)
    return str(answer.json()["id"])


def confirm(sandbox: SandboxProcess, identifier: str, key: str) -> urllib3.BaseHTTPResponse:
    """Confirm a payment intent."""
    url = f"{sandbox.url}/v1/payment_intents/{identifier}/confirm"
    headers = _HEADERS | {"Idempotency-Key": key}
    return sandbox.http.request("POST", url, headers=headers, timeout=30)


def spoken(sandbox: SandboxProcess, sent: bytes) -> bytes:
    """Send bytes as they are; return everything until the server closes."""
    with socket.create_connection(("127.0.0.1", sandbox.port), timeout=20) as connection:
        connection.sendall(sent)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
    return received


def test_a_restart_forgets_nothing(tmp_path: Path) -> None:
    """Intents, captures, keys, counts, faults and the clock survive `kill -9`."""
    with sandbox_process(tmp_path) as sandbox:
        paid = create(sandbox, key="create-1")
        first = confirm(sandbox, paid, "confirm-1")
        failing = create(sandbox, "pm_sandbox_error_before_charge_x1")
        assert confirm(sandbox, failing, "confirm-2").status == 500
        sandbox.advance(3600)
        sandbox.set_faults({"operation": "confirm", "fault": "busy", "match": {"a": "b"}})
        before = sandbox.admin("GET", "/sandbox/health")["now"]

        sandbox.restart()

        assert create(sandbox, key="create-1") == paid
        again = confirm(sandbox, paid, "confirm-1")
        assert (again.data, again.headers["Idempotent-Replayed"]) == (first.data, "true")
        assert confirm(sandbox, failing, "confirm-2").status == 500
        assert confirm(sandbox, failing, "confirm-3").status == 200
        assert [capture["payment_intent"] for capture in sandbox.journal()] == [paid, failing]
        assert sandbox.admin("GET", "/sandbox/health")["now"] >= before
        assert sandbox.admin("GET", "/sandbox/faults")["script"][0]["match"] == {"a": "b"}
        assert sandbox.requests()["idempotency_keys"][failing] == {"confirm": 2}


def test_what_was_answered_survives_a_kill_under_load(tmp_path: Path) -> None:
    """Whoever got an answer must find its charge in the book, and nobody is charged twice."""
    with sandbox_process(tmp_path) as sandbox:
        intents = [create(sandbox) for _ in range(120)]
        answered: list[str] = []
        shares = [intents[number::4] for number in range(4)]
        threads = [Thread(target=confirm_all, args=(sandbox, one, answered)) for one in shares]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(answered) >= 30)
        sandbox.kill()
        for thread in threads:
            thread.join(30)
        on_disk = {capture["payment_intent"] for capture in sandbox.captures_on_disk()}
        assert set(answered) <= on_disk
        with sandbox.journal_path.open("ab") as journal:
            journal.write(b'{"capture":{"charge":"ch_torn')

        sandbox.start()

        confirm_all(sandbox, intents, answered)
        captured = [capture["payment_intent"] for capture in sandbox.journal()]
        assert sorted(captured) == sorted(intents)


def confirm_all(sandbox: SandboxProcess, intents: list[str], answered: list[str]) -> None:
    """Confirm one after the other until the gateway is gone; note who got an answer."""
    for identifier in intents:
        try:
            assert confirm(sandbox, identifier, f"key-{identifier}").status == 200
        except urllib3.exceptions.HTTPError:
            return
        answered.append(identifier)


def test_a_full_disk_captures_nothing(tmp_path: Path) -> None:
    """What cannot be written down must not happen, and the next line must not be glued to it."""
    journal, port_file = tmp_path / "journal", tmp_path / "port"
    arguments = ["--port", "0", "--journal", str(journal), "--port-file", str(port_file)]
    # A bound on the size of files is the full disk that needs no privileges.
    program = f"""
import resource, signal
from billing_jobs.sandbox.__main__ import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
before = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (6000, before[1]))
main({arguments!r})
resource.setrlimit(resource.RLIMIT_FSIZE, before)
"""
    sandbox = SandboxProcess("", [], tmp_path)
    sandbox.process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL)
    try:
        wait_until(port_file.exists)
        sandbox.port = int(port_file.read_text())
        statuses = [created_status(sandbox) for _ in range(6)]
        captures = sandbox.journal()
    finally:
        sandbox.stop()
        sandbox.http.clear()

    assert statuses[0] == 200
    assert statuses[-1] == 500
    assert journal.read_bytes().endswith(b"\n")
    assert len(captures) == statuses.count(200) == len(read_captures(journal))


def created_status(sandbox: SandboxProcess) -> int:
    """Create and confirm in one request; return the status."""
    form = {"amount": 2000, "currency": "eur", "payment_method": "pm_sandbox_ok", "confirm": "true"}
    url = f"{sandbox.url}/v1/payment_intents"
    return sandbox.http.request("POST", url, body=urlencode(form), headers=_HEADERS).status


def test_sigterm_ends_it_within_a_second_and_lets_held_requests_go(tmp_path: Path) -> None:
    """A supervisor's stop must not wait for a client that hangs on purpose."""
    with sandbox_process(tmp_path) as sandbox:
        held = create(sandbox, "pm_sandbox_hang_after_charge")
        path = f"/v1/payment_intents/{held}/confirm"
        request = request_bytes(path, "Authorization: Bearer k", "Content-Length: 0", method="POST")
        with socket.create_connection(("127.0.0.1", sandbox.port), timeout=20) as connection:
            connection.sendall(request)
            wait_until(lambda: len(sandbox.journal()) == 1)

            started = time.monotonic()
            status = sandbox.stop()
            took = time.monotonic() - started

            assert connection.recv(100) == b""
    assert status == 0
    assert took < 5.0


def test_a_held_request_ends_when_its_client_leaves(sandbox: SandboxProcess) -> None:
    """A thread a hanging client must not stay behind."""
    threads = Path(f"/proc/{sandbox.pid}/task")
    held = create(sandbox, "pm_sandbox_hang_before_charge")
    path = f"/v1/payment_intents/{held}/confirm"
    request = request_bytes(path, "Authorization: Bearer k", "Content-Length: 0", method="POST")
    with socket.create_connection(("127.0.0.1", sandbox.port), timeout=20) as connection:
        connection.sendall(request)
        wait_until(lambda: "held" in sandbox.requests()["routes"].get("confirm", {}))
        during = len(list(threads.iterdir()))

    wait_until(lambda: len(list(threads.iterdir())) < during)


def test_a_connection_is_kept_alive(sandbox: SandboxProcess) -> None:
    """A connection for each request would measure the sandbox, not the workers."""
    health = request_bytes("/sandbox/health")
    last = request_bytes("/sandbox/health", "Connection: close")

    received = spoken(sandbox, health + health + last)

    assert received.count(b"HTTP/1.1 200 OK") == 3
    assert received.count(b"Connection: close") == 1


def test_a_request_out_of_bounds_is_refused(sandbox: SandboxProcess) -> None:
    """Whoever speaks to it cannot make it wait or grow."""
    requests = {
        request_bytes("/v1/x", "Content-Length: 70000", method="POST"): b"413",
        request_bytes("/v1/x", "Content-Length: many", method="POST"): b"411",
        request_bytes("/v1/x", "Transfer-Encoding: chunked", method="POST"): b"411",
        request_bytes("/v1/x", method="BREW"): b"501",
        b"GET /v1/x HTTP/9.9\r\n\r\n": b"505",
        b"nonsense\r\n\r\n": b"400",
    }

    statuses = [spoken(sandbox, sent)[:40].split(b" ")[1] for sent in requests]

    assert sandbox.admin("GET", "/sandbox/health")["status"] == "ok"
    assert statuses == list(requests.values())


def test_an_unfinished_body_is_let_go(sandbox: SandboxProcess) -> None:
    """A client that dies while it sends has asked for nothing."""
    head = request_bytes("/v1/payment_intents", "Content-Length: 100", method="POST")
    with socket.create_connection(("127.0.0.1", sandbox.port), timeout=20) as connection:
        connection.sendall(head + b"amount=1")
        connection.shutdown(socket.SHUT_WR)

        assert connection.recv(100) == b""
