"""
Shows every job in Flower: Celery's own task events under the job's task name, with ids only.

Owns a connection of its own with short time-outs, in the child that runs the job. Lossy by nature,
and silent when nobody watches (no -E): the truth is in Postgres.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery import Celery
from celery.events import EventDispatcher
from kombu import Connection
from kombu.exceptions import OperationalError

from billing_jobs.domain.job import ClaimedJob
from billing_jobs.ports import Clock
from billing_jobs.registry import TASK_PREFIX

#: A broker that does not take an event within this time loses it.
TIMEOUT_SECONDS = 0.2

#: After a lost event nothing is sent for this long.
SILENCE_SECONDS = 5.0

BROKER_ERRORS = (OperationalError, OSError)


class CeleryJobEvents:
    """`JobEvents` over Celery's event exchange."""

    def __init__(self, app: Celery, clock: Clock, *, hostname: str) -> None:
        """Keep the names; nothing is opened."""
        self._app = app
        self._clock = clock
        self._hostname = hostname
        self._dispatcher: EventDispatcher | None = None
        self._connection: Connection | None = None
        self._silent_until_seconds = float("-inf")

    def send(self, event: str, job: ClaimedJob, fields: Mapping[str, object]) -> None:
        """Tell watchers about one step; an event that cannot be sent is lost."""
        if self._clock.steady_seconds() < self._silent_until_seconds:
            return
        try:
            dispatcher = self._open()
            for name, values in _events(event, job, fields):
                dispatcher.send(f"task-{name}", uuid=str(job.id), **values)
        except BROKER_ERRORS + self._transport_errors():
            self._silent_until_seconds = self._clock.steady_seconds() + SILENCE_SECONDS
            self._close()

    def _open(self) -> EventDispatcher:
        if self._dispatcher is None:
            self._connection = self._app.connection_for_write(
                connect_timeout=TIMEOUT_SECONDS,
                transport_options={
                    "socket_timeout": TIMEOUT_SECONDS,
                    "socket_connect_timeout": TIMEOUT_SECONDS,
                    "max_retries": 0,
                },
            )
            self._dispatcher = EventDispatcher(
                self._connection,
                hostname=self._hostname,
                app=self._app,
                buffer_while_offline=False,
            )
        return self._dispatcher

    def _transport_errors(self) -> tuple[type[BaseException], ...]:
        if self._connection is None:
            return ()
        return tuple(self._connection.connection_errors) + tuple(self._connection.channel_errors)

    def _close(self) -> None:
        connection, self._connection, self._dispatcher = self._connection, None, None
        if connection is not None:
            connection.collect(socket_timeout=TIMEOUT_SECONDS)


def _events(
    event: str, job: ClaimedJob, fields: Mapping[str, object]
) -> list[tuple[str, dict[str, Any]]]:
    if event == "started":
        received: dict[str, Any] = {
            "name": TASK_PREFIX + job.kind,
            "args": "[]",
            "kwargs": repr(dict(job.arguments)),
            "retries": job.attempt - 1,
            "eta": None,
            "expires": None,
            "root_id": str(job.id),
            "parent_id": None,
        }
        return [("received", received), ("started", {})]
    if event == "succeeded":
        return [("succeeded", {"result": str(fields.get("outcome")), "runtime": None})]
    return [(event, {"exception": str(fields.get("exception")), "traceback": ""})]
