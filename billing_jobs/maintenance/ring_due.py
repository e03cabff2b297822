"""
Ring where jobs are due: the first bell of a retry, or the second where one was lost.

Reads only. Locks no job and keeps no book about rings: a ring too many finds nothing to claim.
"""

from __future__ import annotations

from billing_jobs import lifecycle
from billing_jobs.lifecycle import Engine


def ring_due(engine: Engine) -> float | None:
    """
    Ring for each queue with a due job; return the seconds until the next is due, None for never.

    Crash safety: writes nothing.
    """
    seconds = engine.store.next_due_seconds()
    if seconds is not None and seconds <= 0:
        for queue in engine.store.due_queues():
            lifecycle.ring(engine, queue)
    return seconds
