"""
Mailer over SMTP: one connection and one recipient a mail.

Owns the conversation and what its end means for the mail. Owns no retry and no memory: whoever
calls writes down that DATA begins, and decides what an unknown outcome is worth.
"""

from __future__ import annotations

import re
import smtplib
import ssl
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from ipaddress import ip_address
from urllib.parse import unquote, urlsplit

from billing_jobs.adapters.mail.compose import Composed, composed, header_value
from billing_jobs.domain.errors import (
    MailNotSent,
    MailOutcomeUnknown,
    MailRefused,
    SettingsInvalid,
)
from billing_jobs.domain.mail import Mail

_SEND_CONTENT = 354
#: These say that we did not sign in as the server wants; no word about the mail.
_OUR_CREDENTIALS = frozenset({530, 534, 535, 538})
_REPLY_LENGTH_MAX = 200
_PLAIN_PORT, _TLS_PORT = 25, 465
_LEADING_DOTS = re.compile(rb"(?m)^\.")
# Bounded: without it a long run of other characters costs its length squared.
_ADDRESS = re.compile(r"[^\s<>]{1,64}@[^\s<>]{1,255}")


@dataclass(frozen=True, slots=True)
class _Server:
    host: str
    port: int
    is_tls: bool
    user: str
    password: str

    @property
    def is_this_machine(self) -> bool:
        """Whether nobody can listen in between."""
        try:
            return self.host == "localhost" or ip_address(self.host).is_loopback
        except ValueError:
            return False


