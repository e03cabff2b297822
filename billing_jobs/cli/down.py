"""
`billing-jobs down`: stop a running `up`, and with `--purge` remove what it made.

Owns the asking. The supervisor stops its processes itself, in order.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Annotated

import typer

from billing_jobs.cli import console
from billing_jobs.config import load_settings
from billing_jobs.domain.errors import ServerFailed
from billing_jobs.embedded.data_dir import DataDir

#: Draining workers, and a Postgres that writes its last checkpoint.
STOP_SECONDS = 90.0


def down(
    *,
    data_dir: Annotated[Path | None, typer.Option(help="The data directory of `up`.")] = None,
    purge: Annotated[bool, typer.Option("--purge", help="Remove the data as well.")] = False,
) -> None:
    """Stop what `up` started; with --purge nothing is left of it."""
    directory = DataDir(load_settings({"data_dir": data_dir}).data_dir)
    holder = directory.holder()
    if holder is None or holder.pid is None:
        console.say(f"Nothing runs in {directory.path}.")
    else:
        _stop(holder.pid, directory)
        console.say(f"Stopped (pid {holder.pid}).")
    if purge:
        left = directory.purge()
        console.say(f"Removed {directory.path}.")
        for name in left:
            console.note(f"Left alone, for it is not ours: {directory.path / name}")


app = down


def _stop(pid: int, directory: DataDir) -> None:
    """
    Ask the supervisor to stop, and wait.

    The pid comes from the lock that its owner holds, so it is never another program's.
    """
    try:
        os.kill(pid, signal.SIGTERM)
    except PermissionError as error:
        raise ServerFailed(
            f"pid {pid} belongs to another user and cannot be stopped. "
            "Run `billing-jobs down` as that user."
        ) from error
    except ProcessLookupError:
        # It ended between the look and the signal.
        return
    if not directory.wait_until_free(wait_seconds=STOP_SECONDS):
        raise ServerFailed(
            f"pid {pid} did not stop within {STOP_SECONDS:.0f} s. Look at the logs in "
            f"{directory.path / 'logs'}, then kill it: no work is lost."
        )
