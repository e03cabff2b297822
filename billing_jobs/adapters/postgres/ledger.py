"""
The ledger in Postgres: charge attempts, evidence, payments, double entries.

Owns the write order of a charge (T1 to T3) and the application of effects. Invoices and notices
have their statements in `invoices.py`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from typing import assert_never
from uuid import NAMESPACE_URL, UUID, uuid5

from psycopg.rows import dict_row

from billing_jobs.adapters.postgres import invoices
from billing_jobs.adapters.postgres.engine import (
    Connection,
    Database,
    driver_connection,
    statements,
)
from billing_jobs.adapters.postgres.postings import post
from billing_jobs.domain.errors import LeaseLost, NotFound
from billing_jobs.domain.job import ClaimedJob
from billing_jobs.domain.ledger import (
    ChargeAnswered,
    ChargeAttempt,
    DueSubscription,
    Effect,
    InvoiceIssued,
    NothingDue,
    Notice,
    NoticeAnswered,
)
from billing_jobs.domain.payment import AttemptState, GatewayObject
from billing_jobs.ports import Transaction

SQL = statements("ledger")
JOBS = statements("jobs")

#: Keys of payment objects and charge attempts are made under this name, never from a job's id, so
#: that a database restored to an earlier point makes the same keys again.
NAMESPACE = uuid5(NAMESPACE_URL, "billing-jobs:charges")


class PostgresLedger:
    """`Ledger` over Postgres."""

    def __init__(self, database: Database) -> None:
        """Take the way to the database."""
        self._database = database

    def next_collection_number(self, invoice_id: UUID, transaction: Transaction | None) -> int:
        """Return the number of the next try; reads only."""
        row = self._read(transaction, SQL["next_collection_number"], {"invoice_id": invoice_id})
        assert row is not None
        number = row["number"]
        assert isinstance(number, int)
        return number

    def next_period_start(
        self, subscription_id: UUID, transaction: Transaction | None
    ) -> date | None:
        """Return the first day of the next period; reads only."""
        row = self._read(
            transaction,
            invoices.SQL["next_period_start"],
            {"subscription_id": subscription_id},
        )
        if row is None:
            return None
        start = row["next_period_start"]
        assert isinstance(start, date)
        return start

    def open_charge(
        self, job: ClaimedJob, invoice_id: UUID, gateway: str
    ) -> ChargeAttempt | NothingDue:
        """
        T1: lock the debt, look whether something is due, write the attempt down.

        Raises `NotFound` for an unknown invoice and `LeaseLost` for a stale owner.

        Crash safety: one transaction; before its commit nothing is written and nothing was sent,
        after it the attempt is found again under the same key.
        """

        def write(connection: Connection) -> ChargeAttempt | NothingDue:
            own(connection, job)
            invoice = connection.execute(SQL["lock_invoice"], {"invoice_id": invoice_id}).fetchone()
            if invoice is None:
                raise NotFound(f"There is no invoice {invoice_id}; nothing was charged.")
            live = connection.execute(SQL["live_attempt"], {"invoice_id": invoice_id}).fetchone()
            nothing = _nothing_due(invoice)
            if live is not None:
                return _standing(connection, job, _attempt(live), nothing)
            if nothing is not None:
                return nothing
            return _open_attempt(connection, job, invoice_id, gateway, invoice)

        return self._database.run(write)

    def declare_call(self, job: ClaimedJob, attempt: ChargeAttempt) -> None:
        """
        T2: commit that the call is about to leave.

        Crash safety: one transaction; from its commit on the outcome counts as unknown, so a crash
        before the call costs a look-up, never a charge.
        """
        parameters = {"attempt_id": attempt.id, "token": job.token}

        def write(connection: Connection) -> None:
            _guarded(connection.execute(JOBS["open_effect"], _key(job)).rowcount, job)
            _guarded(connection.execute(SQL["declare_attempt"], parameters).rowcount, job)

        self._database.run(write)

    def keep_object(self, job: ClaimedJob, attempt: ChargeAttempt, reference: str) -> None:
        """
        Commit the gateway's id of the payment object, before it is confirmed.

        Crash safety: one transaction; without it the object is found again by its key or metadata,
        and an unconfirmed object has moved no money.
        """
        parameters = {"object_id": attempt.object_id, "reference": reference}

        def write(connection: Connection) -> None:
            own(connection, job)
            _guarded(connection.execute(SQL["keep_object"], parameters).rowcount, job)

        self._database.run(write)

    def keep_evidence(self, attempt_id: UUID, *, source: str, raw: str) -> None:
        """
        Keep what the gateway said, also from a worker that lost its lease.

        Crash safety: one insert; lost, the gateway still knows, and the look-up asks it.
        """
        with self._database.connection() as connection:
            connection.execute(
                SQL["keep_evidence"], {"attempt_id": attempt_id, "source": source, "raw": raw}
            )

    def attempt_in_doubt(self, job: ClaimedJob, attempt_id: UUID) -> ChargeAttempt | None:
        """Return an attempt whose outcome is unknown or comes later; reads only."""
        del job
        row = self._read(None, SQL["attempt_in_doubt"], {"attempt_id": attempt_id})
        return None if row is None else _attempt(row)

    def due_subscription(self, subscription_id: UUID) -> DueSubscription | None:
        """Return a subscription with its next period; reads only."""
        with self._database.connection() as connection:
            return invoices.due_subscription(connection, subscription_id)

    def due_subscriptions(self, *, after: UUID | None, limit: int) -> list[tuple[UUID, str, date]]:
        """Page through due subscriptions; reads only."""
        with self._database.connection() as connection:
            return invoices.due_subscriptions(connection, after=after, limit=limit)

    def open_notice(
        self, job: ClaimedJob, invoice_id: UUID, step: str, domain: str
    ) -> Notice | None:
        """
        Write a notice down, or find the one there is.

        Crash safety: one transaction; twice makes one row, by its unique constraint.
        """

        def write(connection: Connection) -> Notice | None:
            own(connection, job)
            return invoices.open_notice(connection, job, invoice_id, step=step, domain=domain)

        return self._database.run(write)

    def begin_data(self, job: ClaimedJob, notice: Notice) -> None:
        """
        Commit that the mail is about to be handed over.

        Crash safety: one transaction; from its commit on a crash leaves the notice in doubt, and it
        is not sent again.
        """

        def write(connection: Connection) -> None:
            _guarded(connection.execute(JOBS["open_effect"], _key(job)).rowcount, job)
            _guarded(invoices.begin_data(connection, job, notice), job)

        self._database.run(write)

    def apply(self, connection: Connection, job: ClaimedJob, effect: Effect) -> None:
        """
        T3: apply an effect inside the transaction that records the run.

        Crash safety: the transaction's; an effect that is there already is not applied again.
        """
        match effect:
            case ChargeAnswered():
                _apply_answer(connection, job, effect)
            case InvoiceIssued():
                invoices.issue(connection, effect)
            case NoticeAnswered():
                _guarded(invoices.answer_notice(connection, job, effect), job)
            case _:  # pragma: no cover
                assert_never(effect)

    def _read(
        self, transaction: Transaction | None, sql: str, parameters: Mapping[str, object]
    ) -> Mapping[str, object] | None:
        if transaction is None:
            with self._database.connection() as connection:
                return connection.execute(sql, parameters).fetchone()
        cursor = driver_connection(transaction).cursor(row_factory=dict_row)
        return cursor.execute(sql, parameters).fetchone()


def own(connection: Connection, job: ClaimedJob) -> None:
    """Hold the job's row under its token until the transaction ends, or raise `LeaseLost`."""
    _guarded(len(connection.execute(JOBS["own"], _key(job)).fetchall()), job)


