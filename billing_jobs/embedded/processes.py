"""
The processes of `billing-jobs up`: start in order, watch, start again with growing pauses, stop.

It has no thread and no loop of its own: the caller calls `watch` as often as it likes, twice a
second for example. What the processes are is the caller's; our servers are watched the same way.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from billing_jobs.domain.errors import EmbeddedError
from billing_jobs.embedded.children import Child, Program
from billing_jobs.embedded.log_file import LogFile
from billing_jobs.embedded.supervised import Supervised, await_ready, describe_status

#: A worker connects to two servers and imports much.
START_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class ProcessSpec:
    """What to run, and how it is asked to stop."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    log: Path
    #: Asked until it says yes; None for a process that is ready once it runs.
    ready: Callable[[], bool] | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    stop_deadline_seconds: float = 10.0
    #: What it gets when we die; None is the stop signal. A process that cannot be sure to end
    #: without the servers that die beside it is killed.
    death_signal: signal.Signals | None = None
    #: Whether it is started again when it ends by itself.
    restart: bool = True


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """How long to wait before a process that ended is started again, and when to give up."""

    first_seconds: float = 0.5
    factor: float = 2.0
    seconds_max: float = 30.0
    #: Ends in a row after which it stays down; with the pauses above that is three minutes.
    failures_max: int = 10
    #: Whoever ran so long starts again with the first pause.
    healthy_seconds: float = 60.0

    def pause_seconds(self, failures: int) -> float:
        """
        Return the pause after so many ends in a row.

        >>> [Backoff().pause_seconds(failures) for failures in (1, 2, 3, 7, 8)]
        [0.5, 1.0, 2.0, 30.0, 30.0]
        """
        return min(self.first_seconds * self.factor ** (failures - 1), self.seconds_max)


class Process:
    """A `ProcessSpec` that can run."""

    def __init__(self, spec: ProcessSpec) -> None:
        self._spec = spec
        self.name = spec.name
        self.restart = spec.restart
        self.log = LogFile(spec.log)
        self._child: Child | None = None

    @property
    def pid(self) -> int | None:
        """The running process; None when there is none."""
        return None if self._child is None or self._child.poll() is not None else self._child.pid

    def launch(self) -> None:
        """
        Start it; harmless when it runs.

        Crash safety: if we die, it gets its death signal.

        Raises:
            ServerFailed: the system did not start a process at all.
        """
        if self.pid is not None:
            return
        spec = self._spec
        program = Program(
            argv=spec.argv,
            env=spec.env,
            log=self.log,
            death_signal=spec.death_signal or spec.stop_signal,
        )
        self._child = Child.start(program)

    def is_ready(self) -> bool:
        """Whether it runs and its `ready` says so."""
        return self.pid is not None and (self._spec.ready is None or self._spec.ready())

    def poll(self) -> int | None:
        """Return the exit status of the last run; None while it runs, and before the first."""
        return None if self._child is None else self._child.poll()

    def stop(self) -> None:
        """
        Ask it to end, kill it and its group at the deadline; harmless when it ended.

        Crash safety: if we die meanwhile, it has its stop signal already.

        Raises:
            ServerFailed: not even SIGKILL ended it.
        """
        if self._child is not None:
            spec = self._spec
            self._child.stop(spec.stop_signal, deadline_seconds=spec.stop_deadline_seconds)
        self._child = None


@dataclass
class _Watched:
    """A member and what happened to it."""

    member: Supervised
    ready: bool = False
    failures: int = 0
    started_at: float = 0.0
    #: When it is to be started again; None while it runs.
    restart_at: float | None = None
    down: bool = False


def _ignore(_name: str, _what: str) -> None:
    """Tell nobody."""


