"""
`python -m billing_jobs.sandbox.mail`: a mail server that keeps every mail and sends none.

Owns the mailbox directory and the addresses that fail on demand. Needs aiosmtpd, which the extra
`embedded` brings.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import SMTP as SMTP_POLICY
from itertools import count
from pathlib import Path
from types import MappingProxyType

from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from billing_jobs.sandbox.files import sync_directory, write_port

#: The largest mail that is kept; reminders have a few KB.
MAIL_BYTES_MAX = 1024 * 1024
#: Open connections; a connection above it is told to come back later.
CONNECTIONS_MAX = 200
#: RFC 5321 asks a server to take at least so many.
RECIPIENTS_MAX = 100
#: A client that says nothing is let go.
IDLE_SECONDS_MAX = 60.0
#: Commands of one kind on one connection.
_CALLS_MAX = 1_000
#: Any login will do but this one, so that refused credentials can be tried, too.
WRONG_PASSWORD = "wrong"  # noqa: S105 - it is the password that opens nothing

_DROP = "drop"
#: Domains whose recipients are answered so at RCPT; the mail is not taken.
_AT_RCPT = MappingProxyType(
    {
        "tempfail.example.com": "451 4.7.1 Try again later",
        "bounce.example.com": "550 5.1.1 No such user",
        "dropbeforedata.example.com": _DROP,
    }
)
#: Domains whose recipients are answered so after the mail was read; the mail is not kept.
_AT_DATA = MappingProxyType(
    {
        "tempfaildata.example.com": "452 4.3.1 Mailbox is full for now",
        "refusedata.example.com": "554 5.7.1 Refused by policy",
        "dropduringdata.example.com": _DROP,
    }
)
#: Kept, but the client never learns it.
_DROP_AFTER_DATA = "dropafterdata.example.com"


class Mailbox:
    """
    The directory of kept mails, one file a mail, readable while the catcher runs.

    Crash safety: a mail is written beside, brought to the disk and renamed into `new` before the
    client is told that it was accepted. Killed before it: the mail was not accepted, a leftover in
    `tmp` is harmless.
    """

    def __init__(self, directory: Path) -> None:
        self._new = directory / "new"
        self._beside = directory / "tmp"
        self._new.mkdir(parents=True, exist_ok=True)
        self._beside.mkdir(exist_ok=True)
        self._numbers = count(1)

    def keep(self, content: bytes, sender: str, recipients: Iterable[str]) -> Path:
        """Keep one mail; its envelope goes on top, as a mail server delivers it."""
        envelope = [f"Return-Path: <{sender}>", *(f"Delivered-To: {to}" for to in recipients)]
        head = "".join(f"{line}\r\n" for line in envelope).encode("utf-8", "replace")
        name = self._name(content)
        beside, kept = self._beside / name, self._new / name
        with beside.open("xb") as file:
            file.write(head + content)
            file.flush()
            os.fsync(file.fileno())
        beside.rename(kept)
        sync_directory(self._new)
        return kept

    def _name(self, content: bytes) -> str:
        """Return a name that sorts by arrival and ends with the hash of the Message-ID."""
        message_id = str(message_from_bytes(content, policy=SMTP_POLICY)["Message-ID"] or "")
        digest = message_id_hash(message_id)
        return f"{time.monotonic_ns():020d}.{os.getpid()}.{next(self._numbers)}.{digest}.eml"


def message_id_hash(message_id: str) -> str:
    """Return what stands in the file name for a Message-ID."""
    return hashlib.sha256(message_id.strip().encode()).hexdigest()[:16]


def read_mailbox(directory: Path) -> list[EmailMessage]:
    """
    Return the kept mails, oldest first.

    The envelope is in the headers Return-Path (one) and Delivered-To (one a recipient).
    """
    mails = []
    for path in sorted((directory / "new").glob("*.eml")):
        parsed = message_from_bytes(path.read_bytes(), policy=SMTP_POLICY)
        assert isinstance(parsed, EmailMessage)
        mails.append(parsed)
    return mails


class Catcher:
    """What aiosmtpd asks about each mail. It finds the methods by their names."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox

    async def handle_RCPT(  # noqa: N802 - aiosmtpd's name
        self, server: SMTP, _session: Session, envelope: Envelope, address: str, _options: list[str]
    ) -> str:
        """Take the recipient, or fail as its domain asks."""
        answer = _AT_RCPT.get(_domain(address))
        if answer == _DROP:
            await _drop(server)
        if answer is not None:
            return answer
        if len(envelope.rcpt_tos) >= RECIPIENTS_MAX:
            return "452 4.5.3 Too many recipients"
        envelope.rcpt_tos.append(address)
        return "250 2.1.5 OK"

    async def handle_DATA(  # noqa: N802 - aiosmtpd's name
        self, server: SMTP, _session: Session, envelope: Envelope
    ) -> str:
        """
        Keep the mail, or fail as a recipient's domain asks.

        Crash safety: see `Mailbox`; the mail is on the disk before the answer.
        """
        domains = {_domain(address) for address in envelope.rcpt_tos}
        for domain in domains & _AT_DATA.keys():
            if _AT_DATA[domain] == _DROP:
                await _drop(server)
            return _AT_DATA[domain]
        content = envelope.original_content or b""
        sender, recipients = str(envelope.mail_from), list(envelope.rcpt_tos)
        # In a thread: the disk must not keep the other connections waiting.
        await asyncio.to_thread(self._mailbox.keep, content, sender, recipients)
        if _DROP_AFTER_DATA in domains:
            await _drop(server)
        return "250 2.0.0 Kept"

    async def handle_exception(self, error: Exception) -> str:
        """Answer 451 when the mail could not be kept: the client may try again."""
        sys.stderr.write(f"The mail catcher failed: {error!r}\n")
        return "451 4.3.0 The mail catcher failed"


