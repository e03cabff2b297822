"""
`billing-jobs db`: the schema.

Owns the commands; the migrations and alembic are in `migrations.py`.
"""

from __future__ import annotations

from typing import Annotated

import typer

from billing_jobs import bootstrap
from billing_jobs.cli import connect, console, migrations

app = console.new_app("Bring the schema up to date, and look at it.")


@app.command()
def upgrade() -> None:
    """Bring the schema to the newest revision that this version knows."""
    migrations.upgrade(bootstrap.database_url(connect.settings()))
    console.say(f"The schema is at {migrations.head()}.")


@app.command()
def current() -> None:
    """Show the schema's revision; exit 1 when it is not the newest one."""
    with connect.runtime() as runtime:
        revision = runtime.reports.server().revision
    console.say(f"{revision or 'no schema'} (this version needs {migrations.head()})")
    raise typer.Exit(0 if revision == migrations.head() else 1)


@app.command()
def downgrade(
    revision: Annotated[str, typer.Argument(help="The revision to go back to, or `base`.")],
    *,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask; what later revisions made is lost.")
    ] = False,
) -> None:
    """Take the schema back; what the later revisions made is lost."""
    if not yes:
        typer.confirm(f"Go back to {revision} and lose what later revisions made?", abort=True)
    migrations.downgrade(bootstrap.database_url(connect.settings()), revision)
    console.say(f"The schema is at {revision}.")
