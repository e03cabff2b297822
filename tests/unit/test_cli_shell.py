"""The shell of the command line: exit codes, errors on one screen, help at once, tables."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from uuid import UUID

import pytest
from support.command_line import Ended, Run, fresh, runner

from billing_jobs.cli import COMMANDS, Command, console, exit_code
from billing_jobs.domain.errors import (
    AlreadyRunning,
    ArgumentsInvalid,
    BillingJobsError,
    EnqueueError,
    IllegalTransition,
    NotFound,
    PortTaken,
    SettingsInvalid,
    StoreUnavailable,
)

#: Loaded by a command that needs them, and by nothing else.
HEAVY = ("sqlalchemy", "celery", "kombu", "psycopg", "redis", "fastapi", "structlog", "alembic")

HELP_SECONDS_MAX = 1.5


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command in an empty directory."""
    return runner(tmp_path, monkeypatch, capsys)


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Command]:
    """Make a command of a module's text, as somebody who adds one does."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(text: str) -> Command:
        # A name of its own: modules stay imported for as long as the test process lives.
        name = f"command_{tmp_path.name}"
        (tmp_path / f"{name}.py").write_text("from __future__ import annotations\n" + dedent(text))
        return Command("try", name, "Try something.")

    return make


@pytest.mark.parametrize(
    "arguments", [("--help",), ("--version",), ("config", "--help"), ("config", "show", "--json")]
)
def test_help_and_settings_load_nothing_heavy(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """`--help` has to be there at once; what makes it slow is always an import."""
    script = (
        "import sys\n"
        "from billing_jobs.cli import main\n"
        "try:\n"
        f"    main({list(arguments)!r})\n"
        "finally:\n"
        "    print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)\n"
    )

    ended = fresh("python", "-c", script, cwd=tmp_path)

    loaded = set(ended.stderr.split())
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout
    assert not loaded & set(HEAVY)
    if "config" not in arguments:
        assert not loaded & {"pydantic", "rich", "yaml"}


@pytest.mark.timing
def test_help_is_there_at_once(tmp_path: Path) -> None:
    """The budget is 0.3 s on a quiet machine; the best of five tells it from a busy one."""
    seconds = []
    for _ in range(5):
        begun = time.monotonic()
        fresh("python", "-m", "billing_jobs", "--help", cwd=tmp_path)
        seconds.append(time.monotonic() - begun)
        if seconds[-1] < HELP_SECONDS_MAX:
            break

    assert min(seconds) < HELP_SECONDS_MAX


def test_the_package_runs_as_a_module(tmp_path: Path) -> None:
    """Where the script is not on the PATH, `python -m billing_jobs` is the same command."""
    ended = fresh("python", "-m", "billing_jobs", "--version", cwd=tmp_path)

    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("billing-jobs ")


def test_a_reader_that_leaves_early_is_no_error_to_explain(tmp_path: Path) -> None:
    """`billing-jobs config show | head -1` prints a line and no traceback."""
    pipe = f'"{sys.executable}" -m billing_jobs config show | head -1'

    ended = fresh("/bin/sh", "-c", pipe, cwd=tmp_path)

    assert ended.stdout.startswith("setting")
    assert "Traceback" not in ended.stderr


def test_help_lists_each_command_with_its_summary(run: Run) -> None:
    """The list is what people see first, and it is known without loading anything."""
    nowhere = Command("later", "billing_jobs.cli.no_such_module", "Do it later.")

    ended = run("--help", commands=(*COMMANDS, nowhere))

    assert ended.status == 0
    assert all(f"{c.name} " in ended.out and c.summary in ended.out for c in (*COMMANDS, nowhere))


def test_a_mistyped_command_is_usage_with_a_hint(run: Run) -> None:
    """Status 2 is for what the person typed."""
    ended = run("configs")

    assert ended.status == 2
    assert "Did you mean 'config'?" in ended.err
    assert ended.out == ""


@pytest.mark.parametrize("arguments", [("--nope",), ("config", "show", "--nope"), ("config",), ()])
def test_wrong_or_missing_arguments_are_usage(run: Run, arguments: tuple[str, ...]) -> None:
    """The same at every level."""
    ended = run(*arguments)

    assert ended.status == 2
    assert "Usage: billing-jobs" in ended.err


def test_a_module_with_a_function_is_one_command(
    run: Run, command: Callable[[str], Command]
) -> None:
    """The smallest way to add a command: a function, and one line in the table."""
    added = command(
        """
        def app(name: str, *, loud: bool = False) -> None:
            print(name.upper() if loud else name)
        """
    )

    assert run("try", "ann", "--loud", commands=(added,)) == Ended(0, "ANN\n", "")
    assert "Usage: billing-jobs try [OPTIONS] {name}" in run("try", "--help", commands=(added,)).out


def test_a_module_with_an_app_is_a_group(run: Run, command: Callable[[str], Command]) -> None:
    """The other way: `db upgrade`, `db current`."""
    added = command(
        """
        from billing_jobs.cli import console
        app = console.new_app("Try things.")

        @app.command()
        def one() -> None:
            console.say("one")

        @app.command()
        def two() -> None:
            console.note("two")
        """
    )

    assert run("try", "one", commands=(added,)) == Ended(0, "one\n", "")
    assert run("try", "two", commands=(added,)) == Ended(0, "", "two\n")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (BillingJobsError("x"), 1),
        (EnqueueError("x"), 1),
        (PortTaken("x"), 1),
        (ArgumentsInvalid("x"), 2),
        (SettingsInvalid("x"), 2),
        (NotFound("x"), 3),
        (IllegalTransition("x"), 4),
        (AlreadyRunning("x"), 4),
        (StoreUnavailable("x"), 5),
    ],
)
def test_the_status_tells_scripts_what_kind_of_trouble_it_was(
    error: BillingJobsError, status: int
) -> None:
    """A script retries a missing server, and not a wrong argument."""
    assert exit_code(error) == status


@pytest.mark.parametrize(
    ("name", "status", "page"),
    [("StoreUnavailable", 5, "store-unavailable"), ("NotFound", 3, "not-found")],
)
def test_an_error_is_told_on_one_screen_without_a_traceback(
    run: Run, command: Callable[[str], Command], name: str, status: int, page: str
) -> None:
    """What happened, where it is explained, how to see more; and nothing on stdout."""
    failing = command(
        f"""
        from billing_jobs.domain.errors import {name}

        def app() -> None:
            raise {name}("It is not there; start it.")
        """
    )

    ended = run("try", commands=(failing,))

    assert ended == Ended(
        status,
        "",
        f"Error: It is not there; start it.\nExplained in docs/errors/{page}.md\n"
        "For the traceback: billing-jobs --debug ...\n",
    )


@pytest.mark.parametrize("by", ["option", "variable"])
def test_debug_shows_the_traceback_too(
    run: Run, command: Callable[[str], Command], monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """Who repairs billing_jobs itself needs the place."""
    failing = command(
        """
        from billing_jobs.domain.errors import NotFound

        def app() -> None:
            raise NotFound("no such job")
        """
    )
    if by == "variable":
        monkeypatch.setenv("BILLING_JOBS_DEBUG", "1")

    ended = run(*(["--debug"] if by == "option" else []), "try", commands=(failing,))

    assert ended.status == 3
    assert "Traceback (most recent call last)" in ended.err
    assert "Error: no such job" in ended.err


def test_ctrl_c_ends_with_130(run: Run, command: Callable[[str], Command]) -> None:
    """The status by which shells and supervisors know an interrupted program."""
    interrupted = command("def app() -> None:\n    raise KeyboardInterrupt\n")

    ended = run("try", commands=(interrupted,))

    assert ended.status == 130
    assert "Traceback" not in ended.err


def test_a_long_error_ends_at_the_end_of_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    """The first lines say most; ten thousand bad lines of a book say no more."""
    console.print_error(SettingsInvalid("Wrong.", [f"line {n}" for n in range(1000)]), debug=True)

    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 42
    assert lines[:2] == ["Error: Wrong.", "  - line 0"]
    assert lines[-2:] == [
        "  ... and 961 more lines",
        "Explained in docs/errors/settings-invalid.md",
    ]


def test_an_error_without_a_text_is_told_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    """An empty line helps nobody."""
    console.print_error(NotFound(), debug=True)

    assert capsys.readouterr().err.startswith("Error: NotFound\n")


def test_records_are_a_table_for_people_and_json_for_programs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One list, two readers; no colour, frame or cut where nobody looks at a screen."""
    records = [{"id": UUID(int=1), "kind": "charge " * 60, "result": None, "more": 1}]

    console.print_records(records, columns=("id", "kind", "result"), as_json=False)
    heading, row = capsys.readouterr().out.splitlines()
    assert heading.split() == ["id", "kind", "result"]
    assert row.startswith("00000000-0000-0000-0000-000000000001  charge charge")
    assert row.count("charge") == 60

    console.print_records(records, columns=("id",), as_json=True)
    (told,) = json.loads(capsys.readouterr().out)
    assert told["id"] == str(UUID(int=1))
    assert told["more"] == 1


