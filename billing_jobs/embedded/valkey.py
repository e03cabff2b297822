"""
The embedded Valkey: start, ready, stop.

The broker of a person who has none; it holds doorbells only, so it keeps them every second and not
every command. It asks with a bare PING over the socket and needs no client library for that.
"""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from billing_jobs.embedded import socket_dir as socket_dirs
from billing_jobs.embedded.binaries import ValkeyBinary
from billing_jobs.embedded.children import Child, Program
from billing_jobs.embedded.log_file import LogFile
from billing_jobs.embedded.ownership import Ownership
from billing_jobs.embedded.supervised import await_ready
from billing_jobs.embedded.tcp_ports import LOOPBACK, require_free_port

#: Reading a long append-only file takes this long; normally it is 0.1 s.
START_SECONDS = 60.0
#: A clean stop writes the rest of the append-only file.
STOP_SECONDS = 20.0
_GONE_SECONDS = 10.0
#: For a server that accepts and does not answer.
_ANSWER_SECONDS = 1.0

_PONG = b"+PONG\r\n"


class EmbeddedValkey:
    """One server on one data directory; one process at a time may run it."""

    name = "valkey"
    restart = True

    def __init__(
        self,
        data_dir: Path,
        *,
        socket_dir: Path,
        binary: ValkeyBinary,
        log: Path,
        tcp_port: int | None = None,
    ) -> None:
        """
        Take two existing private directories; with `tcp_port` it listens on 127.0.0.1 too.

        Raises:
            DataDirUnusable: the path of `socket_dir` is too long or too odd for sockets.
        """
        socket_dirs.require_usable(socket_dir)
        self.log = LogFile(log)
        self.socket = socket_dir / "vk.sock"
        self.tcp_port = tcp_port
        self._data_dir = data_dir
        self._binary = binary
        self._ownership = Ownership(data_dir, server=self.name)
        self._child: Child | None = None

    @property
    def url(self) -> str:
        """What Celery connects to, as a broker and as a result backend."""
        return f"redis+socket://{quote(str(self.socket))}?virtual_host=0"

    @property
    def tcp_url(self) -> str | None:
        """What anything else connects to; None without a TCP port."""
        return None if self.tcp_port is None else f"redis://{LOOPBACK}:{self.tcp_port}/0"

    @property
    def pid(self) -> int | None:
        """The running server; None when there is none."""
        return None if self._child is None or self._child.poll() is not None else self._child.pid

    def start(
        self,
        *,
        deadline_seconds: float = START_SECONDS,
        on_progress: Callable[[str], None] | None = None,
    ) -> None:
        """
        Start it and wait until it answers; `on_progress` gets its last log line every second.

        Crash safety: if we die, the server stops by itself, and the next start waits for that.

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
        Start the server without waiting until it answers.

        Crash safety: as `start`. Launching twice is harmless.

        Raises:
            AlreadyRunning: another process supervises a server there.
            PortTaken: somebody else listens on the TCP port.
            ServerFailed: an old server does not end.
        """
        if self.pid is not None:
            return
        inherited = (self._ownership.take(stop_signal=signal.SIGTERM),)
        with contextlib.ExitStack() as undo:
            undo.callback(self._ownership.release)
            if self.tcp_port is not None:
                require_free_port(self.tcp_port, "the embedded Valkey", option="its TCP port")
            self._child = Child.start(self._program(inherited))
            self._ownership.hand_over()
            undo.pop_all()

    def is_ready(self) -> bool:
        """Whether it answers PING; while it reads its files it answers LOADING."""
        if self.pid is None:
            return False
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
                client.settimeout(_ANSWER_SECONDS)
                client.connect(str(self.socket))
                client.sendall(b"PING\r\n")
                return client.recv(len(_PONG)) == _PONG
        except OSError:
            return False

    def poll(self) -> int | None:
        """Return the exit status; None while it runs, and before the first start."""
        return None if self._child is None else self._child.poll()

    def stop(self, *, deadline_seconds: float = STOP_SECONDS) -> None:
        """
        Stop it cleanly and return when it is gone.

        Crash safety: if we die meanwhile, the server still stops. Stopping twice is harmless.

        Raises:
            ServerFailed: not even SIGKILL ended it.
        """
        if self._child is not None:
            self._child.stop(signal.SIGTERM, deadline_seconds=deadline_seconds)
            self._ownership.wait_until_gone(wait_seconds=_GONE_SECONDS)
            self.socket.unlink(missing_ok=True)
        self._child = None
        self._ownership.release()

    def kill(self) -> None:
        """
        Kill it with SIGKILL; `poll` says so, as after a crash, and `launch` starts it again.

        Crash safety: it is a crash; of the last second, commands may be lost.
        """
        if self._child is not None:
            self._child.stop(signal.SIGKILL, deadline_seconds=_GONE_SECONDS)

    def _program(self, inherited: tuple[int, ...]) -> Program:
        flags = {
            "port": str(self.tcp_port or 0),
            "bind": LOOPBACK,
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "dir": str(self._data_dir),
            "appendonly": "yes",
            "save": "",
            # A full broker must say no: evicting a doorbell would lose it silently.
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
        }
        argv = [str(self._binary.path)]
        for name, value in flags.items():
            argv += [f"--{name}", value]
        # The environment is empty on purpose: nothing of a person's shell changes the server.
        return Program(argv=tuple(argv), env={}, log=self.log, inherited=inherited)
