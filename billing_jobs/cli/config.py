"""
`billing-jobs config`: show, check and print the settings; secrets are masked everywhere.

It reads the settings and starts nothing. What the settings are is in `billing_jobs/config.py`.
"""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from billing_jobs.cli import console
from billing_jobs.config import (
    SECRET_FIELDS,
    Settings,
    default_text,
    load_settings,
    masked,
    settings_with_sources,
)
from billing_jobs.config_sources import CONFIG_VARIABLE, variable
from billing_jobs.config_values import allowed_text, written
from billing_jobs.domain.errors import SettingsInvalid

app = console.new_app("Show, check and print the settings.")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


@app.command()
def show(
    *,
    sources: Annotated[
        bool, typer.Option("--sources", help="Tell where each value came from.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show every setting with its value."""
    settings, origins = settings_with_sources()
    values = masked(settings)
    if as_json and sources:
        console.print_json(
            {name: {"value": value, "source": origins[name]} for name, value in values.items()}
        )
    elif as_json:
        console.print_json(values)
    else:
        texts = {name: written(getattr(settings, name)) for name in values}
        console.print_table(
            ("setting", "value", *(("source",) if sources else ())),
            [(name, texts[name], *((origins[name],) if sources else ())) for name in values],
        )


@app.command()
def validate(*, as_json: AsJson = False) -> None:
    """Check the settings and tell everything that is wrong with them."""
    try:
        origins = settings_with_sources().sources
    except SettingsInvalid as error:
        if not as_json:
            raise
        console.print_json({"valid": False, "problems": error.problems})
        raise typer.Exit(2) from None
    given = sorted({source for source in origins.values() if source != "default"})
    if as_json:
        console.print_json({"valid": True, "problems": [], "sources": given})
    else:
        console.say(f"The settings are valid. Beside defaults: {', '.join(given) or 'nothing'}.")


@app.command()
def env(*, as_json: AsJson = False) -> None:
    """Print the environment variable of every setting with its current value."""
    settings = load_settings()
    values = {variable(name): written(getattr(settings, name)) for name in Settings.model_fields}
    if as_json:
        console.print_json({name: value or None for name, value in values.items()})
        return
    for name, value in values.items():
        console.say(f"{name}={shlex.quote(value)}" if value else f"# {name}=")


@app.command(hidden=True)
def reference() -> None:
    """Print the page docs/reference/settings.md."""
    console.say(settings_page().rstrip("\n"))


def settings_page() -> str:
    """Return the reference of all settings as Markdown, made from the model."""
    rows = "\n".join(_row(name) for name in Settings.model_fields)
    secrets = ", ".join(f"`{variable(name)}_FILE`" for name in SECRET_FIELDS)
    return _PAGE.format(config=CONFIG_VARIABLE, secrets=secrets, rows=rows)


def _row(name: str) -> str:
    field = Settings.model_fields[name]
    default = default_text(name)
    cells = (
        f"`{name}`<br>`{variable(name)}`",
        field.description or "",
        f"`{default}`" if default else "unset",
        allowed_text(field),
    )
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


_PAGE = """\
# Settings

This page is made from the model in `billing_jobs/config.py` by `billing-jobs config reference`; a
test compares the two.

## Where values come from

Strongest first:

1. an option of the command;
2. the environment variable that stands below each name;
3. for secrets, the file named by {secrets};
4. the configuration file: the one named by `{config}`, else `./billing-jobs.toml` (or
   `.yaml`, `.yml`), else `/etc/billing-jobs/config.toml` (or `.yaml`, `.yml`);
5. `DATABASE_URL` and `REDIS_URL`;
6. the default.

A variable that is set to nothing counts as unset. Two configuration files in one place, another
suffix, a file that cannot be read, and a name that is not on this page are errors.
`billing-jobs config show --sources` tells where each value came from; `billing-jobs config
validate` lists everything that is wrong.

The configuration file holds `name = value` (TOML) or `name: value` (YAML), without sections. YAML
reads a bare `no` as false and a bare `12:30` as a number: quote texts there.

Durations are numbers of seconds, or numbers with a unit: `250ms`, `30s`, `5m`, `2h`.

## Relations

Refused, whatever the values are by themselves:

- `gateway_connect_timeout_seconds` and `gateway_read_timeout_seconds` together, or
  `mail_timeout_seconds`, that are not shorter than `attempt_deadline_seconds`;
- a `reconcile_ladder_seconds` that does not ascend;
- `gateway = stripe` without `stripe_api_key`;
- with `env = prod`: `gateway = sandbox`, no `database_url`, no `broker_url`, and a `database_url`
  that names another host without `sslmode=require`, `verify-ca` or `verify-full`.

## All settings

| name and variable | meaning | default | allowed |
|---|---|---|---|
{rows}
"""
