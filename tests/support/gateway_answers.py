"""Answers of a Stripe-shaped gateway, word for word, and the gateway adapter that hears them."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.scripted import (
    ScriptedServer,
    Talk,
    http_answer,
    read_http_request,
    scripted_server,
)

from billing_jobs.adapters.gateway.http import HttpGateway
from billing_jobs.domain.errors import (
    GatewayError,
)
from billing_jobs.domain.payment import GatewayObject, PaymentInstruction

#: What executors ask for.
ASKED = PaymentInstruction(1250, "EUR", (("invoice_id", "in_1"),), "pm_card_visa")


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
