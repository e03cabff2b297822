"""
Write the pages of `docs/reference/` that are made from the code: states, commands, log events.

Run `python docs/generate.py` after a change of one of them; `tests/architecture/test_docs.py`
compares the pages with what this would write. Owns the words around the tables and nothing else.
"""

# ruff: noqa: INP001 - a script that is run by its path

from __future__ import annotations

import inspect
import io
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout, suppress
from importlib import import_module
from pathlib import Path

import typer

from billing_jobs import cli
from billing_jobs.domain.job import TERMINAL_STATES, TRANSITIONS, JobState, Verb
from billing_jobs.domain.ledger import NoticeState
from billing_jobs.domain.payment import ATTEMPT_TRANSITIONS, LIVE_ATTEMPT_STATES, AttemptState
from billing_jobs.logs import ALWAYS_FIELDS, Event
from billing_jobs.worker.results import CELERY_STATES

ROOT = Path(__file__).parent.parent

#: What the verbs mean; a verb without a sentence here stops the writing.
VERBS: Mapping[Verb, str] = {
    Verb.ENQUEUE: "the job is written down; a business key that exists gives the first job's id",
    Verb.CLAIM: "a worker takes it: a new token, a lease, `attempt` + 1",
    Verb.COMPLETE: "the executor said `Completed` or `Unknown`",
    Verb.RESCHEDULE: "the executor said `RetryLater` or raised: again after attempt² seconds",
    Verb.DEFER: "it waits without spending an attempt: `Defer`, or nothing could be sent",
    Verb.FAIL: "the executor said `Refused`",
    Verb.BURY: "all attempts are spent, or `Refused` with `needs_person`",
    Verb.RESCUE: "its lease expired; the attempt is not spent, the crash is counted",
    Verb.CANCEL: "a person or a service called it off, and no call to the outside is open",
    Verb.REPLAY: "a person runs a dead letter again, with fresh attempts and the same keys",
    Verb.RESOLVE: "a person closes a dead letter without running it",
    Verb.EXPIRE: "its `expires_at` passed before it ran",
}


def states_page() -> str:
    """Return `docs/reference/states.md`."""
    meanings = _comments(JobState)
    states = _table(
        ("state", "meaning", "end", "Celery says"),
        (
            (
                f"`{state}`",
                meanings[state.name],
                "yes" if state in TERMINAL_STATES else "",
                f"`{CELERY_STATES[state]}`",
            )
            for state in JobState
        ),
    )
    verbs = _table(("verb", "from → to", "when"), (_verb_row(verb) for verb in Verb))
    attempts = _comments(AttemptState)
    tries = _table(
        ("state", "meaning", "locks the debt", "may become"),
        (
            (
                f"`{state}`",
                attempts[state.name],
                "yes" if state in LIVE_ATTEMPT_STATES else "",
                ", ".join(f"`{item}`" for item in sorted(ATTEMPT_TRANSITIONS[state])),
            )
            for state in AttemptState
        ),
    )
    told = _comments(NoticeState)
    notices = _table(
        ("state", "meaning"), ((f"`{state}`", told[state.name]) for state in NoticeState)
    )
    return _STATES.format(states=states, verbs=verbs, tries=tries, notices=notices)


def log_events_page() -> str:
    """Return `docs/reference/log-events.md`."""
    meanings = _comments(Event)
    writers = _writers()
    rows = (
        (
            f"`{event}`",
            meanings[event.name],
            _fields(event),
            " ".join(f"`{module}`" for module in writers.get(event.name, ())) or "nothing yet",
        )
        for event in Event
    )
    always = ", ".join(f"`{name}`" for name in sorted(ALWAYS_FIELDS))
    return _LOG_EVENTS.format(
        always=always, rows=_table(("event", "meaning", "may carry", "written by"), rows)
    )


def cli_page() -> str:
    """Return `docs/reference/cli.md`: the help of every command, 80 columns wide."""
    parts = [
        f"## billing-jobs {' '.join(path)}\n\n```text\n{help_of(path)}\n```\n"
        for path in command_paths()
    ]
    return _CLI.format(top=help_of(()), commands="\n".join(parts))


#: Page → what it holds.
PAGES: Mapping[str, Callable[[], str]] = {
    "docs/reference/states.md": states_page,
    "docs/reference/log-events.md": log_events_page,
    "docs/reference/cli.md": cli_page,
}


