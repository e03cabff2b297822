"""
The door: what `charge.delay(...)` does.

Owns the task base class. A call records the job first and rings then; a plain broker message with
the task's name is adopted (`adoption.py`). Neither runs an executor: there is one way to run a job,
the drain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NoReturn, ParamSpec, Protocol, cast
from uuid import UUID

from celery import Task
from celery.exceptions import Retry
from celery.result import AsyncResult

from billing_jobs import lifecycle
from billing_jobs.domain.errors import OptionRefused
from billing_jobs.registry import TASK_PREFIX
from billing_jobs.worker.adoption import adopt
from billing_jobs.worker.app import app, runtime
from billing_jobs.worker.options import arguments_by_name, read_options

P = ParamSpec("P")


class Delayable(Protocol, Generic[P]):
    """A task as callers see it: `delay` takes exactly the kind's arguments."""

    name: str

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> AsyncResult[Any]:
        """Record a job, ring, and return the handle of its row."""

    def apply_async(
        self,
        args: Sequence[object] | None = None,
        kwargs: Mapping[str, object] | None = None,
        **options: object,
    ) -> AsyncResult[Any]:
        """Record a job with options (eta, countdown, expires, priority, queue, task_id, key)."""


class JobHandle(AsyncResult[Any]):
    """The handle of a job's row."""

    def revoke(self, *_args: object, **_options: object) -> None:
        """
        Call the job off; Celery's own revoke is forgotten by the next worker that starts.

        Raises `OptionRefused` when it is too late: it has ended, or money may be moving.

        Crash safety: one guarded statement, see `lifecycle.cancel`.
        """
        said = lifecycle.cancel(
            runtime().engine, UUID(self.id), actor="caller", reason="revoked by its caller"
        )
        if said == "too_late":
            raise OptionRefused(
                f"Job {self.id} cannot be called off any more: it has ended, or its call to the "
                "outside has left and its outcome will be looked up."
            )


class JobTask(Task[Any, Any]):
    """The base class of the tasks of our kinds."""

    abstract = True

    #: How Celery hands a received message to a worker, by name.
    Strategy = "billing_jobs.worker.adoption:at_once"

    @property
    def kind(self) -> str:
        """The kind of job behind this task."""
        return str(self.name).removeprefix(TASK_PREFIX)

    def apply_async(  # type: ignore[override] # we name only what we keep
        self,
        args: Sequence[object] | None = None,
        kwargs: Mapping[str, object] | None = None,
        **options: object,
    ) -> AsyncResult[Any]:
        """
        Record a job and ring; never sends a message of this task's name.

        Raises `ArgumentsInvalid`, `OptionRefused` and `EnqueueError`; the broker being down, frozen
        or full changes nothing for the caller.

        Crash safety: the row is committed before the ring; see `lifecycle.enqueue`.
        """
        wanted = read_options(options)
        arguments = arguments_by_name(self.kind, args or (), kwargs or {})
        recorded = lifecycle.enqueue(runtime().engine, self.kind, arguments, wanted)
        # Made here and not by Celery, whose handle answers None at once where results are ignored.
        return JobHandle(str(recorded.id), backend=self.backend, task_name=self.name, app=app)

    def retry(self, *_args: object, exc: Exception | None = None, **_options: object) -> NoReturn:
        """Raise Celery's `Retry` and publish nothing: retries are rows with a `run_at`."""
        raise Retry("the job's row says when it runs again", exc)


def door(name: str) -> Callable[[Callable[P, None]], Delayable[P]]:
    """
    Make the decorated signature the Celery task of a kind.

    Late acknowledgement, for a plain message has only the broker until it is a row.
    """

    def decorate(signature: Callable[P, None]) -> Delayable[P]:
        def body(self: JobTask, /, *args: object, **kwargs: object) -> None:
            adopt(self, self.kind, args, kwargs)

        body.__doc__ = signature.__doc__
        task = app.task(
            bind=True,
            base=JobTask,
            name=TASK_PREFIX + name,
            acks_late=True,
            typing=False,
        )(body)
        return cast("Delayable[P]", task)

    return decorate
