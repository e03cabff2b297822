"""The mail catcher as a process: what it took is on the disk, and nothing ever leaves it."""

from __future__ import annotations

import smtplib
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.wire import MailCatcherProcess, mail_catcher_process, wait_until

from billing_jobs.adapters.mail.smtp import SmtpMailer
from billing_jobs.domain.mail import Mail
from billing_jobs.sandbox import mail as catcher_module
from billing_jobs.sandbox.mail import main, message_id_hash

_TEXT = "From: a@example.com\r\nTo: b@example.com\r\nMessage-ID: <1@x>\r\n\r\nHello\r\n"


@pytest.fixture(scope="module")
def catcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MailCatcherProcess]:
    """One process for the tests that do not stop it."""
    with mail_catcher_process(tmp_path_factory.mktemp("mail")) as server:
        yield server


def client(catcher: MailCatcherProcess) -> smtplib.SMTP:
    """Return a connected client."""
    return smtplib.SMTP("127.0.0.1", catcher.port, local_hostname="client", timeout=30)


def test_an_accepted_mail_is_on_the_disk_with_its_envelope(tmp_path: Path) -> None:
    """A mail that was answered 250 is there after `kill -9`, byte for byte."""
    with mail_catcher_process(tmp_path) as catcher:
        with client(catcher) as session:
            session.sendmail("a@example.com", ["b@example.com", "c@example.com"], _TEXT)
        catcher.kill()

        (mail,) = catcher.mails()
        (path,) = (catcher.mailbox / "new").iterdir()
    assert mail["Return-Path"] == "<a@example.com>"
    assert mail.get_all("Delivered-To") == ["b@example.com", "c@example.com"]
    assert mail.get_content() == "Hello\r\n"
    assert path.read_bytes().endswith(_TEXT.encode())
    assert path.name.endswith(f".{message_id_hash('<1@x>')}.eml")
    assert not list((catcher.mailbox / "tmp").iterdir())


def test_a_restart_keeps_the_box_and_its_order(tmp_path: Path) -> None:
    """Counting mails over a restart is how duplicates are found."""
    with mail_catcher_process(tmp_path) as catcher:
        for number in range(3):
            if number == 1:
                catcher.restart()
            with client(catcher) as session:
                text = _TEXT.replace("Hello", f"Hello {number}")
                session.sendmail("a@example.com", ["b@example.com"], text)

        assert [mail.get_content() for mail in catcher.mails()] == [
            f"Hello {number}\r\n" for number in range(3)
        ]


def test_sigterm_ends_it_with_a_connection_open(tmp_path: Path) -> None:
    """A supervisor's stop does not wait for an idle client."""
    with mail_catcher_process(tmp_path) as catcher, client(catcher) as session:
        assert catcher.stop() == 0
        with pytest.raises(smtplib.SMTPServerDisconnected):
            session.noop()


def test_some_domains_fail_on_demand(catcher: MailCatcherProcess) -> None:
    """The replies are those of real servers, with their enhanced codes."""
    with client(catcher) as session:
        session.ehlo()
        session.mail("a@example.com")

        assert session.rcpt("b@tempfail.example.com")[0] == 451
        code, text = session.rcpt("b@BOUNCE.example.com")
        assert (code, text[:5]) == (550, b"5.1.1")
        assert session.rcpt("b@example.com")[0] == 250


def test_recipients_have_a_bound(catcher: MailCatcherProcess) -> None:
    """Every input has one."""
    with client(catcher) as session:
        session.ehlo()
        session.mail("a@example.com")
        codes = [session.rcpt(f"b{number}@example.com")[0] for number in range(101)]

    assert codes == [250] * 100 + [452]


def test_a_mail_that_is_too_large_is_refused(catcher: MailCatcherProcess) -> None:
    """A box on somebody's laptop must not fill it."""
    with client(catcher) as session, pytest.raises(smtplib.SMTPSenderRefused) as caught:
        session.sendmail("a@example.com", ["b@example.com"], "x" * 1_100_000)

    assert caught.value.smtp_code == 552


