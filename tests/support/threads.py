"""Threads in tests that start together, with a deadline."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

#: Threads that wait for each other longer than this have failed.
DEADLINE_SECONDS = 30.0


def at_once(workers: int, work: Callable[[int], T]) -> list[T]:
    """Run `work` in so many threads that start together; return what each one gave."""
    barrier = threading.Barrier(workers)

    def started(number: int) -> T:
        barrier.wait(DEADLINE_SECONDS)
        return work(number)

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(started, range(workers), timeout=DEADLINE_SECONDS))
