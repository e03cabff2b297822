"""What was made in and for a data directory, written down before it is made; see `data_dir`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from billing_jobs.domain.errors import DataDirUnusable
from billing_jobs.embedded import json_file

_PURPOSE = "Made by billing-jobs; `billing-jobs down --purge` removes what is listed here."


def is_plain(name: str) -> bool:
    """Whether it names something directly in a directory."""
    return name not in {"", ".", ".."} and "/" not in name


class Manifest:
    """
    The list of what a purge removes; one writer at a time, the owner of the data directory.

    Crash safety: every change is on disk before the thing it names is made, or after it is gone.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def exists(self) -> bool:
        """Whether the directory is ours."""
        return self._path.is_file()

    def begin(self, made: Sequence[Path]) -> None:
        """Write the first one; `made` are the directories that did not exist, deepest first."""
        self._write(made=made, entries=(), sockets=None)

    @property
    def made(self) -> tuple[Path, ...]:
        """The data directory and its parents, as far as we made them; deepest first."""
        return tuple(Path(path) for path in self._texts("made"))

    @property
    def entries(self) -> tuple[str, ...]:
        """Names in the data directory; a path that leads elsewhere is refused, as we remove it."""
        names = self._texts("entries")
        if not all(is_plain(name) for name in names):
            raise DataDirUnusable(f"{self._path} names a file elsewhere. Restore the file.")
        return tuple(names)

    @property
    def sockets(self) -> Path | None:
        """Where the sockets of this run lie."""
        paths = self._texts("sockets")
        return Path(paths[0]) if paths else None

    def add_entry(self, name: str) -> None:
        """Note a name before it is made."""
        if name not in self.entries:
            self._write(made=self.made, entries=(*self.entries, name), sockets=self.sockets)

    def set_sockets(self, path: Path | None) -> None:
        """Note where the sockets will lie, or that they are gone."""
        self._write(made=self.made, entries=self.entries, sockets=path)

    def remove(self) -> None:
        """Forget all of it."""
        json_file.sibling(self._path).unlink(missing_ok=True)
        self._path.unlink(missing_ok=True)

    def _texts(self, key: str) -> list[str]:
        found = json_file.read(self._path).get(key, [])
        if isinstance(found, list) and all(isinstance(text, str) for text in found):
            return [str(text) for text in found]
        raise DataDirUnusable(f"{self._path}: {key!r} is no list of texts. Restore the file.")

    def _write(self, *, made: Sequence[Path], entries: Sequence[str], sockets: Path | None) -> None:
        content = {
            "purpose": _PURPOSE,
            "made": [str(path) for path in made],
            "entries": list(entries),
            "sockets": [] if sockets is None else [str(sockets)],
        }
        json_file.write(self._path, content)
