"""Real worker and beat processes for tests, stopped by pid also when the test fails."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from support.waiting import until

from billing_jobs.config import child_environment

#: A worker that does not end by itself is killed after this long.
STOP_SECONDS = 20.0


@dataclass
class Processes:
    """Celery processes on one database and broker; a context manager that leaves none behind."""

    directory: Path
    settings: Mapping[str, object]
    environment: Mapping[str, str] = field(default_factory=dict)
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __enter__(self) -> Self:
        """Start nothing yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kill what runs, with everything it started."""
        for process in self.running:
            kill(process)

    def worker(self, *options: str, concurrency: int = 1) -> subprocess.Popen[bytes]:
        """Start a worker and wait until it is ready."""
        process, log = self._start(
            "worker",
            "--without-mingle",
            "--without-gossip",
            f"--concurrency={concurrency}",
            "--loglevel=INFO",
            *options,
        )
        until(lambda: _says(log, " ready"), f"a worker that is ready, see {log}")
        return process

    def beat(self) -> subprocess.Popen[bytes]:
        """Start a beat and wait until its dispatcher runs."""
        process, log = self._start("beat", "--loglevel=INFO")
        until(lambda: _says(log, "beat.started"), f"a beat that is started, see {log}")
        return process

    def start(self, *argv: str) -> tuple[subprocess.Popen[bytes], Path]:
        """Start a Python module of ours; return it with its log."""
        return self._spawn(argv[0].rpartition(".")[2], sys.executable, "-m", *argv)

    def _start(self, *options: str) -> tuple[subprocess.Popen[bytes], Path]:
        return self._spawn(
            options[0], sys.executable, "-m", "celery", "-A", "billing_jobs", *options
        )

    def _spawn(self, name: str, *argv: str) -> tuple[subprocess.Popen[bytes], Path]:
        log = self.directory / f"{name}-{len(self.running)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                argv,
                env={**child_environment(self.settings), **self.environment},
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.running.append(process)
        return process, log


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process with its group; harmless when it is gone."""
    with contextlib.suppress(ProcessLookupError):
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


def _says(log: Path, text: str) -> bool:
    return log.exists() and text in log.read_text(errors="replace")
