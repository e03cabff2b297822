"""
The sandbox gateway over the wire: Stripe's shapes, Stripe's idempotency, faults on demand.

What is checked here is what Stripe's documentation says about the same request, so that a client
written for the one works with the other.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

import pytest
import urllib3
from support.wire import SandboxProcess, sandbox_process
from urllib3 import BaseHTTPResponse

_PATH = "/v1/payment_intents"


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
    made: dict[str, Any] = post(sandbox, _PATH, **form).json()
    return made


def confirm(
    sandbox: SandboxProcess, identifier: str, key: str | None = None, **form: object
) -> BaseHTTPResponse:
    """Confirm a payment intent."""
    return post(sandbox, f"{_PATH}/{identifier}/confirm", key, **form)


def captures_of(sandbox: SandboxProcess, identifier: str) -> list[dict[str, Any]]:
    """Return the captures of one payment intent."""
    return [one for one in sandbox.journal() if one["payment_intent"] == identifier]


def test_a_created_intent_has_stripes_shape(sandbox: SandboxProcess) -> None:
    """A client that reads Stripe's object must find every field it knows."""
    form: dict[str, Any] = {"amount": 2000, "currency": "EUR", "metadata[invoice_id]": "in_7"}

    answer = post(sandbox, _PATH, payment_method="pm_sandbox_ok", customer="cus_1", **form)

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
    made = post(sandbox, _PATH, amount=2000, currency="eur").json()

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
    kept = get(sandbox, f"{_PATH}/{declined['error']['payment_intent']['id']}").json()
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

    cancelled = post(sandbox, f"{_PATH}/{made['id']}/cancel", cancellation_reason="abandoned")
    refused = confirm(sandbox, made["id"])

    assert cancelled.json()["status"] == "canceled"
    assert cancelled.json()["cancellation_reason"] == "abandoned"
    assert cancelled.json()["canceled_at"] >= made["created"]
    assert refused.json()["error"]["payment_intent"]["status"] == "canceled"


def test_a_paid_intent_cannot_be_cancelled(sandbox: SandboxProcess) -> None:
    """Money that was taken goes back by a refund, not by forgetting it."""
    made = create(sandbox, confirm="true")

    refused = post(sandbox, f"{_PATH}/{made['id']}/cancel")

    assert refused.status == 400
    assert refused.json()["error"]["code"] == "payment_intent_unexpected_state"


def test_a_list_is_paged_newest_first(sandbox: SandboxProcess) -> None:
    """A look-up by metadata pages through it; a page lost is a payment not found."""
    customer = f"cus_{uuid4().hex}"
    made = [create(sandbox, customer=customer)["id"] for _ in range(3)]

    first = get(sandbox, f"{_PATH}?customer={customer}&limit=2").json()
    cursor = first["data"][-1]["id"]
    second = get(sandbox, f"{_PATH}?customer={customer}&limit=2&starting_after={cursor}").json()

    assert (first["object"], first["url"], first["has_more"]) == ("list", _PATH, True)
    assert [one["id"] for one in first["data"]] == [made[2], made[1]]
    assert ([one["id"] for one in second["data"]], second["has_more"]) == ([made[0]], False)


def test_a_list_can_be_bounded_by_time(sandbox: SandboxProcess) -> None:
    """A look-up after a restore asks for everything since a moment."""
    customer = f"cus_{uuid4().hex}"
    created = create(sandbox, customer=customer)["created"]

    def listed(**bounds: int) -> int:
        query = {f"created[{name}]": second for name, second in bounds.items()}
        page = get(sandbox, f"{_PATH}?{urlencode({'customer': customer, **query})}").json()
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

    answer = post(sandbox, _PATH, key=str(uuid4()), **asked)

    error = answer.json()["error"]
    assert answer.status == 400
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert error.get("code") == code


@pytest.mark.parametrize(
    ("path", "param"),
    [
        (f"{_PATH}?limit=101", "limit"),
        (f"{_PATH}?limit=0", "limit"),
        (f"{_PATH}?created[gte]=yesterday", "created[gte]"),
        (f"{_PATH}?starting_after=pi_gone", "starting_after"),
    ],
)
def test_a_wrong_query_is_named(sandbox: SandboxProcess, path: str, param: str) -> None:
    """An ignored bound would make a look-up complete that is not."""
    answer = get(sandbox, path)

    assert (answer.status, answer.json()["error"]["param"]) == (400, param)


def test_too_many_parameters_are_refused(sandbox: SandboxProcess) -> None:
    """Every input has a bound."""
    form = {f"metadata[n{number}]": "v" for number in range(201)}

    assert post(sandbox, _PATH, **form).status == 400


