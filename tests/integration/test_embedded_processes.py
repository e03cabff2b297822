"""The processes of `up`: real children, started, watched, started again, stopped together."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from billing_jobs.domain.errors import ServerFailed
from billing_jobs.embedded.binaries import find_valkey
from billing_jobs.embedded.data_dir import DataDir
from billing_jobs.embedded.log_file import LogFile
from billing_jobs.embedded.processes import Backoff, ProcessSet, ProcessSpec
from billing_jobs.embedded.valkey import EmbeddedValkey

_DEADLINE_SECONDS = 30.0

_SLEEP = "exec sleep 60"
#: Says its pid and that of a child in its group, and ignores what asks it to stop.
_STUBBORN = "trap '' TERM; sleep 61 & echo $$ $!; wait; wait"

Spec = Callable[..., ProcessSpec]


class SteppedClock:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


class Events:
    """What was told, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def __call__(self, name: str, what: str) -> None:
        """Take one."""
        self.told.append((name, what.partition(", pid")[0]))


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    """Make specs of small shell scripts."""

    def make(name: str, script: str = _SLEEP, **options: object) -> ProcessSpec:
        return ProcessSpec(
            name=name,
            argv=("/bin/sh", "-c", script),
            env={"PATH": "/usr/bin:/bin"},
            **{"log": tmp_path / f"{name}.log", **options},  # type: ignore[arg-type]
        )

    return make


@pytest.fixture
def stopped() -> Iterator[list[ProcessSet]]:
    """Stop what a test put here, and see that no process is left."""
    sets: list[ProcessSet] = []
    yield sets
    for members in sets:
        pids = [pid for pid in members.pids.values() if pid is not None]
        members.stop()
        assert all(_is_gone(pid) for pid in pids)


