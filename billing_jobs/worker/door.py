"""
The door: what `charge.delay(...)` does.

Owns the task base class. A call records the job first and rings then; a plain broker message with
the task's name is adopted, that is: made into a row. Neither runs an executor: there is one way to
run a job, the drain.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, NoReturn, ParamSpec, Protocol, cast
from uuid import NAMESPACE_URL, UUID, uuid5

from celery import Task
from celery.exceptions import Ignore, Reject, Retry
from celery.result import AsyncResult

from billing_jobs import lifecycle, logs
from billing_jobs.domain.errors import ArgumentsInvalid, EnqueueError, InputError, OptionRefused
from billing_jobs.domain.job import Recorded
from billing_jobs.lifecycle import Options
from billing_jobs.logs import Event
from billing_jobs.registry import TASK_PREFIX
from billing_jobs.worker.app import app, runtime

log = logs.get_logger("door")

P = ParamSpec("P")

#: Ids of plain messages that are no UUIDs are made into one under this name.
MESSAGES = uuid5(NAMESPACE_URL, "billing-jobs:messages")

#: Celery would fire these too early: before the job has run.
REFUSED_OPTIONS = ("link", "link_error", "chain", "chord", "group_id", "exchange", "routing_key")

#: A worker that cannot reach Postgres puts an unadopted message back this much later, in seconds.
POSTGRES_PAUSE_SECONDS = 1.0


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


class JobTask(Task[Any, Any]):
    """The base class of the tasks of our kinds."""

    abstract = True

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
        engine = runtime().engine
        arguments = _by_name(self, args or (), kwargs or {})
        recorded = lifecycle.enqueue(engine, self.kind, arguments, _options(options))
        return self._handle(recorded)

    def retry(self, *_args: object, exc: Exception | None = None, **_options: object) -> NoReturn:
        """Raise Celery's `Retry` and publish nothing: retries are rows with a `run_at`."""
        raise Retry("the job's row says when it runs again", exc)

    def _handle(self, recorded: Recorded) -> AsyncResult[Any]:
        handle: AsyncResult[Any] = self.AsyncResult(str(recorded.id), task_name=self.name)
        # Celery would answer None at once for a task whose results it ignores.
        handle.ignored = False
        return handle


def door(name: str) -> Callable[[Callable[P, None]], Delayable[P]]:
    """
    Make the decorated signature the Celery task of a kind.

    Late acknowledgement, for a plain message has only the broker until it is a row.
    """

    def decorate(signature: Callable[P, None]) -> Delayable[P]:
        def body(self: JobTask, /, *args: object, **kwargs: object) -> None:
            adopt(self, args, kwargs)

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


def adopt(task: JobTask, args: Sequence[object], kwargs: Mapping[str, object]) -> NoReturn:
    """
    Make a plain message into a job, ring, and tell Celery that there is nothing to report.

    Crash safety: the row's id is made of the message's, so a message delivered twice is one job;
    until the row is committed the message is not acknowledged.
    """
    request = task.request
    if request.called_directly:
        raise OptionRefused(
            f"{task.name} cannot be called like a function: call {task.name}.delay(...), which "
            "records a job."
        )
    key = f"message:{request.id}"
    options = Options(id=_message_id(str(request.id)), run_at=_moment(request.eta), actor="message")
    try:
        engine = runtime().engine
        arguments = _by_name(task, args, kwargs)
        kind = engine.registry.get(task.kind)
        named = options if kind.key is not None else _with_key(options, key)
        recorded = lifecycle.enqueue(engine, task.kind, arguments, named)
    except EnqueueError as error:
        log.warning(Event.DB_LOST, error=error)
        threading.Event().wait(POSTGRES_PAUSE_SECONDS)
        raise Reject(error.message, requeue=True) from error
    except InputError as error:
        log.warning(Event.JOB_FAILED, kind=task.kind, task_id=str(request.id), reason=error.message)
        raise Reject(error.message, requeue=False) from error
    log.info(Event.JOB_ADOPTED, job_id=recorded.id, kind=task.kind)
    raise Ignore


def _with_key(options: Options, key: str) -> Options:
    return Options(id=options.id, key=key, run_at=options.run_at, actor=options.actor)


def _by_name(
    task: JobTask, args: Sequence[object], kwargs: Mapping[str, object]
) -> dict[str, object]:
    """Give positional arguments their names, in the order of the kind's model."""
    names = list(runtime().engine.registry.get(task.kind).arguments.model_fields)
    if len(args) > len(names):
        raise ArgumentsInvalid(
            f"{task.name} takes {len(names)} arguments ({', '.join(names)}), not {len(args)}."
        )
    arguments = dict(zip(names, args, strict=False))
    twice = arguments.keys() & kwargs.keys()
    if twice:
        raise ArgumentsInvalid(f"{task.name} got {', '.join(sorted(twice))} twice.")
    return {**arguments, **kwargs}


def _options(given: Mapping[str, object]) -> Options:
    for name in REFUSED_OPTIONS:
        if given.get(name):
            raise OptionRefused(
                f"{name} is refused: Celery would act on it before the job has run. "
                "Let the executor enqueue follow-up work with Completed(result, then=[...])."
            )
    countdown, expires = given.get("countdown"), given.get("expires")
    task_id = given.get("task_id")
    return Options(
        id=None if task_id is None else _message_id(str(task_id)),
        key=_text(given.get("key")),
        run_at=_moment(given.get("eta")),
        delay_seconds=0.0 if countdown is None else float(str(countdown)),
        expires_at=_from_now(expires),
        priority=None if given.get("priority") is None else int(str(given["priority"])),
        queue=_text(given.get("queue")),
        tenant=_text(given.get("tenant")),
    )


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _moment(value: object) -> datetime | None:
    if isinstance(value, str):
        return datetime.fromisoformat(value)
    assert value is None or isinstance(value, datetime), "eta is a datetime or an ISO text"
    return value


def _from_now(expires: object) -> datetime | None:
    if isinstance(expires, int | float):
        return runtime().engine.clock.now().astimezone(UTC) + timedelta(seconds=expires)
    return _moment(expires)


def _message_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        return uuid5(MESSAGES, text)
