"""A supervisor that is killed: no server outlives it for long, and the next start just works."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psycopg
import pytest

from billing_jobs.domain.errors import ServerFailed
from billing_jobs.embedded.binaries import find_postgres
from billing_jobs.embedded.data_dir import DataDir
from billing_jobs.embedded.ownership import FileLock, Ownership, holders
from billing_jobs.embedded.postgres import EmbeddedPostgres

_DEADLINE_SECONDS = 30.0

_SUPERVISOR = """
import json, sys
from pathlib import Path
from billing_jobs.embedded.binaries import find_postgres, find_valkey
from billing_jobs.embedded.data_dir import DataDir
from billing_jobs.embedded.postgres import EmbeddedPostgres
from billing_jobs.embedded.processes import ProcessSet, ProcessSpec
from billing_jobs.embedded.valkey import EmbeddedValkey

data_dir = DataDir(Path(sys.argv[1]))
data_dir.acquire()
log = data_dir.directory("log")
postgres = EmbeddedPostgres(
    data_dir.directory("postgres"),
    socket_dir=data_dir.sockets(),
    binaries=find_postgres(),
    log=log / "postgres.log",
)
valkey = EmbeddedValkey(
    data_dir.directory("valkey"),
    socket_dir=data_dir.sockets(),
    binary=find_valkey(),
    log=log / "valkey.log",
)
worker = ProcessSpec(
    name="worker", argv=("/bin/sh", "-c", "exec sleep 60"), env={}, log=log / "worker.log"
)
members = ProcessSet([postgres, valkey, worker])
print("starting", flush=True)
members.start()
print(json.dumps({"pids": members.pids, "dsn": postgres.dsn}), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def supervise() -> Iterator[Callable[[Path], subprocess.Popen[str]]]:
    """Start supervisors of their own; all are killed at the end."""
    started: list[subprocess.Popen[str]] = []

    def start(path: Path) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", _SUPERVISOR, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert _line(process) == "starting"
        return process

    yield start
    for process in started:
        with process:
            process.kill()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


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
        pause.wait(0.005)
    return True


def _postgres(data_dir: DataDir) -> EmbeddedPostgres:
    return EmbeddedPostgres(
        data_dir.directory("postgres"),
        socket_dir=data_dir.sockets(),
        binaries=find_postgres(),
        log=data_dir.directory("log") / "postgres.log",
    )


def test_a_killed_supervisor_leaves_no_orphan_and_no_obstacle(
    tmp_path: Path, supervise: Callable[[Path], subprocess.Popen[str]]
) -> None:
    """The whole point of a supervisor of our own: kill -9 it, and type `up` again."""
    path = tmp_path / ("a long path " * 12)
    first = supervise(path)
    told = json.loads(_line(first))
    with psycopg.connect(told["dsn"]) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")

    first.kill()
    second = supervise(path)
    again = json.loads(_line(second))
    with psycopg.connect(again["dsn"]) as connection:
        kept = connection.execute("SELECT answer FROM kept").fetchall()
    second.kill()

    assert kept == [(42,)]
    assert set(told["pids"]) == {"postgres", "valkey", "worker"}
    for pid in (*told["pids"].values(), *again["pids"].values()):
        assert _eventually(partial(_is_gone, pid))
    assert DataDir(path).purge() == ()


def test_a_supervisor_killed_in_the_middle_of_initdb_leaves_no_half_cluster(
    tmp_path: Path, supervise: Callable[[Path], subprocess.Popen[str]]
) -> None:
    """PostgreSQL refuses a half made cluster for ever; it must not get that name."""
    home = tmp_path / "data" / "postgres"
    lock = home / "postgres.server.lock"
    supervisor = supervise(tmp_path / "data")
    assert _eventually((home / "pg18.new" / "PG_VERSION").exists)

    supervisor.kill()
    supervisor.wait(_DEADLINE_SECONDS)
    ended = _eventually(lambda: not FileLock(lock).held_by_anyone())
    with DataDir(tmp_path / "data") as data_dir:
        server = _postgres(data_dir)
        server.start(deadline_seconds=_DEADLINE_SECONDS)
        with psycopg.connect(server.dsn) as connection:
            answer = connection.execute("SELECT 1").fetchall()
        server.stop()
    data_dir.purge()

    assert ended
    assert answer == [(1,)]


@pytest.mark.parametrize(
    ("script", "ends_by"),
    [("exec sleep 60", "asked"), ("trap '' TERM; sleep 60; sleep 60", "killed")],
)
def test_an_orphan_that_stays_is_asked_then_killed(
    tmp_path: Path, script: str, ends_by: str
) -> None:
    """Where no death signal exists, or it was not heard, the files must still get one writer."""
    lock = FileLock(tmp_path / "valkey.server.lock")
    assert lock.acquire()
    with subprocess.Popen(["/bin/sh", "-c", script], pass_fds=[lock.descriptor]) as orphan:
        lock.hand_over()
        held_by = holders(lock.path)
        ownership = Ownership(tmp_path, server="valkey", orphan_seconds=0.2)

        ownership.take(stop_signal=signal.SIGTERM)

        status = orphan.wait(_DEADLINE_SECONDS)
        ownership.release()

    assert orphan.pid in held_by
    assert status == (-signal.SIGTERM if ends_by == "asked" else -signal.SIGKILL)


def test_an_orphan_that_cannot_be_ended_is_told_and_the_directory_is_free(tmp_path: Path) -> None:
    """Nothing may be started beside it, and the message says how to find it."""
    lock = FileLock(tmp_path / "valkey.server.lock")
    assert lock.acquire()
    ownership = Ownership(tmp_path, server="valkey", orphan_seconds=0.1, kill_seconds=0.1)

    # We hold it ourselves, and we are the one process that is never asked to end.
    with pytest.raises(ServerFailed, match=r"lsof '.*valkey\.server\.lock'"):
        ownership.take(stop_signal=signal.SIGTERM)
    lock.release()
    ownership.take(stop_signal=signal.SIGTERM)
    ownership.release()

    assert os.getpid() not in holders(lock.path)
