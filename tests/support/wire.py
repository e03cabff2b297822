"""
The other side of the wire as real processes: the sandbox gateway and the mail catcher.

Each runs on a free port in a directory of its own, so that tests may run side by side, and is
stopped by its process id, also when the test fails.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import EmailMessage
from pathlib import Path
from typing import Any, Self

import urllib3

from billing_jobs.sandbox.journal import read_captures
from billing_jobs.sandbox.mail import read_mailbox

#: A loaded machine may take long to start a Python process.
START_SECONDS_MAX = 30.0
#: Both servers promise to end within a second; a loaded machine gets more.
STOP_SECONDS_MAX = 20.0
_POLL_SECONDS = 0.01


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Return when the condition holds; fail when it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not true within {seconds} s"
        threading.Event().wait(_POLL_SECONDS)


@dataclass
class ServerProcess:
    """One server: its command, its process, its port."""

    module: str
    arguments: list[str]
    directory: Path
    process: subprocess.Popen[bytes] | None = None
    port: int = 0

    @property
    def pid(self) -> int:
        """The process id."""
        assert self.process is not None
        return self.process.pid

    def start(self) -> Self:
        """Start it and wait until it listens; a second start takes the port of the first."""
        port_file = self.directory / "port"
        port_file.unlink(missing_ok=True)
        log = self.directory / "log"
        command = [sys.executable, "-m", self.module, "--port", str(self.port)]
        command += ["--port-file", str(port_file), *self.arguments]
        with log.open("ab") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output)
        deadline = time.monotonic() + START_SECONDS_MAX
        while not port_file.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"{self.module} did not start:\n{log.read_text()}")
            threading.Event().wait(_POLL_SECONDS)
        self.port = int(port_file.read_text())
        return self

    def kill(self) -> None:
        """End it at once, as a power cut does."""
        assert self.process is not None
        if self.process.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
        self.process.wait(STOP_SECONDS_MAX)

    def stop(self) -> int:
        """Ask it to end; return its exit status."""
        assert self.process is not None
        if self.process.poll() is None:
            os.kill(self.pid, signal.SIGTERM)
        try:
            return self.process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def restart(self) -> None:
        """Kill it and start it again on the same port with the same files."""
        self.kill()
        self.start()


@dataclass
class SandboxProcess(ServerProcess):
    """A sandbox gateway."""

    http: urllib3.PoolManager = field(default_factory=lambda: urllib3.PoolManager(retries=False))

    @property
    def url(self) -> str:
        """What a gateway adapter is given."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def journal_path(self) -> Path:
        """The book on disk; `captures_on_disk` reads it."""
        return self.directory / "journal.jsonl"

    def journal(self) -> list[dict[str, Any]]:
        """Every capture that really happened, oldest first, as the process tells it."""
        captures: list[dict[str, Any]] = []
        has_more = True
        while has_more:
            page = self.admin("GET", f"/sandbox/journal?offset={len(captures)}")
            captures += page["data"]
            has_more = page["has_more"]
        return captures

    def captures_on_disk(self) -> list[dict[str, Any]]:
        """Every capture that really happened, also while the process is dead."""
        return read_captures(self.journal_path)

    def requests(self) -> dict[str, Any]:
        """Counters by route and outcome, and distinct keys by payment intent."""
        return self.admin("GET", "/sandbox/requests")

    def set_faults(self, *script: dict[str, Any], **plan: object) -> None:
        """Replace the plan: entries of `operation`, `fault`, `count`, `match`; rates and a seed."""
        self.admin("POST", "/sandbox/faults", {"script": list(script), **plan})

    def advance(self, seconds: float) -> None:
        """Move the gateway's clock forward."""
        self.admin("POST", "/sandbox/clock", {"advance_seconds": seconds})

    def settle(self, reference: str, outcome: str = "ok") -> None:
        """End a payment that is processing or waits for the customer: ok or decline_<code>."""
        self.admin("POST", "/sandbox/settle", {"payment_intent": reference, "outcome": outcome})

    def admin(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """Call one endpoint under /sandbox/."""
        content = None if body is None else json.dumps(body).encode()
        response = self.http.request(method, self.url + path, body=content, timeout=30)
        assert response.status == 200, response.data
        answer: dict[str, Any] = response.json()
        return answer


@dataclass
class MailCatcherProcess(ServerProcess):
    """A mail catcher."""

    @property
    def url(self) -> str:
        """What a mailer is given."""
        return f"smtp://127.0.0.1:{self.port}"

    @property
    def mailbox(self) -> Path:
        """The directory of the kept mails."""
        return self.directory / "mailbox"

    def mails(self) -> list[EmailMessage]:
        """Every mail that was kept, oldest first."""
        return read_mailbox(self.mailbox)


@contextmanager
def sandbox_process(tmp_path: Path) -> Iterator[SandboxProcess]:
    """Run a sandbox gateway with its files under `tmp_path`."""
    directory = tmp_path / "sandbox gateway"
    directory.mkdir(parents=True, exist_ok=True)
    arguments = ["--journal", str(directory / "journal.jsonl")]
    server = SandboxProcess("billing_jobs.sandbox", arguments, directory)
    with _running(server):
        try:
            yield server
        finally:
            server.http.clear()


@contextmanager
def mail_catcher_process(tmp_path: Path) -> Iterator[MailCatcherProcess]:
    """Run a mail catcher with its files under `tmp_path`."""
    directory = tmp_path / "mail catcher"
    directory.mkdir(parents=True, exist_ok=True)
    arguments = ["--mailbox", str(directory / "mailbox")]
    server = MailCatcherProcess("billing_jobs.sandbox.mail", arguments, directory)
    with _running(server):
        yield server


@contextmanager
def _running(server: ServerProcess) -> Iterator[None]:
    try:
        server.start()
        yield
    finally:
        if server.process is not None:
            server.stop()
