"""
Directories for unix sockets: which paths can carry one, and short private ones where ours cannot.

The kernel takes 107 bytes for the path of a socket, PostgreSQL and libpq split lists of directories
at commas, and some URL parsers at colons. A data directory may be long and have any name.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from billing_jobs.domain.errors import DataDirUnusable

#: sizeof(sockaddr_un.sun_path) without the final NUL; the BSDs, so macOS, have four bytes less.
SOCKET_PATH_BYTES_MAX = 107 if sys.platform == "linux" else 103
#: The longest name we put into such a directory, PostgreSQL's.
_LONGEST_NAME = ".s.PGSQL.5432"

_PREFIX = "billing-jobs-"
_PLAIN_PATH = re.compile(r"/[A-Za-z0-9 ._/-]*")


def refusal(directory: Path) -> str | None:
    """Return why sockets cannot lie in the directory, or None when they can."""
    path = os.fspath(directory)
    length = len(os.fsencode(directory / _LONGEST_NAME))
    if length > SOCKET_PATH_BYTES_MAX:
        return f"its sockets would have {length} bytes, and {SOCKET_PATH_BYTES_MAX} are possible"
    if not _PLAIN_PATH.fullmatch(path):
        return "only letters, digits, spaces, dots, dashes and underscores are safe in its path"
    return None


def require_usable(directory: Path) -> None:
    """
    Return when sockets can lie in the directory.

    Raises:
        DataDirUnusable: they cannot.
    """
    reason = refusal(directory)
    if reason is not None:
        raise DataDirUnusable(
            f"{directory} cannot hold the sockets of a server: {reason}. Use a shorter or plainer "
            "path."
        )


def short_path(roots: Sequence[Path]) -> Path:
    """
    Return a new name below the first root that can carry sockets; nothing is made yet.

    Raises:
        DataDirUnusable: none of the roots can.
    """
    for root in roots:
        path = root / f"{_PREFIX}{secrets.token_hex(6)}"
        if root.is_dir() and os.access(root, os.W_OK | os.X_OK) and refusal(path) is None:
            return path
    names = ", ".join(os.fspath(root) for root in roots)
    raise DataDirUnusable(
        f"No directory for sockets: none of {names} is writable and short enough. Use a data "
        "directory with a shorter path, or set XDG_RUNTIME_DIR or TMPDIR to a short one."
    )


def remove_short(path: Path) -> None:
    """
    Remove a directory that `short_path` named, and nothing else that may bear its name by now.

    Crash safety: twice is harmless, in the middle too.
    """
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    ours = path.name.startswith(_PREFIX) and found.st_uid == os.geteuid()
    if ours and path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
