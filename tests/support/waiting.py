"""Waiting in tests: for an event, with a deadline, never for time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: The machine may be busy; a test that waits this long has failed.
DEADLINE_SECONDS = 30.0

LOOK_SECONDS = 0.02


def until(
    look: Callable[[], T | None], what: str, *, deadline_seconds: float = DEADLINE_SECONDS
) -> T:
    """Return what `look` sees as soon as that is true; fail with `what` at the deadline."""
    pause, end = threading.Event(), time.monotonic() + deadline_seconds
    while True:
        seen = look()
        if seen:
            return seen
        if time.monotonic() > end:
            raise AssertionError(f"Not seen within {deadline_seconds} s: {what}")
        pause.wait(LOOK_SECONDS)
