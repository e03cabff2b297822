"""The command line run in a test: with no setting of the machine it runs on, up to its status."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from billing_jobs.cli import COMMANDS, Command, main
from billing_jobs.config import SECRET_FIELDS, Settings
from billing_jobs.config_sources import variable

REPOSITORY = Path(__file__).parents[2]


class Ended(NamedTuple):
    """What a command left behind."""

    status: int
    out: str
    err: str


Run = Callable[..., Ended]


def runner(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Return a function that runs the command in this directory, whose `site.toml` is read."""
    for name in Settings.model_fields:
        monkeypatch.delenv(variable(name), raising=False)
    for name in SECRET_FIELDS:
        monkeypatch.delenv(f"{variable(name)}_FILE", raising=False)
    for name in ("DATABASE_URL", "REDIS_URL", "XDG_DATA_HOME", "BILLING_JOBS_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    (directory / "site.toml").touch()
    monkeypatch.setenv("BILLING_JOBS_CONFIG", "site.toml")
    monkeypatch.setenv("HOME", str(directory))
    monkeypatch.chdir(directory)

    def run(*arguments: str, commands: tuple[Command, ...] = COMMANDS) -> Ended:
        with pytest.raises(SystemExit) as ended:
            main(arguments, commands)
        written = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Ended(ended.value.code, written.out, written.err)

    return run


def fresh(
    *command: str, cwd: Path, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program with the least of an environment; `python` is this interpreter."""
    return subprocess.run(
        [sys.executable if word == "python" else word for word in command],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=cwd,
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(cwd),
            "PYTHONPATH": str(REPOSITORY),
            **(variables or {}),
        },
    )
