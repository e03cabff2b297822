"""Charges over a real Postgres: what each answer of the gateway leaves in the books."""

from __future__ import annotations

import threading
from dataclasses import replace
from uuid import UUID, uuid4

import pytest
from support.books import bill, query

from billing_jobs import lifecycle
from billing_jobs.adapters.postgres.ledger import PostgresLedger
from billing_jobs.domain.errors import GatewayNotSent, LeaseLost
from billing_jobs.domain.job import ClaimedJob, JobState, JobView
from billing_jobs.domain.ledger import ChargeAnswered, ChargeAttempt, NothingDue
from billing_jobs.domain.payment import ATTEMPT_TRANSITIONS, AttemptState, GatewayObject
from billing_jobs.lifecycle import Engine
from billing_jobs.testing import WORKER, FakeGateway, MemoryMailer, rescue_now, run_until_idle


def charge(engine: Engine, invoice_id: UUID) -> JobView:
    """Enqueue a charge, run everything, and return the job."""
    recorded = lifecycle.enqueue(engine, "charge", {"invoice_id": invoice_id})
    run_until_idle(engine)
    view = engine.store.get(recorded.id)
    assert view is not None
    return view


def states(database_url: str) -> list[tuple[object, ...]]:
    """Return number and state of each charge attempt."""
    return query(database_url, "SELECT number, state FROM charge_attempts ORDER BY number")


@pytest.mark.parametrize(
    ("token", "attempts"),
    [
        ("pm_sandbox_ok", [(1, "succeeded")]),
        ("pm_sandbox_busy_x2", [(1, "succeeded")]),
        ("pm_sandbox_hang_after_charge_x1", [(1, "succeeded")]),
        ("pm_sandbox_error_after_charge_x1", [(1, "succeeded")]),
        ("pm_sandbox_reset_after_charge_x1", [(1, "succeeded")]),
        ("pm_sandbox_error_before_charge_x1", [(1, "failed_not_sent"), (2, "succeeded")]),
        ("pm_sandbox_hang_before_charge_x1", [(1, "failed_not_sent"), (2, "succeeded")]),
    ],
)
def test_whatever_the_gateway_does_the_money_is_taken_once(
    engine: Engine,
    database_url: str,
    gateway: FakeGateway,
    token: str,
    attempts: list[tuple[int, str]],
) -> None:
    """Time-outs, 500s and resets are unknown, never a decline: look up, then one capture."""
    (invoice_id,) = bill(engine, database_url, token)

    charge(engine, invoice_id)

    assert [capture.amount_minor for capture in gateway.journal] == [5831]
    assert states(database_url) == attempts
    assert query(database_url, "SELECT state, paid_minor FROM invoices") == [("paid", 5831)]
    assert query(database_url, "SELECT sum(amount_minor) FROM ledger_entries") == [(0,)]


def test_a_decline_leaves_the_invoice_open_and_tells_the_customer(
    engine: Engine, database_url: str, gateway: FakeGateway, mailer: MemoryMailer
) -> None:
    """A decline is an answer: the job is done, the debt stays, a notice goes out once."""
    (invoice_id,) = bill(engine, database_url, "pm_sandbox_decline_insufficient_funds")

    view = charge(engine, invoice_id)

    assert view.result is not None
    assert view.result["decline_code"] == "insufficient_funds"
    assert gateway.journal == []
    assert states(database_url) == [(1, "declined")]
    assert query(database_url, "SELECT state FROM invoices") == [("open",)]
    assert [mail.recipient for mail in mailer.sent] == ["customer1@example.com"]


def test_after_a_decline_a_new_try_is_a_new_job_with_a_new_key(
    engine: Engine, database_url: str
) -> None:
    """The business key is (invoice, number of the try), so a second call is not swallowed."""
    (invoice_id,) = bill(engine, database_url, "pm_sandbox_decline_do_not_honor_x1")

    first = charge(engine, invoice_id)
    second = charge(engine, invoice_id)

    assert first.id != second.id
    assert states(database_url) == [(1, "declined"), (2, "succeeded")]


