"""
The sandbox gateway over the wire: Stripe's shapes and Stripe's refusals.

What is checked here is what Stripe's documentation says about the same request, so that a client
written for the one works with the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

import pytest
from support.stripe_client import PATH, captures_of, confirm, create, get, post
from support.wire import SandboxProcess, sandbox_process


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


def test_a_created_intent_has_stripes_shape(sandbox: SandboxProcess) -> None:
    """A client that reads Stripe's object must find every field it knows."""
    form: dict[str, Any] = {"amount": 2000, "currency": "EUR", "metadata[invoice_id]": "in_7"}

    answer = post(sandbox, PATH, payment_method="pm_sandbox_ok", customer="cus_1", **form)

    made = answer.json()
    assert answer.status == 200
    assert answer.headers["Request-Id"].startswith("req_")
    assert made["id"].startswith("pi_")
    assert made["client_secret"].startswith(f"{made['id']}_secret_")
    assert (made["object"], made["livemode"]) == ("payment_intent", False)
    assert (made["amount"], made["amount_received"], made["currency"]) == (2000, 0, "eur")
    assert (made["status"], made["latest_charge"]) == ("requires_confirmation", None)
    assert (made["customer"], made["metadata"]) == ("cus_1", {"invoice_id": "in_7"})


def test_an_intent_without_a_card_waits_for_one(sandbox: SandboxProcess) -> None:
    """Stripe names this state differently, and refuses to confirm it."""
    made = post(sandbox, PATH, amount=2000, currency="eur").json()

    refused = confirm(sandbox, made["id"])
    paid = confirm(sandbox, made["id"], payment_method="pm_sandbox_ok")

    assert made["status"] == "requires_payment_method"
    assert refused.status == 400
    assert refused.json()["error"]["code"] == "payment_intent_unexpected_state"
    assert paid.json()["status"] == "succeeded"


def test_a_capture_is_in_the_book_with_all_that_tests_count(sandbox: SandboxProcess) -> None:
    """The journal is the oracle: it must say whose money it was."""
    made = create(sandbox, **{"metadata[invoice_id]": "in_8"})

    paid = confirm(sandbox, made["id"]).json()

    (capture,) = captures_of(sandbox, made["id"])
    assert paid["amount_received"] == 2000
    assert capture == {
        "charge": paid["latest_charge"],
        "payment_intent": made["id"],
        "amount": 2000,
        "currency": "eur",
        "metadata": {"invoice_id": "in_8"},
        "created": capture["created"],
    }
    assert capture["charge"].startswith("ch_")


def test_a_decline_is_stripes_card_error(sandbox: SandboxProcess) -> None:
    """Decline routing lives of these fields, and of the intent inside the error."""
    made = create(sandbox, "pm_sandbox_decline_stolen_card")

    answer = confirm(sandbox, made["id"])

    error = answer.json()["error"]
    assert answer.status == 402
    assert (error["type"], error["code"]) == ("card_error", "card_declined")
    assert (error["decline_code"], error["advice_code"]) == ("stolen_card", "do_not_try_again")
    intent = error["payment_intent"]
    assert (intent["status"], intent["payment_method"]) == ("requires_payment_method", None)
    assert intent["last_payment_error"]["decline_code"] == "stolen_card"
    assert intent["latest_charge"] == error["charge"]
    assert not captures_of(sandbox, made["id"])


@pytest.mark.parametrize(
    ("decline_code", "code", "advice_code"),
    [
        ("expired_card", "expired_card", "confirm_card_data"),
        ("insufficient_funds", "card_declined", "try_again_later"),
        ("restricted_card", "card_declined", None),
    ],
)
def test_a_decline_tells_code_and_advice_as_stripe_does(
    sandbox: SandboxProcess, decline_code: str, code: str, advice_code: str | None
) -> None:
    """Some declines are a code of their own, and not all come with advice."""
    made = create(sandbox, f"pm_sandbox_decline_{decline_code}")

    error = confirm(sandbox, made["id"]).json()["error"]

    assert (error["code"], error["decline_code"]) == (code, decline_code)
    assert error.get("advice_code") == advice_code


def test_create_and_confirm_in_one_call_works_too(sandbox: SandboxProcess) -> None:
    """Stripe's own examples do it so; the faults of the card strike there as well."""
    paid = create(sandbox, confirm="true")
    declined = create(sandbox, "pm_sandbox_decline_lost_card", confirm="true")

    assert paid["status"] == "succeeded"
    assert len(captures_of(sandbox, paid["id"])) == 1
    assert declined["error"]["decline_code"] == "lost_card"
    kept = get(sandbox, f"{PATH}/{declined['error']['payment_intent']['id']}").json()
    assert kept["status"] == "requires_payment_method"


def test_authentication_is_asked_for(sandbox: SandboxProcess) -> None:
    """The customer must act; a second confirm, after it, goes through."""
    made = create(sandbox, "pm_sandbox_requires_action_x1")

    waiting = confirm(sandbox, made["id"]).json()
    paid = confirm(sandbox, made["id"]).json()

    assert waiting["status"] == "requires_action"
    assert waiting["next_action"]["type"] == "use_stripe_sdk"
    assert (paid["status"], paid["next_action"]) == ("succeeded", None)


