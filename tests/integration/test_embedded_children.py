"""One child process: what it gets, how long it lives, how it ends."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from billing_jobs.embedded.children import Child, Program
from billing_jobs.embedded.log_file import LogFile

_DEADLINE_SECONDS = 30.0
_SLEEP = "exec sleep 60"


def _eventually(condition: Callable[[], bool]) -> bool:
    pause = threading.Event()
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while not condition():
        if time.monotonic() >= deadline:
            return False
        pause.wait(0.01)
    return True


def test_a_child_has_its_own_session_and_only_what_it_is_given(tmp_path: Path) -> None:
    """Ctrl-C in the terminal must reach the supervisor alone, and no secret leak into a child."""
    log = LogFile(tmp_path / "child.log")
    script = "env; pwd; read line || echo no input; ps -o sid= -p $$; echo $$"
    program = Program(
        argv=("/bin/sh", "-c", script),
        env={"ONLY": "this", "PATH": "/usr/bin:/bin"},
        log=log,
        directory=tmp_path,
    )

    child = Child.start(program)
    ended = child.wait(_DEADLINE_SECONDS)
    lines = log.tail().splitlines()

    assert ended
    assert (child.poll(), child.stop(signal.SIGTERM, deadline_seconds=0)) == (0, 0)
    assert {"ONLY=this", "PATH=/usr/bin:/bin", f"PWD={tmp_path}", "no input"} <= set(lines)
    assert int(lines[-2]) == int(lines[-1]) == child.pid
    assert not any(line.startswith(("HOME=", "PYTHON")) for line in lines)


def test_a_child_outlives_the_thread_that_asked_for_it(tmp_path: Path) -> None:
    """Linux ties a death signal to the thread that forked; a caller's thread may be short."""
    log = LogFile(tmp_path / "child.log")
    program = Program(argv=("/bin/sh", "-c", f"echo started; {_SLEEP}"), env={}, log=log)
    children: list[Child] = []

    def start() -> None:
        children.append(Child.start(program))
        assert _eventually(lambda: log.tail() == "started")

    starter = threading.Thread(target=start)
    starter.start()
    starter.join(_DEADLINE_SECONDS)
    (child,) = children
    # The signal comes with the end of the thread, and `sleep` ends by it at once.
    died = child.wait(0.3)
    status = child.stop(signal.SIGINT, deadline_seconds=_DEADLINE_SECONDS)

    assert not died
    assert status == -signal.SIGINT


def test_a_child_that_was_not_started_has_no_pid(tmp_path: Path) -> None:
    """A pid of nothing, signalled, would reach somebody else."""
    program = Program(argv=("/bin/true",), env={}, log=LogFile(tmp_path / "log"))

    with pytest.raises(RuntimeError, match="Bug"):
        assert Child(program).pid
