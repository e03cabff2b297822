"""What a supervisor needs of anything it runs, and how it waits until that is ready."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import Protocol

from billing_jobs.domain.errors import ServerFailed
from billing_jobs.embedded.log_file import LogFile

#: A server is ready after some tens of milliseconds: ask often at first, then leave it the machine.
_ASK_SECONDS = 0.01
_ASK_SECONDS_MAX = 0.25
#: How often a person who waits is told what goes on.
_PROGRESS_SECONDS = 1.0


class Supervised(Protocol):
    """A server or a process of ours."""

    @property
    def name(self) -> str:
        """What people call it."""
        ...

    @property
    def restart(self) -> bool:
        """Whether it is started again when it ends by itself."""
        ...

    @property
    def log(self) -> LogFile:
        """Where its words go."""
        ...

    @property
    def pid(self) -> int | None:
        """The running process; None when there is none."""
        ...

    def launch(self) -> None:
        """Start it without waiting until it is ready; harmless when it runs."""
        ...

    def is_ready(self) -> bool:
        """Whether it does its work; may take as long as one question to it."""
        ...

    def poll(self) -> int | None:
        """Return the exit status of the last run; None while it runs, and before the first."""
        ...

    def stop(self) -> None:
        """End it, however long that takes within its own deadline; harmless when it ended."""
        ...


def await_ready(
    member: Supervised,
    *,
    deadline_seconds: float,
    on_progress: Callable[[str], None] | None = None,
) -> None:
    """
    Return when a launched member is ready; `on_progress` gets its last line every second.

    Raises:
        ServerFailed: it ended, or is not ready at the deadline; with the end of its log.
    """
    pause = threading.Event()
    started = time.monotonic()
    told, ask_seconds = started, _ASK_SECONDS
    while not member.is_ready():
        status = member.poll()
        if status is not None:
            raise failure(member, f"ended while starting: {describe_status(status)}")
        now = time.monotonic()
        if on_progress is not None and now - told >= _PROGRESS_SECONDS:
            on_progress(member.log.last_line())
            told = now
        if now - started >= deadline_seconds:
            raise failure(member, f"is not ready after {deadline_seconds:g} s")
        pause.wait(ask_seconds)
        ask_seconds = min(ask_seconds * 1.5, _ASK_SECONDS_MAX)


def failure(member: Supervised, what: str) -> ServerFailed:
    """Return the error that a person can act on."""
    return ServerFailed(f"{member.name} {what}. The end of {member.log.path}:\n{member.log.tail()}")


def describe_status(status: int) -> str:
    """Return an exit status in words."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"
