"""
The settings: every knob with its meaning, unit, default and range, checked before anything starts.

Strongest first: an option of the command, our environment variable, a secret file named by
`<VARIABLE>_FILE`, the configuration file, a common name (`DATABASE_URL`, `REDIS_URL`), the default.
This is the only module that reads the environment, in `load_settings` and never at import. How
values are found is in `config_sources.py`, what kinds of values there are in `config_values.py`;
what a setting makes happen is told where it is used.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple, Self
from urllib.parse import parse_qs

from pydantic import Field, Secret, ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from billing_jobs.config_sources import (
    PREFIX,
    Found,
    Known,
    default_data_dir,
    read_layers,
    variable,
)
from billing_jobs.config_values import (
    Address,
    ApiKey,
    BrokerUrl,
    DatabaseUrl,
    Directory,
    HttpUrl,
    Ladder,
    LogLevel,
    ModuleName,
    Name,
    Seconds,
    SecretUrl,
    Sender,
    SmtpUrl,
    Whole,
    about,
    allowed_text,
    shown,
    within,
    written,
)
from billing_jobs.domain.errors import SettingsInvalid

_HOUR: Final = 3600
_DAY: Final = 24 * _HOUR
_KIB: Final = 1_024
_MIB: Final = 1_024 * _KIB
_LADDER: Final = (30.0, 120.0, 600.0, 3600.0, 6 * 3600.0, 24 * 3600.0)
#: A socket's directory, or a name of this machine.
_LOCAL_HOST: Final = re.compile(
    r"(?:/|%2F).*|(?:localhost|127\.[\d.]+|::1|\[::1\])(?::\d+)?", re.IGNORECASE
)
_TLS_MODES: Final = frozenset(("require", "verify-ca", "verify-full"))


class Broken(NamedTuple):
    """A relation between settings that does not hold."""

    names: tuple[str, ...]
    rule: str


class RelationsBroken(ValueError):
    """Values that are allowed one by one, and do not fit together."""

    def __init__(self, broken: tuple[Broken, ...]) -> None:
        """Keep the relations; the text is the rules."""
        super().__init__("; ".join(rule for _, rule in broken))
        self.broken = broken


class Settings(BaseSettings):
    """
    Every setting of billing_jobs; durations are seconds, and may be given as 250ms, 30s, 5m or 2h.

    Made by `load_settings`. Made directly, it knows only what it is given and the defaults.
    """

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", env_prefix=PREFIX, hide_input_in_errors=True
    )

    env: Annotated[
        Literal["dev", "test", "prod"],
        about("What this installation is for; `prod` refuses what only suits trying."),
    ] = "dev"
    tenant: Annotated[Name, about("The tenant of jobs whose call and token name none.")] = "default"
    database_url: Annotated[
        DatabaseUrl | None,
        about("Postgres, the truth; unset means the one that `billing-jobs up` starts."),
    ] = None
    broker_url: Annotated[
        BrokerUrl | None,
        about("Redis or Valkey, the doorbell; unset means the one that `up` starts."),
    ] = None
    data_dir: Directory = Field(
        default_factory=lambda: default_data_dir(os.environ, Path.cwd()),
        description="Where `up` keeps its servers; without XDG_DATA_HOME below ~/.local/share.",
        json_schema_extra={"default": "$XDG_DATA_HOME/billing-jobs/dev"},
    )
    celery_config: Annotated[
        ModuleName | None,
        about("A module of the deployment whose names replace our Celery settings."),
    ] = None
    gateway: Annotated[
        Literal["sandbox", "stripe"], about("Who collects the money; `sandbox` moves none.")
    ] = "sandbox"
    sandbox_url: Annotated[HttpUrl, about("Where the sandbox gateway listens.")] = (
        "http://127.0.0.1:8650"
    )
    stripe_api_key: Annotated[ApiKey | None, about("The secret key for Stripe.")] = None
    stripe_api_base: Annotated[
        HttpUrl | None, about("Where Stripe's API is; unset means Stripe's own address.")
    ] = None
    gateway_connect_timeout_seconds: Annotated[
        Seconds, within(0.05, 60, "How long a connection to the gateway may take to open.")
    ] = 3.0
    gateway_read_timeout_seconds: Annotated[
        Seconds, within(0.05, 600, "How long the gateway may be silent before `unknown`.")
    ] = 20.0
    smtp_url: Annotated[SmtpUrl, about("The mail server that takes our mails.")] = SecretUrl(
        "smtp://127.0.0.1:8625"
    )
    mail_from: Annotated[Sender, about("The sender that customers see on reminders.")] = (
        "billing@example.com"
    )
    mail_timeout_seconds: Annotated[
        Seconds, within(0.05, 600, "How long the mail server may be silent.")
    ] = 20.0
    max_attempts: Annotated[
        Whole, within(1, 25, "Runs a job may spend before it is a dead letter; 1 is no retry.")
    ] = 4
    lease_ttl_seconds: Annotated[
        Seconds, within(1, _HOUR, "How long a claim holds without a renewal.")
    ] = 20.0
    attempt_deadline_seconds: Annotated[
        Seconds, within(1, _DAY, "How long one attempt may take and have its lease renewed.")
    ] = 300.0
    stop_deadline_seconds: Annotated[
        Seconds,
        within(0, _HOUR, "How long a stopping worker lets jobs finish; 0 hands them back at once."),
    ] = 30.0
    reconcile_ladder_seconds: Annotated[
        Ladder, about("Pauses between the look-ups of a charge whose outcome is unknown.")
    ] = _LADDER
    dispatch_interval_seconds: Annotated[
        Seconds, within(0.05, 1, "How often beat asks each open lane whether work is due.")
    ] = 0.1
    drain_slice_seconds: Annotated[
        Seconds, within(0.1, 300, "How long one drain claims before it rings for the next.")
    ] = 0.5
    ring_backlog: Annotated[
        Whole, within(1, 100, "Rings waiting in a queue at which no further ring is sent.")
    ] = 2
    ring_timeout_seconds: Annotated[
        Seconds, within(0.01, 0.3, "How long a caller of `delay()` waits for the broker.")
    ] = 0.2
    ring_pause_seconds: Annotated[
        Seconds, within(0, 300, "How long a process rings no more after a failed ring.")
    ] = 5.0
    payload_limit_bytes: Annotated[
        Whole, within(_KIB, _MIB, "The largest arguments of a job, as JSON.")
    ] = 65_536
    result_limit_bytes: Annotated[
        Whole, within(_KIB, _MIB, "The largest result of a job, as JSON.")
    ] = 65_536
    error_text_limit: Annotated[
        Whole, within(100, 20_000, "Characters that are kept of an attempt's error.")
    ] = 2_000
    database_pool_size: Annotated[
        Whole, within(1, 100, "Connections to Postgres that one process keeps at most.")
    ] = 5
    statement_timeout_seconds: Annotated[
        Seconds, within(0.1, _HOUR, "How long one statement may run.")
    ] = 30.0
    lock_timeout_seconds: Annotated[
        Seconds, within(0.01, _HOUR, "How long one statement may wait for a lock.")
    ] = 5.0
    prepared_statements: Annotated[
        bool, about("Whether to prepare statements; false behind an old PgBouncer.")
    ] = True
    worker_concurrency: Annotated[Whole, within(1, 256, "Child processes of one worker.")] = 2
    outage_defer_seconds: Annotated[
        Seconds, within(0.05, _HOUR, "How long jobs wait while their gateway is down.")
    ] = 60.0
    flower_port: Annotated[Whole, within(1, 65_535, "The port of Flower.")] = 5555
    flower_address: Annotated[Address, about("The address on which Flower listens.")] = "127.0.0.1"
    log_format: Annotated[
        Literal["auto", "json", "pretty"],
        about("How lines are written; `auto` is pretty on a terminal, else JSON."),
    ] = "auto"
    log_level: Annotated[LogLevel, about("The least important level that is written.")] = "INFO"

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        *_: PydanticBaseSettingsSource,
        **__: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take values from the caller alone: `load_settings` knows where each one came from."""
        assert settings_cls is cls
        return (init_settings,)

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        broken = tuple(_broken_relations(self))
        if broken:
            raise RelationsBroken(broken)
        return self


