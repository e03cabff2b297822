"""
`billing-jobs up`: everything embedded, one command.

Owns the order: start, migrate, import the book, bill what is due, watch, stop. The processes are
`stack.py`, the words `run_report.py`.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from billing_jobs import bootstrap
from billing_jobs.bootstrap import Runtime
from billing_jobs.cli import books, migrations, run_report, stack
from billing_jobs.config import SourcedSettings, load_settings, settings_with_sources
from billing_jobs.domain.errors import ServerFailed, StoreUnavailable
from billing_jobs.embedded.data_dir import DataDir
from billing_jobs.embedded.tcp_ports import is_answered
from billing_jobs.maintenance.bill_due import bill_due

#: Pauses between two looks at processes and progress.
LOOK_SECONDS = 0.25

#: How long the book waits for Flower, and in how many looks.
FLOWER_SECONDS, FLOWER_LOOKS = 4.0, 80

#: A run that is not idle by then is stuck.
IDLE_DEADLINE_SECONDS = 600.0

#: What suits a person who waits, where the settings say nothing else.
DEMO_SETTINGS = {
    "gateway_read_timeout_seconds": "2s",
    "reconcile_ladder_seconds": "2s,4s,8s,30s,2m,10m,1h",
}


@dataclass(frozen=True, slots=True)
class Wish:
    """What the caller of `up` asked for."""

    book: Path | None
    exit_when_idle: bool
    deadline_seconds: float


class Stop:
    """
    Ctrl-C and SIGTERM, as a flag that a wait looks at.

    No event: a handler that sets one while its own thread holds the event's lock waits for itself.
    """

    def __init__(self) -> None:
        """Nothing was asked yet."""
        self.asked = False
        self._never = threading.Event()

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        """Take a signal."""
        self.asked = True

    def wait(self, seconds: float) -> bool:
        """Wait so long, less if asked before; say whether a stop was asked for."""
        if not self.asked:
            self._never.wait(seconds)
        return self.asked


def up(  # noqa: PLR0913 - the options of the command
    *,
    data_dir: Annotated[Path | None, typer.Option(help="Where servers and logs are kept.")] = None,
    workers: Annotated[int | None, typer.Option(help="Child processes of the worker.")] = None,
    flower_port: Annotated[int | None, typer.Option(help="The port of Flower.")] = None,
    book: Annotated[
        Path | None, typer.Option(help="The book to import; default: the example book.")
    ] = None,
    demo: Annotated[bool, typer.Option(help="Import and bill the example book.")] = True,
    exit_when_idle: Annotated[
        bool, typer.Option("--exit-when-idle", help="End with a summary when all is done.")
    ] = False,
    idle_deadline: Annotated[
        float, typer.Option(help="Seconds after which a run that is not idle counts as stuck.")
    ] = IDLE_DEADLINE_SECONDS,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
) -> None:
    """Start Postgres, broker, workers, beat, Flower and a sandbox, and bill a book on them."""
    given = {"data_dir": data_dir, "worker_concurrency": workers, "flower_port": flower_port}
    sourced = settings_with_sources(given)
    demo_values = {
        name: value for name, value in DEMO_SETTINGS.items() if sourced.sources[name] == "default"
    }
    overrides = demo_values | {
        name: str(value) for name, value in given.items() if value is not None
    }
    wish = Wish(book or (books.example() if demo else None), exit_when_idle, idle_deadline)
    show = run_report.display(as_json=as_json)
    try:
        with _signals() as stop, DataDir(sourced.settings.data_dir) as directory:
            healthy = _run(sourced, directory, overrides, wish, show=show, stop=stop)
    finally:
        show.close()
    raise typer.Exit(0 if healthy else 1)


app = up


def _run(
    sourced: SourcedSettings,
    directory: DataDir,
    overrides: dict[str, str],
    wish: Wish,
    *,
    show: run_report.Display,
    stop: Stop,
) -> bool:
    started_at = bootstrap.clock().now()
    made = stack.assemble(
        sourced.settings,
        directory,
        overrides=overrides,
        flower_port_given=sourced.sources["flower_port"] != "default",
        on_event=lambda name, what: show.note(f"{name}: {what}"),
    )
    try:
        made.members.start()
        migrations.upgrade(made.addresses.database_url)
        with _runtime({**overrides, **made.addresses.settings()}) as runtime:
            _tell_addresses(made.addresses, show, flower=_await_flower(made, stop))
            if wish.book is not None:
                _bill(runtime, wish.book, show)
            made.later.start()
            directory.publish(_facts(made))
            _watch(runtime, made, wish, show=show, stop=stop)
            summary = run_report.summarise(
                runtime.reports, started_at=started_at, sandbox_url=made.addresses.sandbox_url
            )
    finally:
        show.note("stopping")
        made.later.stop()
        made.members.stop()
    show.summary(summary)
    return summary.healthy or not wish.exit_when_idle


@contextmanager
def _runtime(overrides: dict[str, str]) -> Iterator[Runtime]:
    built = bootstrap.build(load_settings(overrides))
    try:
        yield built
    finally:
        built.database.close()


def _bill(runtime: Runtime, book: Path, show: run_report.Display) -> None:
    report = runtime.books.add(books.read(book), tenant=runtime.settings.tenant)
    show.note(
        f"book {book.name}: {report.customers} customers and {report.subscriptions} subscriptions "
        f"are new, {report.unchanged} are unchanged"
    )
    show.note(f"{bill_due(runtime.engine)} periods are due")


def _watch(
    runtime: Runtime,
    made: stack.Stack,
    wish: Wish,
    *,
    show: run_report.Display,
    stop: Stop,
) -> None:
    """Look after the processes until the run is idle, if that was asked for, or stopped."""
    clock = runtime.engine.clock
    deadline = clock.steady_seconds() + wish.deadline_seconds
    while not stop.wait(LOOK_SECONDS):
        down = [
            name
            for name in (*made.members.watch(), *made.later.watch())
            if name not in stack.OPTIONAL
        ]
        if down:
            raise ServerFailed(f"{', '.join(down)} cannot be kept running; see the logs.")
        idle = _look(runtime, show)
        if wish.exit_when_idle and (idle or clock.steady_seconds() > deadline):
            return


def _look(runtime: Runtime, show: run_report.Display) -> bool:
    """Show where the run stands; say whether everything is at its end."""
    try:
        unsettled = runtime.reports.unsettled(
            horizon_seconds=run_report.HORIZON_SECONDS, stuck_seconds=run_report.STUCK_SECONDS
        )
        show.progress(runtime.reports.totals(), unsettled)
    except StoreUnavailable:
        # Postgres died and is being started again; the next look sees it.
        return False
    return unsettled.jobs == 0 and unsettled.unknown_charges == 0


def _await_flower(made: stack.Stack, stop: Stop) -> bool:
    """Wait a little for Flower, which only sees jobs that run while it listens."""
    if made.flower_port is None:
        return False
    for _ in range(FLOWER_LOOKS):
        if is_answered(made.flower_port):
            return True
        if stop.wait(FLOWER_SECONDS / FLOWER_LOOKS):
            break
    return False


def _tell_addresses(addresses: stack.Addresses, show: run_report.Display, *, flower: bool) -> None:
    if flower:
        show.note(
            f"Flower    {addresses.flower_url}  user {stack.FLOWER_USER}, "
            f"password {addresses.flower_password}"
        )
    else:
        show.note("Flower    is not there: slow to start, or the extra `flower` is not installed")
    show.note(f"Postgres  BILLING_JOBS_DATABASE_URL='{addresses.database_url}'")
    show.note(f"Broker    BILLING_JOBS_BROKER_URL='{addresses.broker_url}'")
    show.note(f"Gateway   {addresses.sandbox_url}/sandbox/journal")
    show.note("Try       billing-jobs status · billing-jobs jobs list")
    show.note("Stop      Ctrl-C (data is kept) · billing-jobs down --purge removes it")


def _facts(made: stack.Stack) -> dict[str, object]:
    """What a running `up` tells other commands."""
    return {
        **made.addresses.settings(),
        "flower_url": made.addresses.flower_url,
        "pids": {**made.members.pids, **made.later.pids},
    }


@contextmanager
def _signals() -> Iterator[Stop]:
    """Turn Ctrl-C and SIGTERM into an orderly stop while the block runs."""
    stop = Stop()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, stop) for number in numbers]
    try:
        yield stop
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
