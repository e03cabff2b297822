"""The embedded Valkey, really started: a broker for Celery that a person need not know about."""

from __future__ import annotations

import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kombu import Connection
from redis import Redis

from billing_jobs.domain.errors import AlreadyRunning, DataDirUnusable, PortTaken, ServerFailed
from billing_jobs.embedded.binaries import ValkeyBinary, find_valkey
from billing_jobs.embedded.data_dir import DataDir
from billing_jobs.embedded.tcp_ports import free_port
from billing_jobs.embedded.valkey import EmbeddedValkey

_DEADLINE_SECONDS = 30.0

Make = Callable[..., EmbeddedValkey]


@pytest.fixture
def make() -> Iterator[Make]:
    """Make servers on an acquired data directory; all are stopped, and their processes gone."""
    made: list[EmbeddedValkey] = []
    binary = find_valkey()

    def make_one(data_dir: DataDir, **options: object) -> EmbeddedValkey:
        options = {"binary": binary, "socket_dir": data_dir.sockets(), **options}
        server = EmbeddedValkey(
            data_dir.directory("valkey"),
            log=data_dir.directory("log") / "valkey.log",
            **options,  # type: ignore[arg-type]
        )
        made.append(server)
        return server

    yield make_one
    for server in made:
        pid = server.pid
        server.stop()
        assert pid is None or not Path(f"/proc/{pid}").exists()


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[DataDir]:
    """Return an owned data directory."""
    with DataDir(tmp_path / "data") as owned:
        yield owned


def _client(server: EmbeddedValkey) -> Redis:
    return Redis(unix_socket_path=str(server.socket))


def test_celery_reaches_it_over_a_path_with_spaces(make: Make, data_dir: DataDir) -> None:
    """The URL goes into Celery's settings; an unquoted space would end it."""
    with tempfile.TemporaryDirectory(prefix="a b ", dir="/tmp") as spaced:
        server = make(data_dir, socket_dir=Path(spaced))
        server.start(deadline_seconds=_DEADLINE_SECONDS)

        with Connection(server.url) as connection:
            queue = connection.SimpleQueue("bells")
            queue.put({"id": 1})
            message = queue.get(timeout=_DEADLINE_SECONDS)
            message.ack()
            queue.close()
        server.stop()

    assert " " not in server.url
    assert message.payload == {"id": 1}


def test_it_is_private_and_refuses_rather_than_forgets(make: Make, data_dir: DataDir) -> None:
    """A broker that evicts loses doorbells silently; one that listens is open to all."""
    server = make(data_dir)
    server.start(deadline_seconds=_DEADLINE_SECONDS)

    with _client(server) as client:
        policy = client.config_get("maxmemory-policy")
        port = client.config_get("port")

    assert policy == {"maxmemory-policy": "noeviction"}
    assert port == {"port": "0"}
    assert server.tcp_url is None
    assert server.socket.stat().st_mode & 0o777 == 0o700


def test_what_was_written_survives_a_stop_and_a_kill(make: Make, data_dir: DataDir) -> None:
    """Bells that wait must not be lost by a restart, though the beat would ring again."""
    server = make(data_dir)
    server.start(deadline_seconds=_DEADLINE_SECONDS)
    server.launch()
    with _client(server) as client:
        client.set("stopped", "1")
    server.stop()
    stopped = server.pid, server.poll(), server.is_ready(), server.socket.exists()
    server.start(deadline_seconds=_DEADLINE_SECONDS)
    with _client(server) as client:
        client.set("killed", "1")
        client.waitaof(1, 0, int(_DEADLINE_SECONDS * 1000))
    server.kill()
    status = server.poll()
    server.start(deadline_seconds=_DEADLINE_SECONDS)

    with _client(server) as client:
        values = client.mget("stopped", "killed")

    assert stopped == (None, None, False, False)
    assert status == -signal.SIGKILL
    assert values == [b"1", b"1"]


def test_two_run_side_by_side(make: Make, tmp_path: Path) -> None:
    """Two checkouts, or two tests at a time."""
    with DataDir(tmp_path / "one") as one, DataDir(tmp_path / ("long " * 40)) as two:
        servers = [make(one), make(two)]
        for server in servers:
            server.start(deadline_seconds=_DEADLINE_SECONDS)

        with _client(servers[0]) as client:
            client.set("only", "in one")
        with _client(servers[1]) as client:
            seen = client.get("only")
        for server in servers:
            server.stop()

    assert seen is None


def test_a_second_owner_is_refused_and_the_first_is_unharmed(make: Make, data_dir: DataDir) -> None:
    """Two servers that append to one file make it unreadable."""
    first, second = make(data_dir), make(data_dir)
    first.start(deadline_seconds=_DEADLINE_SECONDS)

    with pytest.raises(AlreadyRunning, match="Another process already runs valkey"):
        second.start(deadline_seconds=_DEADLINE_SECONDS)

    assert first.is_ready()


def test_a_tcp_port_serves_those_who_know_no_sockets(make: Make, data_dir: DataDir) -> None:
    """A service in another language may speak TCP only."""
    server = make(data_dir, tcp_port=free_port())
    server.start(deadline_seconds=_DEADLINE_SECONDS)

    with Redis.from_url(str(server.tcp_url)) as client:
        assert client.ping()
        assert client.config_get("bind") == {"bind": "127.0.0.1"}


def test_a_taken_tcp_port_is_named_and_nothing_runs(make: Make, data_dir: DataDir) -> None:
    """The directory must be free again, so that another port can be tried at once."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        server = make(data_dir, tcp_port=port)

        with pytest.raises(PortTaken, match=f"Port {port} .* the embedded Valkey"):
            server.start(deadline_seconds=_DEADLINE_SECONDS)

    assert server.pid is None
    server.start(deadline_seconds=_DEADLINE_SECONDS)


def test_one_that_does_not_start_says_why(make: Make, data_dir: DataDir, tmp_path: Path) -> None:
    """The end of its log is the answer."""
    program = tmp_path / "valkey-server"
    program.write_text("#!/bin/sh\necho Fatal config error: $1\nexit 1\n", encoding="ascii")
    program.chmod(0o755)
    server = make(data_dir, binary=ValkeyBinary(program, "path"))

    with pytest.raises(ServerFailed, match=r"(?s)exit status 1.*Fatal config error: --port"):
        server.start(deadline_seconds=_DEADLINE_SECONDS)


def test_directories_that_cannot_serve_are_refused(make: Make, data_dir: DataDir) -> None:
    """A socket path that is too long, and a data directory that went away."""
    with pytest.raises(DataDirUnusable, match="cannot hold the sockets"):
        make(data_dir, socket_dir=data_dir.path / ("long" * 30))
    server = make(data_dir)
    (data_dir.path / "valkey").rmdir()

    with pytest.raises(DataDirUnusable, match="cannot be used for valkey"):
        server.start(deadline_seconds=_DEADLINE_SECONDS)
