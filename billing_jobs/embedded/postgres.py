"""
The embedded PostgreSQL: init, start, ready, stop.

A real server on a unix socket that only its owner can open, with fsync on. It holds no pool and
runs no SQL but the question whether it is there.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal
from urllib.parse import quote, urlencode

import psycopg
from psycopg.conninfo import make_conninfo

from billing_jobs.embedded import socket_dir as socket_dirs
from billing_jobs.embedded.binaries import PostgresBinaries
from billing_jobs.embedded.children import Child, Program
from billing_jobs.embedded.cluster import ENVIRONMENT, SUPERUSER, Cluster
from billing_jobs.embedded.identity import Identity, postgres_identity
from billing_jobs.embedded.log_file import LogFile
from billing_jobs.embedded.ownership import Ownership
from billing_jobs.embedded.supervised import await_ready

StopMode = Literal["fast", "immediate"]

#: Crash recovery of a cluster with much unwritten work takes this long; normally it is 0.1 s.
START_SECONDS = 300.0
#: The checkpoint at a fast stop writes what is dirty: 128 MB of buffers on a slow disk.
STOP_SECONDS = 60.0
#: An immediate stop writes nothing.
_IMMEDIATE_SECONDS = 10.0
#: Backends whose postmaster was killed see that within milliseconds, if the machine has time.
_GONE_SECONDS = 30.0
#: libpq takes nothing shorter; on a unix socket it only matters for a server that hangs.
_CONNECT_SECONDS = 2

_PORT = 5432


class EmbeddedPostgres:
    """One server on one data directory; one process at a time may run it."""

    name = "postgres"
    restart = True

    def __init__(
        self,
        data_dir: Path,
        *,
        socket_dir: Path,
        binaries: PostgresBinaries,
        log: Path,
        identity: Identity | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """
        Take two existing private directories; `settings` go to the server as they are.

        Without an `identity` the best one for this machine is found when the server starts.

        Raises:
            DataDirUnusable: the path of `socket_dir` is too long or too odd for sockets.
        """
        socket_dirs.require_usable(socket_dir)
        self.log = LogFile(log)
        self._socket_dir = socket_dir
        self._binaries = binaries
        self._settings = dict(settings or {})
        self._identity = identity
        self._cluster = Cluster(data_dir, binaries)
        self._ownership = Ownership(data_dir, server=self.name)
        self._child: Child | None = None

    @property
    def url(self) -> str:
        """What SQLAlchemy connects to."""
        where = {"host": str(self._socket_dir), "port": str(_PORT)}
        query = urlencode(where, quote_via=quote, safe="/")
        return f"postgresql+psycopg://{SUPERUSER}@/postgres?{query}"

    @property
    def dsn(self) -> str:
        """What libpq, and so psycopg and psql, connects to."""
        return make_conninfo(
            host=str(self._socket_dir), port=_PORT, user=SUPERUSER, dbname="postgres"
        )

    @property
    def pid(self) -> int | None:
        """The postmaster; None when it does not run."""
        return None if self._child is None or self._child.poll() is not None else self._child.pid

    def start(
        self,
        *,
        deadline_seconds: float = START_SECONDS,
        on_progress: Callable[[str], None] | None = None,
    ) -> None:
        """
        Start it and wait until it answers; `on_progress` gets its last log line every second.

        Crash safety: if we die, the server stops by itself, and the next start waits for that. A
        server that does not get ready is stopped; its data are as safe as after any crash.

        Raises:
            EmbeddedError: every error of `launch`, and ServerFailed at the deadline.
        """
        with contextlib.ExitStack() as undo:
            undo.callback(self.stop)
            self.launch()
            await_ready(self, deadline_seconds=deadline_seconds, on_progress=on_progress)
            undo.pop_all()

    def launch(self) -> None:
        """
        Make the cluster if need be and start the server, without waiting until it answers.

        Crash safety: as `start`. Launching twice is harmless.

        Raises:
            AlreadyRunning: another process supervises, or a server that is not ours runs there.
            DataDirUnusable: the cluster is of another version, or cannot be used by us.
            ServerFailed: initdb failed, an old server does not end, or no user is fit to run it.
        """
        if self.pid is not None:
            return
        inherited = (self._ownership.take(stop_signal=signal.SIGINT),)
        with contextlib.ExitStack() as undo:
            undo.callback(self._ownership.release)
            if self._identity is None:
                self._identity = postgres_identity(euid=os.geteuid())
            self._cluster.prepare(identity=self._identity, log=self.log, inherited=inherited)
            self._clear_sockets()
            self._child = Child.start(self._program(self._identity, inherited))
            self._ownership.hand_over()
            undo.pop_all()

    def is_ready(self) -> bool:
        """Whether it answers `SELECT 1`."""
        if self.pid is None or self._cluster.is_starting():
            return False
        try:
            with psycopg.connect(self.dsn, connect_timeout=_CONNECT_SECONDS) as connection:
                connection.execute("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def poll(self) -> int | None:
        """Return the postmaster's exit status; None while it runs, and before the first start."""
        return None if self._child is None else self._child.poll()

    def stop(self, mode: StopMode = "fast", *, deadline_seconds: float = STOP_SECONDS) -> None:
        """
        Stop it: `fast` ends sessions and writes all, `immediate` leaves recovery to the next start.

        Returns when no process of the server is left. A fast stop that reaches the deadline becomes
        an immediate one.

        Crash safety: if we die meanwhile, the server still stops. Stopping twice is harmless.

        Raises:
            ServerFailed: not even SIGKILL ended it.
        """
        if self._child is not None:
            if mode == "fast":
                self._child.send(signal.SIGINT)
                self._child.wait(deadline_seconds)
            self._child.stop(signal.SIGQUIT, deadline_seconds=_IMMEDIATE_SECONDS)
            self._ownership.wait_until_gone(wait_seconds=_GONE_SECONDS)
            self._clear_sockets()
        self._child = None
        self._ownership.release()

    def kill(self) -> None:
        """
        Kill the postmaster with SIGKILL and wait until its children are gone too.

        `poll` then says how it ended, as after a crash; `launch` starts it again.

        Crash safety: it is a crash; the next start recovers.
        """
        if self._child is not None:
            self._child.stop(signal.SIGKILL, deadline_seconds=_GONE_SECONDS)
            self._ownership.wait_until_gone(wait_seconds=_GONE_SECONDS)

    @property
    def _socket(self) -> Path:
        return self._socket_dir / f".s.PGSQL.{_PORT}"

    def _clear_sockets(self) -> None:
        # The lock file beside the socket holds a pid too, and is believed like postmaster.pid.
        self._socket.unlink(missing_ok=True)
        self._socket.with_name(f"{self._socket.name}.lock").unlink(missing_ok=True)

    def _program(self, identity: Identity, inherited: tuple[int, ...]) -> Program:
        settings = {
            # No TCP, and a socket that only the owner of the server opens.
            "listen_addresses": "",
            "port": str(_PORT),
            "unix_socket_permissions": "0700",
            # A long recovery says every second how far it is.
            "log_startup_progress_interval": "1s",
            **self._settings,
        }
        argv = [str(self._binaries.postgres), "-D", str(self._cluster.path)]
        argv += ["-k", str(self._socket_dir)]
        for name, value in settings.items():
            argv += ["-c", f"{name}={value}"]
        return Program(
            argv=tuple(argv),
            env=ENVIRONMENT,
            log=self.log,
            identity=identity,
            # "Fast" shutdown: SIGTERM would wait for clients that may never leave.
            death_signal=signal.SIGINT,
            inherited=inherited,
        )