def test_connections_have_a_bound(catcher: MailCatcherProcess) -> None:
    """One too many is told to come back, and room is made by those that leave."""
    address = ("127.0.0.1", catcher.port)
    connections = [socket.create_connection(address, 30) for _ in range(200)]
    for connection in connections:
        connection.recv(100)
    with socket.create_connection(address, 30) as refused:
        assert refused.recv(100).startswith(b"421")
    for connection in connections:
        connection.close()

    def has_room() -> bool:
        with socket.create_connection(address, 30) as connection:
            return connection.recv(100).startswith(b"220")

    wait_until(has_room)


def test_a_login_is_taken_unless_it_is_the_wrong_one(catcher: MailCatcherProcess) -> None:
    """Both ends of a mailer's login can be tried."""
    with client(catcher) as session:
        with pytest.raises(smtplib.SMTPAuthenticationError):
            session.login("billing", "wrong")
        assert session.login("billing", "right")[0] == 235


def test_a_full_disk_asks_the_client_to_come_back(tmp_path: Path) -> None:
    """What could not be kept was not accepted; a 250 would lose it."""
    with mail_catcher_process(tmp_path) as catcher:
        (catcher.mailbox / "tmp").rmdir()
        with client(catcher) as session, pytest.raises(smtplib.SMTPDataError) as caught:
            session.sendmail("a@example.com", ["b@example.com"], _TEXT)

    assert caught.value.smtp_code == 451
    assert not catcher.mails()


def test_a_taken_port_is_told(
    catcher: MailCatcherProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A traceback is no answer to a user."""
    arguments = ["--port", str(catcher.port), "--mailbox", str(tmp_path / "box")]

    assert main(arguments) == 2
    assert "cannot start" in capsys.readouterr().err


def test_a_mail_without_message_id_is_kept_too(catcher: MailCatcherProcess) -> None:
    """The catcher judges nothing."""
    before = len(catcher.mails())
    with client(catcher) as session:
        session.sendmail("a@example.com", ["b@example.com"], "Subject: x\r\n\r\nHello\r\n")

    assert len(catcher.mails()) == before + 1


def test_what_our_mailer_sends_reads_back_as_it_was_meant(catcher: MailCatcherProcess) -> None:
    """Headers, both bodies and the recipient survive the way, whatever is in them."""
    subject = "Rechnung 7 ist fällig\r\nBcc: everybody@example.com\x00\u2028!"
    mail = Mail(
        message_id="<b7a5@billing.example.com>",
        sender="Müller & Söhne <billing@Bücher.example.com>",
        recipient="jo@example.com",
        subject=subject,
        text=".dot first\n" + "long " * 400 + "\nÜberweisen Sie bitte.\n",
        html="<p>Überweisen Sie bitte.</p>",
    )
    now = datetime(2026, 5, 1, 8, 30, tzinfo=UTC)

    SmtpMailer(catcher.url, 30, lambda: now).send(mail)

    arrived = catcher.mails()[-1]
    plain, html = arrived.iter_parts()
    on_disk = max((catcher.mailbox / "new").iterdir()).read_bytes()
    assert on_disk.isascii(), "not every server takes eight bits"
    assert arrived["Subject"] == "Rechnung 7 ist fällig Bcc: everybody@example.com !"
    assert arrived["Bcc"] is None
    assert arrived["Message-ID"] == mail.message_id
    assert arrived["Date"] == "Fri, 01 May 2026 08:30:00 +0000"
    assert arrived["From"].addresses[0].display_name == "Müller & Söhne"
    assert arrived["From"].addresses[0].addr_spec == "billing@xn--bcher-kva.example.com"
    assert arrived["Return-Path"] == "<billing@xn--bcher-kva.example.com>"
    assert arrived["Delivered-To"] == "jo@example.com"
    assert plain.get_content().replace("\r\n", "\n") == mail.text
    assert html.get_content().replace("\r\n", "\n").strip() == mail.html


def test_the_limits_are_the_documented_ones() -> None:
    """The tests above stand on these numbers."""
    assert (catcher_module.CONNECTIONS_MAX, catcher_module.RECIPIENTS_MAX) == (200, 100)
