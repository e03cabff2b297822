"""
What every payment gateway promises, checked on the fake and on the real adapter over real HTTP.

A test elsewhere that uses the fake is worth as much as this suite.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from support.gateway_bench import Bench, fake_bench, http_bench, instruction, new_key
from support.wire import SandboxProcess, sandbox_process, wait_until

from billing_jobs.adapters.gateway.fake import FakeGateway
from billing_jobs.domain.errors import (
    GatewayAuthentication,
    GatewayBusy,
    GatewayOutcomeUnknown,
    GatewayRefusedRequest,
)
from billing_jobs.domain.payment import GatewayObject, ObjectStatus
from billing_jobs.ports import PaymentGateway

_LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxProcess]:
    """One real gateway process for the module."""
    with sandbox_process(tmp_path_factory.mktemp("gateway")) as server:
        yield server


@pytest.fixture(params=["fake", "http"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """Each gateway in turn."""
    if request.param == "fake":
        yield fake_bench()
        return
    made = http_bench(request.getfixturevalue("sandbox"))
    yield made
    made.gateway.close()
    made.hurried.close()


def test_both_are_payment_gateways(bench: Bench) -> None:
    """The type checker compares the shapes here; a drift breaks the build, not a customer."""
    gateway: PaymentGateway = bench.gateway

    assert gateway.name in {"fake", "sandbox"}


def test_a_created_object_moves_no_money(bench: Bench) -> None:
    """A create whose answer is lost must be harmless: nothing may be taken before a confirm."""
    made = bench.create()

    assert made.status is ObjectStatus.UNCONFIRMED
    assert (made.amount_minor, made.amount_received_minor, made.currency) == (1250, 0, "EUR")
    assert bench.captures_of(made.reference) == 0


def test_a_confirm_takes_the_money_once(bench: Bench) -> None:
    """The plain way: the journal, not the answer, is the proof."""
    made = bench.create()

    paid = bench.gateway.confirm(made.reference, key=new_key())

    assert paid.status is ObjectStatus.SUCCEEDED
    assert (paid.amount_received_minor, paid.reference) == (1250, made.reference)
    assert paid.charge_reference is not None
    assert not paid.replayed
    assert bench.captures_of(made.reference) == 1


def test_the_same_key_answers_the_same_and_says_so(bench: Bench) -> None:
    """A transport retry must neither charge again nor look like a second charge."""
    made, key = bench.create(), new_key()
    first = bench.gateway.confirm(made.reference, key=key)

    again = bench.gateway.confirm(made.reference, key=key)

    assert again.replayed
    assert again.charge_reference == first.charge_reference
    assert bench.captures_of(made.reference) == 1


def test_a_create_with_the_same_key_returns_the_same_object(bench: Bench) -> None:
    """After a lost answer the same key leads to the object that was made."""
    asked, key = instruction(), new_key()
    first = bench.gateway.create(asked, key=key)

    again = bench.gateway.create(asked, key=key)

    assert (again.reference, again.replayed) == (first.reference, True)


def test_a_key_used_for_something_else_is_refused(bench: Bench) -> None:
    """One key, one body: the other body must not be answered with the first one's result."""
    key = new_key()
    bench.gateway.create(instruction(), key=key)

    with pytest.raises(GatewayRefusedRequest):
        bench.gateway.create(instruction(), key=key)


def test_forgotten_keys_cannot_charge_twice(bench: Bench) -> None:
    """A retry a day later is a new request; only the object itself keeps it to one charge."""
    made, key = bench.create(), new_key()
    bench.gateway.confirm(made.reference, key=key)
    bench.forget_keys()

    with pytest.raises(GatewayOutcomeUnknown):
        bench.gateway.confirm(made.reference, key=key)

    assert bench.gateway.retrieve(made.reference).status is ObjectStatus.SUCCEEDED
    assert bench.captures_of(made.reference) == 1


def test_a_new_key_on_a_paid_object_is_unknown_until_looked_up(bench: Bench) -> None:
    """The gateway only says "wrong state"; to call that a refusal would lose a payment."""
    made = bench.create()
    bench.gateway.confirm(made.reference, key=new_key())

    with pytest.raises(GatewayOutcomeUnknown):
        bench.gateway.confirm(made.reference, key=new_key())

    assert bench.captures_of(made.reference) == 1


def test_a_decline_is_an_answer_and_not_an_error(bench: Bench) -> None:
    """A decline drives the collection ladder; as an exception it would drive transport retries."""
    made = bench.create("pm_sandbox_decline_insufficient_funds")

    declined = bench.gateway.confirm(made.reference, key=new_key())

    assert declined.status is ObjectStatus.DECLINED
    assert declined.decline_code == "insufficient_funds"
    assert declined.amount_received_minor == 0
    assert bench.gateway.retrieve(made.reference).decline_code == "insufficient_funds"
    assert bench.captures_of(made.reference) == 0


