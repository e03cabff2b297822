"""
What every gateway adapter refuses before it sends anything.

Owns the limits that hold for all gateways. Not here: what one gateway alone refuses.
"""

from __future__ import annotations

import re
from datetime import datetime

from billing_jobs.domain.errors import GatewayRefusedRequest

#: The smallest limit of the gateways we know (Adyen); Stripe takes 255.
KEY_LENGTH_MAX = 64
#: Far longer than any id a gateway ever gave us.
_REFERENCE_LENGTH_MAX = 255
_KEY = re.compile(r"[!-~]+")
_REFERENCE = re.compile(r"[A-Za-z0-9_-]+")


def check_key(key: str) -> None:
    """
    Refuse an idempotency key that not every gateway takes.

    A key is never made up here: a random one would make the second send a second charge.
    """
    if not _KEY.fullmatch(key):
        raise GatewayRefusedRequest(
            f"Bug: the idempotency key {key!r} is empty or has spaces or other than ASCII "
            "characters. Nothing was sent."
        )
    if len(key) > KEY_LENGTH_MAX:
        raise GatewayRefusedRequest(
            f"Bug: the idempotency key {key!r} has {len(key)} characters; gateways take "
            f"{KEY_LENGTH_MAX}. Nothing was sent."
        )


def check_reference(reference: str) -> None:
    """Refuse an object id that could not be one: it becomes part of a URL."""
    if not _REFERENCE.fullmatch(reference) or len(reference) > _REFERENCE_LENGTH_MAX:
        raise GatewayRefusedRequest(
            f"Bug: {reference[:80]!r} is no id of a payment object. Nothing was sent."
        )


def check_instant(created_since: datetime) -> None:
    """Refuse a time without zone: a look-up in the wrong hours would find nothing, wrongly."""
    if created_since.tzinfo is None:
        raise GatewayRefusedRequest(
            f"Bug: created_since {created_since} has no time zone. Nothing was sent."
        )
