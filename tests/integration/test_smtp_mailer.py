"""
What each way of failing means for a mail, against servers that fail at every step.

The catcher shows the usual failures (`tests/contract/test_mailer.py`); these are the rest.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.scripted import ScriptedServer, Talk, read_until, scripted_server
from support.wire import mail_catcher_process

from billing_jobs.adapters.mail.smtp import SmtpMailer
from billing_jobs.domain.errors import (
    MailError,
    MailNotSent,
    MailOutcomeUnknown,
    MailRefused,
    SettingsInvalid,
)
from billing_jobs.domain.mail import Mail

_MAIL = Mail(
    message_id="<1@billing.example.com>",
    sender="billing@example.com",
    recipient="jo@example.org",
    subject="Invoice 7",
    text="Please pay.\n",
)
#: What a willing server answers; `content` answers the mail itself. Empty cuts the connection.
_WILLING = {
    "greeting": b"220 mail.example.org\r\n",
    "EHLO": b"250-mail.example.org\r\n250 SIZE 1000000\r\n",
    "MAIL": b"250 OK\r\n",
    "RCPT": b"250 OK\r\n",
    "DATA": b"354 Go on\r\n",
    "content": b"250 Taken\r\n",
    "QUIT": b"221 Bye\r\n",
}


def now() -> datetime:
    """Return the same time always."""
    return datetime(2026, 5, 1, 8, 30, tzinfo=UTC)


def smtp_talk(answers: Mapping[str, bytes], tls: ssl.SSLContext | None = None) -> Talk:
    """Return a server that answers each command so."""
    answers = {**_WILLING, **answers}

    def talk(connection: socket.socket, server: ScriptedServer) -> None:
        connection.sendall(answers["greeting"])
        while True:
            command = read_until(connection, b"\r\n").split()[0].decode().upper()
            answer = answers.get(command, b"502 What?\r\n")
            if not answer:
                return
            connection.sendall(answer)
            if command == "STARTTLS" and tls is not None:
                with tls.wrap_socket(connection, server_side=True) as secure:
                    smtp_talk(answers | {"greeting": b""})(secure, server)
                return
            if answer.startswith(b"354"):
                read_until(connection, b"\r\n.\r\n")
                if answers["content"] == b"silence":
                    server.over.wait(20)
                connection.sendall(answers["content"])
                if not answers["content"]:
                    return

    return talk


def anonymous_tls(purpose: int) -> ssl.SSLContext:
    """Return a context that encrypts without any certificate: tests carry no private keys."""
    context = ssl.SSLContext(purpose)
    if purpose == ssl.PROTOCOL_TLS_CLIENT:
        context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("AECDH-AES128-SHA:@SECLEVEL=0")
    return context


def error_of_send(answers: Mapping[str, bytes], timeout_seconds: float = 20.0) -> MailError:
    """Send one mail to a server that answers so; return what was raised."""
    with scripted_server(smtp_talk(answers)) as server, pytest.raises(MailError) as caught:
        SmtpMailer(f"smtp://127.0.0.1:{server.port}", timeout_seconds, now).send(_MAIL)
    return caught.value


def test_a_willing_server_takes_the_mail() -> None:
    """The script itself is sound: what fails below fails for the reason given."""
    with scripted_server(smtp_talk({})) as server:
        SmtpMailer(f"smtp://127.0.0.1:{server.port}", 20, now).send(_MAIL)


def test_a_server_that_is_down_got_nothing() -> None:
    """The transport clock may try again."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

    with pytest.raises(MailNotSent):
        SmtpMailer(f"smtp://127.0.0.1:{port}", 20, now).send(_MAIL)


def test_an_unresolved_name_got_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS is often the first thing to break."""

    def unresolved(*_arguments: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unresolved)

    with pytest.raises(MailNotSent):
        SmtpMailer("smtp://mail.invalid", 1, now).send(_MAIL)


@pytest.mark.parametrize(
    ("step", "answer"),
    [
        ("greeting", b"421 Too busy\r\n"),
        ("greeting", b"554 Not here\r\n"),
        ("greeting", b"HTTP/1.1 400 Bad Request\r\n"),
        ("EHLO", b""),
        ("MAIL", b"451 Later\r\n"),
        ("MAIL", b"530 5.7.0 Authentication required\r\n"),
        ("MAIL", b""),
        ("MAIL", b"banana\r\n"),
        ("RCPT", b"421 4.7.0 Shutting down\r\n"),
        ("RCPT", b"354 What\r\n"),
        ("DATA", b"451 Later\r\n"),
        ("DATA", b"250 OK\r\n"),
        ("DATA", b""),
        ("content", b"452 4.3.1 Full\r\n"),
    ],
)
def test_these_answers_prove_that_it_was_not_accepted(step: str, answer: bytes) -> None:
    """Before the content went out, and after a clear no, the mail may be sent again."""
    assert isinstance(error_of_send({step: answer}), MailNotSent)


@pytest.mark.parametrize("step", ["MAIL", "RCPT", "DATA", "content"])
def test_a_no_for_good_ends_it(step: str) -> None:
    """A bounce must reach the suppression list, not the retry clock."""
    error = error_of_send({step: b"550-5.1.1 <jo@example.org>\r\n550 no such user\r\n"})

    assert isinstance(error, MailRefused)
    assert "550 5.1.1" in str(error)
    assert "jo@" not in str(error)


@pytest.mark.parametrize(
    "answer", [b"", b"silence", b"banana\r\n", b"354 Again\r\n", b"2" * 9000 + b"\r\n"]
)
def test_after_the_content_no_clear_answer_is_unknown(answer: bytes) -> None:
    """The server may have taken it: sent again, the customer may have it twice."""
    error = error_of_send({"content": answer}, 0.5 if answer == b"silence" else 20.0)

    assert isinstance(error, MailOutcomeUnknown)


def test_a_good_bye_that_fails_changes_nothing() -> None:
    """The mail was taken; an error now would send it twice."""
    with scripted_server(smtp_talk({"QUIT": b""})) as server:
        SmtpMailer(f"smtp://127.0.0.1:{server.port}", 20, now).send(_MAIL)


def test_a_long_word_of_a_server_is_cut() -> None:
    """Error texts end in logs and rows."""
    error = error_of_send({"RCPT": b"550 " + b"x" * 5000 + b"\r\n"})

    assert len(str(error)) < 400


def test_it_signs_in(tmp_path: Path) -> None:
    """User and password may hold any character, so they are percent-encoded in the URL."""
    with mail_catcher_process(tmp_path) as catcher:
        url = f"smtp://bill%40ing:p%2Fass@127.0.0.1:{catcher.port}"
        SmtpMailer(url, 30, now).send(_MAIL)

        with pytest.raises(MailNotSent) as caught:
            SmtpMailer(url.replace("p%2Fass", "wrong"), 30, now).send(_MAIL)

        assert len(catcher.mails()) == 1
    assert "wrong" not in str(caught.value)


def test_a_server_without_login_is_told() -> None:
    """A setting that cannot work is our mistake, and no mail's end."""
    with scripted_server(smtp_talk({})) as server, pytest.raises(MailNotSent):
        SmtpMailer(f"smtp://user:secret@127.0.0.1:{server.port}", 20, now).send(_MAIL)


