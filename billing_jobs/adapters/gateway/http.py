"""
PaymentGateway over plain HTTP, for the sandbox: time-outs, translation of failures, redaction.

Owns what is known about a request that went wrong. Owns no retry: when to send again, and whether
at all, is decided where the attempt is written down.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import datetime
from urllib.parse import urlencode, urlsplit

from urllib3 import HTTPConnectionPool, Timeout, connection_from_url
from urllib3.exceptions import HTTPError

from billing_jobs.adapters.gateway.answers import (
    Answer,
    checked,
    content,
    failure,
    one_object,
    page,
    same_object,
    unknown,
)
from billing_jobs.adapters.gateway.checks import check_instant, check_key, check_reference
from billing_jobs.domain.errors import GatewayOutcomeUnknown, SettingsInvalid
from billing_jobs.domain.payment import GatewayObject, PaymentInstruction

#: Stripe's largest page.
_PAGE_LIMIT = 100
#: 20,000 objects in one look-up: with more, absence is not proven, and a person must narrow it.
_PAGES_MAX = 200
#: Connections kept alive in one process; more are opened when needed, and closed after.
_CONNECTIONS_KEPT = 10
#: Connections that rested longer are not used again: the server may be closing them at this moment,
#: and then nobody knows whether the request was executed. Servers keep them for 5 s or longer.
_REUSE_SECONDS_MAX = 4.0
_PATH = "/v1/payment_intents"


class _Body:
    """
    A request's body that knows when it is reached.

    urllib3 takes the first piece of the body when the kernel has taken the whole head. A head that
    was never handed over is a request that nobody can have executed.
    """

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.head_sent = False

    def __iter__(self) -> Iterator[bytes]:
        self.head_sent = True
        yield self.content


class HttpGateway:
    """
    A gateway that speaks Stripe's payment intents, one intent a debt.

    Connections are opened lazily and once a process, so an instance made before a fork is safe to
    use after it. Currencies are upper case in what it returns.

    Crash safety: `create` moves no money, so one that nobody remembers is harmless. Killed inside
    `confirm`, the money may be taken: the intent's id must have been committed before, and is then
    asked by `retrieve`. Calling twice with one key does it once while the gateway remembers the
    key; confirming an intent twice takes the money once for ever.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str,
        connect_timeout_seconds: float,
        read_timeout_seconds: float,
    ) -> None:
        self._base_url = _checked_url(base_url)
        self._prefix = urlsplit(base_url).path.rstrip("/")
        self._api_key = _checked_api_key(api_key)
        self._timeout = Timeout(connect=connect_timeout_seconds, read=read_timeout_seconds)
        self._read_timeout_seconds = read_timeout_seconds
        self._connections: HTTPConnectionPool | None = None
        self._pid = 0
        self._used_at = 0.0

    @property
    def name(self) -> str:
        """The gateway's name in keys and rows."""
        return "sandbox"

    def create(self, instruction: PaymentInstruction, *, key: str) -> GatewayObject:
        """
        Create an unconfirmed object.

        Crash safety: moves no money. Killed in between, an object may exist that nobody knows;
        `find` finds it by its metadata, and the same key returns it.
        """
        check_key(key)
        form = [
            ("amount", str(instruction.amount_minor)),
            ("currency", instruction.currency.lower()),
            *([("payment_method", instruction.payment_token)] if instruction.payment_token else []),
            *((f"metadata[{name}]", value) for name, value in instruction.metadata),
        ]
        answer = self._send("POST", _PATH, form=form, key=key)
        made = one_object(answer)
        if (made.amount_minor, made.currency) != (
            instruction.amount_minor,
            instruction.currency.upper(),
        ):
            raise unknown(
                answer,
                f"was asked for {instruction.amount_minor} {instruction.currency.upper()} and "
                f"made {made.amount_minor} {made.currency}",
            )
        return made

    def confirm(
        self, reference: str, *, key: str, payment_token: str | None = None
    ) -> GatewayObject:
        """
        Collect the money. A decline is an answer with its decline code.

        `payment_token` puts another card on the object, e.g. after a decline; None keeps the last.

        Crash safety: from the moment of this call until its answer is committed the outcome is
        unknown. The reference must be committed before. Twice is harmless, with any key.
        """
        check_key(key)
        check_reference(reference)
        form = [("payment_method", payment_token)] if payment_token else []
        answer = self._send("POST", f"{_PATH}/{reference}/confirm", form=form, key=key)
        return same_object(answer, reference)

    def retrieve(self, reference: str) -> GatewayObject:
        """
        Read one object.

        Crash safety: reads only.
        """
        check_reference(reference)
        return same_object(self._send("GET", f"{_PATH}/{reference}"), reference)

    def find(
        self, *, metadata_key: str, metadata_value: str, created_since: datetime
    ) -> list[GatewayObject]:
        """
        Look objects up by what we wrote on them, newest first.

        Crash safety: reads only.
        """
        check_instant(created_since)
        query = [("limit", str(_PAGE_LIMIT)), ("created[gte]", str(int(created_since.timestamp())))]
        found: list[GatewayObject] = []
        after = ""
        for _ in range(_PAGES_MAX):
            cursor = [("starting_after", after)] if after else []
            answer = self._send("GET", f"{_PATH}?{urlencode(query + cursor)}")
            listed = page(answer)
            found += [
                told
                for told, metadata in listed.objects
                if metadata.get(metadata_key) == metadata_value
            ]
            if not listed.has_more:
                return found
            after = listed.objects[-1][0].reference
        raise GatewayOutcomeUnknown(
            f"The gateway has more than {_PAGES_MAX * _PAGE_LIMIT} objects since {created_since}: "
            f"that none of them is for {metadata_key} {metadata_value} cannot be proven. Look "
            "again with a later created_since."
        )

    def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        if self._connections is not None and self._pid == os.getpid():
            self._connections.close()
        self._connections = None

    def _pool(self) -> HTTPConnectionPool:
        now = time.monotonic()
        if self._pid != os.getpid():
            # A parent's sockets are not ours: they are let go without a word on the wire.
            self._connections = None
        elif self._connections is not None and now - self._used_at > _REUSE_SECONDS_MAX:
            self.close()
        pool = self._connections
        if pool is None:
            pool = connection_from_url(self._base_url, maxsize=_CONNECTIONS_KEPT)
            self._connections, self._pid = pool, os.getpid()
        self._used_at = now
        return pool

    def _send(
        self, method: str, target: str, *, form: list[tuple[str, str]] | None = None, key: str = ""
    ) -> Answer:
        """Send once; return whatever was answered, or raise by what is known."""
        headers = {"Authorization": f"Bearer {self._api_key}", "User-Agent": "billing-jobs"}
        body = None
        if form is not None:
            body = _Body(urlencode(form).encode())
            headers["Content-Type"] = "application/x-www-form-urlencoded"
            headers["Content-Length"] = str(len(body.content))
            headers["Idempotency-Key"] = key
        asked = f"{method} {target.partition('?')[0]}"
        try:
            response = self._pool().urlopen(
                method,
                self._prefix + target,
                body=body,
                headers=headers,
                retries=False,
                redirect=False,
                timeout=self._timeout,
                preload_content=False,
                decode_content=False,
            )
            body_read = content(response, self._read_timeout_seconds)
        except (HTTPError, OSError) as error:
            raise failure(error, asked, head_sent=body.head_sent if body else None) from error
        return checked(Answer(response.status, response.headers, body_read, asked))


def _checked_url(base_url: str) -> str:
    try:
        parts = urlsplit(base_url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    # The text never shows the URL: somebody may have put a password into it.
    if not usable or "?" in base_url or "#" in base_url or "@" in base_url:
        raise SettingsInvalid(
            "The gateway's base URL is not usable.",
            ["give http(s)://host:port, without a user, query or fragment"],
        )
    return base_url


def _checked_api_key(api_key: str) -> str:
    # The text never shows the key: it would end in a log.
    if not api_key or not api_key.isascii() or not api_key.isprintable() or " " in api_key:
        raise SettingsInvalid(
            "The gateway's API key is not usable.",
            ["it is empty, or has spaces or other than printable ASCII characters"],
        )
    return api_key
