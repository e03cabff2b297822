"""
A Celery result backend that reads the job's row, so that `AsyncResult.get()` and `.state` work.

Owns the mapping of our states onto Celery's. Writes nothing: Celery calls a backend in the main
process and in children, also when a worker is lost or stopped, and none of that may touch a state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery import states
from celery.backends.base import BaseBackend

from billing_jobs.domain.errors import BillingJobsError
from billing_jobs.domain.job import JobState, JobView
from billing_jobs.worker.app import runtime
from billing_jobs.worker.options import job_id_of

#: Our states in Celery's words.
CELERY_STATES: Mapping[JobState, str] = {
    JobState.PENDING: states.PENDING,
    JobState.RUNNING: states.STARTED,
    JobState.COMPLETED: states.SUCCESS,
    JobState.FAILED: states.FAILURE,
    JobState.DEAD_LETTER: states.FAILURE,
    JobState.CANCELLED: states.REVOKED,
}


class JobNotSuccessful(BillingJobsError):
    """What `AsyncResult.get()` raises for a job that failed, is a dead letter or was cancelled."""

    code = "job-not-successful"


class JobsBackend(BaseBackend):
    """The result backend over the jobs table."""

    def store_result(self, *_args: object, **_kwargs: object) -> None:
        """Write nothing; the row has been written by the one who ran the job."""

    def _get_task_meta_for(self, task_id: str) -> dict[str, Any]:
        view = runtime().engine.store.get(job_id_of(task_id))
        if view is None:
            return {"status": states.PENDING, "result": None, "task_id": task_id}
        return meta(view)

    def ensure_chords_allowed(self) -> None:
        """Refuse chords: their counters would live outside Postgres."""
        raise NotImplementedError(
            "Chords are refused; enqueue follow-up work with Completed(result, then=[...])."
        )


def meta(view: JobView) -> dict[str, Any]:
    """Return what Celery wants to know of a job."""
    status = CELERY_STATES[view.state]
    if view.state is JobState.PENDING and view.attempt > 0:
        status = states.RETRY
    result: object = view.result
    if status in states.EXCEPTION_STATES or view.state is JobState.CANCELLED:
        result = JobNotSuccessful(
            f"Job {view.id} ({view.kind}) is {view.state}: {view.error or 'no error was recorded'}"
        )
    return {
        "status": status,
        "result": result,
        "traceback": None,
        "children": [],
        "task_id": str(view.id),
        "date_done": None if view.finished_at is None else view.finished_at.isoformat(),
    }
