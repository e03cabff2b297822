"""
The sandbox's sockets: HTTP/1.1 with keep-alive, bounded in every direction.

Owns connections, and the two deliveries that are no answer: hold and reset. What is answered is
the app's business.
"""

from __future__ import annotations

import select
import socket
import socketserver
import struct
import sys
import threading
from email.utils import formatdate
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler

from billing_jobs.sandbox.answers import Delivery, Reply, invalid_request
from billing_jobs.sandbox.app import App, Request

#: One thread each. Above it new connections wait in the listen queue.
CONNECTIONS_MAX = 512
#: The largest request we know has 2 KB.
BODY_BYTES_MAX = 64 * 1024
#: A kept-alive connection without a request is closed after this, like a load balancer does.
IDLE_SECONDS_MAX = 60.0
#: A held request is let go after this, so that a client without time-outs frees its thread.
HOLD_SECONDS_MAX = 60.0
#: What a stop waits for requests that are being answered; a stop shall end within a second.
STOP_SECONDS_MAX = 0.5
#: How often the accept loop looks whether it shall stop.
_POLL_SECONDS = 0.1
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)

#: What a listening socket accepts, as the standard library types it.
_Accepted = socket.socket | tuple[bytes, socket.socket]


class SandboxServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Listens, and runs one thread a connection."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], app: App, stopping: threading.Event) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.app = app
        self._stopping = stopping
        self._slots = threading.BoundedSemaphore(CONNECTIONS_MAX)
        self._answering = 0
        self._quiet = threading.Condition()
        super().__init__(address, _Connection)

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self.server_address[1])

    def run(self) -> None:
        """Serve until `stop`."""
        self.serve_forever(poll_interval=_POLL_SECONDS)

    def stop(self) -> None:
        """
        End within a second: accept no more, finish what is being answered.

        Crash safety: held requests, and whoever is still being answered when the time is over, see
        a closed connection when the process ends; what they did is in the journal.
        """
        self._stopping.set()
        self.shutdown()
        self.server_close()
        with self._quiet:
            self._quiet.wait_for(lambda: self._answering == 0, timeout=STOP_SECONDS_MAX)

    def answered(self, request: Request) -> Reply:
        """Ask the app, counted, so that a stop can wait for it."""
        with self._quiet:
            self._answering += 1
        try:
            return self.app.answer(request)
        finally:
            with self._quiet:
                self._answering -= 1
                self._quiet.notify_all()

    @staticmethod
    def hold(connection: socket.socket) -> None:
        """Return when the client has left or the time is over; a stop ends the process anyway."""
        poll = select.poll()
        poll.register(connection, select.POLLIN | select.POLLHUP)
        poll.poll(HOLD_SECONDS_MAX * 1000)

    def process_request(self, request: _Accepted, client_address: object) -> None:
        """Start the connection's thread, as soon as there is room for one."""
        while not self._slots.acquire(timeout=_POLL_SECONDS):
            if self._stopping.is_set():
                self.shutdown_request(request)
                return
        super().process_request(request, client_address)

    def process_request_thread(self, request: _Accepted, client_address: object) -> None:
        """Serve the connection, then make room for the next."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: _Accepted, client_address: object) -> None:
        """Keep quiet about clients that left; they do it all the time here."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Nonsense is answered with a status line, too; the standard library's default has none.
    default_request_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = IDLE_SECONDS_MAX
    server: SandboxServer

    def _serve(self) -> None:
        body = self._body()
        if body is None:
            return
        path, _, query = self.path.partition("?")
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.command, path, query, headers, body)
        reply = self.server.answered(request)
        if reply.delivery is Delivery.HELD:
            self.server.hold(self.connection)
            self.close_connection = True
        elif reply.delivery is Delivery.RESET:
            self._reset()
        else:
            self._answer(reply)

    # http.server looks the methods up by these names; DELETE gets its 404 from the app.
    do_GET = do_POST = do_DELETE = _serve  # noqa: N815

    def _body(self) -> str | None:
        """Return the body; None when the request was refused or left unfinished."""
        length = self.headers.get("Content-Length") or "0"
        chunked = "Transfer-Encoding" in self.headers
        if chunked or not length.isascii() or not length.isdigit():
            self._refuse(HTTPStatus.LENGTH_REQUIRED, "A Content-Length is needed.")
            return None
        if int(length) > BODY_BYTES_MAX:
            message = f"A body has at most {BODY_BYTES_MAX} bytes."
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message)
            return None
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            self.close_connection = True
            return None
        return body.decode("utf-8", "replace")

    def _refuse(self, status: int, message: str) -> None:
        self.close_connection = True
        self._answer(Reply(status, invalid_request(message).body()))

    def _answer(self, reply: Reply) -> None:
        lines = [
            f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}",
            f"Date: {formatdate(self.server.app.now(), usegmt=True)}",
            f"Content-Type: {reply.content_type}",
            f"Content-Length: {len(reply.body)}",
            *(f"{name}: {value}" for name, value in reply.headers),
        ]
        if self.close_connection:
            lines.append("Connection: close")
        head = "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")
        # One segment: head and body written apart would wait for each other's acknowledgement.
        self.wfile.write(head + reply.body)

    def _reset(self) -> None:
        """Cut the connection with a RST instead of a FIN."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        # The file holds the socket open; closed first, the close below is the real one.
        self.rfile.close()
        self.connection.close()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Stay silent: GET /sandbox/requests counts."""
