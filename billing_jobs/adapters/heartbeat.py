"""
Keeps the lease of a running job alive, from a thread of its own with its own connection.

Owns the thread and the trust window. Renewal ends at the attempt's deadline, so that a job stuck
for ever loses its lease and is run elsewhere.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from billing_jobs.domain.errors import LeaseLost, StoreUnavailable
from billing_jobs.domain.job import ClaimedJob
from billing_jobs.domain.lease import TrustWindow, renewal_interval_seconds
from billing_jobs.ports import Clock, JobStore


class HeldLease:
    """The lease of one running job, as its executor sees it."""

    def __init__(self, job: ClaimedJob, window: TrustWindow, clock: Clock) -> None:
        """Start with the window that the claim opened."""
        self.job = job
        self._clock = clock
        self._started_seconds = window.asked_at_seconds
        self._window = window
        self._lost = False

    def check(self) -> None:
        """Raise `LeaseLost` unless the job is provably still ours."""
        if self._lost or not self._window.trusts(self._clock.steady_seconds()):
            raise LeaseLost(
                f"The lease of job {self.job.id} under token {self.job.token} can no longer be "
                "trusted. Nothing was sent after this; another worker takes the job over."
            )

    def renewed(self, window: TrustWindow) -> None:
        """Move the window forward."""
        self._window = window

    def lost(self) -> None:
        """Give the lease up for good."""
        self._lost = True

    def age_seconds(self) -> float:
        """Return how long the attempt has been running."""
        return self._clock.steady_seconds() - self._started_seconds


class HeartbeatKeeper:
    """`Keeper` with one renewing thread a process, started after fork by the first job."""

    def __init__(
        self,
        store: JobStore,
        clock: Clock,
        *,
        ttl_seconds: float,
        attempt_deadline_seconds: float,
    ) -> None:
        """Take the store that renews; no thread is started."""
        self._store = store
        self._clock = clock
        self._ttl_seconds = ttl_seconds
        self._attempt_deadline_seconds = attempt_deadline_seconds
        self._held: dict[int, HeldLease] = {}
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._pid: int | None = None
        self._thread: threading.Thread | None = None

    @contextmanager
    def hold(self, job: ClaimedJob, asked_at_seconds: float) -> Iterator[HeldLease]:
        """
        Renew the lease until the block ends.

        Crash safety: only prolongs; without it the lease expires and the job is rescued.
        """
        lease = HeldLease(job, TrustWindow(asked_at_seconds, self._ttl_seconds), self._clock)
        with self._lock:
            self._held[job.token] = lease
            self._start()
        try:
            yield lease
        finally:
            with self._lock:
                self._held.pop(job.token, None)

    def _start(self) -> None:
        alive = self._thread is not None and self._thread.is_alive()
        if self._pid == os.getpid() and alive:
            return
        # After a fork the thread is not there; one that died of a bug must not cost every later
        # lease of this process.
        self._pid = os.getpid()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lease-heartbeat", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        interval = renewal_interval_seconds(self._ttl_seconds)
        while not self._wake.wait(interval):
            with self._lock:
                held = list(self._held.values())
            for lease in held:
                self._renew(lease)

    def _renew(self, lease: HeldLease) -> None:
        if lease.age_seconds() > self._attempt_deadline_seconds:
            lease.lost()
            return
        asked_at = self._clock.steady_seconds()
        try:
            ours = self._store.renew(lease.job, ttl_seconds=self._ttl_seconds)
        except StoreUnavailable:
            # The window closes by itself if this goes on; the next beat tries again.
            return
        if ours:
            lease.renewed(TrustWindow(asked_at, self._ttl_seconds))
        else:
            lease.lost()
