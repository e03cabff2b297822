"""
What a stop does to a job that is still running at its deadline: it is handed back.

Owns the keeper that notices the interruption. No attempt and no crash is counted. A charge whose
call has left stays declared, so that whoever runs the job next looks at the gateway before it
sends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from billing_jobs import logs
from billing_jobs.domain.errors import LeaseLost, StoreUnavailable
from billing_jobs.domain.job import ClaimedJob, JobState, Recording, Verb
from billing_jobs.lifecycle import Keeper
from billing_jobs.logs import Event
from billing_jobs.ports import JobStore, Lease

log = logs.get_logger("hand_back")

#: Why, in the audit trail.
REASON = "the worker stopped before the job ended"


class HandBack:
    """`Keeper` that hands its job back when a stop interrupts the run."""

    def __init__(self, keeper: Keeper, store: JobStore, stopping: Callable[[], bool]) -> None:
        """Wrap the keeper that renews."""
        self._keeper = keeper
        self._store = store
        self._stopping = stopping

    @contextmanager
    def hold(self, job: ClaimedJob, asked_at_seconds: float) -> Iterator[Lease]:
        """
        Renew the lease until the block ends, and give it up when the block is interrupted.

        Crash safety: one guarded transaction; without it the lease expires and the job is rescued.
        """
        try:
            with self._keeper.hold(job, asked_at_seconds) as lease:
                yield lease
        except SystemExit:
            # An executor that ends its process by itself is no stop: that is a crash, and counted.
            if self._stopping():
                self._hand_back(job)
            raise

    def _hand_back(self, job: ClaimedJob) -> None:
        recording = Recording(
            Verb.DEFER,
            JobState.PENDING,
            outcome="handed_back",
            spend=False,
            outages=job.outage_count,
            delay_seconds=0.0,
            reason=REASON,
        )
        try:
            self._store.record(job, recording)
        except (LeaseLost, StoreUnavailable) as error:
            log.warning(Event.JOB_HANDED_BACK, job_id=job.id, count=0, reason=error.message)
        else:
            log.info(Event.JOB_HANDED_BACK, job_id=job.id, count=1, reason=REASON)