def _key(job: ClaimedJob) -> dict[str, object]:
    return {"id": job.id, "token": job.token}


def _guarded(rows: int, job: ClaimedJob) -> None:
    if rows != 1:
        raise LeaseLost(
            f"Job {job.id} may not write under token {job.token}: a newer owner has it. "
            "Nothing was written."
        )


def _nothing_due(invoice: Mapping[str, object]) -> NothingDue | None:
    if invoice["state"] != "open":
        return NothingDue(str(invoice["state"]))
    if invoice["disputed"]:
        return NothingDue("disputed", needs_person=True)
    if invoice["payment_token"] is None:
        return NothingDue("no_payment_method", needs_person=True)
    return None


def _standing(
    connection: Connection, job: ClaimedJob, attempt: ChargeAttempt, nothing: NothingDue | None
) -> ChargeAttempt | NothingDue:
    """A live attempt: gone on with while money is due, else called off or only looked up."""
    if nothing is None:
        return attempt
    if attempt.state is not AttemptState.CREATED:
        return replace(attempt, collectible=False)
    parameters = {"attempt_id": attempt.id, "token": job.token, "reason": nothing.reason}
    _guarded(connection.execute(SQL["cancel_attempt"], parameters).rowcount, job)
    return nothing


def _open_attempt(
    connection: Connection,
    job: ClaimedJob,
    invoice_id: UUID,
    gateway: str,
    invoice: Mapping[str, object],
) -> ChargeAttempt | NothingDue:
    money = {
        "tenant": invoice["tenant"],
        "invoice_id": invoice_id,
        "gateway": gateway,
        "currency": invoice["currency"],
        "amount_minor": invoice["open_minor"],
        "payment_token": invoice["payment_token"],
    }
    object_id = uuid5(NAMESPACE, f"{invoice_id}:{gateway}")
    connection.execute(SQL["open_object"], {**money, "id": object_id})
    found = connection.execute(SQL["get_object"], money).fetchone()
    if found is None or found["amount_minor"] != invoice["open_minor"]:
        return NothingDue("the open amount differs from the payment object's", needs_person=True)
    row = connection.execute(SQL["next_collection_number"], {"invoice_id": invoice_id}).fetchone()
    assert row is not None
    attempt_id = uuid5(NAMESPACE, f"{invoice_id}:{gateway}:{row['number']}")
    connection.execute(
        SQL["open_attempt"],
        {
            **money,
            "id": attempt_id,
            "object_id": found["id"],
            "number": row["number"],
            "key": f"bj:{invoice['tenant']}:{attempt_id}",
            "request_sha256": _fingerprint({**money, "object": str(found["id"])}),
            "job_id": job.id,
            "token": job.token,
        },
    )
    opened = connection.execute(SQL["live_attempt"], {"invoice_id": invoice_id}).fetchone()
    assert opened is not None
    return _attempt(opened)