#: Settings that may be given as a file, and whose values nobody sees.
SECRET_FIELDS: Final = ("database_url", "broker_url", "stripe_api_key", "smtp_url")
_KNOWN: Final = Known(names=tuple(Settings.model_fields), secrets=SECRET_FIELDS)


class SourcedSettings(NamedTuple):
    """The settings, and for each of them where its value came from."""

    settings: Settings
    sources: Mapping[str, str]


def load_settings(
    overrides: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Settings:
    """
    Read and check every setting; all that is wrong is told in one `SettingsInvalid`.

    `overrides` are options of a command, by name of the setting; None there means "not given".
    """
    return settings_with_sources(overrides, environ, cwd).settings


def settings_with_sources(
    overrides: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> SourcedSettings:
    """Do what `load_settings` does, and keep where each value came from."""
    layers = read_layers(
        _KNOWN,
        overrides=overrides or {},
        environ=os.environ if environ is None else environ,
        cwd=Path.cwd() if cwd is None else cwd,
    )
    settings, hints, broken = _judge(layers.found)
    if hints:
        sound = {name: found for name, found in layers.found.items() if name not in hints}
        broken = _judge(sound)[2]
    problems = [
        *layers.problems,
        *(_refusal(name, layers.found[name], hint) for name, hint in hints.items()),
        # What an unreadable file would have set is not known, so relations are not judged then.
        *(
            _misfit(relation, layers.found)
            for relation in broken
            if not layers.incomplete and hints.keys().isdisjoint(relation.names)
        ),
    ]
    if settings is None or problems:
        raise SettingsInvalid("The settings cannot be used; nothing was started.", problems)
    sources = {
        name: layers.found[name].source if name in layers.found else "default"
        for name in _KNOWN.names
    }
    return SourcedSettings(settings, sources)


def child_environment(values: Mapping[str, object]) -> dict[str, str]:
    """Return the environment for a process of ours: this one's, with these settings."""
    own = {
        # The child has to read a secret, so here alone it is not written masked.
        variable(name): value.get_secret_value() if isinstance(value, Secret) else written(value)
        for name, value in values.items()
    }
    return {**os.environ, **own}


def masked(settings: Settings) -> dict[str, object]:
    """Return every value as JSON has it, with passwords and keys masked."""
    return settings.model_dump(mode="json")


def default_text(name: str) -> str:
    """Return the default of a setting as a person would write it; empty where it is unset."""
    field = Settings.model_fields[name]
    if isinstance(field.json_schema_extra, dict):
        return str(field.json_schema_extra["default"])
    return written(field.default)


def _judge(
    found: Mapping[str, Found],
) -> tuple[Settings | None, dict[str, str], tuple[Broken, ...]]:
    """Validate: the settings, or a hint for each refused value, or the relations that break."""
    try:
        return Settings.model_validate({name: raw for name, (raw, _) in found.items()}), {}, ()
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
    hints: dict[str, str] = {}
    for detail in details:
        cause = detail.get("ctx", {}).get("error")
        if isinstance(cause, RelationsBroken):
            return None, {}, cause.broken
        hints.setdefault(str(detail["loc"][0]), "" if cause is None else f"{cause}; ")
    return None, hints, ()


def _refusal(name: str, found: Found, hint: str) -> str:
    value = shown(found.raw, secret=name in SECRET_FIELDS)
    expected = allowed_text(Settings.model_fields[name])
    return f"{name} = {value} ({found.source}): {hint}expected {expected}"


def _misfit(broken: Broken, found: Mapping[str, Found]) -> str:
    told = []
    for name in broken.names:
        raw, source = found.get(name, Found(default_text(name), "default"))
        value = shown(raw, secret=name in SECRET_FIELDS)
        told.append(f"{name} = {value} ({source})" if raw else f"{name} is not set")
    return f"{', '.join(told)}: {broken.rule}"


def _broken_relations(settings: Settings) -> Iterator[Broken]:
    limit = settings.attempt_deadline_seconds
    gateway = ("gateway_connect_timeout_seconds", "gateway_read_timeout_seconds")
    if settings.gateway_connect_timeout_seconds + settings.gateway_read_timeout_seconds >= limit:
        yield Broken(
            (*gateway, "attempt_deadline_seconds"),
            "the two time-outs together must be shorter than the attempt's deadline",
        )
    if settings.mail_timeout_seconds >= limit:
        yield Broken(
            ("mail_timeout_seconds", "attempt_deadline_seconds"),
            "the time-out must be shorter than the attempt's deadline",
        )
    ladder = settings.reconcile_ladder_seconds
    if any(later <= earlier for earlier, later in pairwise(ladder)):
        yield Broken(("reconcile_ladder_seconds",), "each pause must be longer than the one before")
    if settings.gateway == "stripe" and settings.stripe_api_key is None:
        yield Broken(
            ("gateway", "stripe_api_key"),
            f"set {variable('stripe_api_key')} to Stripe's secret key",
        )
    if settings.env == "prod":
        yield from _unfit_for_production(settings)


def _unfit_for_production(settings: Settings) -> Iterator[Broken]:
    if settings.gateway == "sandbox":
        yield Broken(("env", "gateway"), "the sandbox moves no money; production needs stripe")
    for name in ("database_url", "broker_url"):
        if getattr(settings, name) is None:
            yield Broken(
                ("env", name), f"production runs on your own servers; set {variable(name)}"
            )
    database = settings.database_url
    if database is not None and _is_exposed(database.get_secret_value()):
        yield Broken(
            ("env", "database_url"),
            "another host is reached over TLS only; add ?sslmode=require, or verify-full",
        )


def _is_exposed(url: str) -> bool:
    """Whether the URL names another machine and does not insist on TLS."""
    address, _, query = url.partition("://")[2].partition("?")
    options = parse_qs(query)
    hosts = [*address.rpartition("@")[2].partition("/")[0].split(","), *options.get("host", [])]
    remote = [host for host in hosts if host and not _LOCAL_HOST.fullmatch(host)]
    return bool(remote) and options.get("sslmode", [""])[-1] not in _TLS_MODES