def test_a_request_that_the_gateway_refuses_for_good_waits_for_a_person(
    engine: Engine, database_url: str
) -> None:
    """No retry can repair a payment method that does not exist, but a person can, and replay."""
    (invoice_id,) = bill(engine, database_url, "pm_sandbox_unknown_method")
    view = charge(engine, invoice_id)
    assert view.state is JobState.DEAD_LETTER
    assert states(database_url) == [(1, "failed_not_sent")]

    query(database_url, "UPDATE payment_methods SET token = 'pm_sandbox_ok'")
    assert lifecycle.replay(engine, view.id, actor="ann", reason="method repaired")
    run_until_idle(engine)

    assert query(database_url, "SELECT state FROM invoices") == [("paid",)]


def test_an_outage_buries_nothing(engine: Engine, database_url: str, gateway: FakeGateway) -> None:
    """Runs in which nothing was sent are not spent, however long the gateway is away."""
    (invoice_id,) = bill(engine, database_url, "pm_sandbox_ok")
    gateway.script("create", "not_sent", count=2)

    view = charge(engine, invoice_id)

    assert view.state is JobState.COMPLETED
    assert view.attempt == 1
    outcomes = [run.outcome for run in engine.store.attempts(view.id)]
    assert outcomes == ["not_sent", "not_sent", "completed"]


def test_a_paid_invoice_is_not_charged_again(
    engine: Engine, database_url: str, gateway: FakeGateway
) -> None:
    """State is read again at execution; a second charge finds nothing due."""
    (invoice_id,) = bill(engine, database_url, "pm_sandbox_ok")
    charge(engine, invoice_id)

    again = charge(engine, invoice_id)

    assert again.result == {"outcome": "paid"}
    assert len(gateway.journal) == 1


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        ("UPDATE invoices SET disputed = true", "disputed"),
        ("UPDATE subscriptions SET payment_method_id = NULL", "no_payment_method"),
    ],
)
def test_what_cannot_be_collected_now_waits_for_a_person(
    engine: Engine, database_url: str, gateway: FakeGateway, change: str, outcome: str
) -> None:
    """Money is owed all the same, and the debt must not vanish behind a completed job."""
    (invoice_id,) = bill(engine, database_url, "pm_sandbox_ok")
    query(database_url, change)

    view = charge(engine, invoice_id)

    assert (view.state, view.error) == (JobState.DEAD_LETTER, outcome)
    assert gateway.journal == []


def test_a_void_invoice_is_completed_without_a_call(
    engine: Engine, database_url: str, gateway: FakeGateway
) -> None:
    """Nothing is owed: no gateway call, no retry, nobody to ask."""
    (invoice_id,) = bill(engine, database_url, "pm_sandbox_ok")
    query(database_url, "UPDATE invoices SET state = 'void'")

    assert charge(engine, invoice_id).result == {"outcome": "void"}
    assert gateway.journal == []


@pytest.mark.parametrize(("step", "left"), [("open", "cancelled"), ("keep", "unknown")])
def test_an_invoice_that_became_void_is_not_charged_by_an_attempt_from_before(
    engine: Engine, database_url: str, gateway: FakeGateway, step: str, left: str
) -> None:
    """State is read again whenever a job runs: what was not sent stays, the rest is looked up."""
    (invoice_id,) = bill(engine, database_url, "pm_sandbox_ok")
    job = claimed(engine, invoice_id)
    walk(engine, gateway, job, invoice_id, until_step=step)
    query(database_url, "UPDATE invoices SET state = 'void'")
    rescue_now(engine)

    lifecycle.run_next(engine, "charges", WORKER)
    assert states(database_url) == [(1, left)]
    run_until_idle(engine)

    assert gateway.journal == []
    assert query(database_url, "SELECT state, paid_minor FROM invoices") == [("void", 0)]
    assert states(database_url)[0][1] in {"cancelled", "failed_not_sent"}


