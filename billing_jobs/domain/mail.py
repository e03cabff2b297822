"""
A mail to one recipient, as the reminder executor writes it and a mailer sends it.

Owns the value only: no SMTP, no templates.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mail:
    """
    One mail to one recipient.

    `message_id` is deterministic (`<notice-id@domain>`), so that a mail sent again can be
    recognised.
    """

    message_id: str
    sender: str
    recipient: str
    subject: str
    text: str
    html: str | None = None
