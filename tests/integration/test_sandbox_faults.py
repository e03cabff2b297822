"""
Faults on demand: by script, by rate with a seed, and the strings that tests pull.

A fault that strikes nothing, or the wrong request, makes a test pass that proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import urllib3
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

    during = [get(sandbox, f"{PATH}/{made['id']}").status for _ in range(3)]
    sandbox.set_faults()

    assert during == [403, 403, 403]
    assert get(sandbox, f"{PATH}/{made['id']}").status == 200


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
        "create": lambda: post(sandbox, PATH, amount=2000, currency="eur"),
        "cancel": lambda: post(sandbox, f"{PATH}/{made}/cancel"),
        "retrieve": lambda: get(sandbox, f"{PATH}/{made}"),
        "list": lambda: get(sandbox, PATH),
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
        post(sandbox, PATH, amount=2000, currency="eur", customer=customer).status for _ in range(2)
    ]

    assert statuses == [500, 500]
    assert len(get(sandbox, f"{PATH}?customer={customer}").json()["data"]) == 1


def test_an_answer_can_lie(sandbox: SandboxProcess) -> None:
    """Proxies answer 200 with HTML, and a mixed-up gateway names another amount."""
    made = create(sandbox)["id"]
    faults = ["garbage_after_charge", "wrong_currency", "wrong_amount"]
    sandbox.set_faults(*({"operation": "retrieve", "fault": fault} for fault in faults))

    garbage, currency, amount = (get(sandbox, f"{PATH}/{made}") for _ in faults)

    assert (garbage.status, garbage.data[:6]) == (200, b"<html>")
    assert currency.json()["currency"] == "xof"
    assert amount.json()["amount"] == 12000
    assert get(sandbox, f"{PATH}/{made}").json()["amount"] == 2000


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