def _domain(address: str) -> str:
    return address.rpartition("@")[2].lower()


async def _drop(server: SMTP) -> None:
    """Cut the connection; never returns, for aiosmtpd cancels whoever waits here."""
    transport = server.transport
    assert isinstance(transport, asyncio.Transport)
    transport.abort()
    await asyncio.Event().wait()


def _authenticate(
    _server: SMTP, _session: Session, _envelope: Envelope, _mechanism: str, login: object
) -> AuthResult:
    wrong = isinstance(login, LoginPassword) and login.password == WRONG_PASSWORD.encode()
    return AuthResult(success=not wrong, handled=False)


class _Full(asyncio.Protocol):
    """A connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"421 4.3.2 Too many connections\r\n")
        transport.close()


@dataclass(slots=True)
class _Room:
    """How many connections are open."""

    taken: int = 0


class _Connection(SMTP):
    """aiosmtpd's connection, counted."""

    def __init__(self, catcher: Catcher, room: _Room) -> None:
        super().__init__(
            catcher,
            data_size_limit=MAIL_BYTES_MAX,
            enable_SMTPUTF8=True,
            hostname="localhost",
            ident="billing_jobs mail catcher",
            timeout=IDLE_SECONDS_MAX,
            auth_require_tls=False,
            authenticator=_authenticate,
            command_call_limit=_CALLS_MAX,
            loop=asyncio.get_running_loop(),
        )
        self._room = room

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._room.taken += 1
        super().connection_made(transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._room.taken -= 1
        super().connection_lost(error)


def main(arguments: list[str] | None = None) -> int:
    """
    Run until SIGTERM or SIGINT; return the exit status.

    Crash safety: accepted mails are on the disk, see `Mailbox`; started again it goes on.
    """
    parser = argparse.ArgumentParser(
        prog="python -m billing_jobs.sandbox.mail",
        description="A mail server for tests: keeps every mail in a directory and sends none.",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, required=True, help="port, 0 for a free one")
    parser.add_argument("--mailbox", type=Path, required=True, help="directory of the mails")
    parser.add_argument("--port-file", type=Path, help="written with the port once it listens")
    options = parser.parse_args(arguments)
    try:
        asyncio.run(_serve(options))
    except OSError as error:
        sys.stderr.write(f"The mail catcher cannot start: {error}\n")
        return 2
    return 0


async def _serve(options: argparse.Namespace) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    catcher, room = Catcher(Mailbox(options.mailbox)), _Room()

    def connection() -> asyncio.Protocol:
        return _Full() if room.taken >= CONNECTIONS_MAX else _Connection(catcher, room)

    server = await loop.create_server(connection, options.host, options.port)
    port = server.sockets[0].getsockname()[1]
    if options.port_file:
        write_port(options.port_file, port)
    sys.stdout.write(f"mail catcher on smtp://{options.host}:{port}, mailbox {options.mailbox}\n")
    sys.stdout.flush()
    await stopping.wait()
    server.close()


if __name__ == "__main__":
    sys.exit(main())
