"""
Requests as Stripe's clients send them, against the sandbox gateway.

No assertion lives here; a wrong answer comes back as it is.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from support.wire import SandboxProcess
from urllib3 import BaseHTTPResponse

PATH = "/v1/payment_intents"


def post(
    sandbox: SandboxProcess, path: str, key: str | None = None, **form: object
) -> BaseHTTPResponse:
    """Send a form as Stripe's clients do."""
    headers = {"Authorization": "Bearer sk_test"}
    headers |= {"Content-Type": "application/x-www-form-urlencoded"}
    if key is not None:
        headers["Idempotency-Key"] = key
    body = urlencode(form).encode()
    return sandbox.http.request("POST", sandbox.url + path, body=body, headers=headers, timeout=30)


def get(sandbox: SandboxProcess, path: str) -> BaseHTTPResponse:
    """Read as Stripe's clients do."""
    headers = {"Authorization": "Bearer sk_test"}
    return sandbox.http.request("GET", sandbox.url + path, headers=headers, timeout=30)


def create(sandbox: SandboxProcess, token: str = "pm_sandbox_ok", **more: object) -> dict[str, Any]:
    """Create a payment intent of 20 euros."""
    form: dict[str, Any] = {"amount": 2000, "currency": "eur", "payment_method": token, **more}
    made: dict[str, Any] = post(sandbox, PATH, **form).json()
    return made


def confirm(
    sandbox: SandboxProcess, identifier: str, key: str | None = None, **form: object
) -> BaseHTTPResponse:
    """Confirm a payment intent."""
    return post(sandbox, f"{PATH}/{identifier}/confirm", key, **form)


def captures_of(sandbox: SandboxProcess, identifier: str) -> list[dict[str, Any]]:
    """Return the captures of one payment intent."""
    return [one for one in sandbox.journal() if one["payment_intent"] == identifier]


def keys_of(sandbox: SandboxProcess, identifier: str) -> dict[str, int]:
    """Return how many distinct keys one payment intent saw, by operation."""
    keys: dict[str, int] = sandbox.requests()["idempotency_keys"][identifier]
    return keys
