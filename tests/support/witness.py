"""
A socket in front of Postgres that writes down which process connects.

A connection over a unix socket tells its server the pid of its client, so nothing has to be guessed
from the outside, and a connection that was closed again is known too.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

_CHUNK = 65_536


@dataclass
class Witness:
    """The address to connect to, and who did."""

    url: str
    pids: list[int] = field(default_factory=list)


@contextmanager
def witness(directory: Path, database_url: str) -> Iterator[Witness]:
    """Listen in a directory for connections to a Postgres on a unix socket, and pass them on."""
    (behind,) = parse_qs(urlsplit(database_url).query)["host"]
    seen = Witness(database_url.replace(quote(behind), quote(str(directory))))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(directory / ".s.PGSQL.5432"))
    listener.listen()
    threading.Thread(target=_accept, args=(listener, behind, seen), daemon=True).start()
    try:
        yield seen
    finally:
        # Closing alone does not wake a thread that waits in accept().
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def _accept(listener: socket.socket, behind: str, seen: Witness) -> None:
    with contextlib.suppress(OSError):
        while True:
            client, _ = listener.accept()
            credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            seen.pids.append(struct.unpack("3i", credentials)[0])
            server = socket.socket(socket.AF_UNIX)
            server.connect(f"{behind}/.s.PGSQL.5432")
            for pair in ((client, server), (server, client)):
                threading.Thread(target=_pass_on, args=pair, daemon=True).start()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError), source:
        while chunk := source.recv(_CHUNK):
            target.sendall(chunk)
        target.shutdown(socket.SHUT_WR)