def test_what_does_not_exist_is_404(sandbox: SandboxProcess) -> None:
    """A wrong path and a wrong id are different mistakes; the error says which."""
    missing = get(sandbox, f"{_PATH}/pi_gone")
    unknown = get(sandbox, "/v1/charges")
    delete = sandbox.http.request("DELETE", sandbox.url + _PATH)

    assert (missing.status, missing.json()["error"]["code"]) == (404, "resource_missing")
    assert (unknown.status, delete.status) == (404, 404)
    assert "GET: /v1/charges" in unknown.json()["error"]["message"]


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer "}, {"Authorization": "Key k"}])
def test_a_key_is_needed(sandbox: SandboxProcess, headers: dict[str, str]) -> None:
    """A client that forgot its key must learn it here, not in production."""
    answer = sandbox.http.request("GET", sandbox.url + _PATH, headers=headers)

    assert (answer.status, answer.json()["error"]["type"]) == (401, "invalid_request_error")


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


def keys_of(sandbox: SandboxProcess, identifier: str) -> dict[str, int]:
    """Return how many distinct keys one payment intent saw, by operation."""
    keys: dict[str, int] = sandbox.requests()["idempotency_keys"][identifier]
    return keys


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
    assert post(sandbox, _PATH, key="k" * 256, amount=1, currency="eur").status == 400


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


def test_a_script_strikes_the_requests_it_names(sandbox: SandboxProcess) -> None:
    """A test hits one invoice of a thousand, as often as it says."""
    hit = create(sandbox, **{"metadata[invoice_id]": "hit"})["id"]
    spared = create(sandbox, **{"metadata[invoice_id]": "spared"})["id"]
    match = {"invoice_id": "hit"}
    sandbox.set_faults(
        {"operation": "confirm", "fault": "decline_fraudulent", "count": 2, "match": match}
    )

    assert confirm(sandbox, spared).status == 200
    assert [confirm(sandbox, hit).status for _ in range(3)] == [402, 402, 200]
    assert sandbox.admin("GET", "/sandbox/faults")["script"][0]["count"] == 0


def test_a_script_without_count_strikes_always(sandbox: SandboxProcess) -> None:
    """An outage lasts until the test ends it."""
    sandbox.set_faults({"operation": "retrieve", "fault": "forbidden", "count": None})
    made = create(sandbox)

    during = [get(sandbox, f"{_PATH}/{made['id']}").status for _ in range(3)]
    sandbox.set_faults()

    assert during == [403, 403, 403]
    assert get(sandbox, f"{_PATH}/{made['id']}").status == 200


@pytest.mark.parametrize(
    ("operation", "fault", "status"),
    [
        ("retrieve", "busy", 429),
        ("retrieve", "unauthorized", 401),
        ("retrieve", "in_flight", 409),
        ("retrieve", "error_before_charge", 500),
        ("list", "error_after_charge", 500),
        ("create", "error_before_charge", 500),
        ("cancel", "error_after_charge", 500),
        ("cancel", "busy", 429),
    ],
)
def test_every_operation_can_fail(
    sandbox: SandboxProcess, operation: str, fault: str, status: int
) -> None:
    """An outage does not stop at the confirm."""
    made = create(sandbox)["id"]
    sandbox.set_faults({"operation": operation, "fault": fault})

    answer = {
        "create": lambda: post(sandbox, _PATH, amount=2000, currency="eur"),
        "cancel": lambda: post(sandbox, f"{_PATH}/{made}/cancel"),
        "retrieve": lambda: get(sandbox, f"{_PATH}/{made}"),
        "list": lambda: get(sandbox, _PATH),
    }[operation]()

    assert answer.status == status


def test_an_error_before_a_create_creates_nothing(sandbox: SandboxProcess) -> None:
    """Before and after must differ in the book, though they look alike from outside."""
    customer = f"cus_{uuid4().hex}"
    script = [
        {"operation": "create", "fault": fault}
        for fault in ("error_before_charge", "error_after_charge")
    ]
    sandbox.set_faults(*script)

    statuses = [
        post(sandbox, _PATH, amount=2000, currency="eur", customer=customer).status
        for _ in range(2)
    ]

    assert statuses == [500, 500]
    assert len(get(sandbox, f"{_PATH}?customer={customer}").json()["data"]) == 1


def test_an_answer_can_lie(sandbox: SandboxProcess) -> None:
    """Proxies answer 200 with HTML, and a mixed-up gateway names another amount."""
    made = create(sandbox)["id"]
    faults = ["garbage_after_charge", "wrong_currency", "wrong_amount"]
    sandbox.set_faults(*({"operation": "retrieve", "fault": fault} for fault in faults))

    garbage, currency, amount = (get(sandbox, f"{_PATH}/{made}") for _ in faults)

    assert (garbage.status, garbage.data[:6]) == (200, b"<html>")
    assert currency.json()["currency"] == "xof"
    assert amount.json()["amount"] == 12000
    assert get(sandbox, f"{_PATH}/{made}").json()["amount"] == 2000