def test_smtps_speaks_tls_from_the_first_byte() -> None:
    """Nothing of the mail is readable on the way."""
    encrypted = anonymous_tls(ssl.PROTOCOL_TLS_SERVER)

    def talk(connection: socket.socket, server: ScriptedServer) -> None:
        with closing(encrypted.wrap_socket(connection, server_side=True)) as secure:
            smtp_talk({})(secure, server)

    tls = anonymous_tls(ssl.PROTOCOL_TLS_CLIENT)
    with scripted_server(talk) as server:
        SmtpMailer(f"smtps://127.0.0.1:{server.port}", 20, now, tls=tls).send(_MAIL)


def test_smtps_sends_nothing_to_a_server_it_does_not_trust() -> None:
    """A plain server on that port, or a certificate that is not valid."""
    with scripted_server(smtp_talk({})) as server, pytest.raises(MailNotSent):
        SmtpMailer(f"smtps://127.0.0.1:{server.port}", 20, now).send(_MAIL)


# 0.0.0.0 reaches this machine, but is not known to be it: the network in a test.
def test_starttls_is_used_over_a_network_where_it_is_offered() -> None:
    """A password and a customer's name do not travel in clear."""
    offers = {
        "EHLO": b"250-mail.example.org\r\n250-AUTH PLAIN\r\n250 STARTTLS\r\n",
        "STARTTLS": b"220 Go on\r\n",
        "AUTH": b"235 Welcome\r\n",
    }
    talk = smtp_talk(offers, anonymous_tls(ssl.PROTOCOL_TLS_SERVER))
    tls = anonymous_tls(ssl.PROTOCOL_TLS_CLIENT)
    with scripted_server(talk) as server:
        url = f"smtp://user:secret@0.0.0.0:{server.port}"
        SmtpMailer(url, 20, now, tls=tls).send(_MAIL)


def test_a_password_never_goes_over_a_network_in_clear() -> None:
    """A server in between could strike STARTTLS out of the offer."""
    with scripted_server(smtp_talk({})) as server, pytest.raises(MailNotSent, match="in clear"):
        SmtpMailer(f"smtp://user:secret@0.0.0.0:{server.port}", 20, now).send(_MAIL)


def test_a_starttls_that_fails_sends_nothing() -> None:
    """Falling back to clear text would be the attack."""
    offers = {
        "EHLO": b"250-mail.example.org\r\n250 STARTTLS\r\n",
        "STARTTLS": b"454 Not now\r\n",
    }
    with scripted_server(smtp_talk(offers)) as server, pytest.raises(MailNotSent):
        SmtpMailer(f"smtp://0.0.0.0:{server.port}", 20, now).send(_MAIL)


def test_a_mail_server_by_name_is_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only an address of this machine, or `localhost`, is known to be safe."""
    real = socket.getaddrinfo

    def resolved(_host: str, *more: object) -> object:
        return real("127.0.0.1", *more)  # type: ignore[arg-type]

    with scripted_server(smtp_talk({})) as server:
        SmtpMailer(f"smtp://localhost:{server.port}", 20, now).send(_MAIL)
        monkeypatch.setattr(socket, "getaddrinfo", resolved)

        with pytest.raises(MailNotSent, match="in clear"):
            SmtpMailer(f"smtp://user:secret@mail.invalid:{server.port}", 20, now).send(_MAIL)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "mail.example.org:25",
        "http://mail.example.org",
        "smtp://",
        "smtp://user:secret@",
        "smtp://[::1",
        "smtp://mail:port",
        "smtp://user:secret@mail/path",
    ],
)
def test_an_unusable_url_is_refused_and_not_shown(url: str) -> None:
    """It is found at the start, and a password in it does not end in a log."""
    with pytest.raises(SettingsInvalid) as caught:
        SmtpMailer(url, 1, now)

    assert "secret" not in str(caught.value)