def test_a_value_cannot_write_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """An error text of another system may hold escape sequences, or markup of our own library."""
    console.print_table(("reason",), [("\x1b[2Jgone\n[red]x[/red]\x9b",)])

    assert capsys.readouterr().out.splitlines()[1] == r"\x1b[2Jgone\n[red]x[/red]\x9b"


@pytest.mark.parametrize("no_color", [True, False])
def test_a_terminal_gets_colours_unless_told_otherwise(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *, no_color: bool
) -> None:
    """https://no-color.org is honoured."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")

    console.print_table(("state",), [("pending",)])

    out = capsys.readouterr().out
    assert "pending" in out
    assert ("\x1b[1m" in out) or no_color
    assert not any(f"\x1b[{code}m" in out for code in range(30, 38))


def test_the_version_is_told(run: Run) -> None:
    """The first question of every report."""
    assert run("--version") == Ended(0, f"billing-jobs {console.version()}\n", "")


def test_the_version_of_a_copy_that_is_not_installed_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Run from a source tree alone, there is no number to tell, and no error either."""
    monkeypatch.setattr(console, "PACKAGE", "no-such-package-installed")

    assert console.version() == "unknown"


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("billing-jobs con", ["config"]),
        ("billing-jobs config ", ["show", "validate", "env"]),
        ("billing-jobs nothing ", []),
    ],
)
def test_completion_reaches_commands_that_are_loaded_late(
    run: Run, monkeypatch: pytest.MonkeyPatch, words: str, offered: list[str]
) -> None:
    """Tab after `billing-jobs config` offers its commands, as if they had been there."""
    monkeypatch.setenv("_BILLING_JOBS_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))

    ended = run()

    assert ended.status == 0
    assert set(offered) <= set(ended.out.split())
