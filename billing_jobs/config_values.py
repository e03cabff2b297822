"""
The kinds of values that settings hold: durations, URLs with a password, names, addresses.

Each kind knows what it accepts, says so in one phrase (`Allowed`), and is written back in the form
in which it may be given. Which setting has which kind, and in which range, is in `config.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Final, Literal, get_args, get_origin

from pydantic import BeforeValidator, Field, Secret
from pydantic.fields import FieldInfo

from billing_jobs.logs import mask_passwords

_HIDDEN: Final = "**********"
_DURATION: Final = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*(ms|s|m|h)?")
_UNIT_SECONDS: Final = {
    "ms": Decimal("0.001"),
    "s": Decimal(1),
    "m": Decimal(60),
    "h": Decimal(3600),
}
_WHOLE_URL: Final = re.compile(r"[A-Za-z][\w+.-]*://\S+")
#: A value in an error is there to be recognised, not to be read.
_SHOWN_LIMIT: Final = 120
#: A reconcile ladder has a handful of rungs; this many would be a mistake.
_LADDER_LIMIT: Final = 20
_MONTH_SECONDS: Final = 30 * 24 * 3600


@dataclass(frozen=True)
class Allowed:
    """What a setting accepts, in the words of its error and of its row in the reference."""

    text: str


def about(meaning: str) -> FieldInfo:
    """Explain a setting in one sentence."""
    field: FieldInfo = Field(description=meaning)
    return field


def within(low: float, high: float, meaning: str) -> FieldInfo:
    """Explain a setting in one sentence, and give its range, both ends included."""
    field: FieldInfo = Field(ge=low, le=high, description=meaning)
    return field


class SecretUrl(Secret[str]):
    """A URL whose password only `get_secret_value()` tells."""

    def _display(self) -> str:
        return mask_passwords(self.get_secret_value())


def parse_duration(value: object) -> float:
    """
    Return seconds; a plain number is a number of seconds.

    >>> [parse_duration(text) for text in ("250ms", "30s", "5m", "2h", 1.5)]
    [0.25, 30.0, 300.0, 7200.0, 1.5]
    """
    match = _DURATION.fullmatch(str(value).strip())
    if match is None:
        raise ValueError("this is no duration")
    return float(Decimal(match[1]) * _UNIT_SECONDS[match[2] or "s"])


def duration_text(seconds: float) -> str:
    """
    Write a duration in its largest whole unit.

    >>> [duration_text(seconds) for seconds in (0.25, 30.0, 300.0, 7200.0, 1.5)]
    ['250ms', '30s', '5m', '2h', '1500ms']
    """
    exact = Decimal(str(seconds))
    for unit in ("h", "m", "s", "ms"):
        count = exact / _UNIT_SECONDS[unit]
        if count >= 1 and count == int(count):
            return f"{int(count)}{unit}"
    return f"{exact:f}" if exact else "0s"


def written(value: object) -> str:
    """Write a value as it may be given in the environment; secrets come out masked, None empty."""
    match value:
        case None:
            text = ""
        case bool():
            text = str(value).lower()
        case float():
            text = duration_text(value)
        case tuple():
            text = ",".join(written(item) for item in value)
        case _:
            text = str(value)
    return text


def shown(raw: object, *, secret: bool) -> str:
    """Quote a value in an error: never a password, and of a secret only what is clearly a URL."""
    if secret and not (isinstance(raw, str) and _WHOLE_URL.fullmatch(raw)):
        return _HIDDEN
    return mask_passwords(raw if isinstance(raw, str) else repr(raw))[:_SHOWN_LIMIT]


def allowed_text(field: FieldInfo) -> str:
    """Say what a setting accepts."""
    kind, metadata = _kind(field)
    phrases = [item.text for item in metadata if isinstance(item, Allowed)]
    low = next((item.ge for item in metadata if hasattr(item, "ge")), None)
    high = next((item.le for item in metadata if hasattr(item, "le")), None)
    if get_origin(kind) is Literal:
        phrases.append(f"one of {', '.join(get_args(kind))}")
    elif kind is float:
        phrases.append(f"a duration from {duration_text(low or 0)} to {duration_text(high or 0)}")
    elif kind is bool:
        phrases.append("true or false")
    return phrases[0] if phrases else f"a whole number from {low} to {high}"


def _kind(field: FieldInfo) -> tuple[object, tuple[object, ...]]:
    """Return the type without `| None`, and what is annotated to it."""
    kind: object = field.annotation
    metadata: tuple[object, ...] = tuple(field.metadata)
    for part in get_args(kind):
        if get_origin(part) is Annotated:
            kind, *more = get_args(part)
            metadata = (*metadata, *more)
    return kind, metadata


def _ladder_items(value: object) -> object:
    return value.split(",") if isinstance(value, str) else value


def _number(value: object) -> object:
    # YAML reads `yes` as True, and True would count as 1.
    if isinstance(value, bool):
        raise ValueError("this is true or false, and no number")  # noqa: TRY004 - pydantic's way
    return value


def _upper(value: object) -> object:
    return value.upper() if isinstance(value, str) else value


def _url(
    targets: Mapping[str, str], hints: Mapping[str, str] | None = None
) -> Callable[[object], object]:
    """Accept the schemes that have a target, and write that one; hints are for known wrong ones."""

    def check(value: object) -> object:
        if not isinstance(value, str):
            return value
        if re.search(r"\s", value):
            raise ValueError("a space in a URL is written %20")
        scheme, _, rest = value.partition("://")
        target = targets.get(scheme.lower())
        if target is None or not rest:
            raise ValueError((hints or {}).get(scheme.lower() if rest else "", "not such a URL"))
        return f"{target}://{rest}"

    return check


_PSYCOPG: Final = "postgresql+psycopg"
_DATABASE_TARGETS: Final = dict.fromkeys(("postgresql", "postgres", _PSYCOPG), _PSYCOPG)
_DATABASE_HINTS: Final = {
    **dict.fromkeys(("postgresql+psycopg2", "postgresql+asyncpg"), "psycopg is the only driver"),
    **dict.fromkeys(("mysql", "mariadb", "sqlite", "oracle"), "only Postgres is supported"),
}
_BROKER_TARGETS: Final = {
    scheme: scheme for scheme in ("redis", "rediss", "redis+socket", "sentinel")
}
_BROKER_HINTS: Final = {
    **dict.fromkeys(("amqp", "amqps", "pyamqp"), "RabbitMQ is not supported yet"),
    **dict.fromkeys(("valkey", "valkeys"), "Valkey is written redis:// or rediss:// too"),
    "unix": "a socket is written redis+socket:///path",
}

Seconds = Annotated[float, BeforeValidator(parse_duration)]
Ladder = Annotated[
    tuple[Annotated[Seconds, Field(ge=0.01, le=_MONTH_SECONDS)], ...],
    BeforeValidator(_ladder_items),
    Field(min_length=1, max_length=_LADDER_LIMIT),
    Allowed(f"1 to {_LADDER_LIMIT} ascending durations, such as 30s,2m,1h"),
]
Whole = Annotated[int, BeforeValidator(_number)]
Name = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}$"),
    Allowed("1 to 64 letters, digits and _ . : -"),
]
ModuleName = Annotated[
    str,
    Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$"),
    Allowed("the name of a Python module"),
]
DatabaseUrl = Annotated[
    SecretUrl,
    BeforeValidator(_url(_DATABASE_TARGETS, _DATABASE_HINTS)),
    Allowed("postgresql://user:password@host:5432/name"),
]
BrokerUrl = Annotated[
    SecretUrl,
    BeforeValidator(_url(_BROKER_TARGETS, _BROKER_HINTS)),
    Allowed("a URL that begins with redis://, rediss://, redis+socket:// or sentinel://"),
]
SmtpUrl = Annotated[
    SecretUrl,
    BeforeValidator(_url({"smtp": "smtp", "smtps": "smtps"})),
    Allowed("smtp://user:password@host:port, or the same with smtps://"),
]
HttpUrl = Annotated[
    str,
    Field(pattern=r"^https?://[^\s@/?#]+(/[^\s@]*)?$"),
    Allowed("a URL that begins with http:// or https://, without user and password"),
]
ApiKey = Annotated[
    Secret[Annotated[str, Field(pattern=r"^\S{1,500}$")]],
    Allowed("1 to 500 characters without spaces"),
]
Sender = Annotated[
    str,
    Field(pattern=r"^([^<>\r\n]* <[^@\s<>:/]+@[^@\s<>:/]+>|[^@\s<>:/]+@[^@\s<>:/]+)$"),
    Allowed("an address, such as billing@example.com or Billing <billing@example.com>"),
]
Address = Annotated[
    str,
    Field(pattern=r"^[0-9A-Za-z.:_-]{1,253}$"),
    Allowed("an IP address or the name of a host"),
]
Directory = Annotated[Path, Allowed("a directory; ~ is the home directory")]
LogLevel = Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR"], BeforeValidator(_upper)]
