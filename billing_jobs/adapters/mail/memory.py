"""
Mailer that keeps what it was given, with the failing addresses of the mail catcher.

Passes the same contract suite as the real mailer against the real catcher.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from types import MappingProxyType

from billing_jobs.adapters.mail.compose import composed
from billing_jobs.domain.errors import MailError, MailNotSent, MailOutcomeUnknown, MailRefused
from billing_jobs.domain.mail import Mail

_BEFORE_DATA: MappingProxyType[str, type[MailError]] = MappingProxyType(
    {
        "tempfail.example.com": MailNotSent,
        "bounce.example.com": MailRefused,
        "dropbeforedata.example.com": MailNotSent,
    }
)
_AFTER_DATA: MappingProxyType[str, type[MailError]] = MappingProxyType(
    {
        "tempfaildata.example.com": MailNotSent,
        "refusedata.example.com": MailRefused,
        "dropduringdata.example.com": MailOutcomeUnknown,
        "dropafterdata.example.com": MailOutcomeUnknown,
    }
)
#: Accepted all the same: only the sender does not learn it.
_KEPT = "dropafterdata.example.com"
#: Composing needs a date; which one, nobody sees here.
_DATE = datetime(2000, 1, 1, tzinfo=UTC)


class MemoryMailer:
    """
    Keeps mails in `sent`, in order.

    Crash safety: none, it is memory. What `before_data` raises passes through, nothing is kept.
    """

    def __init__(self) -> None:
        self.sent: list[Mail] = []
        self._failures: list[tuple[MailError, bool]] = []

    def fail_next(self, error: MailError, *, after_data: bool = False) -> None:
        """
        Let the next mail fail with this error, before DATA or after it.

        Several calls queue up. A `MailOutcomeUnknown` after DATA keeps the mail, the nasty case.
        """
        self._failures.append((error, after_data))

    def send(self, mail: Mail, before_data: Callable[[], None] | None = None) -> None:
        """Keep one mail, or fail as its recipient's domain or `fail_next` asks."""
        domain = composed(mail, _DATE).recipient.rpartition("@")[2]
        error, is_after = self._failures.pop(0) if self._failures else (None, False)
        if error is not None and not is_after:
            raise error
        if domain in _BEFORE_DATA:
            raise _BEFORE_DATA[domain](f"{domain} fails before DATA.")
        if before_data is not None:
            before_data()
        if domain == _KEPT or isinstance(error, MailOutcomeUnknown):
            self.sent.append(mail)
        if error is not None:
            raise error
        if domain in _AFTER_DATA:
            raise _AFTER_DATA[domain](f"{domain} fails after DATA.")
        self.sent.append(mail)
