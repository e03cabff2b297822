"""
The files of a PostgreSQL cluster: made whole or not at all, checked, cleared of what a crash left.

It starts only `initdb`. The caller owns the directory and knows that no server of ours works on it
(`ownership`); without that, clearing would be dangerous.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from pathlib import Path

from billing_jobs.domain.errors import AlreadyRunning, DataDirUnusable, ServerFailed
from billing_jobs.embedded import json_file
from billing_jobs.embedded.binaries import PostgresBinaries
from billing_jobs.embedded.children import Child, Program
from billing_jobs.embedded.identity import Identity
from billing_jobs.embedded.log_file import LogFile

#: Explicit, so that nothing of a person's shell changes what is made or how it speaks.
ENVIRONMENT = {"LC_ALL": "C", "TZ": "UTC", "PATH": "/usr/bin:/bin"}

SUPERUSER = "postgres"
#: It takes under a second; this is for a machine that does much else, or a slow disk.
_INIT_SECONDS = 180.0
#: Four times the longest first line that a whole pid file can have.
_PID_BYTES_MAX = 64
#: Where postmaster.pid says "starting" or "ready", counted from 0; the same since version 10.
_STATUS_LINE = 7


class Cluster:
    """The cluster of one major version below a directory."""

    def __init__(self, directory: Path, binaries: PostgresBinaries) -> None:
        self._binaries = binaries
        self._directory = directory
        self.path = directory / f"pg{binaries.major}"

    def prepare(self, *, identity: Identity, log: LogFile, inherited: tuple[int, ...]) -> None:
        """
        Make the cluster if there is none, check it, and clear what a crash left.

        Crash safety: initdb works in a directory beside it that is renamed when all is there; what
        a killed one left is removed here.

        Raises:
            DataDirUnusable: it was made by another major version, or belongs to somebody else.
            AlreadyRunning: a server that we did not start works on it.
            ServerFailed: initdb failed.
        """
        if not self.path.exists():
            self._require_no_other_major()
            self._initialise(identity, log, inherited)
        self._check_version()
        self._check_owner(identity)
        self._clear_pid_file()

    def is_starting(self) -> bool:
        """Whether the server says that it is not ready: asking it would only fill its log."""
        try:
            lines = self._pid_file.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return True
        return len(lines) > _STATUS_LINE and lines[_STATUS_LINE].strip() == "starting"

    @property
    def _pid_file(self) -> Path:
        return self.path / "postmaster.pid"

    def _require_no_other_major(self) -> None:
        others = sorted(path.name for path in self._directory.glob("pg[0-9]*[0-9]"))
        if others:
            raise self._other_major(self._directory / others[-1], others[-1].removeprefix("pg"))

    def _initialise(self, identity: Identity, log: LogFile, inherited: tuple[int, ...]) -> None:
        new = self._directory / f"{self.path.name}.new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(mode=0o700)
        if identity.owner != os.geteuid():
            os.chown(new, identity.uid, identity.gid)
        argv = (str(self._binaries.initdb), "-D", str(new), "-U", SUPERUSER, "-A", "trust")
        program = Program(
            # Unsynced: a power cut in the first half minute costs a cluster that was just made.
            argv=(*argv, "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions"),
            env=ENVIRONMENT,
            log=log,
            identity=identity,
            death_signal=signal.SIGKILL,
            inherited=inherited,
        )
        child = Child.start(program)
        try:
            ended = child.wait(_INIT_SECONDS)
        finally:
            status = child.stop(signal.SIGKILL, deadline_seconds=0)
        if not ended or status != 0:
            raise ServerFailed(
                f"initdb could not make {new} (status {status}). The end of {log.path}:\n"
                f"{log.tail()}"
            )
        new.rename(self.path)
        json_file.sync_directory(self._directory)

    def _check_version(self) -> None:
        try:
            version = (self.path / "PG_VERSION").read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            version = "unknown"
        if version != str(self._binaries.major):
            raise self._other_major(self.path, version)

    def _other_major(self, path: Path, version: str) -> DataDirUnusable:
        major = self._binaries.major
        return DataDirUnusable(
            f"The data in {path} was made by PostgreSQL {version}, and {self._binaries.bin_dir} "
            f"is PostgreSQL {major}, which cannot read it. To keep it: run it with PostgreSQL "
            f"{version}, save it with pg_dumpall (or pg_dump), move {path} away, start again and "
            f"load it with psql. To start anew: move {path} away."
        )

    def _check_owner(self, identity: Identity) -> None:
        """Postgres wants to own its files; another way to run it (`identity`) is another owner."""
        owner = self.path.stat().st_uid
        if owner == identity.owner:
            return
        if os.geteuid() != 0:
            raise DataDirUnusable(
                f"{self.path} belongs to uid {owner}, and we are uid {os.geteuid()}. Run this "
                "command as its owner."
            )
        gid = identity.gid if identity.owner == identity.uid else os.getegid()
        for path in (self.path, *self.path.rglob("*")):
            os.chown(path, identity.owner, gid, follow_symlinks=False)

    def _clear_pid_file(self) -> None:
        """
        Remove a postmaster.pid whose server is gone.

        Postgres refuses to start while the number in it is alive, whoever bears it by now, and when
        the file is half written. We know that no server of ours is alive; a foreign one is looked
        for by the number, and recognised by its working directory, which is the cluster.
        """
        file = self._pid_file
        try:
            with file.open("rb") as content:
                pid = int(content.read(_PID_BYTES_MAX).partition(b"\n")[0])
        except FileNotFoundError:
            return
        except ValueError:
            pid = 0
        if pid > 0 and _works_in(pid, self.path):
            raise AlreadyRunning(
                f"A PostgreSQL that billing-jobs did not start (pid {pid}) runs on {self.path}. "
                f"Stop it: kill -INT {pid}"
            )
        file.unlink()


def _works_in(pid: int, directory: Path) -> bool:
    """Whether the process has the directory as its own; False also where nobody can tell."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cwd").samefile(directory)
    return False