def test_a_gateway_that_forgot_an_object_proves_nothing(
    engine: Engine, database_url: str, gateway: FakeGateway
) -> None:
    """A 404 for an object that was confirmed is doubt, not 'no money moved'."""
    (invoice_id,) = bill(engine, database_url, "pm_sandbox_ok")
    job = claimed(engine, invoice_id)
    walk(engine, gateway, job, invoice_id, until_step="confirm")
    rescue_now(engine)
    query(database_url, "UPDATE payment_objects SET gateway_reference = 'pi_forgotten'")

    lifecycle.run_next(engine, "charges", WORKER)

    assert states(database_url) == [(1, "unknown")]


def test_one_look_beside_a_failed_one_is_not_believed(
    engine: Engine, database_url: str, gateway: FakeGateway
) -> None:
    """'Not executed' needs two look-ups in a row that say so; one that timed out says nothing."""
    (invoice_id,) = bill(engine, database_url, "pm_sandbox_hang_before_charge_x1")
    gateway.script("retrieve", "hang_before_charge", count=1)
    slow = replace(engine.ports.policy, reconcile_ladder_seconds=(0.05, 0.1, 3600.0))
    patient = replace(engine, ports=replace(engine.ports, policy=slow))

    charge(patient, invoice_id)

    assert states(database_url) == [(1, "unknown")]


def test_the_look_up_of_an_unknown_charge_cannot_be_called_off(
    engine: Engine, database_url: str
) -> None:
    """Cancelled, nobody would ask again: the debt would be locked and the money unseen for ever."""
    (invoice_id,) = bill(engine, database_url, "pm_sandbox_hang_after_charge_x1")
    lifecycle.enqueue(engine, "charge", {"invoice_id": invoice_id})
    lifecycle.run_next(engine, "charges", WORKER)
    (row,) = query(database_url, "SELECT id FROM jobs WHERE kind = 'reconcile_charge'")

    said = lifecycle.cancel(engine, UUID(str(row[0])), actor="ann", reason="tidying up")
    run_until_idle(engine)

    assert said == "too_late"
    assert states(database_url) == [(1, "succeeded")]


def test_a_part_of_the_money_waits_for_a_person(engine: Engine, database_url: str) -> None:
    """What arrived is in the books; the rest is owed, and somebody must see it."""
    (invoice_id,) = bill(engine, database_url, "pm_sandbox_partial")

    view = charge(engine, invoice_id)

    assert view.state is JobState.DEAD_LETTER
    assert query(database_url, "SELECT state, paid_minor FROM invoices") == [("open", 2916)]


@pytest.mark.parametrize("token", ["pm_sandbox_processing", "pm_sandbox_requires_action"])
def test_an_outcome_that_comes_later_is_asked_for(
    engine: Engine, database_url: str, gateway: FakeGateway, token: str
) -> None:
    """Accepted money that settles tomorrow must reach the books without anybody's help."""
    (invoice_id,) = bill(engine, database_url, token)
    charge(engine, invoice_id)
    due = "UPDATE jobs SET run_at = now() WHERE kind = 'reconcile_charge' AND state = 'pending'"
    query(database_url, due)
    run_until_idle(engine)

    gateway.settle(gateway.calls[-1][1])
    query(database_url, due)
    run_until_idle(engine)

    assert states(database_url) == [(1, "succeeded")]
    assert query(database_url, "SELECT state FROM invoices") == [("paid",)]


def test_a_changed_amount_waits_for_a_person(engine: Engine, database_url: str) -> None:
    """The payment object of a debt has one amount; another one is never guessed."""
    (invoice_id,) = bill(engine, database_url, "pm_sandbox_decline_do_not_honor_x1")
    charge(engine, invoice_id)
    query(database_url, "UPDATE invoices SET credited_minor = 1")

    assert charge(engine, invoice_id).state is JobState.DEAD_LETTER


def test_a_charge_of_nothing_fails(engine: Engine) -> None:
    """An unknown invoice can never be charged, so the job fails with its reason."""
    view = charge(engine, uuid4())

    assert view.state is JobState.FAILED
    assert "There is no invoice" in str(view.error)