class ProcessSet:
    """Named members in the order in which they start."""

    def __init__(
        self,
        members: Sequence[ProcessSpec | Supervised],
        *,
        on_event: Callable[[str, str], None] = _ignore,
        backoff: Backoff | None = None,
        stop_order: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Stop in `stop_order`, or else in the reverse order; `on_event` gets name and sentence."""
        self._watched = {
            member.name: _Watched(Process(member) if isinstance(member, ProcessSpec) else member)
            for member in members
        }
        if len(self._watched) != len(members):
            raise ValueError("Bug: two members have the same name.")
        self._stop_order = tuple(stop_order) or tuple(reversed(self._watched))
        if set(self._stop_order) != set(self._watched):
            raise ValueError("Bug: the stop order does not name every member once.")
        self._on_event = on_event
        self._backoff = backoff or Backoff()
        self._clock = clock

    @property
    def pids(self) -> dict[str, int | None]:
        """The process of each; None for one that does not run."""
        return {name: watched.member.pid for name, watched in self._watched.items()}

    def start(self, *, deadline_seconds: float = START_SECONDS) -> None:
        """
        Start one after the other, each when the one before is ready; each has the deadline.

        If one fails, those that run are stopped.

        Crash safety: if we die in between, those that run get their stop signals.

        Raises:
            EmbeddedError: a member does not start or does not get ready.
        """
        started = False
        try:
            for watched in self._watched.values():
                self._launch(watched)
                await_ready(watched.member, deadline_seconds=deadline_seconds)
                self._tell_ready(watched)
            started = True
        finally:
            if not started:
                self.stop()

    def watch(self) -> tuple[str, ...]:
        """
        Look at each once, start again what is due, and return the names of those that stay down.

        Crash safety: it only reads and starts; calling it twice is harmless.
        """
        for watched in self._watched.values():
            if watched.restart_at is not None:
                self._restart_if_due(watched, watched.restart_at)
            elif not watched.down:
                self._look(watched)
        return tuple(name for name, watched in self._watched.items() if watched.down)

    def stop(self) -> None:
        """
        Stop all, each within its own deadline; one that cannot be ended does not keep the others.

        Crash safety: if we die in between, the others get their stop signals.

        Raises:
            EmbeddedError: the first of those that could not be ended.
        """
        errors: list[EmbeddedError] = []
        for name in self._stop_order:
            watched = self._watched[name]
            running = watched.member.pid is not None
            watched.restart_at, watched.ready = None, False
            try:
                watched.member.stop()
            except EmbeddedError as error:
                errors.append(error)
                self._on_event(name, error.message)
            else:
                if running:
                    self._on_event(name, "stopped")
        if errors:
            raise errors[0]

    def _launch(self, watched: _Watched) -> None:
        watched.started_at = self._clock()
        watched.ready = False
        watched.member.launch()

    def _look(self, watched: _Watched) -> None:
        status = watched.member.poll()
        if status is not None:
            self._plan_restart(watched, f"ended with {describe_status(status)}")
            return
        if not watched.ready and watched.member.is_ready():
            self._tell_ready(watched)
        if self._clock() - watched.started_at >= self._backoff.healthy_seconds:
            watched.failures = 0

    def _plan_restart(self, watched: _Watched, what: str) -> None:
        name = watched.member.name
        watched.failures += 1
        if not watched.member.restart:
            watched.down = True
            self._on_event(name, what)
        elif watched.failures >= self._backoff.failures_max:
            watched.down = True
            self._on_event(
                name, f"{what}, {watched.failures} times in a row: it stays down; see its log"
            )
        else:
            pause_seconds = self._backoff.pause_seconds(watched.failures)
            watched.restart_at = self._clock() + pause_seconds
            self._on_event(name, f"{what}; starts again in {pause_seconds:g} s")

    def _restart_if_due(self, watched: _Watched, due_at: float) -> None:
        if self._clock() < due_at:
            return
        watched.restart_at = None
        try:
            self._launch(watched)
        except EmbeddedError as error:
            self._plan_restart(watched, f"did not start: {error.message}")

    def _tell_ready(self, watched: _Watched) -> None:
        watched.ready = True
        self._on_event(watched.member.name, f"ready, pid {watched.member.pid}")
