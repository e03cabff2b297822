"""
One child process: its own session, on a leash, with a log; started, watched, stopped, reaped.

It knows nothing of what the child does. Every child has a thread of ours that starts it and then
waits for its end. Linux sends the parent-death signal when the *thread* that started a child ends,
not the process; so a child lives exactly as long as its thread, whoever asked for it. The same
thread reaps the child under a lock, so no signal of ours ever goes to a number that was reused.

macOS has no parent-death signal: there a child outlives a supervisor that was killed with -9, and
the next start ends it or says that it is still there.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from billing_jobs.domain.errors import ServerFailed
from billing_jobs.embedded.identity import SAME, Identity, leash_argv
from billing_jobs.embedded.log_file import LogFile

#: A process that is still there so long after SIGKILL hangs in the kernel, on a disk as a rule.
_KILL_SECONDS = 20.0


@dataclass(frozen=True, kw_only=True)
class Program:
    """What to start; nothing is inherited but what is named here."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    log: LogFile
    #: The working directory; None for ours.
    directory: Path | None = None
    identity: Identity = SAME
    #: What the child gets when we die.
    death_signal: signal.Signals = signal.SIGTERM
    #: Descriptors that stay open in the child.
    inherited: tuple[int, ...] = ()


class Child:
    """A process that was started; use `Child.start`."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._lock = threading.Lock()
        self._known = threading.Event()
        self._ended = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._refused: OSError | None = None
        self._status: int | None = None

    @classmethod
    def start(cls, program: Program) -> Child:
        """
        Start it and return at once.

        Crash safety: if we die at any point, the child gets its death signal, or never becomes the
        program (`leash`). Starting twice makes two processes.

        Raises:
            ServerFailed: the system did not start a process at all.
        """
        child = cls(program)
        name = Path(program.argv[0]).name
        threading.Thread(target=child._keep, name=f"keeper of {name}", daemon=True).start()
        child._known.wait()
        if child._refused is not None:
            raise ServerFailed(
                f"{program.argv[0]} could not be started: {child._refused.strerror}."
            ) from child._refused
        return child

    @property
    def pid(self) -> int:
        """Its process id, also after its end."""
        if self._process is None:
            raise RuntimeError("Bug: a child was used before it was started.")
        return self._process.pid

    def poll(self) -> int | None:
        """Return its exit status, negative for a signal; None while it runs. Trims its log."""
        self._program.log.trim()
        return self._status

    def wait(self, seconds: float) -> bool:
        """Wait for its end; False when it still runs then."""
        return self._ended.wait(seconds)

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        with self._lock:
            if self._status is None:
                os.kill(self.pid, number)

    def stop(self, number: signal.Signals, *, deadline_seconds: float) -> int:
        """
        Ask it to end, kill it at the deadline, and return its exit status.

        Crash safety: if we die while it ends, its death signal asks once more. Stopping twice is
        harmless.

        Raises:
            ServerFailed: not even SIGKILL ended it.
        """
        self.send(number)
        if not self.wait(deadline_seconds):
            self.send(signal.SIGKILL)
            self.wait(_KILL_SECONDS)
        if self._status is None:
            raise ServerFailed(
                f"{self._program.argv[0]} (pid {self.pid}) does not end, not even by SIGKILL. "
                "It hangs in the kernel: look at its disk."
            )
        return self._status

    def _keep(self) -> None:
        try:
            process = self._process = self._spawn()
        except OSError as error:
            self._refused = error
            return
        finally:
            self._known.set()
        _await_end(process)
        with self._lock:
            # While its end is not reaped, its number, and so its group's, belongs to nobody else.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            self._status = process.wait()
        self._ended.set()

    def _spawn(self) -> subprocess.Popen[bytes]:
        program = self._program
        argv = leash_argv(
            identity=program.identity, death_signal=program.death_signal, argv=program.argv
        )
        output = program.log.open()
        try:
            return subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=program.directory,
                env=dict(program.env),
                pass_fds=program.inherited,
                start_new_session=True,
            )
        finally:
            os.close(output)


def _await_end(process: subprocess.Popen[bytes]) -> None:
    """Wait for the end without reaping it, so that its number stays its own."""
    if hasattr(os, "waitid"):
        # Already reaped where somebody ignores SIGCHLD.
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    else:  # pragma: no cover -- macOS before Python 3.13
        process.wait()
