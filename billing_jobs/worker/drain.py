"""
The drain: a bounded slice of claiming and running in one child, started by a ring.

Owns the loop. One Celery message runs many jobs, for a message a job costs more than the job.
"""

from __future__ import annotations

from collections.abc import Callable

from billing_jobs import lifecycle, logs
from billing_jobs.domain.errors import StoreUnavailable
from billing_jobs.lifecycle import Engine
from billing_jobs.logs import Event
from billing_jobs.registry import check_queue

log = logs.get_logger("drain")


def drain(
    engine: Engine,
    queue: str,
    *,
    worker: str,
    slice_seconds: float,
    stopping: Callable[[], bool],
) -> int:
    """
    Run due jobs of a queue until none is left, the slice is over or the worker stops.

    What is left is rung for again; while that ring fails, the drain goes on. Returns the number of
    jobs run.

    Crash safety: a crash loses the ring of this drain; the dispatcher rings again.
    """
    check_queue(queue)
    ran, slice_end = 0, engine.clock.steady_seconds() + slice_seconds
    try:
        while not stopping():
            if not lifecycle.run_next(engine, queue, worker):
                return ran
            ran += 1
            if engine.clock.steady_seconds() >= slice_end and engine.doorbell.ring(queue):
                return ran
    except StoreUnavailable as error:
        log.warning(Event.DB_LOST, queue=queue, error=error)
        return ran
    engine.doorbell.ring(queue)
    return ran