def command_paths() -> Iterator[tuple[str, ...]]:
    """Return every command that is not hidden, groups before their members."""
    for command in cli.COMMANDS:
        yield (command.name,)
        app = import_module(command.module).app
        if isinstance(app, typer.Typer):
            for member in app.registered_commands:
                name = str(member.name or getattr(member.callback, "__name__", ""))
                if not member.hidden:
                    yield (command.name, name)


def help_of(path: tuple[str, ...]) -> str:
    """Return what `--help` prints for a command."""
    printed = io.StringIO()
    with redirect_stdout(printed), suppress(SystemExit):
        cli.main([*path, "--help"])
    return printed.getvalue().rstrip()


def _verb_row(verb: Verb) -> tuple[str, str, str]:
    pairs = sorted(TRANSITIONS[verb])
    ways = "<br>".join(f"`{source}` → `{target}`" for source, target in pairs)
    return f"`{verb}`", ways or "→ `pending`", VERBS[verb]


def _comments(enumeration: type) -> dict[str, str]:
    """Read the `#:` comment of each member: above it, or behind it on the line where it ends."""
    source = inspect.getsource(enumeration)
    above = re.findall(r"^    #: (.+)\n    ([A-Z_]+) = ", source, re.MULTILINE)
    behind = re.findall(r"^    ([A-Z_]+) = (?:\([^()]*\)|[^\n]*?)  #: (.+)$", source, re.MULTILINE)
    return {name: text.rstrip(".") for text, name in above} | dict(behind)


def _fields(event: Event) -> str:
    """Name the fields of an event, those of an error and a duration in short."""
    families = {"error.*" if name.startswith("error.") else name for name in event.fields}
    return " ".join(f"`{name}`" for name in sorted(families))


def _writers() -> dict[str, list[str]]:
    """Find the modules that write each event."""
    found: dict[str, list[str]] = {}
    package = ROOT / "billing_jobs"
    for path in sorted(package.rglob("*.py")):
        if path.name != "logs.py":
            for name in sorted(set(re.findall(r"\bEvent\.([A-Z_]+)\b", path.read_text("utf-8")))):
                found.setdefault(name, []).append(path.relative_to(package).as_posix())
    return found


def _table(heading: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [heading, tuple("---" for _ in heading), *rows]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines
    )


_MADE = "This page is made by `docs/generate.py`; a test compares the two."

_STATES = f"""\
# States

{_MADE}

## Jobs

{{states}}

"Scheduled" and "retrying" are words for people, not states: both are `pending`, with a `run_at` in
the future, or with runs behind it. Celery says `RETRY` for a pending job that has spent an attempt.

{{verbs}}

The same table stands in `billing_jobs/domain/job.py`, in the guards of
`billing_jobs/adapters/postgres/jobs.sql` and in the CHECKs of `migrations/versions/0001_jobs.py`.

## Charge attempts

One try to collect one invoice. While an attempt locks the debt, no other try starts. The trigger on
`charge_attempts` refuses every change that is not in this table.

{{tries}}

## Notices

One mail of one step to one customer.

{{notices}}
"""

_LOG_EVENTS = f"""\
# Log events

{_MADE}

One JSON object a line (`log_format`), with an event from this list and fields from one list; what
is in neither does not come out.

On every line: {{always}}.

While a job runs, its lines carry `job_id`, `kind`, `attempt` and `fence`
(the token of the run) as well. `error.*` are `error.type`, `error.code`, `error.fingerprint` and
`error.stack`: never the message, which may quote anything.

"nothing yet" means that the name is reserved and no line of it is written so far.

{{rows}}
"""

_CLI = f"""\
# The command

{_MADE} Each block is what `--help` prints.

| exit status | meaning |
|---|---|
| 0 | done; for `status`, `doctor` and `db current`: healthy |
| 1 | failed, or unhealthy |
| 2 | wrong usage, arguments or settings |
| 3 | nothing has that id |
| 4 | conflict: the state does not allow it, or another `up` runs |
| 5 | Postgres cannot be reached |
| 130 | Ctrl-C |

Results go to stdout, everything else to stderr. Commands find the cluster through
`BILLING_JOBS_DATABASE_URL` and `BILLING_JOBS_BROKER_URL`; where these are not set, through the
running `up` of the data directory (`BILLING_JOBS_DATA_DIR`).

```text
{{top}}
```

{{commands}}"""


def main() -> None:
    """Write every page that changed."""
    for name, page in PAGES.items():
        text, path = page(), ROOT / name
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
