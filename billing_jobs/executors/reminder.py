"""
Remind one customer about one invoice, once a step.

Owns the order: write the notice down, read the facts again, mark that DATA begins, send, answer.
The text is short and plain; addresses and names stay in the database and in the mail.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from billing_jobs.domain.errors import MailNotSent, MailOutcomeUnknown, MailRefused
from billing_jobs.domain.job import ClaimedJob
from billing_jobs.domain.ledger import Notice, NoticeAnswered, NoticeState
from billing_jobs.domain.mail import Mail
from billing_jobs.domain.money import Money
from billing_jobs.domain.outcome import Completed, Outcome, Refused, RetryLater
from billing_jobs.ports import Ledger, Ports, Transaction
from billing_jobs.registry import Arguments, OnExpiredLease, argument_id, job

#: The step of a reminder that names none.
DEFAULT_STEP = "due"

_OPENINGS = {
    "payment_failed": "we could not collect the amount of invoice {number}.",
    DEFAULT_STEP: "this is a reminder about invoice {number}.",
}


class ReminderArguments(Arguments):
    """Which invoice, and which step of its reminders; None means the first."""

    invoice_id: UUID
    step: str | None = None


def reminder_key(
    arguments: Mapping[str, object], ledger: Ledger, transaction: Transaction | None
) -> str:
    """Return (invoice, step)."""
    del ledger, transaction
    return f"{arguments['invoice_id']}:{arguments.get('step') or DEFAULT_STEP}"


@job(
    "reminder",
    arguments=ReminderArguments,
    queue="reminders",
    key=reminder_key,
    on_expired_lease=OnExpiredLease.RECONCILE,
)
def execute_reminder(job: ClaimedJob, ports: Ports) -> Outcome:
    """
    Send the mail of one step, unless it was sent, is in doubt, or is not wanted any more.

    Crash safety: before `begin_data` nothing left the house, and the next run sends. After it the
    outcome counts as unknown: the step is never sent again.
    """
    step = str(job.arguments.get("step") or DEFAULT_STEP)
    domain = ports.policy.mail_from.rpartition("@")[2]
    notice = ports.ledger.open_notice(job, argument_id(job, "invoice_id"), step, domain)
    if notice is None:
        return Refused(f"There is no invoice {job.arguments['invoice_id']}; nothing was sent.")
    return _without_sending(notice) or _send(job, ports, notice)


def _without_sending(notice: Notice) -> Completed | None:
    """Return the outcome of a notice that must not be sent now; None when it shall be sent."""
    if notice.state is NoticeState.SENDING:
        return _ended(notice, NoticeState.UNKNOWN, "a run vanished after DATA had begun")
    if notice.state is not NoticeState.QUEUED:
        return Completed({"outcome": notice.state.value, "notice_id": str(notice.id)})
    if notice.obsolete is not None:
        return _ended(notice, NoticeState.CANCELLED, notice.obsolete)
    return None


def _send(job: ClaimedJob, ports: Ports, notice: Notice) -> Outcome:
    ports.lease.check()
    mail = reminder_mail(notice, sender=ports.policy.mail_from)
    try:
        ports.mailer.send(mail, lambda: ports.ledger.begin_data(job, notice))
    except MailNotSent as error:
        back = NoticeAnswered(notice.id, NoticeState.QUEUED, error.message)
        return RetryLater(error.message, effects=(back,))
    except MailRefused as error:
        return _ended(notice, NoticeState.BOUNCED, error.message)
    except MailOutcomeUnknown as error:
        return _ended(notice, NoticeState.UNKNOWN, error.message)
    return _ended(notice, NoticeState.SENT, "accepted by the mail server")


def reminder_mail(notice: Notice, *, sender: str) -> Mail:
    """Write the mail of a notice."""
    amount = Money(notice.open_minor, notice.currency).to_decimal_string()
    opening = _OPENINGS.get(notice.step, _OPENINGS[DEFAULT_STEP]).format(number=notice.number)
    lines = (
        f"Dear {notice.name},",
        "",
        opening,
        f"Open amount: {amount} {notice.currency}, due on {notice.due_on.isoformat()}.",
        "",
        "If you have paid already, please ignore this mail.",
    )
    return Mail(
        message_id=notice.message_id,
        sender=sender,
        recipient=notice.recipient,
        subject=f"Invoice {notice.number}: {amount} {notice.currency} open",
        text="\n".join(lines) + "\n",
    )


def _ended(notice: Notice, state: NoticeState, reason: str) -> Completed:
    return Completed(
        {"outcome": state.value, "notice_id": str(notice.id)},
        effects=(NoticeAnswered(notice.id, state, reason),),
    )
