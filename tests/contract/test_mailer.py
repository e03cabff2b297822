"""
What every mailer promises, checked in memory and over real SMTP against the mail catcher.

Exactly-once mail is impossible. What can be had is to know which mails nobody can know about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from uuid import uuid4

import pytest
from support.wire import MailCatcherProcess, mail_catcher_process

from billing_jobs.adapters.mail.memory import MemoryMailer
from billing_jobs.adapters.mail.smtp import SmtpMailer
from billing_jobs.domain.errors import (
    LeaseLost,
    MailError,
    MailNotSent,
    MailOutcomeUnknown,
    MailRefused,
)
from billing_jobs.domain.mail import Mail
from billing_jobs.ports import Mailer


def now() -> datetime:
    """Return the same time always."""
    return datetime(2026, 5, 1, 8, 30, tzinfo=UTC)


@dataclass
class Bench:
    """A mailer and the Message-IDs that arrived behind it."""

    mailer: Mailer
    arrived: Callable[[], list[str]]


@pytest.fixture(scope="module")
def catcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MailCatcherProcess]:
    """One real mail server for the module."""
    with mail_catcher_process(tmp_path_factory.mktemp("mail")) as server:
        yield server


@pytest.fixture(params=["memory", "smtp"])
def bench(request: pytest.FixtureRequest) -> Bench:
    """Each mailer in turn."""
    if request.param == "memory":
        memory = MemoryMailer()
        return Bench(memory, lambda: [mail.message_id for mail in memory.sent])
    server: MailCatcherProcess = request.getfixturevalue("catcher")
    mailer = SmtpMailer(server.url, 30, now)
    return Bench(mailer, lambda: [str(mail["Message-ID"]) for mail in server.mails()])


def mail_to(recipient: str) -> Mail:
    """Return a reminder."""
    return Mail(
        message_id=f"<{uuid4()}@billing.example.com>",
        sender="Acme Billing <billing@acme.example.com>",
        recipient=recipient,
        subject="Invoice 7 is due",
        text="Please pay.\n",
    )


def nothing() -> None:
    """Write nothing down."""


def test_a_sent_mail_arrives_once(bench: Bench) -> None:
    """The plain way."""
    mail = mail_to("jo@example.com")

    bench.mailer.send(mail, nothing)

    assert bench.arrived().count(mail.message_id) == 1


def test_the_marker_is_set_when_the_recipient_was_accepted(bench: Bench) -> None:
    """The marker is what makes a mail `unknown` after a crash: no sooner, no later."""
    seen: list[bool] = []
    mail = mail_to("jo@example.com")

    bench.mailer.send(mail, lambda: seen.append(mail.message_id in bench.arrived()))

    assert seen == [False]


@pytest.mark.parametrize(
    ("domain", "error"),
    [
        ("tempfail.example.com", MailNotSent),
        ("bounce.example.com", MailRefused),
        ("dropbeforedata.example.com", MailNotSent),
    ],
)
def test_a_failure_before_data_sets_no_marker(
    bench: Bench, domain: str, error: type[MailError]
) -> None:
    """Greylisting and bounces are known outcomes; a marker would make them unknown."""
    markers: list[str] = []
    mail = mail_to(f"jo@{domain}")

    with pytest.raises(error) as caught:
        bench.mailer.send(mail, lambda: markers.append("set"))

    assert type(caught.value) is error
    assert not markers
    assert mail.message_id not in bench.arrived()


@pytest.mark.parametrize(
    ("domain", "error", "arrives"),
    [
        ("tempfaildata.example.com", MailNotSent, False),
        ("refusedata.example.com", MailRefused, False),
        ("dropduringdata.example.com", MailOutcomeUnknown, False),
        ("dropafterdata.example.com", MailOutcomeUnknown, True),
    ],
)
def test_after_data_only_an_answer_is_knowledge(
    bench: Bench, domain: str, error: type[MailError], *, arrives: bool
) -> None:
    """The last two look alike, and in one of them the customer has the mail."""
    markers: list[str] = []
    mail = mail_to(f"jo@{domain}")

    with pytest.raises(error) as caught:
        bench.mailer.send(mail, lambda: markers.append("set"))

    assert type(caught.value) is error
    assert markers == ["set"]
    assert (mail.message_id in bench.arrived()) is arrives


def test_nothing_is_sent_when_the_marker_cannot_be_set(bench: Bench) -> None:
    """A worker that lost its lease learns it here, and must not send."""
    mail = mail_to("jo@example.com")

    def lost() -> None:
        raise LeaseLost("Another worker has this job.")

    with pytest.raises(LeaseLost):
        bench.mailer.send(mail, lost)

    assert mail.message_id not in bench.arrived()


@pytest.mark.parametrize(
    "recipient",
    [
        "",
        "nobody",
        "jo@",
        "@example.com",
        "jo@example.com, joe@example.com",
        "jo@example.com\r\nRCPT TO:<joe@example.com>",
        "jo@exa mple.com",
        "jö@example.com",
        "jo@" + "x" * 64 + ".example.com",
        "jo@a..example.com",
        "<jo@example.com",
        "Jo <jo@example.com> <joe@example.com>",
    ],
)
def test_what_is_not_one_address_is_refused(bench: Bench, recipient: str) -> None:
    """One recipient a mail, so that each has its own outcome; and no way to smuggle in a second."""
    with pytest.raises(MailRefused) as caught:
        bench.mailer.send(mail_to(recipient), nothing)

    assert "joe" not in str(caught.value)


def test_a_mail_without_message_id_is_refused(bench: Bench) -> None:
    """Without it a second copy could not be recognised."""
    with pytest.raises(MailRefused, match="Message-ID"):
        bench.mailer.send(replace(mail_to("jo@example.com"), message_id="7"), nothing)


@pytest.mark.parametrize("text", ["x\n" * 600_000, "ü" * 400_000])
def test_a_mail_that_is_too_large_is_refused(bench: Bench, text: str) -> None:
    """A mistake in a template must not fill the spool; what counts is the size on the wire."""
    with pytest.raises(MailRefused, match="limit"):
        bench.mailer.send(replace(mail_to("jo@example.com"), text=text), nothing)


def test_failures_can_be_ordered_in_memory() -> None:
    """Tests of executors choose when it fails; the nasty case keeps the mail."""
    mailer = MemoryMailer()
    mailer.fail_next(MailNotSent("down"))
    mailer.fail_next(MailNotSent("452"), after_data=True)
    mailer.fail_next(MailOutcomeUnknown("lost"), after_data=True)
    mail = mail_to("jo@example.com")

    for error in (MailNotSent, MailNotSent, MailOutcomeUnknown):
        with pytest.raises(error):
            mailer.send(mail)
    mailer.send(mail)

    assert mailer.sent == [mail, mail]