def test_a_declined_object_can_be_confirmed_again(bench: Bench) -> None:
    """One debt keeps one object, so the next try after a decline confirms the same one."""
    made = bench.create("pm_sandbox_decline_do_not_honor_x1")
    bench.gateway.confirm(made.reference, key=new_key())

    paid = bench.gateway.confirm(made.reference, key=new_key())

    assert (paid.status, paid.decline_code) == (ObjectStatus.SUCCEEDED, None)
    assert bench.captures_of(made.reference) == 1


def test_another_card_can_be_put_on_a_declined_object(bench: Bench) -> None:
    """A customer who gives a new card pays the same debt, and still only once."""
    made = bench.create("pm_sandbox_decline_stolen_card")
    bench.gateway.confirm(made.reference, key=new_key())

    paid = bench.gateway.confirm(made.reference, key=new_key(), payment_token="pm_sandbox_ok")

    assert paid.status is ObjectStatus.SUCCEEDED
    assert bench.captures_of(made.reference) == 1


@pytest.mark.parametrize("fault", ["hang", "reset", "error"])
def test_a_lost_answer_after_the_charge_is_unknown_and_a_look_up_tells(
    bench: Bench, fault: str
) -> None:
    """The case that charges customers twice elsewhere: taken, and nobody was told."""
    made = bench.create(f"pm_sandbox_{fault}_after_charge")

    with pytest.raises(GatewayOutcomeUnknown):
        bench.hurried.confirm(made.reference, key=new_key())

    wait_until(lambda: bench.captures_of(made.reference) == 1)
    assert bench.gateway.retrieve(made.reference).status is ObjectStatus.SUCCEEDED


@pytest.mark.parametrize("fault", ["hang", "reset", "error"])
def test_a_lost_answer_before_the_charge_is_unknown_and_a_look_up_tells(
    bench: Bench, fault: str
) -> None:
    """From outside it looks like the case above; only the look-up tells them apart."""
    made = bench.create(f"pm_sandbox_{fault}_before_charge_x1")

    with pytest.raises(GatewayOutcomeUnknown):
        bench.hurried.confirm(made.reference, key=new_key())

    assert bench.gateway.retrieve(made.reference).status is ObjectStatus.UNCONFIRMED
    assert bench.captures_of(made.reference) == 0


@pytest.mark.parametrize("fault", ["hang", "reset", "error"])
def test_a_fault_for_one_confirm_lets_the_next_one_pass(bench: Bench, fault: str) -> None:
    """The count in the token is what the retry tests of executors stand on."""
    made = bench.create(f"pm_sandbox_{fault}_before_charge_x1")
    with pytest.raises(GatewayOutcomeUnknown):
        bench.hurried.confirm(made.reference, key=new_key())

    # A hurried confirm may be counted a moment after its client has given up.
    paid = confirmed_at_last(bench, made.reference)

    assert paid.status is ObjectStatus.SUCCEEDED
    assert bench.captures_of(made.reference) == 1


def confirmed_at_last(bench: Bench, reference: str) -> GatewayObject:
    """Confirm with new keys until there is an answer."""
    for _ in range(20):
        try:
            return bench.gateway.confirm(reference, key=new_key())
        except GatewayOutcomeUnknown:
            continue
    raise AssertionError(f"{reference} never got an answer")


def test_a_saved_500_is_replayed_to_the_same_key(bench: Bench) -> None:
    """Sending the same key again resolves a time-out, but never a 500: a look-up must follow."""
    made, key = bench.create("pm_sandbox_error_after_charge_x1"), new_key()
    with pytest.raises(GatewayOutcomeUnknown):
        bench.gateway.confirm(made.reference, key=key)

    with pytest.raises(GatewayOutcomeUnknown):
        bench.gateway.confirm(made.reference, key=key)

    assert bench.captures_of(made.reference) == 1


def test_the_same_key_after_a_lost_answer_tells_what_happened(bench: Bench) -> None:
    """A time-out's answer was kept by the gateway, and the same key fetches it."""
    made, key = bench.create("pm_sandbox_reset_after_charge"), new_key()
    with pytest.raises(GatewayOutcomeUnknown):
        bench.gateway.confirm(made.reference, key=key)

    told = bench.gateway.confirm(made.reference, key=key)

    assert (told.status, told.replayed) == (ObjectStatus.SUCCEEDED, True)
    assert bench.captures_of(made.reference) == 1


def test_busy_is_not_executed_and_says_how_long_to_wait(bench: Bench) -> None:
    """A 429 spends no attempt and leaves the key free."""
    made, key = bench.create("pm_sandbox_busy_x1"), new_key()

    with pytest.raises(GatewayBusy) as caught:
        bench.gateway.confirm(made.reference, key=key)

    assert caught.value.retry_after_seconds == 1.0
    assert bench.gateway.retrieve(made.reference).status is ObjectStatus.UNCONFIRMED
    assert bench.gateway.confirm(made.reference, key=key).status is ObjectStatus.SUCCEEDED
    assert bench.captures_of(made.reference) == 1


def test_a_key_in_flight_is_busy(bench: Bench) -> None:
    """Another sender of the same key is at work: wait, and never call it a failure."""
    made, key = bench.create(), new_key()
    bench.script("confirm", "in_flight")

    with pytest.raises(GatewayBusy):
        bench.gateway.confirm(made.reference, key=key)

    assert bench.captures_of(made.reference) == 0


