"""
How a worker starts its children and how it stops.

Owns the drain flag, a byte of memory that is shared by the main process and its children: set at
the first sign of a stop, read between two jobs, so that a child claims nothing more. A job that
runs is finished; Celery's warm shutdown waits for it.
"""

from __future__ import annotations

import mmap
import signal
from dataclasses import replace
from typing import Any

from celery.signals import (
    celeryd_init,
    setup_logging,
    worker_init,
    worker_process_init,
    worker_shutting_down,
)

from billing_jobs import logs
from billing_jobs.config import load_settings
from billing_jobs.logs import Event
from billing_jobs.worker import app as application
from billing_jobs.worker.events import CeleryJobEvents

log = logs.get_logger("worker")

#: Shared by fork with every child.
_flag = mmap.mmap(-1, 1)

#: Pools that ignore time limits: a job that hangs could not be ended.
REFUSED_POOLS = ("threads", "gevent", "eventlet")


class _Node:
    """What the main process knows and its children inherit."""

    hostname = "celery"
    sends_events = False


_node = _Node()


def stopping() -> bool:
    """Whether this worker was told to stop."""
    return _flag[0] != 0


def node_name() -> str:
    """Return the name under which this worker is known to Celery."""
    return _node.hostname


@celeryd_init.connect
def _keep_name(sender: str | None = None, **_: Any) -> None:  # noqa: ANN401 - Celery's signature
    _node.hostname = str(sender)


@worker_init.connect
def _check_pool(sender: Any = None, **_: Any) -> None:  # noqa: ANN401 - Celery's signature
    _node.sends_events = bool(sender.task_events)
    module = str(sender.pool_cls.__module__)
    for name in REFUSED_POOLS:
        if name.removesuffix("s") in module.rpartition(".")[2]:
            raise SystemExit(
                f"The pool '{name}' is refused: it ignores time limits, so a job that hangs could "
                "never be ended. Use the default (prefork), or solo for debugging."
            )
    # Celery would wait its full length once more; the deadline of a stop is ours.
    sender.app.conf.worker_soft_shutdown_timeout = 0


@worker_process_init.connect
def _prepare_child(**_: Any) -> None:  # noqa: ANN401 - Celery's signature
    # A signal to the whole group must not cut jobs that the main process is waiting for.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if _node.sends_events:
        prepared = application.runtime()
        events = CeleryJobEvents(application.app, prepared.engine.clock, hostname=_node.hostname)
        application.use(replace(prepared, engine=replace(prepared.engine, events=events)))


@worker_shutting_down.connect
def _drain(**_: Any) -> None:  # noqa: ANN401 - Celery's signature
    _flag[0] = 1
    log.info(Event.WORKER_DRAINING)


@setup_logging.connect
def _configure_logging(**_: Any) -> None:  # noqa: ANN401 - Celery's signature
    settings = load_settings()
    logs.configure_logging(
        role="worker",
        env=settings.env,
        level=settings.log_level,
        log_format=settings.log_format,
    )
