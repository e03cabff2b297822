"""
What each answer of a gateway means for the money, and what is sent to get it.

The words are Stripe's; the ways on are ours: fail, wait, stop the lane, or look up.
"""

from __future__ import annotations

import json
import socket
from datetime import UTC, datetime

import pytest
from support.gateway_answers import (
    ASKED,
    answering,
    error_answer,
    error_of_confirm,
    gateway_to,
    intent,
    json_answer,
    told_by_confirm,
)
from support.scripted import (
    ScriptedServer,
    http_answer,
    read_http_request,
    scripted_server,
)

from billing_jobs.adapters.gateway import http
from billing_jobs.adapters.gateway.http import HttpGateway
from billing_jobs.domain.errors import (
    GatewayAuthentication,
    GatewayBusy,
    GatewayError,
    GatewayOutcomeUnknown,
    GatewayRefusedRequest,
    SettingsInvalid,
)
from billing_jobs.domain.payment import GatewayObject, ObjectStatus

_LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


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
        gateway.create(ASKED, key="k")


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


def test_the_request_is_what_stripe_expects() -> None:
    """Form, key and credentials; a missing key would be the end of all safety."""
    seen: list[bytes] = []

    def note(connection: socket.socket, _server: ScriptedServer) -> None:
        seen.append(read_http_request(connection))
        connection.sendall(json_answer(intent()))

    with scripted_server(note) as server:
        url = f"http://127.0.0.1:{server.port}/stripe/"
        HttpGateway(url, "sk_test_1", 10, 10).create(ASKED, key="bj:default:1")

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