@pytest.mark.parametrize(
    ("token", "state"),
    [
        ("pm_sandbox_processing", AttemptState.PENDING),
        ("pm_sandbox_requires_action", AttemptState.REQUIRES_ACTION),
    ],
)
def test_an_answer_that_comes_later_locks_the_debt(
    engine: Engine, database_url: str, token: str, state: AttemptState
) -> None:
    """While the outcome is open, a second charge starts nothing."""
    (invoice_id,) = bill(engine, database_url, token)

    first = charge(engine, invoice_id)
    second = charge(engine, invoice_id)

    assert first.id == second.id
    assert states(database_url) == [(1, state.value)]
    query(database_url, "DELETE FROM job_keys")
    third = charge(engine, invoice_id)
    assert third.result is not None
    assert third.result["outcome"] == state.value


def test_sixteen_threads_charge_one_invoice_once(
    engine: Engine, database_url: str, gateway: FakeGateway
) -> None:
    """One live attempt a debt, by the database, whatever calls at once."""
    (invoice_id,) = bill(engine, database_url, "pm_sandbox_ok")
    ids: list[UUID] = []

    def call() -> None:
        ids.append(lifecycle.enqueue(engine, "charge", {"invoice_id": invoice_id}).id)

    threads = [threading.Thread(target=call) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run_until_idle(engine)

    assert len(set(ids)) == 1
    assert len(gateway.journal) == 1


def claimed(engine: Engine, invoice_id: UUID) -> ClaimedJob:
    """Enqueue a charge and claim it."""
    lifecycle.enqueue(engine, "charge", {"invoice_id": invoice_id})
    (job,) = engine.store.claim("charges", ["charge"], limit=1, ttl_seconds=0.0, worker=WORKER)
    return job


def opened(engine: Engine, job: ClaimedJob, invoice_id: UUID) -> ChargeAttempt:
    """Open the charge of a claimed job."""
    attempt = engine.ports.ledger.open_charge(job, invoice_id, "sandbox")
    assert not isinstance(attempt, NothingDue)
    return attempt


@pytest.mark.parametrize("step", ["open", "declare", "create", "keep", "confirm"])
def test_a_worker_that_vanishes_at_any_step_costs_nothing(
    engine: Engine, database_url: str, gateway: FakeGateway, step: str
) -> None:
    """The write order survives a death after each of its steps: one capture, nobody helps."""
    (invoice_id,) = bill(engine, database_url, "pm_sandbox_ok")
    job = claimed(engine, invoice_id)
    walk(engine, gateway, job, invoice_id, until_step=step)

    assert rescue_now(engine) == [job.id]
    run_until_idle(engine)

    assert len(gateway.journal) == 1
    assert states(database_url) == [(1, "succeeded")]
    assert query(database_url, "SELECT state FROM invoices") == [("paid",)]


def walk(
    engine: Engine, gateway: FakeGateway, job: ClaimedJob, invoice_id: UUID, *, until_step: str
) -> None:
    """Do the steps of a charge by hand and stop after one of them, as a killed worker does."""
    from billing_jobs.executors import look_up  # noqa: PLC0415 - the executor's own steps

    ledger = engine.ports.ledger
    attempt = opened(engine, job, invoice_id)
    if until_step == "open":
        return
    ledger.declare_call(job, attempt)
    if until_step == "declare":
        return
    if until_step == "create":
        silent = replace(engine.ports, ledger=_NotKeeping())
        look_up.payment_object(job, silent, attempt, None)
        return
    reference = look_up.payment_object(job, engine.ports, attempt, None)
    if until_step == "confirm":
        gateway.confirm(reference, key=attempt.key, payment_token=attempt.payment_token)


class _NotKeeping(PostgresLedger):
    """A ledger whose owner dies before the object's id is committed."""

    def __init__(self) -> None:
        """Need no database."""

    def keep_object(self, job: ClaimedJob, attempt: ChargeAttempt, reference: str) -> None:
        """Die before the commit."""


def test_a_stale_owner_writes_nothing_and_its_answer_is_kept(
    engine: Engine, database_url: str, gateway: FakeGateway
) -> None:
    """Every write is fenced by the token; what the gateway said is a witness all the same."""
    (invoice_id,) = bill(engine, database_url, "pm_sandbox_ok")
    stale = claimed(engine, invoice_id)
    attempt = opened(engine, stale, invoice_id)
    rescue_now(engine)
    run_until_idle(engine)

    with pytest.raises(LeaseLost):
        engine.ports.ledger.declare_call(stale, attempt)
    with pytest.raises(LeaseLost):
        engine.ports.ledger.keep_object(stale, attempt, "pi_other")
    lifecycle.run_job(engine, stale, engine.clock.steady_seconds())

    assert len(gateway.journal) == 1
    assert query(database_url, "SELECT state FROM invoices") == [("paid",)]


def test_an_older_token_cannot_answer_an_attempt(engine: Engine, database_url: str) -> None:
    """The attempt's own token refuses an owner whose job is still running elsewhere."""
    (invoice_id,) = bill(engine, database_url, "pm_sandbox_ok")
    job = claimed(engine, invoice_id)
    attempt = opened(engine, job, invoice_id)
    engine.ports.ledger.declare_call(job, attempt)
    query(database_url, "UPDATE charge_attempts SET token = token + 1000")

    from billing_jobs.domain.job import Recording, Verb  # noqa: PLC0415 - only here

    done = Recording(Verb.COMPLETE, JobState.COMPLETED, outcome="completed", result={})
    answer = ChargeAnswered(attempt.id, AttemptState.UNKNOWN, "late")
    with pytest.raises(LeaseLost):
        engine.store.record(job, done, effects=[answer])
    view = engine.store.get(job.id)
    assert view is not None
    assert view.state is JobState.RUNNING


def test_a_gateway_that_never_answers_ends_with_a_person_not_with_a_guess(
    engine: Engine, database_url: str, gateway: FakeGateway
) -> None:
    """Unresolvable stays unknown: the debt is locked, and the attempt asks for a person."""
    (invoice_id,) = bill(engine, database_url, "pm_sandbox_hang_after_charge")
    gateway.script("retrieve", "error_before_charge", count=50)
    quick = replace(engine.ports.policy, reconcile_ladder_seconds=(0.05, 0.1, 300.0))
    patient = replace(engine, ports=replace(engine.ports, policy=quick))

    charge(patient, invoice_id)

    found = query(database_url, "SELECT state, probe_count, needs_person FROM charge_attempts")
    assert found == [("unknown", 2, False)]
    assert query(database_url, "SELECT state FROM invoices") == [("open",)]
    query(database_url, "UPDATE jobs SET run_at = now() WHERE state = 'pending'")
    run_until_idle(patient)
    assert query(database_url, "SELECT needs_person FROM charge_attempts") == [(True,)]
    assert len(gateway.journal) == 1


def test_money_of_another_currency_is_never_applied(
    engine: Engine, database_url: str, gateway: FakeGateway
) -> None:
    """The gateway took yen for a debt in euro: park it for a person, mark nothing as paid."""
    (invoice_id,) = bill(engine, database_url, "pm_sandbox_ok")
    odd = replace(engine.ports, gateway=_InYen(gateway))
    patient = replace(
        engine,
        ports=replace(odd, policy=replace(odd.policy, reconcile_ladder_seconds=(0.05, 300.0))),
    )

    charge(patient, invoice_id)

    assert query(database_url, "SELECT state FROM charge_attempts") == [("unknown",)]
    assert query(database_url, "SELECT state, paid_minor FROM invoices") == [("open", 0)]
    assert query(database_url, "SELECT count(*) FROM payments") == [(0,)]


class _InYen:
    """A gateway that answers in another currency."""

    name = "sandbox"

    def __init__(self, gateway: FakeGateway) -> None:
        """Stand in front of a gateway."""
        self.create = gateway.create
        self.find = gateway.find
        self._gateway = gateway

    def confirm(
        self, reference: str, *, key: str, payment_token: str | None = None
    ) -> GatewayObject:
        """Confirm, and tell it in yen."""
        told = self._gateway.confirm(reference, key=key, payment_token=payment_token)
        return replace(told, currency="JPY")

    def retrieve(self, reference: str) -> GatewayObject:
        """Retrieve, and tell it in yen."""
        return replace(self._gateway.retrieve(reference), currency="JPY")


def test_the_trigger_knows_the_transition_table(engine: Engine, database_url: str) -> None:
    """The states of an attempt exist in Python and in the database; the two must agree."""
    (invoice_id,) = bill(engine, database_url, "pm_sandbox_ok")
    charge(engine, invoice_id)
    query(
        database_url,
        "INSERT INTO attempt_evidence (attempt_id, source, raw) "
        "SELECT id, 'test', '' FROM charge_attempts",
    )
    pairs = [(source, target) for source in AttemptState for target in AttemptState]
    allowed = {pair for pair in pairs if pair[0] is not pair[1] and _moves(database_url, *pair)}

    table = {
        (source, target) for source, targets in ATTEMPT_TRANSITIONS.items() for target in targets
    }
    assert allowed == table


def _moves(database_url: str, source: AttemptState, target: AttemptState) -> bool:
    import psycopg  # noqa: PLC0415 - the driver's own error is the answer

    query(database_url, "ALTER TABLE charge_attempts DISABLE TRIGGER charge_attempts_guard")
    query(database_url, "UPDATE charge_attempts SET state = %s", source.value)
    query(database_url, "ALTER TABLE charge_attempts ENABLE TRIGGER charge_attempts_guard")
    try:
        query(database_url, "UPDATE charge_attempts SET state = %s", target.value)
    except psycopg.errors.CheckViolation:
        return False
    return True


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE charge_attempts SET amount_minor = amount_minor + 1",
        "UPDATE charge_attempts SET idempotency_key = 'other'",
        "UPDATE charge_attempts SET token = token - 1",
        (
            "INSERT INTO ledger_entries (transaction_id, tenant, account, currency, amount_minor) "
            "VALUES (gen_random_uuid(), 'default', 'gateway', 'EUR', 1)"
        ),
        "UPDATE invoices SET paid_minor = total_minor + 1",
    ],
)
def test_the_database_refuses_by_itself(engine: Engine, database_url: str, change: str) -> None:
    """Keys never change, older owners are refused, ledgers balance, nothing overpays."""
    import psycopg  # noqa: PLC0415 - the driver's own error is the answer

    (invoice_id,) = bill(engine, database_url, "pm_sandbox_ok")
    charge(engine, invoice_id)

    with pytest.raises(psycopg.errors.CheckViolation):
        query(database_url, change)