def test_a_cancelled_intent_cannot_be_confirmed(sandbox: SandboxProcess) -> None:
    """A debt that was written off must not be collected by a late worker."""
    made = create(sandbox)

    cancelled = post(sandbox, f"{PATH}/{made['id']}/cancel", cancellation_reason="abandoned")
    refused = confirm(sandbox, made["id"])

    assert cancelled.json()["status"] == "canceled"
    assert cancelled.json()["cancellation_reason"] == "abandoned"
    assert cancelled.json()["canceled_at"] >= made["created"]
    assert refused.json()["error"]["payment_intent"]["status"] == "canceled"


def test_a_paid_intent_cannot_be_cancelled(sandbox: SandboxProcess) -> None:
    """Money that was taken goes back by a refund, not by forgetting it."""
    made = create(sandbox, confirm="true")

    refused = post(sandbox, f"{PATH}/{made['id']}/cancel")

    assert refused.status == 400
    assert refused.json()["error"]["code"] == "payment_intent_unexpected_state"


def test_a_list_is_paged_newest_first(sandbox: SandboxProcess) -> None:
    """A look-up by metadata pages through it; a page lost is a payment not found."""
    customer = f"cus_{uuid4().hex}"
    made = [create(sandbox, customer=customer)["id"] for _ in range(3)]

    first = get(sandbox, f"{PATH}?customer={customer}&limit=2").json()
    cursor = first["data"][-1]["id"]
    second = get(sandbox, f"{PATH}?customer={customer}&limit=2&starting_after={cursor}").json()

    assert (first["object"], first["url"], first["has_more"]) == ("list", PATH, True)
    assert [one["id"] for one in first["data"]] == [made[2], made[1]]
    assert ([one["id"] for one in second["data"]], second["has_more"]) == ([made[0]], False)


def test_a_list_can_be_bounded_by_time(sandbox: SandboxProcess) -> None:
    """A look-up after a restore asks for everything since a moment."""
    customer = f"cus_{uuid4().hex}"
    created = create(sandbox, customer=customer)["created"]

    def listed(**bounds: int) -> int:
        query = {f"created[{name}]": second for name, second in bounds.items()}
        page = get(sandbox, f"{PATH}?{urlencode({'customer': customer, **query})}").json()
        return len(page["data"])

    assert listed(gte=created, lte=created) == 1
    assert listed(gt=created) == 0
    assert listed(lt=created) == 0


@pytest.mark.parametrize(
    ("form", "param", "code"),
    [
        ({"amount": 0}, "amount", "parameter_invalid_integer"),
        ({"amount": "12.5"}, "amount", "parameter_invalid_integer"),
        ({"amount": 100_000_000}, "amount", "amount_too_large"),
        ({"currency": "zzz"}, "currency", None),
        ({"payment_method": "pm_card_visa"}, "payment_method", "resource_missing"),
        ({"payment_method": "pm_sandbox_unknown_method"}, "payment_method", "resource_missing"),
        ({"payment_method": "pm_sandbox_decline"}, "payment_method", "resource_missing"),
        ({"confirm": "perhaps"}, "confirm", None),
        ({"metdata[a]": "b"}, "metdata", "parameter_unknown"),
        ({"metadata[" + "n" * 41 + "]": "b"}, "metadata[" + "n" * 41 + "]", None),
        ({"metadata[a]": "v" * 501}, "metadata[a]", None),
        ({f"metadata[n{number}]": "v" for number in range(51)}, "metadata", None),
    ],
)
def test_a_wrong_parameter_is_named(
    sandbox: SandboxProcess, form: dict[str, Any], param: str, code: str | None
) -> None:
    """A sandbox that takes what Stripe refuses lets a bug through to the day of the first bill."""
    asked: dict[str, Any] = {"amount": 2000, "currency": "eur", "payment_method": "pm_sandbox_ok"}
    asked |= form

    answer = post(sandbox, PATH, key=str(uuid4()), **asked)

    error = answer.json()["error"]
    assert answer.status == 400
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert error.get("code") == code


@pytest.mark.parametrize(
    ("path", "param"),
    [
        (f"{PATH}?limit=101", "limit"),
        (f"{PATH}?limit=0", "limit"),
        (f"{PATH}?created[gte]=yesterday", "created[gte]"),
        (f"{PATH}?starting_after=pi_gone", "starting_after"),
    ],
)
def test_a_wrong_query_is_named(sandbox: SandboxProcess, path: str, param: str) -> None:
    """An ignored bound would make a look-up complete that is not."""
    answer = get(sandbox, path)

    assert (answer.status, answer.json()["error"]["param"]) == (400, param)


def test_too_many_parameters_are_refused(sandbox: SandboxProcess) -> None:
    """Every input has a bound."""
    form = {f"metadata[n{number}]": "v" for number in range(201)}

    assert post(sandbox, PATH, **form).status == 400


def test_what_does_not_exist_is_404(sandbox: SandboxProcess) -> None:
    """A wrong path and a wrong id are different mistakes; the error says which."""
    missing = get(sandbox, f"{PATH}/pi_gone")
    unknown = get(sandbox, "/v1/charges")
    delete = sandbox.http.request("DELETE", sandbox.url + PATH)

    assert (missing.status, missing.json()["error"]["code"]) == (404, "resource_missing")
    assert (unknown.status, delete.status) == (404, 404)
    assert "GET: /v1/charges" in unknown.json()["error"]["message"]


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer "}, {"Authorization": "Key k"}])
def test_a_key_is_needed(sandbox: SandboxProcess, headers: dict[str, str]) -> None:
    """A client that forgot its key must learn it here, not in production."""
    answer = sandbox.http.request("GET", sandbox.url + PATH, headers=headers)

    assert (answer.status, answer.json()["error"]["type"]) == (401, "invalid_request_error")
