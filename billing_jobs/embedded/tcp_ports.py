"""TCP ports on the loopback interface: one that is free, one that must be, one that is answered."""

from __future__ import annotations

import socket

from billing_jobs.domain.errors import PortTaken

LOOPBACK = "127.0.0.1"

_CONNECT_SECONDS = 0.5


def free_port() -> int:
    """Return a port that was free a moment ago; whoever binds it next has it."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def require_free_port(port: int, what: str, *, option: str) -> None:
    """
    Return when `what` can listen on the port; `option` is what a person changes otherwise.

    Raises:
        PortTaken: it cannot; says why.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: connections that just ended do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            raise PortTaken(
                f"Port {port} on {LOOPBACK}, wanted by {what}, cannot be used: {error.strerror}. "
                f"Choose another with {option}, or stop the program that listens there."
            ) from error


def is_answered(port: int) -> bool:
    """Whether somebody accepts connections there: the readiness of a server that has no better."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=_CONNECT_SECONDS):
            return True
    except OSError:
        return False