class SmtpMailer:
    """
    Sends through one mail server: `smtp://host:port` or `smtps://user:password@host:port`.

    With `smtp`, STARTTLS is used where the server offers it, except on this machine; a password
    never goes over a network in clear. `now` gives the Date header; `tls` replaces the system's
    certificates.

    Crash safety: `before_data` runs when the recipient was accepted, right before DATA. Killed
    before it: nothing was sent, send again. Killed after it: nobody knows, and the mail may arrive
    twice if it is sent again; its Message-ID is the same.
    """

    def __init__(
        self,
        url: str,
        timeout_seconds: float,
        now: Callable[[], datetime],
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._server = _parsed(url)
        self._timeout_seconds = timeout_seconds
        self._now = now
        self._tls = tls

    def send(self, mail: Mail, before_data: Callable[[], None] | None = None) -> None:
        """
        Send one mail; return when the server took it.

        What `before_data` raises passes through, and nothing is sent.

        Crash safety: see the class.
        """
        ready = composed(mail, self._now())
        with closing(self._connected(ready)) as session:
            self._sign_in(session)
            _address(session, ready)
            if before_data is not None:
                before_data()
            _hand_over(session, ready)
            # It is sent; a server that says good-bye slowly must not hold us.
            with suppress(smtplib.SMTPException, OSError):
                session.putcmd("QUIT")

    def _connected(self, ready: Composed) -> smtplib.SMTP:
        server = self._server
        with _not_sent("connect"):
            if server.is_tls:
                return smtplib.SMTP_SSL(
                    server.host,
                    server.port,
                    local_hostname=ready.sender_domain,
                    timeout=self._timeout_seconds,
                    context=self._tls or ssl.create_default_context(),
                )
            return smtplib.SMTP(
                server.host,
                server.port,
                local_hostname=ready.sender_domain,
                timeout=self._timeout_seconds,
            )

    def _sign_in(self, session: smtplib.SMTP) -> None:
        server = self._server
        with _not_sent("sign in"):
            session.ehlo_or_helo_if_needed()
            is_private = server.is_tls or server.is_this_machine
            if not is_private and session.has_extn("starttls"):
                session.starttls(context=self._tls or ssl.create_default_context())
                session.ehlo_or_helo_if_needed()
                is_private = True
            if not server.user:
                return
            if not is_private:
                raise MailNotSent(
                    f"The mail server {server.host} offers no STARTTLS, and the password is not "
                    "sent in clear. Nothing was sent; use smtps:// or another server."
                )
            session.login(server.user, server.password)


def _address(session: smtplib.SMTP, ready: Composed) -> None:
    """Name sender and recipient."""
    options = [f"size={len(ready.content)}"] if session.has_extn("size") else []
    with _not_sent("name the sender"):
        sender_reply = session.mail(ready.sender, options)
    _require_ok(sender_reply, "MAIL")
    with _not_sent("name the recipient"):
        recipient_reply = session.rcpt(ready.recipient)
    _require_ok(recipient_reply, "RCPT")


def _hand_over(session: smtplib.SMTP, ready: Composed) -> None:
    """
    Send the content.

    Before 354 the server has no content that it could have accepted. After it, only its reply
    tells: a connection lost there proves nothing.
    """
    with _not_sent("begin DATA"):
        data_reply = session.docmd("DATA")
    if data_reply[0] != _SEND_CONTENT:
        _check_reply(data_reply, "DATA")
        raise MailNotSent(
            f"The mail server answered DATA with {_shown(data_reply)}. Nothing was sent."
        )
    quoted = _LEADING_DOTS.sub(b"..", ready.content)
    end = b".\r\n" if quoted.endswith(b"\r\n") else b"\r\n.\r\n"
    try:
        session.send(quoted + end)
        reply = session.getreply()
    except (smtplib.SMTPException, OSError) as error:
        raise MailOutcomeUnknown(
            f"The connection to the mail server was lost after DATA ({type(error).__name__}). The "
            "mail may have been accepted; sent again it may arrive twice."
        ) from error
    _check_reply(reply, "the content")
    if not 200 <= reply[0] < 300:  # noqa: PLR2004
        raise MailOutcomeUnknown(
            f"The mail server answered the content with {_shown(reply)}, which is no answer. The "
            "mail may have been accepted; sent again it may arrive twice."
        )


def _require_ok(reply: tuple[int, bytes], to: str) -> None:
    """Raise unless a reply before DATA says yes."""
    _check_reply(reply, to)
    if not 200 <= reply[0] < 300:  # noqa: PLR2004
        raise MailNotSent(f"The mail server answered {to} with {_shown(reply)}. Nothing was sent.")


def _check_reply(reply: tuple[int, bytes], to: str) -> None:
    """Raise for a reply that says no; all others are the caller's to judge."""
    code = reply[0]
    if code in _OUR_CREDENTIALS or 400 <= code < 500:  # noqa: PLR2004
        raise MailNotSent(
            f"The mail server did not accept {to} for now ({_shown(reply)}). Send it again later."
        )
    if 500 <= code < 600:  # noqa: PLR2004
        raise MailRefused(
            f"The mail server refused {to} for good ({_shown(reply)}). Sending it again is useless."
        )


@contextmanager
def _not_sent(step: str) -> Iterator[None]:
    """Translate whatever fails before the content went out: provably, nothing was sent."""
    try:
        yield
    except smtplib.SMTPResponseException as error:
        shown = _shown((error.smtp_code, _as_bytes(error.smtp_error)))
        raise MailNotSent(
            f"The mail server did not let us {step} ({shown}). Nothing was sent; send it again."
        ) from error
    except (smtplib.SMTPException, OSError, ValueError) as error:
        raise MailNotSent(
            f"The mail server could not be reached to {step} ({type(error).__name__}: "
            f"{_harmless(str(error))}). Nothing was sent; send it again."
        ) from error


def _as_bytes(text: bytes | str) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "replace")


def _shown(reply: tuple[int, bytes]) -> str:
    return f"{reply[0]} {_harmless(reply[1].decode('utf-8', 'replace'))}".strip()


def _harmless(text: str) -> str:
    """Return a server's words without line breaks and addresses: they end in logs."""
    # Cut after the masks: an address cut in two would not be recognised.
    return _ADDRESS.sub("***@***", header_value(text[: 4 * _REPLY_LENGTH_MAX]))[:_REPLY_LENGTH_MAX]


def _parsed(url: str) -> _Server:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        parts, host, port = urlsplit(""), None, None
    if parts.scheme not in {"smtp", "smtps"} or not host or parts.path.strip("/"):
        # The text never shows the URL: it may hold a password.
        raise SettingsInvalid(
            "The mail server's URL is not usable.",
            ["give smtp://host:port or smtps://user:password@host:port"],
        )
    is_tls = parts.scheme == "smtps"
    return _Server(
        host=host,
        port=port or (_TLS_PORT if is_tls else _PLAIN_PORT),
        is_tls=is_tls,
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
    )
