"""
The book on disk: an append-only file of JSON lines, one line for each thing that happened.

Owns the file: its lock, its replay, its durability. Knows nothing of what the lines mean, except
that a line with a `capture` says that money was taken; see `read_captures`.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from billing_jobs.sandbox.answers import JsonObject, encoded
from billing_jobs.sandbox.files import sync_directory

#: Only the user of the sandbox reads its book: it holds metadata of invoices.
_FILE_MODE = 0o600


class JournalInUse(Exception):
    """Another sandbox holds the journal open."""


class JournalDamaged(Exception):
    """A line in the middle of the journal is unreadable; only the last one may be torn."""


class Journal:
    """
    One open journal.

    Crash safety: a line is one event with all that belongs to it, so after `kill -9` an event is
    there as a whole or not at all. Opening cuts a torn last line off; nobody was told of it. `sync`
    returns when the line is on the disk, so what was answered also survives a power cut.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._sync_lock = threading.Lock()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, _FILE_MODE)
        try:
            self._take()
            self._written = self._synced = self._cut_torn_line()
        except BaseException:
            os.close(self._file)
            raise
        sync_directory(path.parent)

    def _take(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise JournalInUse(
                f"Another sandbox uses the journal {self.path}. "
                "Stop it, or give this one a --journal of its own."
            ) from error

    def _cut_torn_line(self) -> int:
        end = _end_of_last_line(self.path)
        os.ftruncate(self._file, end)
        os.fsync(self._file)
        return end

    def records(self) -> Iterator[JsonObject]:
        """Yield every line of the book, oldest first."""
        return _records(self.path)

    def write(self, record: JsonObject) -> int:
        """
        Append one line; return the position to hand to `sync`. One thread at a time.

        Crash safety: a line that the disk took only in part is taken back before the error is
        raised, so that the next line does not continue it.
        """
        line = encoded(record) + b"\n"
        written = 0
        try:
            while written < len(line):
                written += os.write(self._file, line[written:])
        except OSError:
            os.ftruncate(self._file, self._written)
            raise
        self._written += len(line)
        return self._written

    def sync(self, position: int) -> None:
        """
        Return when everything up to `position` is on the disk.

        While one thread waits for the disk the others append; the next one's wait covers them all.
        """
        with self._sync_lock:
            if self._synced < position:
                target = self._written
                os.fsync(self._file)
                self._synced = target

    def close(self) -> None:
        """Release the file and its lock. Closing twice is harmless."""
        with self._sync_lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1


def read_captures(path: Path) -> list[JsonObject]:
    """Return every capture in a journal, also while a sandbox uses it or after it was killed."""
    return [record["capture"] for record in _records(path) if "capture" in record]


def _records(path: Path) -> Iterator[JsonObject]:
    end = _end_of_last_line(path)
    position = 0
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            position += len(line)
            if position > end:
                return
            yield _decoded(line, number, path)


def _decoded(line: bytes, number: int, path: Path) -> JsonObject:
    if not _is_record(line):
        raise JournalDamaged(
            f"Line {number} of the journal {path} is unreadable. It is the proof of what was "
            "charged, so nothing is guessed: restore the file, or start with a new --journal."
        )
    record: JsonObject = json.loads(line)
    return record


def _end_of_last_line(path: Path) -> int:
    """Return where the last whole line ends: what a crash left behind it never happened."""
    end = 0
    size = 0
    with path.open("rb") as lines:
        for line in lines:
            size += len(line)
            # A power cut may leave the last line at its full length with blocks that never reached
            # the disk. In the middle of the file that is damage, which `_decoded` reports.
            if line.endswith(b"\n") and (lines.peek(1) or _is_record(line)):
                end = size
    return end


def _is_record(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False
