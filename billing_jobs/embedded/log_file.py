"""
The log file of a child: appended to, bounded, and quoted when something goes wrong.

The child writes it through its own stdout and stderr, so that its last words survive our death. It
does not parse what is written.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

#: Enough for days of a talkative child; with the one older file twice that on disk.
LOG_BYTES_MAX = 8 * 1024 * 1024

#: What an error message quotes: a screenful.
_TAIL_LINES = 15
_TAIL_BYTES = 8 * 1024


class LogFile:
    """One log and its older half."""

    def __init__(self, path: Path, *, bytes_max: int = LOG_BYTES_MAX) -> None:
        self.path = path
        self._bytes_max = bytes_max

    @property
    def older(self) -> Path:
        """Where the part lies that was cut off."""
        return self.path.with_name(self.path.name + ".1")

    def open(self) -> int:
        """
        Return a descriptor that appends; the caller closes it.

        Crash safety: opening twice is harmless, each writer appends.
        """
        self.trim()
        return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def trim(self) -> None:
        """
        Move what is there aside when it is too long; the writer keeps its descriptor.

        Crash safety: copied first and cut afterwards, so a crash in between leaves the lines twice.
        Lines written between the two steps are lost; a log may lose lines, a disk may not fill up.
        """
        # A log that cannot be cut is no reason to end the one who watches.
        with contextlib.suppress(OSError):
            if self.path.stat().st_size <= self._bytes_max:
                return
            # On a full disk the copy fails, and then cutting matters most.
            with contextlib.suppress(OSError):
                self._copy_aside()
            os.truncate(self.path, 0)

    def tail(self) -> str:
        """Return the last lines; an empty text when there are none."""
        try:
            with self.path.open("rb") as log:
                log.seek(0, os.SEEK_END)
                log.seek(max(0, log.tell() - _TAIL_BYTES))
                text = log.read().decode(errors="replace")
        except FileNotFoundError:
            return ""
        return "\n".join(text.splitlines()[-_TAIL_LINES:])

    def last_line(self) -> str:
        """Return the last line: what a person sees while they wait."""
        return self.tail().rpartition("\n")[2]

    def _copy_aside(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with (
            self.path.open("rb") as source,
            os.fdopen(os.open(self.older, flags, 0o600), "wb") as target,
        ):
            shutil.copyfileobj(source, target)