def _is_gone(pid: int) -> bool:
    """Whether the process ended; one that nobody reaped yet has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def _eventually(condition: Callable[[], bool]) -> bool:
    pause = threading.Event()
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while not condition():
        if time.monotonic() >= deadline:
            return False
        pause.wait(0.01)
    return True


def _kill(members: ProcessSet, name: str) -> int:
    """Kill a member, see its end, and return its pid."""
    pid = members.pids[name]
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert _eventually(lambda: members.pids[name] is None)
    return pid


def test_members_start_in_order_each_when_the_one_before_is_ready(
    spec: Spec, stopped: list[ProcessSet], tmp_path: Path
) -> None:
    """A worker without its broker fails; Flower without workers prints alarming words."""
    events, marker = Events(), tmp_path / "ready"
    server = spec("server", f"touch '{marker}'; {_SLEEP}", ready=marker.exists)
    worker = spec("worker", f"test -e '{marker}' || exit 7; {_SLEEP}")
    members = ProcessSet([server, worker], on_event=events)
    stopped.append(members)

    members.start(deadline_seconds=_DEADLINE_SECONDS)
    pids = members.pids
    members.watch()

    assert events.told == [("server", "ready"), ("worker", "ready")]
    assert None not in pids.values()
    assert len(set(pids.values())) == 2


def test_one_that_does_not_start_ends_all_and_quotes_its_log(spec: Spec) -> None:
    """Half of a system that runs is worse than none, and nobody reads six logs to find out."""
    server = spec("server")
    worker = spec("worker", "echo no such queue; exit 3", ready=lambda: False)
    pids: list[int | None] = []

    def note(_name: str, _what: str) -> None:
        pids.append(members.pids["server"])

    members = ProcessSet([server, worker], on_event=note)

    with pytest.raises(ServerFailed, match=r"(?s)worker ended .*exit status 3.*no such queue"):
        members.start(deadline_seconds=_DEADLINE_SECONDS)

    assert members.pids == {"server": None, "worker": None}
    assert pids[0] is not None
    assert _is_gone(pids[0])


def test_one_that_dies_comes_back_after_growing_pauses(
    spec: Spec, stopped: list[ProcessSet]
) -> None:
    """A crash must heal by itself, be seen, and not become a busy loop."""
    events, clock = Events(), SteppedClock()
    members = ProcessSet([spec("worker")], on_event=events, clock=clock)
    stopped.append(members)
    members.start(deadline_seconds=_DEADLINE_SECONDS)
    pids = []

    for pause_seconds in (0.5, 1.0):
        pids.append(_kill(members, "worker"))
        members.watch()
        members.watch()
        assert members.pids["worker"] is None
        clock.now += pause_seconds
        assert members.watch() == ()
        members.watch()
    pids.append(members.pids["worker"] or 0)

    assert len(set(pids)) == 3
    assert events.told == [
        ("worker", "ready"),
        ("worker", "ended with killed by SIGKILL; starts again in 0.5 s"),
        ("worker", "ready"),
        ("worker", "ended with killed by SIGKILL; starts again in 1 s"),
        ("worker", "ready"),
    ]


def test_one_that_ran_long_starts_again_with_the_first_pause(
    spec: Spec, stopped: list[ProcessSet]
) -> None:
    """Two crashes in a month are not a series."""
    events, clock = Events(), SteppedClock()
    members = ProcessSet([spec("worker")], on_event=events, clock=clock)
    stopped.append(members)
    members.start(deadline_seconds=_DEADLINE_SECONDS)

    for _crash in range(2):
        _kill(members, "worker")
        members.watch()
        clock.now += 0.5
        members.watch()
        clock.now += Backoff().healthy_seconds
        members.watch()

    ends = [what for _name, what in events.told if what.startswith("ended")]
    assert ends == ["ended with killed by SIGKILL; starts again in 0.5 s"] * 2


def test_one_that_keeps_dying_stays_down_and_is_named(
    spec: Spec, stopped: list[ProcessSet], tmp_path: Path
) -> None:
    """The caller decides then; a person sees the status that never changes."""
    events, clock, broken = Events(), SteppedClock(), tmp_path / "broken"
    beat = spec("beat", f"test -e '{broken}' && exit 4; {_SLEEP}")
    members = ProcessSet([beat], on_event=events, clock=clock, backoff=Backoff(failures_max=3))
    stopped.append(members)
    members.start(deadline_seconds=_DEADLINE_SECONDS)
    broken.touch()
    _kill(members, "beat")

    for _attempt in range(2):
        assert members.watch() == ()
        clock.now += 5
        members.watch()
        assert _eventually(lambda: members.pids["beat"] is None)

    assert members.watch() == members.watch() == ("beat",)
    assert events.told[-1] == (
        "beat",
        "ended with exit status 4, 3 times in a row: it stays down; see its log",
    )


def test_one_that_need_not_come_back_stays_down(spec: Spec, stopped: list[ProcessSet]) -> None:
    """A command that did its work is no crash."""
    events = Events()
    members = ProcessSet([spec("once", restart=False)], on_event=events)
    stopped.append(members)
    members.start(deadline_seconds=_DEADLINE_SECONDS)

    _kill(members, "once")

    assert members.watch() == ("once",)
    assert events.told[-1] == ("once", "ended with killed by SIGKILL")


def test_a_server_of_ours_is_watched_like_a_process(
    spec: Spec, stopped: list[ProcessSet], tmp_path: Path
) -> None:
    """The broker that dies comes back, with the workers still there."""
    clock = SteppedClock()
    with DataDir(tmp_path / "data") as data_dir:
        valkey = EmbeddedValkey(
            data_dir.directory("valkey"),
            socket_dir=data_dir.sockets(),
            binary=find_valkey(),
            log=data_dir.directory("log") / "valkey.log",
        )
        members = ProcessSet([valkey, spec("worker")], clock=clock)
        stopped.append(members)
        members.start(deadline_seconds=_DEADLINE_SECONDS)
        first = _kill(members, "valkey")

        members.watch()
        clock.now += 1
        members.watch()

        assert _eventually(valkey.is_ready)
        assert valkey.pid != first
        members.stop()


def test_a_restart_that_cannot_even_be_tried_is_tried_again(
    spec: Spec, stopped: list[ProcessSet], tmp_path: Path
) -> None:
    """A directory that went away may come back; the watch itself must not end by it."""
    events, clock = Events(), SteppedClock()
    home = tmp_path / "home"
    home.mkdir()
    members = ProcessSet([spec("worker", log=home / "worker.log")], on_event=events, clock=clock)
    stopped.append(members)
    members.start(deadline_seconds=_DEADLINE_SECONDS)
    home.rename(tmp_path / "away")

    _kill(members, "worker")
    members.watch()
    clock.now += 1
    members.watch()
    failed = events.told[-1][1]
    (tmp_path / "away").rename(home)
    clock.now += 2
    members.watch()

    assert failed.startswith("did not start: /bin/sh could not be started")
    assert members.pids["worker"] is not None


def test_all_stop_in_the_order_that_was_asked_for(spec: Spec) -> None:
    """Workers must drain while the broker is still there."""
    events = Events()
    specs = [spec(name) for name in ("worker", "beat", "flower")]
    declared = ProcessSet(specs, on_event=events, stop_order=("worker", "flower", "beat"))
    reverse = ProcessSet(specs, on_event=events)

    for members in (declared, reverse):
        members.start(deadline_seconds=_DEADLINE_SECONDS)
        members.stop()
        members.stop()

    ended = [name for name, what in events.told if what == "stopped"]
    assert ended == ["worker", "flower", "beat", "flower", "beat", "worker"]


def test_one_that_ignores_the_signal_is_killed_with_its_children(spec: Spec) -> None:
    """A worker that hangs must not keep Ctrl-C waiting for ever, nor leave its pool behind."""
    stubborn = spec("stubborn", _STUBBORN, stop_deadline_seconds=0.2)
    members = ProcessSet([stubborn])
    members.start(deadline_seconds=_DEADLINE_SECONDS)
    log = LogFile(stubborn.log)
    assert _eventually(lambda: len(log.tail().split()) == 2)
    pids = [int(word) for word in log.tail().split()]

    members.stop()

    assert members.pids == {"stubborn": None}
    assert all(_eventually(partial(_is_gone, pid)) for pid in pids)


class Stuck:
    """A member that hangs in the kernel."""

    name = "stuck"
    restart = True
    pid = None

    def __init__(self, log: LogFile) -> None:
        self.log = log

    def launch(self) -> None:
        """Do nothing."""

    def is_ready(self) -> bool:
        """Say yes."""
        return True

    def poll(self) -> int | None:
        """Run for ever."""
        return None

    def stop(self) -> None:
        """Fail as a child does that not even SIGKILL ends."""
        raise ServerFailed("stuck does not end")


def test_one_that_cannot_be_ended_does_not_keep_the_others(spec: Spec, tmp_path: Path) -> None:
    """A dead disk under one server must not leave five processes running."""
    events = Events()
    stuck = Stuck(LogFile(tmp_path / "stuck.log"))
    members = ProcessSet([spec("worker"), stuck], on_event=events)
    members.start(deadline_seconds=_DEADLINE_SECONDS)

    with pytest.raises(ServerFailed, match="stuck does not end"):
        members.stop()

    assert events.told[-2:] == [("stuck", "stuck does not end"), ("worker", "stopped")]
    assert members.pids["worker"] is None


def test_members_that_cannot_be_told_apart_are_refused(spec: Spec) -> None:
    """One would be watched and the other forgotten."""
    with pytest.raises(ValueError, match="same name"):
        ProcessSet([spec("worker"), spec("worker")])
    with pytest.raises(ValueError, match="stop order"):
        ProcessSet([spec("worker")], stop_order=("beat",))