def _fingerprint(request: Mapping[str, object]) -> str:
    canonical = json.dumps(request, sort_keys=True, default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _attempt(row: Mapping[str, object]) -> ChargeAttempt:
    values = dict(row)
    values["state"] = AttemptState(str(values["state"]))
    values["object_key"] = f"bj:object:{values['object_id']}"
    return ChargeAttempt(**values)  # type: ignore[arg-type] # one column a field, by name


def _apply_answer(connection: Connection, job: ClaimedJob, effect: ChargeAnswered) -> None:
    answer = effect.answer
    connection.execute(
        SQL["keep_evidence"],
        {
            "attempt_id": effect.attempt_id,
            "source": job.kind,
            "raw": answer.raw if answer is not None else effect.reason,
        },
    )
    row = connection.execute(
        SQL["answer_attempt"],
        {
            "attempt_id": effect.attempt_id,
            "token": job.token,
            "state": effect.state.value,
            "reason": effect.reason,
            "decline_code": None if answer is None else answer.decline_code,
            "charge_reference": None if answer is None else answer.charge_reference,
            "probe_after_seconds": effect.probe_after_seconds,
            "needs_person": effect.needs_person,
        },
    ).fetchone()
    if row is None:
        _guarded(0, job)
    elif effect.state is AttemptState.SUCCEEDED:
        assert answer is not None, "Bug: a success without the gateway's answer"
        _add_payment(connection, effect.attempt_id, row, answer)


def _add_payment(
    connection: Connection, attempt_id: UUID, row: Mapping[str, object], answer: GatewayObject
) -> None:
    """Put money that arrived into the books; what exceeds the debt stays unapplied."""
    invoice = connection.execute(SQL["open_amount"], {"invoice_id": row["invoice_id"]}).fetchone()
    object_row = connection.execute(
        SQL["gateway_of_attempt"], {"attempt_id": attempt_id}
    ).fetchone()
    assert invoice is not None
    assert object_row is not None
    amount = answer.amount_received_minor
    applied = min(amount, invoice["open_minor"])
    payment_id = uuid5(NAMESPACE, f"payment:{attempt_id}")
    added = connection.execute(
        SQL["add_payment"],
        {
            "id": payment_id,
            "tenant": row["tenant"],
            "invoice_id": row["invoice_id"],
            "attempt_id": attempt_id,
            "gateway": object_row["gateway"],
            "gateway_reference": answer.charge_reference or answer.reference,
            "currency": row["currency"],
            "amount_minor": amount,
            "applied_minor": applied,
        },
    )
    if added.rowcount == 0:
        return
    connection.execute(
        SQL["apply_payment"], {"invoice_id": row["invoice_id"], "applied_minor": applied}
    )
    post(
        connection,
        transaction_id=payment_id,
        tenant=str(row["tenant"]),
        currency=str(row["currency"]),
        sides={"gateway": amount, "receivable": -applied, "unapplied": applied - amount},
        invoice_id=row["invoice_id"],
        payment_id=payment_id,
    )
