"""
Idempotency keys of the sandbox gateway, as Stripe's first API version keeps them.

Who trusts in keys alone charges twice; the traps are all here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from uuid import uuid4

import pytest
from support.stripe_client import PATH, captures_of, confirm, create, keys_of, post
from support.wire import SandboxProcess, sandbox_process
from urllib3 import BaseHTTPResponse


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxProcess]:
    """One process for the module; each test has payment intents of its own."""
    with sandbox_process(tmp_path_factory.mktemp("gateway")) as running:
        yield running


@pytest.fixture
def sandbox(server: SandboxProcess) -> SandboxProcess:
    """The process without the faults of an earlier test."""
    server.set_faults()
    return server


def test_an_answer_is_kept_under_its_key(sandbox: SandboxProcess) -> None:
    """Stripe replays status and body, and says so in a header."""
    made, key = create(sandbox), str(uuid4())

    first = confirm(sandbox, made["id"], key)
    again = confirm(sandbox, made["id"], key)

    assert (again.status, again.data) == (first.status, first.data)
    assert "Idempotent-Replayed" not in first.headers
    assert again.headers["Idempotent-Replayed"] == "true"
    assert again.headers["Request-Id"] != first.headers["Request-Id"]


@pytest.mark.parametrize(
    ("token", "status"),
    [
        ("pm_sandbox_error_before_charge_x1", 500),
        ("pm_sandbox_error_after_charge_x1", 500),
        ("pm_sandbox_decline_do_not_honor_x1", 402),
    ],
)
def test_failures_are_kept_under_their_key_too(
    sandbox: SandboxProcess, token: str, status: int
) -> None:
    """The trap of Stripe's keys: a saved 500 comes back for ever, whatever happened since."""
    made, key = create(sandbox, token), str(uuid4())

    answers = [confirm(sandbox, made["id"], key) for _ in range(3)]

    assert [answer.status for answer in answers] == [status] * 3
    assert answers[2].headers["Idempotent-Replayed"] == "true"


def test_a_key_with_another_body_is_an_idempotency_error(sandbox: SandboxProcess) -> None:
    """The mistake of a client that takes a new card under an old key."""
    made, key = create(sandbox), str(uuid4())
    confirm(sandbox, made["id"], key)

    other = confirm(sandbox, made["id"], key, payment_method="pm_sandbox_ok")

    assert (other.status, other.json()["error"]["type"]) == (400, "idempotency_error")


def test_a_key_in_flight_answers_409_and_is_executed_once(sandbox: SandboxProcess) -> None:
    """Two senders of one key: the second must not wait, not execute and not fail for good."""
    made, key = create(sandbox), str(uuid4())
    sandbox.set_faults({"operation": "confirm", "fault": "slow"})
    together = threading.Barrier(4)
    answers: list[BaseHTTPResponse] = []

    def send() -> None:
        together.wait(20)
        answers.append(confirm(sandbox, made["id"], key))

    senders = [threading.Thread(target=send) for _ in range(4)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join(30)

    executed = [one for one in answers if "Idempotent-Replayed" not in one.headers]
    assert sorted({answer.status for answer in executed}) == [200, 409]
    assert [answer.status for answer in executed].count(200) == 1
    conflict = next(answer for answer in answers if answer.status == 409)
    assert conflict.json()["error"]["code"] == "idempotency_key_in_use"
    assert len(captures_of(sandbox, made["id"])) == 1


def test_busy_comes_before_the_keys(sandbox: SandboxProcess) -> None:
    """A 429 is never kept: the same key works a second later."""
    made, key = create(sandbox, "pm_sandbox_busy_x2"), str(uuid4())

    answers = [confirm(sandbox, made["id"], key) for _ in range(3)]

    assert [answer.status for answer in answers] == [429, 429, 200]
    assert answers[0].headers["Retry-After"] == "1"
    assert answers[0].json()["error"]["code"] == "rate_limit"


@pytest.mark.parametrize(("fault", "status"), [("busy", 429), ("in_flight", 409)])
def test_a_refusal_before_the_keys_hides_even_a_kept_answer(
    sandbox: SandboxProcess, fault: str, status: int
) -> None:
    """A replay may be refused for now as well; it must not be taken for the first answer."""
    made, key = create(sandbox), str(uuid4())
    confirm(sandbox, made["id"], key)
    sandbox.set_faults({"operation": "confirm", "fault": fault})

    answers = [confirm(sandbox, made["id"], key) for _ in range(2)]

    assert [answer.status for answer in answers] == [status, 200]
    assert "Idempotent-Replayed" in answers[1].headers


def test_a_key_lives_for_a_day_of_the_gateways_clock(sandbox: SandboxProcess) -> None:
    """After it the same request is a new one; the object alone keeps it to one charge."""
    made, key = create(sandbox), str(uuid4())
    confirm(sandbox, made["id"], key)

    sandbox.advance(24 * 3600 - 60)
    within = confirm(sandbox, made["id"], key)
    sandbox.advance(60)
    after = confirm(sandbox, made["id"], key)

    assert (within.status, after.status) == (200, 400)
    assert len(captures_of(sandbox, made["id"])) == 1


def test_the_lifetime_of_keys_can_be_set(sandbox: SandboxProcess) -> None:
    """Gateways differ: some forget at once."""
    sandbox.admin("POST", "/sandbox/clock", {"key_lifetime_seconds": 0})
    made, key = create(sandbox), str(uuid4())

    statuses = [confirm(sandbox, made["id"], key).status for _ in range(2)]

    sandbox.admin("POST", "/sandbox/clock", {"key_lifetime_seconds": 24 * 3600})
    assert statuses == [200, 400]


def test_a_request_without_a_key_is_executed(sandbox: SandboxProcess) -> None:
    """Stripe does, too; it is the client's duty to send one."""
    assert create(sandbox)["id"] != create(sandbox)["id"]


def test_a_key_has_a_bound(sandbox: SandboxProcess) -> None:
    """Stripe's is 255 characters."""
    assert post(sandbox, PATH, key="k" * 256, amount=1, currency="eur").status == 400


def test_keys_are_counted_by_intent(sandbox: SandboxProcess) -> None:
    """The proof that a client did not answer an error with a new key."""
    made = create(sandbox, "pm_sandbox_busy_x1")
    confirm(sandbox, made["id"], "first")
    confirm(sandbox, made["id"], "first")
    confirm(sandbox, made["id"], "second")

    assert keys_of(sandbox, made["id"]) == {"confirm": 2}


def test_outcomes_are_counted_by_route(sandbox: SandboxProcess) -> None:
    """A test that expects no second send counts sends here, replays apart."""
    before = sandbox.requests()["routes"].get("confirm", {})
    made, key = create(sandbox), str(uuid4())
    confirm(sandbox, made["id"], key)
    confirm(sandbox, made["id"], key)

    after = sandbox.requests()["routes"]["confirm"]

    assert after["200"] == before.get("200", 0) + 1
    assert after["200_replayed"] == before.get("200_replayed", 0) + 1
