"""
The command `billing-jobs`: finds the command that was asked for, and turns errors into one screen.

What a command does is in the module beside this one that bears its name. That module is imported
when the command runs and not before, so that `--help` loads neither Celery nor SQLAlchemy: it must
have an `app`, which is either a function (one command) or what `console.new_app` returns (a group).
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer
from typer.core import TyperGroup

from billing_jobs.cli import console
from billing_jobs.domain.errors import (
    AlreadyRunning,
    BillingJobsError,
    IllegalTransition,
    InputError,
    NotFound,
    StoreUnavailable,
)

if TYPE_CHECKING:
    # Typer keeps these to itself at run time, and needs them only to name the types.
    from typer._click.core import Command as ClickCommand
    from typer._click.core import Context as ClickContext

PROGRAM: Final = "billing-jobs"


class Command(NamedTuple):
    """A command or a group of commands; its module is not imported before it is used."""

    name: str
    module: str
    summary: str


#: In the order of `--help`; a new command is one line here.
COMMANDS: Final = (
    Command("up", "billing_jobs.cli.up", "Start everything embedded and bill a book."),
    Command("down", "billing_jobs.cli.down", "Stop what `up` started."),
    Command("status", "billing_jobs.cli.status", "Show what runs, and where jobs and money stand."),
    Command("doctor", "billing_jobs.cli.doctor", "Say healthy, or which part is not."),
    Command("import", "billing_jobs.cli.books", "Import a book of customers and subscriptions."),
    Command("jobs", "billing_jobs.cli.jobs", "Look at jobs; decide about dead letters."),
    Command("db", "billing_jobs.cli.db", "Bring the schema up to date."),
    Command("config", "billing_jobs.cli.config", "Show, check and print the settings."),
)

#: The first class that fits decides; whatever else goes wrong is 1.
_EXIT_CODES: Final[tuple[tuple[type[BillingJobsError], int], ...]] = (
    (NotFound, 3),
    (InputError, 2),
    (IllegalTransition, 4),
    (StoreUnavailable, 5),
    (AlreadyRunning, 4),
)


@dataclass
class Options:
    """The options that stand before the command."""

    debug: bool = False


def main(arguments: Sequence[str] | None = None, commands: Sequence[Command] = COMMANDS) -> None:
    """
    Run the command line and exit: 0 ok, 1 failed, 2 usage, 3 not found, 4 conflict, 5 no server.

    Ctrl-C exits with 130. Without `arguments`, those of the process are taken.
    """
    options = Options()
    command = typer.main.get_command(_program(commands))
    given = None if arguments is None else list(arguments)
    try:
        command.main(args=given, prog_name=PROGRAM, obj=options)
    except BillingJobsError as error:
        if options.debug:
            traceback.print_exception(error)
        console.print_error(error, debug=options.debug)
        sys.exit(exit_code(error))


def exit_code(error: BillingJobsError) -> int:
    """Return the status that tells scripts what kind of trouble it was."""
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), 1)


def _program(commands: Sequence[Command]) -> typer.Typer:
    modules = {command.name: command.module for command in commands}

    class LazyGroup(TyperGroup):
        """Lists commands by their summaries, and loads the one that runs."""

        def resolve_command(
            self, ctx: ClickContext, args: list[str]
        ) -> tuple[str | None, ClickCommand | None, list[str]]:
            name, command, rest = super().resolve_command(ctx, args)
            if name in modules:
                command = _load(name, modules[name])
            return name, command, rest

    program = typer.Typer(
        cls=LazyGroup,
        help="A billing worker cluster: money is never taken twice and work is never lost.",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    program.callback()(_before_command)
    for command in commands:
        program.command(command.name, help=command.summary)(_not_loaded)
    return program


def _load(name: str, module: str) -> ClickCommand:
    app = import_module(module).app
    if not isinstance(app, typer.Typer):
        function, app = app, console.new_app()
        app.command(name)(function)
    command = typer.main.get_command(app)
    command.name = name
    return command


def _not_loaded() -> None:
    """Stand in the list of commands for one whose module is loaded when it runs."""


def _print_version(value: bool) -> None:  # noqa: FBT001 - typer passes it by position
    if value:
        console.say(f"{PROGRAM} {console.version()}")
        raise typer.Exit


def _before_command(
    ctx: typer.Context,
    *,
    debug: Annotated[
        bool,
        typer.Option(
            "--debug", envvar="BILLING_JOBS_DEBUG", help="Show the traceback of an error."
        ),
    ] = False,
    version: Annotated[  # noqa: ARG001 - its callback does the work
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    ctx.obj.debug = debug