@pytest.mark.parametrize("fault", ["reset_before_charge", "reset_after_charge"])
def test_a_reset_is_a_reset(sandbox: SandboxProcess, fault: str) -> None:
    """A RST and a FIN are different failures for a client."""
    made = create(sandbox, f"pm_sandbox_{fault}")["id"]

    with pytest.raises(urllib3.exceptions.ProtocolError) as caught:
        confirm(sandbox, made)

    # A FIN shows as RemoteDisconnected, which is a ConnectionResetError as well.
    assert type(caught.value.args[1]) is ConnectionResetError


def test_rates_strike_a_share_of_the_requests_by_seed(
    sandbox: SandboxProcess, tmp_path: Path
) -> None:
    """A chaos run is repeated with its seed: the same invoices must meet the same faults."""
    rates = [
        {"operation": "confirm", "fault": "busy", "share": 0.3},
        {"operation": "confirm", "fault": "decline_lost_card", "share": 0.3},
    ]

    def run(gateway: SandboxProcess, seed: int) -> list[int]:
        gateway.set_faults(rates=rates, seed=seed)
        intents = [
            create(gateway, **{"metadata[invoice_id]": f"rated-{number}"})["id"]
            for number in range(40)
        ]
        return [confirm(gateway, identifier).status for identifier in intents]

    first = run(sandbox, 7)
    with sandbox_process(tmp_path) as fresh:
        again = run(fresh, 7)
        other = run(fresh, 8)

    assert again == first
    assert other != first
    assert set(first) == {429, 402, 200}


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"scripts": []}, "scripts"),
        ({"seed": "seven"}, "seed"),
        ({"script": {}}, "script"),
        ({"script": ["confirm"]}, "objects"),
        ({"script": [{"operation": "confirm"}] * 101}, "100"),
        ({"script": [{"operation": "conform", "fault": "busy"}]}, "conform"),
        ({"script": [{"operation": "confirm", "fault": "hang"}]}, "hang_after_charge"),
        ({"script": [{"operation": "confirm", "fault": "decline"}]}, "decline_<code>"),
        ({"script": [{"operation": "list", "fault": "partial"}]}, "confirm only"),
        ({"script": [{"operation": "list", "fault": "busy", "count": 0}]}, "count"),
        ({"script": [{"operation": "list", "fault": "busy", "match": "x"}]}, "match"),
        ({"rates": [{"operation": "list", "fault": "busy", "share": 2}]}, "share"),
        ({"rates": [{"operation": "list", "fault": "busy"}]}, "share"),
    ],
)
def test_a_plan_with_a_mistake_is_refused(
    sandbox: SandboxProcess, plan: dict[str, object], said: str
) -> None:
    """A misspelt fault that strikes nothing makes a test pass that proves nothing."""
    answer = sandbox.http.request("POST", f"{sandbox.url}/sandbox/faults", json=plan)

    assert answer.status == 400
    assert said in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/sandbox/clock", b"{", 400),
        ("/sandbox/clock", b"[]", 400),
        ("/sandbox/clock", b'{"advance_seconds": -1}', 400),
        ("/sandbox/clock", b'{"advance_seconds": "1"}', 400),
        ("/sandbox/settle", b'{"payment_intent": "pi_gone"}', 404),
        ("/sandbox/settle", b'{"payment_intent": "pi_gone", "outcome": "maybe"}', 400),
        ("/sandbox/nothing", b"{}", 404),
    ],
)
def test_a_wrong_admin_request_is_refused(
    sandbox: SandboxProcess, path: str, body: bytes, status: int
) -> None:
    """The strings must hold when they are pulled wrongly."""
    answer = sandbox.http.request("POST", sandbox.url + path, body=body)

    assert (answer.status, "error" in answer.json()) == (status, True)


def test_only_what_waits_can_be_settled(sandbox: SandboxProcess) -> None:
    """Settling a paid intent again would capture twice."""
    made = create(sandbox, confirm="true")["id"]

    answer = sandbox.http.request(
        "POST", f"{sandbox.url}/sandbox/settle", json={"payment_intent": made}
    )

    assert answer.status == 400
    assert len(captures_of(sandbox, made)) == 1


def test_health_answers(sandbox: SandboxProcess) -> None:
    """A supervisor asks before it calls the process ready."""
    assert sandbox.admin("GET", "/sandbox/health")["status"] == "ok"


def test_the_journal_is_read_in_pages(sandbox: SandboxProcess) -> None:
    """A long run has more captures than one answer shall hold."""
    create(sandbox, confirm="true")
    whole = sandbox.journal()

    rest = sandbox.admin("GET", f"/sandbox/journal?offset={len(whole) - 1}")

    assert rest["data"] == whole[-1:]
    wrong = sandbox.http.request("GET", f"{sandbox.url}/sandbox/journal?offset=-1")
    assert wrong.status == 400
