"""
Our Celery beat scheduler: rings for due jobs and rescues those whose worker vanished.

Owns a thread of its own for both, with its own connections, for a dead broker blocks Celery's
producer and heap. Any number of beats may run.
"""

from __future__ import annotations

import threading
from typing import Any

from celery import beat

from billing_jobs import logs
from billing_jobs.domain.errors import BillingJobsError
from billing_jobs.lifecycle import Engine
from billing_jobs.logs import Event
from billing_jobs.maintenance.rescue_expired import Rescuer
from billing_jobs.maintenance.ring_due import ring_due
from billing_jobs.worker.app import runtime
from billing_jobs.worker.shutdown import take_role

log = logs.get_logger("beat")

#: The longest pause between two looks at what is due. A job made meanwhile is late by this at most.
LOOK_SECONDS = 0.2

#: How often expired leases are looked for, at the least and in parts of a lease: a rescuer frees
#: nothing unless its turns follow each other much closer than half a lease.
RESCUE_SECONDS = 1.0
RESCUES_PER_LEASE = 8

#: The pause after a step failed, so that a dead database is not hammered.
FAILED_SECONDS = 1.0

#: How long a stop waits for the dispatcher's running step.
STOP_SECONDS = 10.0


class Dispatcher:
    """Looks for due jobs and expired leases until it is stopped."""

    def __init__(self, engine: Engine, *, interval_seconds: float) -> None:
        """Take what to look at; nothing runs yet."""
        self._engine = engine
        self._interval_seconds = interval_seconds
        self._rescuer = Rescuer(engine)
        self._rescue_at = float("-inf")
        self._rescue_seconds = min(
            RESCUE_SECONDS, engine.limits.lease_ttl_seconds / RESCUES_PER_LEASE
        )
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dispatcher", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop after the running step; harmless when called again."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def stopped(self) -> bool:
        """Whether it was told to stop."""
        return self._stopped.is_set()

    def turn(self) -> float:
        """
        Look once; return how long to wait before the next look, in seconds.

        Crash safety: rings are no truth, rescues are guarded statements.
        """
        due_seconds = ring_due(self._engine)
        now = self._engine.clock.steady_seconds()
        if now >= self._rescue_at:
            self._rescue_at = now + self._rescue_seconds
            self._rescuer.turn()
        return look_again_seconds(due_seconds, self._interval_seconds)

    def _run(self) -> None:
        pause = 0.0
        while not self._stopped.wait(pause):
            try:
                pause = self.turn()
            except BillingJobsError as error:
                self._rescuer.broken()
                log.warning(Event.BEAT_STEP_FAILED, step="dispatch", error=error)
                pause = FAILED_SECONDS


def look_again_seconds(due_seconds: float | None, interval_seconds: float) -> float:
    """
    Return the pause until the next look: it ends when the next job is due, or before.

    A pause that would end within one interval before that moment ends an interval before it, for
    the one after it could not be short enough.

    >>> [round(look_again_seconds(due, 0.1), 3) for due in (None, 5.0, 0.25, 0.15, 0.0)]
    [0.2, 0.2, 0.15, 0.15, 0.1]
    """
    interval_seconds = min(interval_seconds, LOOK_SECONDS)
    if due_seconds is None or due_seconds >= LOOK_SECONDS + interval_seconds:
        return LOOK_SECONDS
    if due_seconds > LOOK_SECONDS:
        return due_seconds - interval_seconds
    return max(due_seconds, interval_seconds)


class Scheduler(beat.Scheduler):
    """The scheduler behind `celery -A billing_jobs beat`; has no entries of Celery's own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - Celery's signature
        """Put the dispatcher together."""
        take_role("beat")
        prepared = runtime()
        self._dispatcher = Dispatcher(
            prepared.engine, interval_seconds=prepared.settings.dispatch_interval_seconds
        )
        super().__init__(*args, **kwargs)

    def setup_schedule(self) -> None:
        """Start the dispatcher; schedules are rows, not Celery entries."""
        log.info(Event.BEAT_STARTED)
        self._dispatcher.start()

    def tick(self, *_args: object, **_kwargs: object) -> float:
        """Return the pause until the next tick; ends beat when the dispatcher died."""
        if not self._dispatcher.alive:
            # Celery makes status 0 of a SystemExit, and whoever restarts failures would not see it.
            raise RuntimeError(
                "Bug: the dispatcher's thread died; beat ends so that it is restarted."
            )
        return LOOK_SECONDS

    def close(self) -> None:
        """Stop the dispatcher; Celery closes a scheduler twice."""
        if not self._dispatcher.stopped:
            self._dispatcher.stop()
            log.info(Event.BEAT_STOPPED)
        super().close()
