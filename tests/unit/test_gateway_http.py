"""
What each way of not getting an answer means for the money.

One class too harmless and a customer pays twice; one too careful and a person must look at every
network hiccup. So each failure is made for real, on a socket.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
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
    GatewayAuthentication,
    GatewayBusy,
    GatewayError,
    GatewayNotSent,
    GatewayOutcomeUnknown,
    GatewayRefusedRequest,
    SettingsInvalid,
)
from billing_jobs.domain.payment import GatewayObject, ObjectStatus, PaymentInstruction

_ASKED = PaymentInstruction(1250, "EUR", "pm_card_visa", (("invoice_id", "in_1"),))
_LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def intent(**other: object) -> dict[str, Any]:
    """Return a payment intent as Stripe shows it."""
    plain = {
        "id": "pi_1",
        "object": "payment_intent",
        "amount": 1250,
        "amount_received": 0,
        "currency": "eur",
        "status": "requires_confirmation",
        "latest_charge": None,
        "last_payment_error": None,
        "metadata": {"invoice_id": "in_1"},
        "payment_method": "pm_card_visa",
    }
    return plain | other


def answering(*bodies: bytes) -> Talk:
    """Return a script that gives these answers, one a request, on one connection."""

    def talk(connection: socket.socket, _server: ScriptedServer) -> None:
        for body in bodies:
            read_http_request(connection)
            connection.sendall(body)
        connection.recv(1)

    return talk


def json_answer(value: object, status: int = 200, *headers: str) -> bytes:
    """Return an answer with JSON."""
    return http_answer(status, json.dumps(value).encode(), *headers)


def error_answer(status: int, code: str | None = None, *headers: str, **more: object) -> bytes:
    """Return one of Stripe's errors."""
    error = {"type": "invalid_request_error", "code": code, "message": "m", **more}
    return json_answer({"error": error}, status, *headers)


@contextmanager
def gateway_to(port: int, read_timeout_seconds: float = 20.0) -> Iterator[HttpGateway]:
    """Return a gateway for a port on this machine."""
    gateway = HttpGateway(f"http://127.0.0.1:{port}", "sk_test_1", 10, read_timeout_seconds)
    yield gateway
    gateway.close()


def error_of_confirm(talk: Talk, read_timeout_seconds: float = 20.0) -> GatewayError:
    """Confirm against a script; return what was raised."""
    with (
        scripted_server(talk) as server,
        gateway_to(server.port, read_timeout_seconds) as gateway,
        pytest.raises(GatewayError) as caught,
    ):
        gateway.confirm("pi_1", key="k")
    return caught.value


def told_by_confirm(answer: bytes) -> GatewayObject:
    """Confirm against one answer; return what was told."""
    with scripted_server(answering(answer)) as server, gateway_to(server.port) as gateway:
        return gateway.confirm("pi_1", key="k")


