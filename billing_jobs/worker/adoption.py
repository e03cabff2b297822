"""
Adoption: a plain Celery message with the name of one of our tasks becomes a job.

For services that know the broker and not the database. Owns the way from the message to the row;
nothing is executed here, there is one way to run a job, the drain. Until the row is committed the
message is all there is, so it is acknowledged late and put back while Postgres is away.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from celery import Task
from celery.exceptions import Ignore, Reject

from billing_jobs import lifecycle, logs
from billing_jobs.domain.errors import EnqueueError, InputError, OptionRefused
from billing_jobs.domain.job import Recorded
from billing_jobs.lifecycle import Options
from billing_jobs.logs import Event
from billing_jobs.worker.app import runtime
from billing_jobs.worker.options import REFUSED_OPTIONS, arguments_by_name, aware, job_id_of

log = logs.get_logger("adoption")

#: A worker that cannot reach Postgres puts an unadopted message back this much later, in seconds.
POSTGRES_PAUSE_SECONDS = 1.0

#: Where a message's time is kept while Celery is not to see it.
RUN_AT_HEADER = "billing_jobs_run_at"

#: What a message calls the options that are refused.
REFUSED_FIELDS = (*REFUSED_OPTIONS, "callbacks", "errbacks")

Handler = Callable[..., object]


def at_once(task: Task[Any, Any], app: object, consumer: object) -> Handler:
    """
    Receive messages of our tasks the moment they arrive, whatever their eta.

    Celery would keep one with an eta in the worker's memory until its time: a worker that holds one
    dies with the broker, and long ones are run by every worker at once. The row can wait better.
    """
    from celery.worker import strategy  # noqa: PLC0415 - services that only call need no worker

    receive: Handler = strategy.default(task, app, consumer)

    def received(message: Any, *args: object, **kwargs: object) -> object:  # noqa: ANN401 - kombu's
        eta = message.headers.get("eta")
        if eta is not None:
            message.headers = {**message.headers, "eta": None, RUN_AT_HEADER: eta}
        return receive(message, *args, **kwargs)

    return received


def adopt(
    task: Task[Any, Any], kind: str, args: Sequence[object], kwargs: Mapping[str, object]
) -> NoReturn:
    """
    Make a plain message into a job, ring, and tell Celery that there is nothing to report.

    Crash safety: the row's id is made of the message's, so a message delivered twice is one job;
    until the row is committed the message is not acknowledged.
    """
    request = task.request
    if request.called_directly or request.is_eager:
        raise OptionRefused(
            f"{task.name} cannot be called like a function: call {task.name}.delay(...), which "
            "records a job."
        )
    try:
        recorded = _record(request, kind, args, kwargs)
    except EnqueueError as error:
        log.warning(Event.DB_LOST, task_id=str(request.id), error=error)
        threading.Event().wait(POSTGRES_PAUSE_SECONDS)
        raise Reject(error.message, requeue=True) from error
    except InputError as error:
        log.warning(Event.JOB_FAILED, kind=kind, task_id=str(request.id), reason=error.message)
        raise Reject(error.message, requeue=False) from error
    log.info(Event.JOB_ADOPTED, job_id=recorded.id, kind=kind, task_id=str(request.id))
    raise Ignore


def _record(
    request: Any,  # noqa: ANN401 - Celery's context
    kind: str,
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> Recorded:
    for name in REFUSED_FIELDS:
        if request.get(name):
            raise OptionRefused(
                f"The message carries {name}, on which Celery would act before the job has run."
            )
    engine = runtime().engine
    # Kinds with a business key of their own are known by that, others by the message.
    keyed = engine.registry.get(kind).key is not None
    options = Options(
        id=job_id_of(str(request.id)),
        key=None if keyed else f"message:{request.id}",
        run_at=aware(request.get(RUN_AT_HEADER) or request.eta),
        expires_at=aware(request.expires),
        actor="message",
    )
    return lifecycle.enqueue(engine, kind, arguments_by_name(kind, args, kwargs), options)
