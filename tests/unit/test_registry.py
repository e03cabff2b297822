"""Which kinds of jobs exist, and what is said to those who get a name wrong."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from uuid import UUID, uuid4

import pytest
from pydantic import BaseModel

from billing_jobs import registry as module
from billing_jobs.domain.errors import ArgumentsInvalid, UnknownJobKind, UnknownQueue
from billing_jobs.domain.job import ClaimedJob
from billing_jobs.domain.outcome import Completed, Outcome
from billing_jobs.ports import Ports
from billing_jobs.registry import (
    QUEUES,
    Arguments,
    JobKind,
    OnExpiredLease,
    Registry,
    argument_id,
    check_queue,
    job,
)


class PaymentArguments(Arguments):
    """The arguments of the test's kind."""

    invoice_id: UUID
    due: date | None = None
    amount_minor: int = 0


class NoArguments(Arguments):
    """A kind that needs to be told nothing."""


def execute(_job: ClaimedJob, _ports: Ports) -> Outcome:
    """Do nothing."""
    return Completed()


def kind(name: str = "payment", arguments: type[BaseModel] = PaymentArguments) -> JobKind:
    """Return a kind."""
    return JobKind(name, execute, arguments)


@pytest.fixture
def kinds() -> Registry:
    """A registry of its own: the one of the package is closed for tests."""
    made = Registry()
    made.add(kind())
    made.add(replace(kind("digest"), on_expired_lease=OnExpiredLease.FAIL, queue="reminders"))
    return made


def test_a_registered_kind_is_found_by_its_name(kinds: Registry) -> None:
    """And carries what its task is called by other services."""
    found = kinds.get("payment")

    assert (found.name, found.task_name, found.queue) == ("payment", "billing.payment", "default")
    assert kinds.names() == ["digest", "payment"]


def test_a_name_can_be_taken_once(kinds: Registry) -> None:
    """Two packages with the same name would run each other's jobs."""
    with pytest.raises(UnknownJobKind, match="'payment' is registered twice"):
        kinds.add(kind())


def test_a_closed_registry_takes_no_more_kinds(kinds: Registry) -> None:
    """A kind that some processes know and others do not would wait for ever."""
    kinds.close()

    with pytest.raises(UnknownJobKind, match="'late' comes too late"):
        kinds.add(kind("late"))
    assert kinds.get("payment").name == "payment"


def test_a_kind_of_an_undeclared_queue_is_refused(kinds: Registry) -> None:
    """Nobody would serve it."""
    with pytest.raises(UnknownQueue, match="no queue 'refunds'"):
        kinds.add(replace(kind("refund"), queue="refunds"))


@pytest.mark.parametrize(
    ("name", "hint"),
    [("paymnet", "Did you mean 'payment'?"), ("qqqq", "Known: digest, payment.")],
)
def test_an_unknown_kind_is_told_with_the_nearest_name(
    kinds: Registry, name: str, hint: str
) -> None:
    """A typing mistake is repaired in seconds when the right word is shown."""
    with pytest.raises(UnknownJobKind) as caught:
        kinds.get(name)

    assert caught.value.message == f"There is no job kind '{name}'. {hint}"


def test_an_undeclared_queue_is_told_with_the_nearest_name() -> None:
    """Celery would make the queue and nobody would read it."""
    assert [check_queue(queue) for queue in QUEUES] == list(QUEUES)
    with pytest.raises(UnknownQueue, match="Did you mean 'invoices'"):
        check_queue("invoice")
    with pytest.raises(UnknownQueue, match="Declared are charges, invoices, reminders"):
        check_queue("qqqq")


def test_a_worker_of_a_queue_claims_every_kind_for_a_job_may_be_moved(kinds: Registry) -> None:
    """`queue=` of `apply_async` moves one job; its kind must not matter then."""
    assert kinds.of_queue("charges") == ["digest", "payment"]
    with pytest.raises(UnknownQueue):
        kinds.of_queue("charge")


def test_kinds_say_what_an_expired_lease_means(kinds: Registry) -> None:
    """Only those that ask for it go to a person."""
    assert kinds.buried_when_expired() == ["digest"]


def test_valid_arguments_are_stored_as_json_without_what_was_not_said(kinds: Registry) -> None:
    """The row is read by every language; None is the same as not given."""
    invoice_id = uuid4()

    stored = kinds.get("payment").validate({"invoice_id": invoice_id, "due": "2026-03-31"})

    assert stored == {"invoice_id": str(invoice_id), "due": "2026-03-31", "amount_minor": 0}


def test_all_faults_of_the_arguments_are_told_at_once_without_their_values() -> None:
    """One round is enough to repair the call; and a value may be personal."""
    with pytest.raises(ArgumentsInvalid) as caught:
        kind().validate({"invoice_id": "jo@example.com", "amount_minor": "x", "colour": "red"})

    message = caught.value.message
    assert message.startswith("The arguments of payment do not fit: invoice_id: ")
    assert "amount_minor: " in message
    assert "colour: Extra inputs are not permitted" in message
    assert message.endswith("It takes invoice_id, due (optional), amount_minor (optional).")
    assert "example.com" not in message


def test_a_kind_without_arguments_says_so() -> None:
    """Also when the caller brings some."""
    assert kind("tick", NoArguments).validate({}) == {}
    with pytest.raises(ArgumentsInvalid, match="It takes no arguments"):
        kind("tick", NoArguments).validate({"n": 1})


def test_a_fault_of_the_whole_is_told_as_one_of_the_arguments() -> None:
    """Models that check one field against another have faults without a place."""

    class Between(Arguments):
        """Needs its dates in order."""

        start: date
        end: date

        def model_post_init(self, _context: object) -> None:
            """Compare them."""
            if self.end < self.start:
                raise ValueError("end is before start")

    with pytest.raises(ArgumentsInvalid, match="arguments: Value error, end is before start"):
        kind("between", Between).validate({"start": "2026-03-31", "end": "2026-03-01"})


def test_the_decorator_registers_the_executor_and_returns_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The function stays callable by a test."""
    own = Registry()
    monkeypatch.setattr(module, "registry", own)

    @job(
        "refund",
        arguments=NoArguments,
        queue="charges",
        on_expired_lease=OnExpiredLease.RECONCILE,
        max_attempts=2,
    )
    def refund(_job: ClaimedJob, _ports: Ports) -> Outcome:
        """Give money back."""
        return Completed({"outcome": "refunded"})

    found = own.get("refund")
    assert found.execute is refund
    assert (found.queue, found.max_attempts, found.key) == ("charges", 2, None)
    assert found.on_expired_lease is OnExpiredLease.RECONCILE


def test_an_id_is_read_out_of_stored_arguments() -> None:
    """JSON has no UUIDs."""
    invoice_id, now = uuid4(), datetime(2026, 3, 31, tzinfo=UTC)
    claimed = ClaimedJob(
        id=uuid4(),
        kind="payment",
        queue="default",
        tenant="acme",
        arguments={"invoice_id": str(invoice_id)},
        attempt=1,
        max_attempts=4,
        outage_count=0,
        token=1,
        lease_until=now,
        started_at=now,
        worker="w1",
    )

    assert argument_id(claimed, "invoice_id") == invoice_id
