"""
Who may run a server on a directory, and whether one still runs there: two locks of the kernel.

The *owner* lock belongs to the process that supervises. The *server* lock is inherited by the
server and all its children, and is free exactly when the last of them is gone. So "is an old server
still at work on these files?" has an answer that no stale pid file, no reused number, no zombie and
no slow shutdown can spoil. Nothing here knows which server it is.

`flock` must work: a local file system, not every NFS.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import threading
import time
from pathlib import Path

from billing_jobs.domain.errors import AlreadyRunning, DataDirUnusable, ServerFailed

#: Somebody who only looks whether a lock is held takes it for a moment.
_OWNER_SECONDS = 0.5
#: A server whose supervisor was killed got its death signal, and stops by itself in this time; or
#: it is asked, and has this time again before it is killed.
ORPHAN_SECONDS = 15.0
#: The kernel ends what is killed at once, unless it hangs on a disk.
KILL_SECONDS = 10.0

_POLL_SECONDS = 0.01


class FileLock:
    """An exclusive lock on a file; the kernel frees it when its last holder dies."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    @property
    def descriptor(self) -> int:
        """The open file; to be inherited by a child that shall hold the lock too."""
        if self._descriptor is None:
            raise RuntimeError(f"Bug: the lock {self.path} is not held.")
        return self._descriptor

    @property
    def held(self) -> bool:
        """Whether this object holds it."""
        return self._descriptor is not None

    def acquire(self, *, wait_seconds: float = 0.0) -> bool:
        """
        Take the lock, making the file; False when somebody else holds it to the end of the wait.

        Crash safety: the lock ends with the process. The file stays and means nothing by itself.
        """
        if self._descriptor is not None:
            return True
        pause = threading.Event()
        deadline = time.monotonic() + wait_seconds
        while not self._try():
            if time.monotonic() >= deadline:
                return False
            pause.wait(_POLL_SECONDS)
        return True

    def release(self) -> None:
        """Give it back, also for those who inherited it; harmless when it is not held."""
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self.hand_over()

    def hand_over(self) -> None:
        """Forget it: from now on it is held by the children that inherited it, if there are any."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None

    def held_by_anyone(self) -> bool:
        """Whether somebody holds it now; does not make the file."""
        if self._descriptor is not None:
            return True
        if not self.path.exists():
            return False
        free = self.acquire()
        self.release()
        return not free

    def _try(self) -> bool:
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A lock on a file that was removed meanwhile guards nothing.
            if os.path.samestat(os.fstat(descriptor), self.path.stat()):
                self._descriptor = descriptor
                return True
        except (BlockingIOError, FileNotFoundError):
            pass
        os.close(descriptor)
        return False


class Ownership:
    """The right to run one server on one directory."""

    def __init__(
        self,
        directory: Path,
        *,
        server: str,
        orphan_seconds: float = ORPHAN_SECONDS,
        kill_seconds: float = KILL_SECONDS,
    ) -> None:
        """Take a directory that exists; the times are how patient it is with an old server."""
        self._directory = directory
        self._server = server
        self._orphan_seconds = orphan_seconds
        self._kill_seconds = kill_seconds
        self._owner = FileLock(directory / f"{server}.owner.lock")
        self._running = FileLock(directory / f"{server}.server.lock")

    def take(self, *, stop_signal: signal.Signals) -> int:
        """
        Own the directory, see the last server's end, and return what the new one shall inherit.

        Crash safety: both locks end with their holders. Taking twice is harmless.

        Raises:
            AlreadyRunning: another process supervises a server here.
            ServerFailed: a server without a supervisor is here and cannot be ended.
            DataDirUnusable: the locks cannot be made.
        """
        try:
            owned = self._owner.acquire(wait_seconds=_OWNER_SECONDS)
            if not owned:
                raise AlreadyRunning(
                    f"Another process already runs {self._server} on {self._directory}. Stop it, "
                    "or use another directory."
                )
            self._end_orphans(stop_signal)
        except OSError as error:
            raise DataDirUnusable(
                f"{self._directory} cannot be used for {self._server}: {error.strerror}."
            ) from error
        return self._running.descriptor

    def hand_over(self) -> None:
        """Leave the server lock to the server that inherited it."""
        self._running.hand_over()

    def wait_until_gone(self, *, wait_seconds: float) -> bool:
        """Wait for the end of the server and of everything it started."""
        gone = self._running.acquire(wait_seconds=wait_seconds)
        self._running.release()
        return gone

    def release(self) -> None:
        """Own the directory no more; harmless when it is not owned."""
        self._running.hand_over()
        self._owner.release()

    def _end_orphans(self, stop_signal: signal.Signals) -> None:
        """We own the directory, so whoever still holds the server lock lost its supervisor."""
        lock = self._running
        if lock.acquire(wait_seconds=self._orphan_seconds):
            return
        for number, seconds in (
            (stop_signal, self._orphan_seconds),
            (signal.SIGKILL, self._kill_seconds),
        ):
            for pid in holders(lock.path):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
            if lock.acquire(wait_seconds=seconds):
                return
        self._owner.release()
        raise ServerFailed(
            f"An old {self._server} still works on {self._directory} and cannot be ended. Find it "
            f"with `lsof '{lock.path}'` and stop it."
        )


def holders(path: Path) -> tuple[int, ...]:
    """
    Return the processes but us that have the file open: proof that they are ours, unlike a number.

    Only Linux can tell; elsewhere the answer is empty. Processes we may not look into are left out.
    """
    wanted = path.stat()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(_is_same(link, wanted) for link in (process / "fd").iterdir()):
                found.append(int(process.name))
    return tuple(pid for pid in found if pid != os.getpid())


def _is_same(link: Path, wanted: os.stat_result) -> bool:
    try:
        return os.path.samestat(link.stat(), wanted)
    except OSError:
        return False
