"""Small promises about files that both servers make."""

from __future__ import annotations

import os
from pathlib import Path


def write_port(port_file: Path, port: int) -> None:
    """
    Write the port so that a reader sees all of it or nothing.

    Crash safety: written beside and renamed; a leftover of a killed start is overwritten.
    """
    beside = port_file.with_name(f"{port_file.name}.{os.getpid()}")
    beside.write_text(f"{port}\n", encoding="ascii")
    beside.replace(port_file)


def sync_directory(directory: Path) -> None:
    """
    Bring the names in a directory to the disk.

    Crash safety: without it a new file may be gone after a power cut though its content was synced.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
