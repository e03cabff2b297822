"""
What each way of not getting an answer means for the money.

One class too harmless and a customer pays twice; one too careful and a person must look at every
network hiccup. So each failure is made for real, on a socket.
"""

from __future__ import annotations

import os
import socket
import threading
import time

import pytest
from support.gateway_answers import (
    ASKED,
    answering,
    closed_port,
    error_of_confirm,
    gateway_to,
    intent,
    json_answer,
)
from support.scripted import (
    ScriptedServer,
    Talk,
    http_answer,
    read_http_request,
    reset,
    scripted_server,
)

from billing_jobs.adapters.gateway import answers, http
from billing_jobs.adapters.gateway.http import HttpGateway
from billing_jobs.domain.errors import (
    GatewayNotSent,
    GatewayOutcomeUnknown,
)


def test_a_refused_connection_sent_nothing() -> None:
    """A gateway that is down: the transport clock may try again."""
    with gateway_to(closed_port()) as gateway:
        with pytest.raises(GatewayNotSent):
            gateway.confirm("pi_1", key="k")
        with pytest.raises(GatewayNotSent):
            gateway.retrieve("pi_1")


def test_an_unresolved_name_sent_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS is often the first thing to break."""

    def unresolved(*_arguments: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unresolved)
    gateway = HttpGateway("http://gateway.invalid", "sk_test_1", 1, 1)

    with pytest.raises(GatewayNotSent):
        gateway.create(ASKED, key="k")
    with pytest.raises(GatewayNotSent):
        gateway.retrieve("pi_1")


def test_an_impossible_host_name_sent_nothing() -> None:
    """A typing error in the settings shows at the first call, and harms nothing."""
    gateway = HttpGateway("http://a..b", "sk_test_1", 1, 1)

    with pytest.raises(GatewayNotSent):
        gateway.confirm("pi_1", key="k")
    with pytest.raises(GatewayNotSent):
        gateway.retrieve("pi_1")


def test_a_connect_time_out_sent_nothing() -> None:
    """A firewall that drops packets: slow, but nothing left the house."""
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for filler in (first, second):
            filler.setblocking(False)  # noqa: FBT003 - the standard library's own signature
            filler.connect_ex(listener.getsockname())
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        gateway = HttpGateway(url, "sk_test_1", 0.2, 20)

        with pytest.raises(GatewayNotSent):
            gateway.confirm("pi_1", key="k")


def test_a_failed_tls_handshake_sent_nothing() -> None:
    """The request is encrypted or it does not exist."""

    def speak_plain(connection: socket.socket, _server: ScriptedServer) -> None:
        connection.sendall(http_answer(200, b"{}"))

    with scripted_server(speak_plain) as server:
        gateway = HttpGateway(f"https://127.0.0.1:{server.port}", "sk_test_1", 10, 10)
        with pytest.raises(GatewayNotSent):
            gateway.confirm("pi_1", key="k")


def test_no_answer_in_time_is_unknown() -> None:
    """The classic: the gateway works on, and we have left."""

    def silent(connection: socket.socket, server: ScriptedServer) -> None:
        read_http_request(connection)
        server.over.wait(20)

    assert isinstance(error_of_confirm(silent, 0.2), GatewayOutcomeUnknown)


@pytest.mark.parametrize("is_reset", [False, True])
def test_a_lost_connection_is_unknown(*, is_reset: bool) -> None:
    """It looks like a refused one from above; the request was sent, though."""

    def cut(connection: socket.socket, _server: ScriptedServer) -> None:
        read_http_request(connection)
        if is_reset:
            reset(connection)

    assert isinstance(error_of_confirm(cut), GatewayOutcomeUnknown)


def test_an_unknown_inside_the_handling_of_a_refused_connection_stays_unknown() -> None:
    """Python chains the handled error to the new one; an old refusal must prove nothing."""

    def cut(connection: socket.socket, _server: ScriptedServer) -> None:
        read_http_request(connection)

    def confirm_elsewhere() -> None:
        try:
            down.confirm("pi_1", key="k")
        except GatewayNotSent:
            gateway.confirm("pi_1", key="k")

    with (
        scripted_server(cut) as server,
        gateway_to(server.port) as gateway,
        gateway_to(closed_port()) as down,
        pytest.raises(GatewayOutcomeUnknown),
    ):
        confirm_elsewhere()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 banana\r\n\r\n",
        b"\r\n\r\n",
    ],
)
def test_a_broken_answer_is_unknown(answer: bytes) -> None:
    """Half an answer says as little as none."""

    def answer_and_close(connection: socket.socket, _server: ScriptedServer) -> None:
        read_http_request(connection)
        connection.sendall(answer)

    assert isinstance(error_of_confirm(answer_and_close), GatewayOutcomeUnknown)


def test_a_body_that_drips_is_given_up_in_time() -> None:
    """Each byte restarts the read time-out; the worker's time limit must not have to end it."""

    def drip(connection: socket.socket, server: ScriptedServer) -> None:
        read_http_request(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        while not server.over.wait(0.05):
            connection.sendall(b" ")

    started = time.monotonic()

    assert isinstance(error_of_confirm(drip, 0.3), GatewayOutcomeUnknown)
    assert time.monotonic() - started < 10


def test_a_body_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer must not fill the worker's memory."""
    monkeypatch.setattr(answers, "BODY_BYTES_MAX", 1000)

    assert isinstance(
        error_of_confirm(answering(http_answer(200, b" " * 5000))), GatewayOutcomeUnknown
    )


def test_a_connection_is_used_again() -> None:
    """A handshake for every charge would cost more than the charge."""
    talk = answering(json_answer(intent()), json_answer(intent()), json_answer(intent()))
    with scripted_server(talk) as server, gateway_to(server.port) as gateway:
        for _ in range(3):
            gateway.retrieve("pi_1")

        assert server.connections == 1


def test_a_connection_that_the_server_closed_costs_nothing() -> None:
    """Servers close idle connections all the time; none of it may lock a debt."""
    with scripted_server(answering_once()) as server, gateway_to(server.port) as gateway:
        gateway.confirm("pi_1", key="k1")
        wait_for_close(gateway)

        gateway.confirm("pi_1", key="k2")

        assert server.connections == 2


def test_a_connection_that_was_cut_before_the_head_went_out_sent_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server closes between our look and our first byte: the kernel refuses the byte."""
    answered = threading.Event()
    talk = answering_once(reset_after=answered)
    with scripted_server(talk) as server, gateway_to(server.port) as gateway:
        gateway.confirm("pi_1", key="k1")
        answered.set()
        wait_for_close(gateway)
        monkeypatch.setattr("urllib3.connectionpool.is_connection_dropped", lambda _: False)

        with pytest.raises(GatewayNotSent):
            gateway.confirm("pi_1", key="k2")


def test_a_connection_that_was_closed_while_we_sent_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel took the request, so nobody can prove that the server did not."""
    with scripted_server(answering_once()) as server, gateway_to(server.port) as gateway:
        gateway.confirm("pi_1", key="k1")
        wait_for_close(gateway)
        monkeypatch.setattr("urllib3.connectionpool.is_connection_dropped", lambda _: False)

        with pytest.raises(GatewayOutcomeUnknown):
            gateway.confirm("pi_1", key="k2")


def answering_once(*, reset_after: threading.Event | None = None) -> Talk:
    """Return a script that answers one request a connection and then closes it."""

    def talk(connection: socket.socket, _server: ScriptedServer) -> None:
        read_http_request(connection)
        connection.sendall(json_answer(intent()))
        if reset_after is not None and reset_after.wait(20):
            reset(connection)

    return talk


def wait_for_close(gateway: HttpGateway) -> None:
    """Wait until the kernel knows that the server closed the kept connection."""
    pool = gateway._connections  # noqa: SLF001 - there is no public way to the socket
    assert pool is not None
    assert pool.pool is not None
    connection = pool.pool.get(timeout=10)
    deadline = time.monotonic() + 20
    while connection.is_connected:
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)
    pool.pool.put(connection)


def test_a_connection_that_rested_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its server may be closing it right now, and then the outcome would be unknown."""
    monkeypatch.setattr(http, "_REUSE_SECONDS_MAX", -1.0)
    talk = answering(json_answer(intent()))
    with scripted_server(talk) as server, gateway_to(server.port) as gateway:
        gateway.retrieve("pi_1")
        gateway.retrieve("pi_1")

        assert server.connections == 2


def test_a_gateway_made_before_a_fork_is_used_after_it() -> None:
    """Two processes on one connection would read each other's answers."""
    talk = answering(*[json_answer(intent())] * 3)
    with scripted_server(talk) as server, gateway_to(server.port) as gateway:
        gateway.retrieve("pi_1")
        child = os.fork()
        if child == 0:
            try:
                gateway.retrieve("pi_1")
                gateway.close()
                os._exit(0)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        gateway.retrieve("pi_1")

        assert os.waitstatus_to_exitcode(status) == 0
        assert server.connections == 2
