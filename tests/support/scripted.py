"""
A server that says exactly what a test tells it to, for behaviour no real server shows on demand.

Owns the listening and the stopping; what is said is the test's own function.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

#: Tests end long before it; a forgotten connection must not hold a run.
_SECONDS_MAX = 30.0


@dataclass
class ScriptedServer:
    """A listening port, and how many connections were taken."""

    listener: socket.socket
    connections: int = 0
    #: Set when the test is over; a script that must stay silent waits for it.
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self.listener.getsockname()[1])


#: What is said on one connection.
Talk = Callable[[socket.socket, ScriptedServer], None]


@contextmanager
def scripted_server(talk: Talk) -> Iterator[ScriptedServer]:
    """Run `talk` in a thread of its own for every connection, and close the connection after it."""
    server = ScriptedServer(socket.create_server(("127.0.0.1", 0)))
    accepting = threading.Thread(target=_accept, args=(server, talk))
    accepting.start()
    try:
        yield server
    finally:
        server.over.set()
        # Closing alone does not wake a thread that waits in accept().
        server.listener.shutdown(socket.SHUT_RDWR)
        server.listener.close()
        accepting.join(_SECONDS_MAX)


def _accept(server: ScriptedServer, talk: Talk) -> None:
    threads: list[threading.Thread] = []
    while not server.over.is_set():
        try:
            connection, _ = server.listener.accept()
        except OSError:
            break
        server.connections += 1
        threads.append(threading.Thread(target=_serve, args=(connection, server, talk)))
        threads[-1].start()
    for thread in threads:
        thread.join(_SECONDS_MAX)


def _serve(connection: socket.socket, server: ScriptedServer, talk: Talk) -> None:
    with connection:
        connection.settimeout(_SECONDS_MAX)
        try:
            talk(connection, server)
        except (ConnectionError, TimeoutError):
            return


def reset(connection: socket.socket) -> None:
    """Cut a connection with a RST."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def read_until(connection: socket.socket, end: bytes) -> bytes:
    """Read until these bytes were seen, or the client is gone."""
    received = b""
    while end not in received:
        chunk = connection.recv(65536)
        if not chunk:
            raise ConnectionResetError("the client left")
        received += chunk
    return received


def read_http_request(connection: socket.socket) -> bytes:
    """Read one HTTP request with its body."""
    received = read_until(connection, b"\r\n\r\n")
    head, _, body = received.partition(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    while len(body) < length:
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


def http_answer(status: int, body: bytes, *headers: str) -> bytes:
    """Return an HTTP answer as it stands on the wire."""
    head = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(head).encode() + body


def request_bytes(path: str, *headers: str, method: str = "GET") -> bytes:
    """Return a request as it stands on the wire."""
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", *headers, "", ""]).encode()
