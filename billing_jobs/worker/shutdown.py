"""
How a worker starts its children and how it stops.

Owns the drain flag, a byte of memory that is shared by the main process and its children: set at
the first sign of a stop, read between two jobs, so that a child claims nothing more. A job that
runs is finished; Celery's warm shutdown waits for it. What is not finished at the deadline is
interrupted and handed back (`hand_back.py`).
"""

from __future__ import annotations

import mmap
import os
import signal
from contextlib import suppress
from dataclasses import replace
from typing import Any

import billiard.pool
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
from billing_jobs.worker.hand_back import HandBack

log = logs.get_logger("worker")

#: Shared by fork with every child.
_flag = mmap.mmap(-1, 1)

#: Pools that ignore time limits: a job that hangs could not be ended.
REFUSED_POOLS = ("threads", "gevent", "eventlet")

#: A child that was interrupted at the deadline has this long to hand its job back.
HAND_BACK_SECONDS = 3.0

#: An alarm of zero seconds would be none.
AT_ONCE_SECONDS = 0.001

#: How often a stopping child looks whether its results were read, ten times a second. The main
#: process reads none while it stops, so billiard's 300 rounds are half a minute of nothing.
RESULT_ROUNDS = 20


class _Node:
    """What the main process knows and its children inherit."""

    hostname = "celery"
    role = "celery"
    sends_events = False
    deadline_seconds = 0.0
    #: Celery's controller, in the main process of a worker.
    worker: Any = None


_node = _Node()


def stopping() -> bool:
    """Whether this worker was told to stop."""
    return _flag[0] != 0


def node_name() -> str:
    """Return the name under which this worker is known to Celery."""
    return _node.hostname


def take_role(role: str) -> None:
    """Say what this process is, before its logging is set up."""
    _node.role = role


@celeryd_init.connect
def _keep_name(
    sender: str | None = None,
    options: dict[str, object] | None = None,
    **_: Any,  # noqa: ANN401 - Celery's signature
) -> None:
    if (options or {}).get("beat"):
        raise SystemExit(
            "-B is refused: a beat inside a worker dies and stops with it. "
            "Run `celery -A billing_jobs beat` as a process of its own; any number may run."
        )
    _node.hostname = str(sender)
    take_role("worker")


@worker_init.connect
def _check_pool(sender: Any = None, **_: Any) -> None:  # noqa: ANN401 - Celery's signature
    module = str(sender.pool_cls.__module__)
    for name in REFUSED_POOLS:
        if name.removesuffix("s") in module.rpartition(".")[2]:
            raise SystemExit(
                f"The pool '{name}' is refused: it ignores time limits, so a job that hangs could "
                "never be ended. Use the default (prefork), or solo for debugging."
            )
    _node.worker = sender
    _node.sends_events = bool(sender.task_events)
    _node.deadline_seconds = float(sender.app.conf.worker_soft_shutdown_timeout)
    # Celery would wait its full length once more; the deadline of a stop is ours.
    sender.app.conf.worker_soft_shutdown_timeout = 0


@worker_process_init.connect
def _prepare_child(**_: Any) -> None:  # noqa: ANN401 - Celery's signature
    # A signal to the whole group must not cut jobs that the main process is waiting for.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    billiard.pool.GUARANTEE_MESSAGE_CONSUMPTION_RETRY_LIMIT = RESULT_ROUNDS
    prepared = application.runtime()
    engine = prepared.engine
    if _node.sends_events:
        events = CeleryJobEvents(application.app, engine.clock, hostname=_node.hostname)
        engine = replace(engine, events=events)
    keeper = HandBack(engine.keeper, engine.store, stopping)
    application.use(replace(prepared, engine=replace(engine, keeper=keeper)))


@worker_shutting_down.connect
def _drain(**_: Any) -> None:  # noqa: ANN401 - Celery's signature
    if stopping():
        return
    _flag[0] = 1
    log.info(Event.WORKER_DRAINING, deadline_s=_node.deadline_seconds)
    # An alarm and no thread: this runs in a signal handler, where no lock can be taken.
    signal.signal(signal.SIGALRM, _at_deadline)
    signal.setitimer(signal.ITIMER_REAL, max(_node.deadline_seconds, AT_ONCE_SECONDS))


def _at_deadline(*_: object) -> None:
    """Interrupt what still runs; SIGQUIT, for a child ignores SIGTERM."""
    _signal_children(signal.SIGQUIT)
    signal.signal(signal.SIGALRM, _kill_children)
    signal.setitimer(signal.ITIMER_REAL, HAND_BACK_SECONDS)


def _kill_children(*_: object) -> None:
    _signal_children(signal.SIGKILL)


def _signal_children(number: signal.Signals) -> None:
    for pid in _node.worker.pool.info.get("processes", ()):
        # The pool for debugging has no child and names this process.
        if pid != os.getpid():
            with suppress(ProcessLookupError):
                os.kill(pid, number)


@setup_logging.connect
def _configure_logging(**_: Any) -> None:  # noqa: ANN401 - Celery's signature
    settings = load_settings()
    logs.configure_logging(
        role=_node.role,
        env=settings.env,
        level=settings.log_level,
        log_format=settings.log_format,
    )
