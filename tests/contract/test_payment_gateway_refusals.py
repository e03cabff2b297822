"""
What every payment gateway refuses, checked on the fake and on the real adapter over real HTTP.

A mistake that is refused here, with its reason, would else run in a loop or end in a wrong URL.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from support.gateway_bench import Bench, fake_bench, http_bench, instruction, new_key
from support.wire import SandboxProcess, sandbox_process

from billing_jobs.adapters.gateway.fake import FakeGateway
from billing_jobs.domain.errors import GatewayNotSent, GatewayOutcomeUnknown, GatewayRefusedRequest
from billing_jobs.domain.payment import ObjectStatus, PaymentInstruction

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


@pytest.mark.parametrize("key", ["", "k" * 65, "two words", "schlüssel"])
def test_a_key_that_not_every_gateway_takes_is_refused(bench: Bench, key: str) -> None:
    """An empty key would be replaced by a random one, and a retry would charge again."""
    made = bench.create()

    with pytest.raises(GatewayRefusedRequest):
        bench.gateway.create(instruction(), key=key)
    with pytest.raises(GatewayRefusedRequest):
        bench.gateway.confirm(made.reference, key=key)

    assert bench.captures_of(made.reference) == 0


@pytest.mark.parametrize("reference", ["", "pi_1/confirm", "../journal", "p" * 256, "pi 1"])
def test_a_reference_that_is_none_is_refused(bench: Bench, reference: str) -> None:
    """A reference becomes part of a URL; it must not lead to another endpoint."""
    with pytest.raises(GatewayRefusedRequest):
        bench.gateway.retrieve(reference)
    with pytest.raises(GatewayRefusedRequest):
        bench.gateway.confirm(reference, key=new_key())


def test_an_object_that_nobody_knows_is_refused(bench: Bench) -> None:
    """A 404 is our mistake; asked again it stays one."""
    with pytest.raises(GatewayRefusedRequest):
        bench.gateway.retrieve("pi_nobody_knows")
    with pytest.raises(GatewayRefusedRequest):
        bench.gateway.confirm("pi_nobody_knows", key=new_key())


@pytest.mark.parametrize(
    "asked",
    [
        PaymentInstruction(1250, "EUR", (), "pm_sandbox_unknown_method"),
        PaymentInstruction(1250, "EUR", (), "pm_sandbox_hagn_after_charge"),
        PaymentInstruction(1250, "E1R", (), "pm_sandbox_ok"),
        PaymentInstruction(0, "EUR", (), "pm_sandbox_ok"),
        PaymentInstruction(-5, "EUR", (), "pm_sandbox_ok"),
        PaymentInstruction(100_000_000, "EUR", (), "pm_sandbox_ok"),
    ],
)
def test_an_instruction_that_can_never_work_is_refused(
    bench: Bench, asked: PaymentInstruction
) -> None:
    """It must end in `failed` with its reason and not run in a loop."""
    with pytest.raises(GatewayRefusedRequest):
        bench.gateway.create(asked, key=new_key())


def test_an_unknown_card_is_refused_at_confirm(bench: Bench) -> None:
    """A card may be gone between the two steps."""
    made = bench.create()

    with pytest.raises(GatewayRefusedRequest):
        bench.gateway.confirm(
            made.reference, key=new_key(), payment_token="pm_sandbox_unknown_method"
        )

    assert bench.captures_of(made.reference) == 0


def test_a_look_up_without_a_time_zone_is_refused(bench: Bench) -> None:
    """Read as UTC by one and as local time by another it would miss hours of objects."""
    with pytest.raises(GatewayRefusedRequest):
        bench.gateway.find(
            metadata_key="a", metadata_value="b", created_since=_LONG_AGO.replace(tzinfo=None)
        )


@pytest.mark.parametrize(
    ("fault", "amount_minor", "currency"),
    [("wrong_amount", 11250, "EUR"), ("wrong_currency", 1250, "XOF")],
)
def test_an_answer_about_another_amount_is_shown_as_it_is(
    bench: Bench, fault: str, amount_minor: int, currency: str
) -> None:
    """Only the executor knows what was asked at the creation; it must see the difference."""
    made = bench.create(f"pm_sandbox_{fault}")

    told = bench.gateway.confirm(made.reference, key=new_key())

    assert (told.amount_minor, told.currency) == (amount_minor, currency)
    kept = bench.gateway.retrieve(made.reference)
    assert (kept.amount_minor, kept.currency) == (1250, "EUR")


@pytest.mark.parametrize("fault", ["wrong_amount", "wrong_currency"])
def test_an_object_made_for_another_amount_is_not_accepted(bench: Bench, fault: str) -> None:
    """Its id must not be committed: the next confirm would take the wrong money."""
    bench.script("create", fault)

    with pytest.raises(GatewayOutcomeUnknown):
        bench.create()


def test_a_slow_gateway_is_only_slow(bench: Bench) -> None:
    """An answer within the time-out is an answer."""
    made = bench.create("pm_sandbox_slow")

    paid = bench.gateway.confirm(made.reference, key=new_key())

    assert paid.status is ObjectStatus.SUCCEEDED


def test_the_fake_knows_its_faults() -> None:
    """A misspelt fault that strikes nothing makes a test pass that proves nothing."""
    fake = FakeGateway()
    with pytest.raises(ValueError, match="hang_after_charge"):
        fake.script("confirm", "hang")

    fake.script("confirm", "not_sent")
    made = fake.create(instruction(), key="k1")
    with pytest.raises(GatewayNotSent):
        fake.confirm(made.reference, key="k2")
    fake.close()

    assert fake.calls == [("create", "", "k1"), ("confirm", made.reference, "k2")]
    assert not fake.journal