def test_an_unknown_outcome_is_resolved_by_evidence_only(engine: Engine, database_url: str) -> None:
    """Nobody may declare an unknown charge failed because time has passed."""
    import psycopg  # noqa: PLC0415 - the driver's own error is the answer

    (invoice_id,) = bill(engine, database_url, "pm_sandbox_ok")
    job = claimed(engine, invoice_id)
    attempt = opened(engine, job, invoice_id)
    engine.ports.ledger.declare_call(job, attempt)
    query(database_url, "UPDATE charge_attempts SET state = 'unknown'")

    with pytest.raises(psycopg.errors.CheckViolation, match="evidence"):
        query(database_url, "UPDATE charge_attempts SET state = 'declined'")


def test_a_broken_look_up_before_the_call_is_no_outcome(
    engine: Engine, database_url: str, gateway: FakeGateway
) -> None:
    """A rescued charge that cannot be looked up waits; it is not sent blindly."""
    (invoice_id,) = bill(engine, database_url, "pm_sandbox_ok")
    job = claimed(engine, invoice_id)
    walk(engine, gateway, job, invoice_id, until_step="keep")
    rescue_now(engine)
    gateway.script("retrieve", "not_sent", count=1)

    run_until_idle(engine)

    outcomes = [run.outcome for run in engine.store.attempts(job.id)]
    assert outcomes == ["lease_expired", "not_sent", "completed"]
    assert len(gateway.journal) == 1
    assert issubclass(GatewayNotSent, Exception)
