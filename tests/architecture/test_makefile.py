"""The two commands of the README: what `make` says to somebody who has not read it."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def make(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run make in a directory that holds no environment yet."""
    return subprocess.run(
        ["make", "--makefile", str(ROOT / "Makefile"), *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_make_alone_prints_its_help() -> None:
    """Every target that a person may type is named with what it does."""
    ended = subprocess.run(
        ["make"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )

    assert ended.returncode == 0
    for target in ("run", "test", "check", "lock"):
        assert f"  make {target}" in ended.stdout


def test_an_old_python_is_refused_with_the_way_out(tmp_path: Path) -> None:
    """Before anything is installed: which Python it is, and what to type instead."""
    (tmp_path / "requirements").mkdir()
    for name in ("requirements/run.txt", "pyproject.toml"):
        (tmp_path / name).touch()
    old = tmp_path / "python3.9"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.9.2" || exit 1\n')
    old.chmod(0o755)

    ended = make(tmp_path, "run", f"PYTHON={old}")

    assert ended.returncode != 0
    assert "needs Python 3.11 or newer" in ended.stdout
    assert "is Python 3.9.2" in ended.stdout
    assert not (tmp_path / ".venv").exists()
