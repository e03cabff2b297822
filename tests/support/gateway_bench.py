"""The two gateways of the contract suite, each with what a test must see and do behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from uuid import uuid4

from support.wire import SandboxProcess

from billing_jobs.adapters.gateway.fake import FakeGateway
from billing_jobs.adapters.gateway.http import HttpGateway
from billing_jobs.domain.payment import GatewayObject, PaymentInstruction

#: Short, for requests that get no answer; all others have all the time of a loaded machine.
_HURRIED_SECONDS = 0.3


@dataclass
class Bench:
    """A gateway and what a test must see and do behind it."""

    gateway: FakeGateway | HttpGateway
    #: The same gateway with a short time-out, for answers that never come.
    hurried: FakeGateway | HttpGateway
    captured_references: Callable[[], list[str]]
    forget_keys: Callable[[], None]
    script: Callable[[str, str], None]
    settle: Callable[[str, str], None]

    def create(self, token: str = "pm_sandbox_ok", invoice_id: str = "") -> GatewayObject:
        """Create an object for an invoice of its own."""
        return self.gateway.create(instruction(token, invoice_id), key=new_key())

    def captures_of(self, reference: str) -> int:
        """Count the captures of one object."""
        return self.captured_references().count(reference)


def instruction(token: str = "pm_sandbox_ok", invoice_id: str = "") -> PaymentInstruction:
    """Return what an executor asks for."""
    metadata = (("tenant", "default"), ("invoice_id", invoice_id or str(uuid4())))
    return PaymentInstruction(1250, "EUR", metadata, token)


def new_key() -> str:
    """Return a key that nobody has used."""
    return f"bj:default:{uuid4()}"


def fake_bench() -> Bench:
    """Return the fake, dressed as a bench."""
    fake = FakeGateway()
    return Bench(
        fake,
        fake,
        lambda: [capture.reference for capture in fake.journal],
        fake.forget_keys,
        fake.script,
        fake.settle,
    )


def http_bench(server: SandboxProcess) -> Bench:
    """Return the real adapter over HTTP, dressed as a bench."""
    gateway = HttpGateway(server.url, "sk_test", 10, 30)
    hurried = HttpGateway(server.url, "sk_test", 10, _HURRIED_SECONDS)
    server.set_faults()
    return Bench(
        gateway,
        hurried,
        lambda: [capture["payment_intent"] for capture in server.journal()],
        lambda: server.advance(24 * 3600),
        lambda operation, fault: server.set_faults({"operation": operation, "fault": fault}),
        server.settle,
    )
