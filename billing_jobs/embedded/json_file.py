"""One small JSON file that is either the old one or the new one, whatever happens in between."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from billing_jobs.domain.errors import DataDirUnusable

#: Ours are a few lines; anything longer was put there by somebody else.
_BYTES_MAX = 1024 * 1024


def sibling(path: Path) -> Path:
    """Where the new content is written first: a fixed name, so that a crash leaves only one."""
    return path.with_name(path.name + ".new")


def write(path: Path, content: Mapping[str, object]) -> None:
    """
    Replace the file.

    Crash safety: a reader sees the old content or the new, also after a power cut. Writing twice is
    harmless; two writers at a time are the caller's to exclude.
    """
    new = sibling(path)
    text = json.dumps(content, indent=2, sort_keys=True) + "\n"
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    sync_directory(path.parent)


def read(path: Path) -> dict[str, object]:
    """
    Return the content; empty when there is no file.

    Raises:
        DataDirUnusable: it is not what `write` wrote.
    """
    try:
        with path.open("rb") as file:
            content = json.loads(file.read(_BYTES_MAX))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise DataDirUnusable(f"{path} is not JSON ({error}). Remove it to start anew.") from error
    if not isinstance(content, dict):
        raise DataDirUnusable(f"{path} holds no JSON object. Remove it to start anew.")
    return content


def sync_directory(directory: Path) -> None:
    """Make names in the directory survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