@pytest.mark.parametrize("fault", ["unauthorized", "forbidden"])
def test_refused_credentials_are_told_apart(bench: Bench, fault: str) -> None:
    """A wrong key opens the breaker; taken for a refusal it would fail every charge for good."""
    made = bench.create()
    bench.script("confirm", fault)

    with pytest.raises(GatewayAuthentication):
        bench.gateway.confirm(made.reference, key=new_key())

    assert bench.captures_of(made.reference) == 0


@pytest.mark.parametrize(
    ("token", "status"),
    [
        ("pm_sandbox_processing", ObjectStatus.PENDING),
        ("pm_sandbox_requires_action", ObjectStatus.REQUIRES_ACTION),
    ],
)
def test_a_late_outcome_is_waited_for(bench: Bench, token: str, status: ObjectStatus) -> None:
    """Bank debits and authentications end days later; neither is a success nor a failure yet."""
    made = bench.create(token)

    assert bench.gateway.confirm(made.reference, key=new_key()).status is status
    assert bench.captures_of(made.reference) == 0

    bench.settle(made.reference, "ok")

    assert bench.gateway.retrieve(made.reference).status is ObjectStatus.SUCCEEDED
    assert bench.captures_of(made.reference) == 1


def test_a_late_decline_is_told(bench: Bench) -> None:
    """A bank debit may bounce after it was accepted."""
    made = bench.create("pm_sandbox_processing")
    bench.gateway.confirm(made.reference, key=new_key())

    bench.settle(made.reference, "decline_insufficient_funds")

    told = bench.gateway.retrieve(made.reference)
    assert (told.status, told.decline_code) == (ObjectStatus.DECLINED, "insufficient_funds")


def test_a_partial_capture_shows_what_was_received(bench: Bench) -> None:
    """The received amount is what the ledger books, not the amount we asked for."""
    made = bench.create("pm_sandbox_partial")

    paid = bench.gateway.confirm(made.reference, key=new_key())

    assert (paid.amount_minor, paid.amount_received_minor) == (1250, 625)


@pytest.mark.parametrize("fault", ["error_after_charge", "reset_before_charge"])
def test_a_failed_look_up_is_unknown_too(bench: Bench, fault: str) -> None:
    """A look-up that failed has shown nothing; above all not that there was no charge."""
    made = bench.create()

    bench.script("retrieve", fault)
    with pytest.raises(GatewayOutcomeUnknown):
        bench.gateway.retrieve(made.reference)

    bench.script("list", fault)
    with pytest.raises(GatewayOutcomeUnknown):
        bench.gateway.find(metadata_key="a", metadata_value="b", created_since=_LONG_AGO)


def test_an_unknown_create_leaves_an_object_that_find_finds(bench: Bench) -> None:
    """The id was lost before it was committed: the metadata leads back to the one object."""
    asked = instruction(invoice_id="lost-and-found")
    bench.script("create", "reset_after_charge")
    with pytest.raises(GatewayOutcomeUnknown):
        bench.gateway.create(asked, key=new_key())

    found = bench.gateway.find(
        metadata_key="invoice_id", metadata_value="lost-and-found", created_since=_LONG_AGO
    )

    assert [one.status for one in found] == [ObjectStatus.UNCONFIRMED]


def test_find_returns_only_the_objects_that_match(bench: Bench) -> None:
    """A look-up that returned a neighbour's object would book a stranger's payment."""
    mine, other = str(uuid4()), bench.create()
    first, second = bench.create(invoice_id=mine), bench.create(invoice_id=mine)

    found = bench.gateway.find(
        metadata_key="invoice_id", metadata_value=mine, created_since=_LONG_AGO
    )

    assert [one.reference for one in found] == [second.reference, first.reference]
    assert other.reference not in {one.reference for one in found}


def test_eight_confirms_at_once_take_the_money_once(bench: Bench) -> None:
    """Redelivered jobs and two workers with one lease lost meet here."""
    made = bench.create()
    answers: list[str] = []

    def confirm() -> None:
        try:
            answers.append(bench.gateway.confirm(made.reference, key=new_key()).status)
        except GatewayOutcomeUnknown:
            answers.append("unknown")

    threads = [threading.Thread(target=confirm) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert sorted(answers) == ["succeeded", *["unknown"] * 7]
    assert bench.captures_of(made.reference) == 1


def test_find_leaves_out_what_is_too_old(bench: Bench) -> None:
    """The bound is what keeps a look-up short on a gateway with years of payments."""
    if isinstance(bench.gateway, FakeGateway):
        bench.gateway = FakeGateway(lambda: datetime(2026, 5, 1, tzinfo=UTC))
    mine = str(uuid4())
    bench.create(invoice_id=mine)
    far_future = datetime(2026, 5, 1, tzinfo=UTC) + timedelta(days=365 * 20)

    assert not bench.gateway.find(
        metadata_key="invoice_id", metadata_value=mine, created_since=far_future
    )
