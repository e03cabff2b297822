"""
A `Mail` as the bytes and addresses that SMTP wants.

Owns what may stand in a header and in an envelope. Owns no connection.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime

from billing_jobs.domain.errors import MailRefused
from billing_jobs.domain.mail import Mail

#: A reminder has a few KB. More is a mistake, and most servers would refuse it.
MAIL_BYTES_MAX = 1024 * 1024
# Eight-bit bodies would need a server that says 8BITMIME; every server takes seven bits.
_POLICY = SMTP.clone(cte_type="7bit")
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
# A name with an @ would be a second address, seen by another parser.
_NAMED_ADDRESS = re.compile(r"(?:(?P<name>[^<>@]{0,200})<)?(?P<address>[^\s<>]{3,320})(?(name)>)")
_LOCAL_PART = re.compile(r"[^\s<>()\[\],;:\"@\\]{1,64}")
_DOMAIN = re.compile(
    r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*"
)
_MESSAGE_ID = re.compile(r"<[!-;=?-~]{1,200}@[!-;=?-~]{1,200}>")


@dataclass(frozen=True, slots=True)
class Composed:
    """What goes over the wire: the envelope and the content."""

    sender: str
    recipient: str
    content: bytes

    @property
    def sender_domain(self) -> str:
        """The part after the @: a name by which the client may introduce itself."""
        return self.sender.rpartition("@")[2]


def composed(mail: Mail, now: datetime) -> Composed:
    """
    Return a mail ready to send; `MailRefused` where it can never be sent.

    Control characters in header values collapse to one space, so that no value can start a header
    of its own.
    """
    sender, recipient = _address(mail.sender, "sender"), _address(mail.recipient, "recipient")
    message_id = header_value(mail.message_id)
    if not _MESSAGE_ID.fullmatch(message_id):
        raise MailRefused(f"Bug: {message_id[:80]!r} is no Message-ID. Nothing was sent.")
    # Looked at before any work: composing a huge mail would take seconds.
    _check_size(message_id, len(mail.text) + len(mail.html or ""))
    message = EmailMessage(policy=_POLICY)
    message["Message-ID"] = message_id
    message["Date"] = format_datetime(now)
    message["From"] = sender
    message["To"] = recipient
    message["Subject"] = header_value(mail.subject)
    message.set_content(_body(mail.text))
    if mail.html is not None:
        message.add_alternative(_body(mail.html), subtype="html")
    content = message.as_bytes()
    _check_size(message_id, len(content))
    return Composed(sender.addr_spec, recipient.addr_spec, content)


def header_value(text: str) -> str:
    r"""
    Return a text that is safe as a header's value.

    >>> header_value("Invoice 7\r\nBcc: everybody@example.com")
    'Invoice 7 Bcc: everybody@example.com'
    """
    return _CONTROLS.sub(" ", _without_surrogates(text)).strip()


def _address(text: str, role: str) -> Address:
    """
    Return the one address in a text, its domain in ASCII.

    The standard library's parsers mend what is broken: `jo@exa mple.com` becomes another person's
    address. Nothing is mended here.
    """
    # Error texts never show the address: it is personal.
    match = _NAMED_ADDRESS.fullmatch(header_value(text))
    local_part, _, domain = match["address"].rpartition("@") if match else ("", "", "")
    try:
        domain = domain.encode("idna").decode().lower()
    except UnicodeError:
        domain = ""
    if match is None or not _LOCAL_PART.fullmatch(local_part) or not _DOMAIN.fullmatch(domain):
        raise MailRefused(
            f"The {role} is not exactly one mail address. Nothing was sent; correct it."
        )
    if not local_part.isascii():
        raise MailRefused(
            f"The {role}'s address has other than ASCII characters before the @, which this mailer "
            "cannot send (SMTPUTF8). Nothing was sent; ask for another address."
        )
    name = (match["name"] or "").strip().strip('"')
    return Address(display_name=name, addr_spec=f"{local_part}@{domain}")


def _check_size(message_id: str, size: int) -> None:
    if size > MAIL_BYTES_MAX:
        raise MailRefused(
            f"The mail {message_id} has {size} bytes, the limit is {MAIL_BYTES_MAX}. Nothing was "
            "sent; shorten it."
        )


def _body(text: str) -> str:
    return _without_surrogates(text).replace("\x00", "")


def _without_surrogates(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
