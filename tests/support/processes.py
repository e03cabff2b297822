"""Real worker and beat processes for tests, stopped by pid also when the test fails."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Self

from support.waiting import until

from billing_jobs.config import child_environment

#: A process that does not end by itself is killed after this long.
STOP_SECONDS = 20.0


@dataclass
class Processes:
    """Celery processes on one database and broker; a context manager that leaves none behind."""

    directory: Path
    settings: Mapping[str, object]
    environment: Mapping[str, str] = field(default_factory=dict)
    #: Whether what runs at the end is asked to end, which takes seconds, or killed.
    graceful: bool = True
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __enter__(self) -> Self:
        """Start nothing yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave nothing behind; what does not end is killed, with everything it started."""
        if self.graceful:
            self._ask_all_to_end()
        for process in self.running:
            kill(process)

    def worker(
        self, *options: str, concurrency: int = 1, settings: Mapping[str, object] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a worker and wait until it is ready; several may run at once."""
        process = self.launch_worker(*options, concurrency=concurrency, settings=settings)
        self.wait_ready(process)
        return process

    def wait_ready(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until a worker takes rings."""
        log = self.log_of(process)
        until(lambda: says(log, " ready"), f"a worker that is ready, see {log}")

    def launch_worker(
        self, *options: str, concurrency: int = 1, settings: Mapping[str, object] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a worker and do not wait for it."""
        return self._celery(
            "worker",
            "--without-mingle",
            "--without-gossip",
            f"--hostname=worker{len(self.running)}@test",
            f"--concurrency={concurrency}",
            "--loglevel=INFO",
            *options,
            settings=settings,
        )

    def beat(self) -> subprocess.Popen[bytes]:
        """Start a beat and wait until its dispatcher runs."""
        (process,) = self.beats(1)
        return process

    def beats(self, number: int) -> list[subprocess.Popen[bytes]]:
        """Start some beats at the same time and wait until their dispatchers run."""
        started = [self.launch_beat() for _ in range(number)]
        for process in started:
            log = self.log_of(process)
            until(partial(says, log, "beat.started"), f"a beat that is started, see {log}")
        return started

    def launch_beat(self, settings: Mapping[str, object] | None = None) -> subprocess.Popen[bytes]:
        """Start a beat and do not wait for it."""
        return self._celery("beat", "--loglevel=INFO", settings=settings)

    def start(self, *argv: str) -> tuple[subprocess.Popen[bytes], Path]:
        """Start a Python module of ours; return it with its log."""
        process = self._spawn(sys.executable, "-m", *argv)
        return process, self.log_of(process)

    def log_of(self, process: subprocess.Popen[bytes]) -> Path:
        """Return what a process of ours wrote so far."""
        return self.directory / f"{self.running.index(process)}.log"

    def stop(self, process: subprocess.Popen[bytes]) -> int:
        """Ask a process to end and return its exit status."""
        ask_to_end(process)
        return process.wait(STOP_SECONDS)

    def _ask_all_to_end(self) -> None:
        for process in self.running:
            ask_to_end(process)
        deadline = time.monotonic() + STOP_SECONDS
        for process in self.running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))

    def _celery(
        self, *options: str, settings: Mapping[str, object] | None = None
    ) -> subprocess.Popen[bytes]:
        command = (sys.executable, "-m", "celery", "-A", "billing_jobs")
        return self._spawn(*command, *options, settings=settings)

    def _spawn(
        self, *argv: str, settings: Mapping[str, object] | None = None
    ) -> subprocess.Popen[bytes]:
        log = self.directory / f"{len(self.running)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                argv,
                env={
                    **child_environment({**self.settings, **(settings or {})}),
                    **self.environment,
                },
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.running.append(process)
        return process


def ask_to_end(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM to the process alone, as a supervisor does; harmless when it is gone."""
    if process.poll() is None:
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGTERM)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process with its group; harmless when it is gone."""
    # Once it is reaped its number may be somebody else's; its children died with it.
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(STOP_SECONDS)


def children(pid: int) -> list[int]:
    """Return the living children of a process."""
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            lines = dict(
                line.split(":", 1) for line in status.read_text().splitlines() if ":" in line
            )
        except OSError:
            continue
        if int(lines["PPid"]) == pid and not lines["State"].strip().startswith("Z"):
            found.append(int(lines["Pid"]))
    return sorted(found)


def says(log: Path, text: str) -> bool:
    """Whether a log holds this text by now."""
    return log.exists() and text in log.read_text(errors="replace")
