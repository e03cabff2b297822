"""
The data directory of `billing-jobs up`: made, checked, owned by one supervisor, and taken away.

It hands out names inside and remembers each, so that a purge removes what it made and nothing else.
It does not know what lies in them; the servers have locks of their own (`ownership`).

Files of its own: the lock, which says who runs; the manifest, which says what was made; the state,
which the caller may use as it likes.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from billing_jobs.domain.errors import AlreadyRunning, DataDirUnusable
from billing_jobs.embedded import json_file, socket_dir
from billing_jobs.embedded.manifest import Manifest, is_plain
from billing_jobs.embedded.ownership import FileLock

_LOCK = "supervisor.lock"
_MANIFEST = "manifest.json"
_STATE = "state.json"
_RUN = "run"

#: May lie in a directory that counts as empty: what a first start leaves that was killed early, and
#: what ext4 puts into a new volume.
_IGNORED = frozenset({_LOCK, f"{_MANIFEST}.new", "lost+found"})
#: Others than the owner may not write: they could swap our files.
_WRITABLE_BY_OTHERS = 0o002
#: Somebody who only asks who runs holds the lock for a moment.
_LOCK_SECONDS = 0.5
#: Orphans of a killed supervisor stop by themselves; a purge waits for them.
PURGE_SECONDS = 30.0
_LOCK_BYTES_MAX = 64 * 1024


@dataclass(frozen=True)
class Holder:
    """The supervisor that runs."""

    #: None for the moment in which it has the lock and has not said more yet.
    pid: int | None
    #: What it published: addresses and the like.
    facts: Mapping[str, object]


class DataDir:
    """One directory; `acquire` before anything is written to it."""

    def __init__(
        self,
        path: Path,
        *,
        runtime_root: Path | None = None,
        purge_seconds: float = PURGE_SECONDS,
    ) -> None:
        """Take the path and, for short socket paths, XDG_RUNTIME_DIR if there is one."""
        self.path = path.absolute()
        self._runtime_root = runtime_root
        self._purge_seconds = purge_seconds
        self._lock = FileLock(self.path / _LOCK)
        self._manifest = Manifest(self.path / _MANIFEST)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_error: object) -> None:
        self.release()

    def acquire(self) -> None:
        """
        Make the directory if need be, check it, and own it until `release` or our death.

        Crash safety: the lock ends with us. A socket directory left by a supervisor that was killed
        is removed here; an empty data directory may be left if we die before the manifest.

        Raises:
            DataDirUnusable: it cannot be made, is not ours, or holds what others put there.
            AlreadyRunning: another supervisor owns it; says which and what it published.
        """
        if self._lock.held:
            return
        with self._explained(), contextlib.ExitStack() as undo:
            undo.callback(self._lock.release)
            made = self._make()
            self._check()
            self._own()
            if not self._manifest.exists():
                self._manifest.begin(made)
            self._remove_sockets()
            undo.pop_all()

    def release(self) -> None:
        """
        Remove the sockets and own it no more; harmless when it is not owned. Stop servers before.

        Crash safety: what is left is removed by the next `acquire`.
        """
        if self._lock.held:
            self._remove_sockets()
            self._lock.release()

    def publish(self, facts: Mapping[str, object]) -> None:
        """
        Say what others may know: addresses, pids. Shown by `holder` and by AlreadyRunning.

        Crash safety: it is worth nothing once the lock is free, so it needs no repair.
        """
        text = json.dumps({"pid": os.getpid(), "facts": facts}).encode()
        # In place, because the lock is on this very file. A reader that meets half of it waits.
        os.truncate(self._lock.descriptor, 0)
        os.pwrite(self._lock.descriptor, text, 0)

    def holder(self) -> Holder | None:
        """Return who runs, or None. Writes nothing, and needs no ownership."""
        with self._explained():
            return self._read_holder() if self._lock.held_by_anyone() else None

    def wait_until_free(self, *, wait_seconds: float) -> bool:
        """Wait for the end of the supervisor that runs; False when it still does."""
        with self._explained():
            if not self._lock.path.exists():
                return True
            free = self._lock.acquire(wait_seconds=wait_seconds)
            self._lock.release()
            return free

    def read_state(self) -> dict[str, object]:
        """Return what `write_state` wrote last; empty at first."""
        return json_file.read(self.path / _STATE)

    def write_state(self, state: Mapping[str, object]) -> None:
        """
        Replace the state.

        Crash safety: the old state or the new one, never a mixture, also after a power cut.
        """
        json_file.write(self.path / _STATE, state)

    def directory(self, name: str) -> Path:
        """
        Return a private directory inside, made if need be, that a purge removes.

        Crash safety: noted before it is made, so a purge knows it.
        """
        path = self.file(name)
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    def file(self, name: str) -> Path:
        """Return a path inside, not made, that a purge removes."""
        self._require_owned()
        if not is_plain(name) or name in {_LOCK, _MANIFEST, _STATE, _RUN}:
            raise ValueError(f"Bug: {name!r} is not a free name directly in the data directory.")
        self._manifest.add_entry(name)
        return self.path / name

    def sockets(self) -> Path:
        """
        Return a private directory whose path is short enough for sockets; gone after `release`.

        Crash safety: noted before it is made, so the next `acquire` removes it.
        """
        self._require_owned()
        noted = self._manifest.sockets
        if noted is not None:
            return noted
        path = self.path / _RUN
        if socket_dir.refusal(path) is not None:
            path = socket_dir.short_path(self._socket_roots())
        self._manifest.set_sockets(path)
        path.mkdir(mode=0o700, exist_ok=path.parent == self.path)
        return path

    def purge(self) -> tuple[str, ...]:
        """
        Remove everything that was made here, and return the names of others' files that were left.

        Crash safety: the manifest goes last but one, so a purge that was killed can be repeated.

        Raises:
            DataDirUnusable: we did not make it.
            AlreadyRunning: a supervisor or one of its servers still runs.
        """
        with self._explained(), contextlib.ExitStack() as undo:
            undo.callback(self._lock.release)
            if not self.path.exists():
                return ()
            if not self._manifest.exists():
                raise self._unusable("was not made by billing-jobs (it has no manifest)")
            self._check()
            self._own()
            self._require_no_servers()
            self._remove_all()
            return self._remove_itself()

    def _make(self) -> list[Path]:
        """Make the directory and its parents; return those that were missing, the deepest first."""
        missing = [path for path in (self.path, *self.path.parents) if not path.exists()]
        for path in reversed(missing):
            path.mkdir(mode=0o700, exist_ok=True)
        return missing

    def _check(self) -> None:
        if not self.path.is_dir():
            raise self._unusable("is not a directory")
        found = self.path.stat()
        if found.st_uid != os.geteuid():
            raise self._unusable(
                f"belongs to uid {found.st_uid}, and we are uid {os.geteuid()}; run as its owner"
            )
        if found.st_mode & _WRITABLE_BY_OTHERS:
            raise self._unusable(f"is writable by everyone; run: chmod 700 '{self.path}'")
        if not os.access(self.path, os.R_OK | os.W_OK | os.X_OK):
            raise self._unusable("is not writable")
        others = sorted({path.name for path in self.path.iterdir()} - _IGNORED)
        if others and not self._manifest.exists():
            raise self._unusable(
                f"holds files that billing-jobs did not make ({', '.join(others[:3])})"
            )

    def _own(self) -> None:
        if not self._lock.acquire(wait_seconds=_LOCK_SECONDS):
            holder = self._read_holder()
            facts = "".join(f"\n  {key}: {value}" for key, value in holder.facts.items())
            raise AlreadyRunning(
                f"billing-jobs already runs on {self.path}, pid {holder.pid}. Stop it with Ctrl-C "
                f"there or with `billing-jobs down`, or use another data directory.{facts}"
            )
        self.publish({})

    def _read_holder(self) -> Holder:
        try:
            with self._lock.path.open("rb") as file:
                content = json.loads(file.read(_LOCK_BYTES_MAX))
            return Holder(pid=int(content["pid"]), facts=dict(content["facts"]))
        except (OSError, ValueError, KeyError, TypeError):
            return Holder(pid=None, facts={})

    def _require_owned(self) -> None:
        if not self._lock.held:
            raise RuntimeError(f"Bug: {self.path} was used without being acquired.")

    def _socket_roots(self) -> list[Path]:
        given = [self._runtime_root] if self._runtime_root is not None else []
        return [*given, Path(tempfile.gettempdir()), Path("/tmp")]  # noqa: S108 -- mode 0700 below

    def _remove_sockets(self) -> None:
        path = self._manifest.sockets
        if path is None:
            return
        if path.parent == self.path:
            shutil.rmtree(path, ignore_errors=True)
        else:
            socket_dir.remove_short(path)
        self._manifest.set_sockets(None)

    def _require_no_servers(self) -> None:
        for name in self._manifest.entries:
            for path in (self.path / name).glob("*.server.lock"):
                lock = FileLock(path)
                if not lock.acquire(wait_seconds=self._purge_seconds):
                    raise AlreadyRunning(
                        f"A server still runs on {path.parent}. Find it with `lsof '{path}'`."
                    )
                lock.release()

    def _remove_all(self) -> None:
        self._remove_sockets()
        for name in self._manifest.entries:
            path = self.path / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        for path in (self.path / _STATE, json_file.sibling(self.path / _STATE), self._lock.path):
            path.unlink(missing_ok=True)

    def _remove_itself(self) -> tuple[str, ...]:
        made = self._manifest.made
        self._manifest.remove()
        for path in made:
            try:
                path.rmdir()
            except OSError:
                break
        if not self.path.exists():
            return ()
        return tuple(sorted(path.name for path in self.path.iterdir()))

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn what the system refuses into a sentence about the data directory."""
        try:
            yield
        except OSError as error:
            where = "" if error.filename is None else f" ({error.filename})"
            raise self._unusable(f"cannot be used: {error.strerror}{where}") from error

    def _unusable(self, problem: str) -> DataDirUnusable:
        return DataDirUnusable(
            f"The data directory {self.path} {problem}. Choose another one with "
            "BILLING_JOBS_DATA_DIR."
        )
