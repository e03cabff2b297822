"""
The sandbox gateway as a process: killed, restarted, stopped, fed nonsense.

Its journal is the oracle of all money tests. An oracle that forgets a charge would hide the very
mistake it is there to show.
"""

from __future__ import annotations

import ast
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from threading import Thread
from urllib.parse import urlencode

import pytest
import urllib3
from support.wire import SandboxProcess, sandbox_process, wait_until

import billing_jobs.sandbox
from billing_jobs.sandbox import server as server_module
from billing_jobs.sandbox.__main__ import main
from billing_jobs.sandbox.app import App, Request
from billing_jobs.sandbox.book import Book
from billing_jobs.sandbox.journal import Journal, JournalDamaged, read_captures
from billing_jobs.sandbox.server import SandboxServer

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


def request_bytes(path: str, *headers: str, method: str = "GET") -> bytes:
    """Return a request as it stands on the wire."""
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", *headers, "", ""]).encode()


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


@pytest.mark.parametrize("torn", [b'{"capture":{"charge":"ch_', b"\x00" * 60 + b"\n", b"7\n"])
def test_a_torn_last_line_is_cut_off(tmp_path: Path, torn: bytes) -> None:
    """Killed in the middle of a write, the book opens again without what nobody was told."""
    path = tmp_path / "journal"
    first, second = {"capture": {"charge": "ch_1"}}, {"capture": {"charge": "ch_2"}}
    with closing(Journal(path)) as journal:
        journal.sync(journal.write(first))
    with path.open("ab") as file:
        file.write(torn)
    assert read_captures(path) == [first["capture"]]

    with closing(Journal(path)) as journal:
        journal.sync(journal.write(second))

    with closing(Journal(path)) as journal:
        assert list(journal.records()) == [first, second]


def test_an_answer_is_on_the_disk_before_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut nobody may hold an answer that the book does not know."""
    path = tmp_path / "journal"
    synced: list[int] = []
    with closing(Journal(path)) as journal:
        app = App(Book(journal, lambda: 0.0), lambda _seconds: None)
        real = os.fsync
        monkeypatch.setattr(os, "fsync", lambda file: (real(file), synced.append(size_of(path))))
        body = "amount=1&currency=eur&payment_method=pm_sandbox_ok&confirm=true"
        request = Request("POST", "/v1/payment_intents", "", {"authorization": "Bearer k"}, body)

        assert app.answer(request).status == 200

        assert synced == [size_of(path)]
        journal.sync(size_of(path))
        assert len(synced) == 1


def size_of(path: Path) -> int:
    """Return how many bytes are in a file."""
    return path.stat().st_size


def test_a_damaged_journal_stops_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the middle nothing can be torn; a guess there would be a false oracle."""
    journal = tmp_path / "journal"
    journal.write_bytes(b'{"clock":{"offset_seconds":0,"key_lifetime_seconds":1}}\n???\n{"a":1}\n')

    assert main(["--port", "0", "--journal", str(journal)]) == 2
    assert "Line 2" in capsys.readouterr().err


def test_a_book_with_two_charges_for_one_intent_is_refused(tmp_path: Path) -> None:
    """It cannot happen; should it, everything stops before it is hidden."""
    line = json.dumps({"capture": {"payment_intent": "pi_1"}})
    (tmp_path / "journal").write_text(f"{line}\n{line}\n")
    journal = Journal(tmp_path / "journal")

    with pytest.raises(JournalDamaged, match="pi_1 was captured twice"):
        Book(journal, lambda: 0.0)

    journal.close()
    journal.close()


def test_two_sandboxes_cannot_share_a_journal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each would charge what the other has charged already."""
    with closing(Journal(tmp_path / "journal")):
        assert main(["--port", "0", "--journal", str(tmp_path / "journal")]) == 2

    assert "--journal" in capsys.readouterr().err


def test_a_taken_port_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A traceback is no answer to a user."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])

        assert main(["--port", port, "--journal", str(tmp_path / "journal")]) == 2

    assert "cannot start" in capsys.readouterr().err


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


def test_the_oldest_keys_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound for keys, too; what is forgotten early is what Stripe would forget first."""
    monkeypatch.setattr("billing_jobs.sandbox.book.KEYS_MAX", 2)
    journal = Journal(tmp_path / "journal")
    book = Book(journal, lambda: 0.0)
    for key in ("first", "second", "third"):
        answer = {"fingerprint": "f", "status": 200, "body": "{}", "saved_at": 0.0}
        book.record({"answer": {"key": key, "answer": answer}})
    journal.close()

    assert book.answer_under("first") is None
    assert book.answer_under("third") is not None


def test_the_gateway_needs_nothing_but_the_standard_library() -> None:
    """The other side of the wire shares no code with ours: a shared mistake would hide in both."""
    directory = Path(billing_jobs.sandbox.__file__).parent
    imported = set()
    for path in directory.glob("*.py"):
        if path.name == "mail.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module)
            elif isinstance(node, ast.Import):
                imported |= {name.name for name in node.names}

    foreign = {
        name
        for name in imported
        if name.partition(".")[0] not in sys.stdlib_module_names
        and not name.startswith("billing_jobs.sandbox")
    }
    assert not foreign
