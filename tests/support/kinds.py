"""
Kinds of jobs that only tests need, and the package that brings them to a worker.

They reach a worker as those of any other package do: through the entry points of a distribution on
its path, which `plug_in` writes into a directory of the test's own.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from billing_jobs.bootstrap import ENTRY_POINTS, load_registry
from billing_jobs.domain.job import ClaimedJob
from billing_jobs.domain.outcome import Completed, Outcome
from billing_jobs.ports import Ports
from billing_jobs.registry import Arguments, JobKind, Registry

#: A gate that nobody opens lets its job go on after this long.
GATE_SECONDS = 60.0

#: How often a job looks at its gate.
LOOK_SECONDS = 0.02


class NoArguments(Arguments):
    """Nothing."""


class Gate(Arguments):
    """A directory through which a test and a running job talk."""

    directory: Path
    name: str


def execute_broken(_job: ClaimedJob, _ports: Ports) -> Outcome:
    """Fail, each time."""
    raise ArithmeticError("this kind never succeeds")


def execute_gated(job: ClaimedJob, _ports: Ports) -> Outcome:
    """Say that it runs, and wait until the test opens the gate."""
    gate, deadline = _arrive(job), time.monotonic() + GATE_SECONDS
    while not gate.exists() and time.monotonic() < deadline:
        threading.Event().wait(LOOK_SECONDS)
    return Completed({"outcome": "passed"})


def execute_stubborn(job: ClaimedJob, _ports: Ports) -> Outcome:
    """Wait at the gate, and do not hear that the process is to end."""
    gate, deadline = _arrive(job), time.monotonic() + GATE_SECONDS
    while not gate.exists() and time.monotonic() < deadline:
        with contextlib.suppress(SystemExit):
            threading.Event().wait(LOOK_SECONDS)
    return Completed({"outcome": "passed"})


def _arrive(job: ClaimedJob) -> Path:
    gate = Path(str(job.arguments["directory"])) / str(job.arguments["name"])
    gate.with_suffix(".running").write_text(job.worker, encoding="utf-8")
    return gate


BROKEN = JobKind("test_broken", execute_broken, NoArguments)
#: Spends its attempts in 5 s.
BROKEN_SHORTLY = JobKind("test_broken_shortly", execute_broken, NoArguments, max_attempts=3)
GATED = JobKind("test_gated", execute_gated, Gate)
STUBBORN = JobKind("test_stubborn", execute_stubborn, Gate)
KINDS = (BROKEN, BROKEN_SHORTLY, GATED, STUBBORN)


def with_test_kinds() -> Registry:
    """Return a registry of all our kinds and the ones for tests."""
    ours, extended = load_registry(), Registry()
    for kind in (*(ours.get(name) for name in ours.names()), *KINDS):
        extended.add(kind)
    extended.close()
    return extended


def plug_in(directory: Path, modules: Iterable[str]) -> Path:
    """Write a distribution whose entry points name these modules; its path goes to PYTHONPATH."""
    path = directory / "plugins"
    info = path / "test_kinds-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: test-kinds\nVersion: 1.0\n")
    lines = [f"[{ENTRY_POINTS}]", *(f"plugin{n} = {name}" for n, name in enumerate(modules))]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return path
