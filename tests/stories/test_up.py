"""`billing-jobs up` as a newcomer runs it: real servers, real processes, a book that is billed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import urllib3
from support.books import book_text, query
from support.processes import kill
from support.waiting import until

from billing_jobs.config import child_environment
from billing_jobs.embedded.data_dir import DataDir

TOKENS = (
    "pm_sandbox_ok",
    "pm_sandbox_decline_insufficient_funds",
    "pm_sandbox_hang_after_charge_x1",
    "pm_sandbox_busy_x2",
    "pm_sandbox_unknown_method",
)

#: A loaded machine starts seven processes and waits for a time-out of two seconds and two look-ups.
RUN_SECONDS = 110


def command(directory: Path, *options: str) -> list[str]:
    """The command line of `up` on a data directory with a space in its path."""
    return [
        sys.executable,
        "-m",
        "billing_jobs",
        *options,
        "--data-dir",
        str(directory / "my data"),
    ]


@pytest.fixture
def book(tmp_path: Path) -> Path:
    """A small book that shows everything."""
    path = tmp_path / "book.csv"
    path.write_text(book_text(*TOKENS))
    return path


def run_up(directory: Path, book: Path) -> dict[str, Any]:
    """Run `up` until it is idle; return the last line of its output."""
    ended = subprocess.run(
        command(directory, "up", "--book", str(book), "--exit-when-idle", "--json"),
        env=child_environment({}),
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    summary = json.loads(ended.stdout.splitlines()[-1])
    assert isinstance(summary, dict)
    return summary


@pytest.mark.timeout(240)
def test_a_book_is_billed_and_the_journal_agrees(tmp_path: Path, book: Path) -> None:
    """The promise of the README; a second run finds nothing to do and changes nothing."""
    first = run_up(tmp_path, book)
    second = run_up(tmp_path, book)

    assert first["journal_equal"] is True
    assert first["amounts"] == {
        "EUR": {"invoiced": 5 * 5831, "charged": 3 * 5831, "journal": 3 * 5831}
    }
    assert first["dead_letters"] == 1
    assert first["totals"]["declined"] == 1
    assert first["totals"]["unknown_outcomes"] == 1
    assert first["totals"]["retries"] == 2
    assert first["first_completed_seconds"] > 0
    assert second["first_completed_seconds"] is None
    assert {**second, "first_completed_seconds": 0} == {**first, "first_completed_seconds": 0}


@pytest.fixture
def running(tmp_path: Path, book: Path) -> Iterator[subprocess.Popen[bytes]]:
    """An `up` that keeps running."""
    with (tmp_path / "up.log").open("wb") as log:
        process = subprocess.Popen(
            command(tmp_path, "up", "--book", str(book), "--json"),
            env=child_environment({}),
            cwd=tmp_path,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    yield process
    kill(process)


@pytest.mark.timeout(240)
def test_up_is_seen_stopped_and_purged(running: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """A second `up` is refused, Flower asks for a password, `down --purge` leaves nothing."""
    directory = DataDir(tmp_path / "my data")
    holder = until(
        lambda: found if (found := directory.holder()) and "flower_url" in found.facts else None,
        "an up that has told its addresses",
        deadline_seconds=60,
    )
    flower = str(holder.facts["flower_url"])
    until(lambda: _status(flower) == 401, "a Flower that asks for a password", deadline_seconds=60)

    again = _call(tmp_path, "up", "--json")
    assert again.returncode == 4
    assert str(holder.pid) in again.stderr

    down = _call(tmp_path, "down", "--purge")
    assert down.returncode == 0, down.stderr
    assert running.wait(60) == 0
    assert not (tmp_path / "my data").exists()
    for pid in holder.facts["pids"].values():  # type: ignore[attr-defined] # JSON
        assert not Path(f"/proc/{pid}").exists()


@pytest.mark.timeout(240)
def test_up_survives_the_death_of_its_postgres(
    running: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """A server that dies is started again, and the run goes on where it was."""
    directory = DataDir(tmp_path / "my data")
    holder = until(
        lambda: found if (found := directory.holder()) and "pids" in found.facts else None,
        "an up that has told its addresses",
        deadline_seconds=60,
    )
    database_url = str(holder.facts["database_url"])

    os.kill(holder.facts["pids"]["postgres"], signal.SIGKILL)  # type: ignore[index] # JSON

    paid = "SELECT count(*) FROM invoices WHERE state = 'paid'"
    until(lambda: _asked(database_url, paid) == [(3,)], "three paid invoices", deadline_seconds=90)
    assert running.poll() is None
    assert _call(tmp_path, "down").returncode == 0


def _asked(database_url: str, sql: str) -> list[tuple[object, ...]]:
    try:
        return query(database_url, sql)
    except psycopg.OperationalError:
        return []


@pytest.mark.timeout(240)
def test_a_killed_up_leaves_no_orphan_and_starts_again(
    running: subprocess.Popen[bytes], tmp_path: Path, book: Path
) -> None:
    """Kill -9 of the supervisor ends every process of it; the data is there for the next one."""
    directory = DataDir(tmp_path / "my data")
    holder = until(
        lambda: found if (found := directory.holder()) and "pids" in found.facts else None,
        "an up that has told its addresses",
        deadline_seconds=60,
    )
    pids = list(holder.facts["pids"].values())  # type: ignore[attr-defined] # JSON

    running.send_signal(signal.SIGKILL)
    running.wait(30)

    until(lambda: not any(map(_alive, pids)), f"the end of {pids}", deadline_seconds=60)
    assert run_up(tmp_path, book)["journal_equal"] is True


def _call(directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(directory, *options),
        env=child_environment({}),
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )


def _status(url: str) -> int:
    try:
        return urllib3.request("GET", url, retries=False, timeout=5).status
    except urllib3.exceptions.HTTPError:
        return 0


def _alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