def closed_port() -> int:
    """Return a port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


# ---- nothing was sent


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
        gateway.create(_ASKED, key="k")
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


# ---- sent, and no answer


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


# ---- answered


@pytest.mark.parametrize("status", [302, 422, 500])
def test_a_paid_object_under_another_status_is_unknown(status: int) -> None:
    """A body is believed only under the status that belongs to it."""
    paid = intent(status="succeeded", amount_received=1250)

    error = error_of_confirm(answering(json_answer(paid, status)))

    assert isinstance(error, GatewayOutcomeUnknown)


@pytest.mark.parametrize("status", [301, 307, 408, 422, 424, 500, 502, 503, 504, 520])
def test_any_other_status_is_unknown(status: int) -> None:
    """Proxies answer for the gateway; and a redirect of a charge is never followed."""
    answer = http_answer(status, b"<html>Bad gateway</html>", "Location: /elsewhere")

    error = error_of_confirm(answering(answer))

    assert isinstance(error, GatewayOutcomeUnknown)
    assert str(status) in str(error)
    assert error.raw == "<html>Bad gateway</html>"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>Welcome to the hotel's network</html>",
        b"[]",
        b"null",
        b"[" * 100_000,
        b"@" * 100_000,
        b"\xff\xfe",
        json.dumps(intent(id=None)).encode(),
        json.dumps(intent(id="pi_2")).encode(),
        json.dumps(intent(status="requires_capture")).encode(),
        json.dumps(intent(status=None)).encode(),
        json.dumps(intent(amount="1250")).encode(),
        json.dumps(intent(amount=True)).encode(),
        json.dumps(intent(amount=-1)).encode(),
        json.dumps(intent(amount_received=None)).encode(),
        json.dumps(intent(currency="euro")).encode(),
        json.dumps(intent(currency=None)).encode(),
    ],
)
def test_a_success_that_is_none_is_unknown(body: bytes) -> None:
    """A 200 counts only with a payment object that we understand."""
    assert isinstance(error_of_confirm(answering(http_answer(200, body))), GatewayOutcomeUnknown)


@pytest.mark.parametrize("other", [{"amount": 125000}, {"currency": "usd"}])
def test_an_object_for_another_amount_is_unknown(other: dict[str, object]) -> None:
    """Confirming it would take the wrong money."""
    talk = answering(json_answer(intent(**other)))
    with (
        scripted_server(talk) as server,
        gateway_to(server.port) as gateway,
        pytest.raises(GatewayOutcomeUnknown, match="1250 EUR"),
    ):
        gateway.create(_ASKED, key="k")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (error_answer(400, "parameter_missing"), GatewayRefusedRequest),
        (error_answer(404, "resource_missing"), GatewayRefusedRequest),
        (http_answer(404, b"<html>nginx</html>"), GatewayRefusedRequest),
        (error_answer(400, None, type="idempotency_error"), GatewayRefusedRequest),
        (error_answer(400, "payment_intent_unexpected_state"), GatewayOutcomeUnknown),
        (error_answer(401), GatewayAuthentication),
        (error_answer(403), GatewayAuthentication),
        (error_answer(409, "idempotency_key_in_use"), GatewayBusy),
        (error_answer(409, "lock_timeout"), GatewayBusy),
        (error_answer(409, "something_else"), GatewayOutcomeUnknown),
        (error_answer(429, "rate_limit"), GatewayBusy),
        (http_answer(429, b"slow down"), GatewayBusy),
        (error_answer(402, "card_declined"), GatewayOutcomeUnknown),
        (json_answer({"error": []}, 402), GatewayOutcomeUnknown),
    ],
)
def test_a_refusal_is_told_by_what_it_means(answer: bytes, expected: type[GatewayError]) -> None:
    """Each class has another way on: fail, wait, stop the lane, or look up."""
    error = error_of_confirm(answering(answer))

    assert type(error) is expected
    assert "POST /v1/payment_intents/pi_1/confirm" in str(error)


def test_a_402_about_a_paid_object_is_unknown() -> None:
    """A gateway that contradicts itself is asked again."""
    paid = intent(status="succeeded", amount_received=1250)
    answer = error_answer(402, "card_declined", payment_intent=paid)

    assert isinstance(error_of_confirm(answering(answer)), GatewayOutcomeUnknown)


def test_a_decline_is_read_from_the_error() -> None:
    """Stripe puts the object into the error; its decline code routes the next step."""
    declined = intent(
        status="requires_payment_method",
        last_payment_error={"code": "card_declined", "decline_code": "lost_card"},
        latest_charge="ch_1",
    )

    told = told_by_confirm(error_answer(402, "card_declined", payment_intent=declined))

    assert (told.status, told.decline_code) == (ObjectStatus.DECLINED, "lost_card")
    assert told.charge_reference == "ch_1"


def test_a_decline_without_decline_code_falls_back_to_its_code() -> None:
    """Old answers have only the one."""
    error = {"code": "expired_card"}
    declined = intent(status="requires_payment_method", last_payment_error=error)

    told = told_by_confirm(error_answer(402, "expired_card", payment_intent=declined))

    assert told.decline_code == "expired_card"


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"status": "requires_payment_method"}, ObjectStatus.UNCONFIRMED),
        ({"status": "requires_confirmation"}, ObjectStatus.UNCONFIRMED),
        ({"status": "requires_action"}, ObjectStatus.REQUIRES_ACTION),
        ({"status": "processing"}, ObjectStatus.PENDING),
        ({"status": "succeeded"}, ObjectStatus.SUCCEEDED),
        ({"status": "canceled"}, ObjectStatus.CANCELLED),
        (
            {"status": "requires_payment_method", "last_payment_error": {}},
            ObjectStatus.DECLINED,
        ),
    ],
)
def test_every_status_is_translated(fields: dict[str, object], status: ObjectStatus) -> None:
    """The words of the gateway stay in the adapter."""
    assert told_by_confirm(json_answer(intent(**fields))).status is status


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        (["Retry-After: 7"], 7.0),
        (["Retry-After: 0.5"], 0.5),
        (["Retry-After: 86400"], 300.0),
        (["Retry-After: soon"], None),
        (["Retry-After: -3"], None),
        (["Retry-After: nan"], None),
        (["Retry-After: 99999999999999999999"], None),
        ([], None),
        (
            ["Date: Mon, 05 Jan 2026 10:00:00 GMT", "Retry-After: Mon, 05 Jan 2026 10:00:20 GMT"],
            20.0,
        ),
        (
            ["Date: Mon, 05 Jan 2026 10:00:00 GMT", "Retry-After: Mon, 05 Jan 2026 09:00:00 GMT"],
            0.0,
        ),
        (["Retry-After: Mon, 05 Jan 2026 10:00:20 GMT"], None),
        (["Date: Mon, 05 Jan 2026 10:00:00", "Retry-After: Mon, 05 Jan 2026 10:00:20"], None),
    ],
)
def test_the_pause_that_is_asked_for_is_read_with_care(
    headers: list[str], seconds: float | None
) -> None:
    """A pause from a foreign machine must neither crash us nor stop us for a year."""
    error = error_of_confirm(answering(error_answer(429, "rate_limit", *headers)))

    assert error.retry_after_seconds == seconds


# ---- what is sent


def test_the_request_is_what_stripe_expects() -> None:
    """Form, key and credentials; a missing key would be the end of all safety."""
    seen: list[bytes] = []

    def note(connection: socket.socket, _server: ScriptedServer) -> None:
        seen.append(read_http_request(connection))
        connection.sendall(json_answer(intent()))

    with scripted_server(note) as server:
        url = f"http://127.0.0.1:{server.port}/stripe/"
        HttpGateway(url, "sk_test_1", 10, 10).create(_ASKED, key="bj:default:1")

    head, _, body = seen[0].partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"POST /stripe/v1/payment_intents HTTP/1.1"
    assert b"Idempotency-Key: bj:default:1" in lines
    assert b"Authorization: Bearer sk_test_1" in lines
    assert b"Content-Type: application/x-www-form-urlencoded" in lines
    assert body == (
        b"amount=1250&currency=eur&payment_method=pm_card_visa&metadata%5Binvoice_id%5D=in_1"
    )


def test_what_is_kept_of_an_answer_holds_no_secret() -> None:
    """Evidence is read by many; tokens, keys, addresses and card numbers are not for them."""
    body = intent(
        client_secret="pi_1_secret_abc",
        receipt_email="jo@example.com",
        description="card 4242 4242 4242 4242, key sk_live_abc, \x00 src_123",
    )

    told = told_by_confirm(json_answer(body))

    for secret in ("card_visa", "secret_abc", "jo@", "4242", "live_abc", "src_1", "\x00"):
        assert secret not in told.raw
    assert '"payment_method": "pm_***"' in told.raw
    assert '"client_secret": "pi_1_secret_***"' in told.raw


def test_what_is_kept_of_an_answer_is_bounded() -> None:
    """A row of evidence must not grow with what a foreign server sends."""
    error = error_of_confirm(answering(http_answer(500, b"pm_x " * 10_000)))

    assert len(error.raw) == 4_000
    assert "pm_x" not in error.raw


# ---- connections


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


# ---- looking up


def listed(*identifiers: str, has_more: object = False, **fields: object) -> bytes:
    """Return a page of a list."""
    data = [intent(id=identifier, **fields) for identifier in identifiers]
    return json_answer({"object": "list", "data": data, "has_more": has_more})


def find(gateway: HttpGateway, value: str = "in_1") -> list[GatewayObject]:
    """Look up one invoice."""
    return gateway.find(metadata_key="invoice_id", metadata_value=value, created_since=_LONG_AGO)


def test_a_look_up_reads_every_page() -> None:
    """The object that is looked for may be the oldest one."""
    seen: list[bytes] = []

    def note(connection: socket.socket, _server: ScriptedServer) -> None:
        for page in (listed("pi_3", "pi_2", has_more=True), listed("pi_1")):
            seen.append(read_http_request(connection).split(b" ")[1])
            connection.sendall(page)

    with scripted_server(note) as server, gateway_to(server.port) as gateway:
        found = find(gateway)

    assert [one.reference for one in found] == ["pi_3", "pi_2", "pi_1"]
    assert b"created%5Bgte%5D=1577836800" in seen[0]
    assert b"starting_after=pi_2" in seen[1]
    assert "pm_***" in found[0].raw


def test_a_look_up_leaves_strangers_out() -> None:
    """An object without our metadata, or with none at all, is not ours."""
    talk = answering(listed("pi_1", metadata=None))
    with scripted_server(talk) as server, gateway_to(server.port) as gateway:
        assert find(gateway) == []


def test_a_look_up_without_end_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Absence is proven by the last page only."""
    monkeypatch.setattr(http, "_PAGES_MAX", 2)
    page = listed("pi_1", has_more=True)
    with (
        scripted_server(answering(page, page)) as server,
        gateway_to(server.port) as gateway,
        pytest.raises(GatewayOutcomeUnknown, match="created_since"),
    ):
        find(gateway, "in_2")


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b"{}",
        b'{"data": {}, "has_more": false}',
        b'{"data": [], "has_more": true}',
        b'{"data": [], "has_more": "no"}',
        b'{"data": ["pi_1"], "has_more": false}',
        b'{"data": [{"id": "pi_1"}], "has_more": false}',
    ],
)
def test_a_look_up_that_cannot_be_read_proves_nothing(body: bytes) -> None:
    """The object that spoils the page may be the one that was paid."""
    talk = answering(http_answer(200, body))
    with (
        scripted_server(talk) as server,
        gateway_to(server.port) as gateway,
        pytest.raises(GatewayOutcomeUnknown),
    ):
        find(gateway)


# ---- settings


@pytest.mark.parametrize(
    "url",
    [
        "",
        "gateway:8080",
        "ftp://gateway",
        "http://",
        "http://[::1",
        "http://gateway:port",
        "http://user:secret@gateway",
        "http://gateway?secret",
        "http://gateway#secret",
    ],
)
def test_an_unusable_url_is_refused_and_not_shown(url: str) -> None:
    """It is found at the start, and a password in it does not end in a log."""
    with pytest.raises(SettingsInvalid) as caught:
        HttpGateway(url, "sk_test_1", 1, 1)

    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("api_key", ["", "two words", "line\nbreak", "schlüssel"])
def test_an_unusable_api_key_is_refused_and_not_shown(api_key: str) -> None:
    """It would become a header, or break one."""
    with pytest.raises(SettingsInvalid) as caught:
        HttpGateway("http://gateway", api_key, 1, 1)

    assert not api_key or api_key not in str(caught.value)
