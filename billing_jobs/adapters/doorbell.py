"""
Rings through the broker: one small message that says "look into this queue".

Owns a connection of its own with hard time-outs, for a worker's broker options would let a caller
of `delay()` hang. Owns no truth: a ring may be lost, late or doubled.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from celery import Celery
from celery.exceptions import OperationalError as CeleryOperationalError
from kombu import Connection, Producer
from kombu.exceptions import ChannelError, OperationalError

#: The task that drains a queue.
DRAIN_TASK = "billing.drain"

#: What a broken broker may raise; everything else is a bug and shows.
BROKER_ERRORS = (OperationalError, CeleryOperationalError, ChannelError, OSError)


class BrokerDoorbell:
    """
    `Doorbell` over Redis or Valkey.

    Each thread of each process has its own connection, made at its first ring. After a ring that
    failed, or whose steps took longer than the time-out together, the process rings no more for
    `pause_seconds`: the dispatcher rings anyway, and a frozen or slow broker costs the time-out
    once and not on each call.
    """

    def __init__(
        self,
        url: str,
        *,
        backlog: int,
        timeout_seconds: float,
        pause_seconds: float,
        steady_seconds: Callable[[], float],
    ) -> None:
        """Keep the address; nothing is opened."""
        self._url = url
        self._backlog = backlog
        self._timeout_seconds = timeout_seconds
        self._pause_seconds = pause_seconds
        self._steady_seconds = steady_seconds
        self._silent_until_seconds = float("-inf")
        self._local = threading.local()
        # The message format is Celery's; this application has no tasks and is nobody's current one.
        self._celery = Celery("billing_jobs.doorbell", set_as_current=False)

    def ring(self, queue: str) -> bool:
        """
        Ring unless enough rings wait already; False when the broker cannot be reached.

        Crash safety: writes nothing that matters; lost or sent twice, a worker looks into the queue
        and claims what is due, or nothing.
        """
        if self._steady_seconds() < self._silent_until_seconds:
            return False
        try:
            producer = self._producer()
            # Connecting is not counted: it happens once, and imports what it needs.
            connected_seconds = self._steady_seconds()
            if self._waiting(producer, queue) < self._backlog:
                self._publish(producer, queue)
        except BROKER_ERRORS + self._channel_errors():
            self._pause()
            self._hang_up()
            return False
        if self._steady_seconds() - connected_seconds > self._timeout_seconds:
            self._pause()
        return True

    def _pause(self) -> None:
        self._silent_until_seconds = self._steady_seconds() + self._pause_seconds

    def _waiting(self, producer: Producer, queue: str) -> int:
        try:
            channel: Any = producer.channel
            return int(channel.queue_declare(queue, passive=True).message_count)
        except ChannelError:
            # An empty list does not exist in Redis.
            return 0

    def _publish(self, producer: Producer, queue: str) -> None:
        message = self._celery.amqp.as_task_v2(
            str(uuid4()), DRAIN_TASK, kwargs={"queue": queue}, ignore_result=True
        )
        producer.publish(
            message.body,
            exchange="",
            routing_key=queue,
            serializer="json",
            headers=message.headers,
            retry=False,
            **message.properties,
        )

    def _producer(self) -> Producer:
        if getattr(self._local, "pid", None) != os.getpid():
            connection = Connection(
                self._url,
                connect_timeout=self._timeout_seconds,
                transport_options={
                    "socket_timeout": self._timeout_seconds,
                    "socket_connect_timeout": self._timeout_seconds,
                    "max_retries": 0,
                    "interval_start": 0,
                    "interval_step": 0,
                    "interval_max": 0,
                    "client_name": f"billing_jobs-ring-{os.getpid()}",
                },
            )
            self._local.connection = connection
            self._local.producer = Producer(connection.default_channel, auto_declare=False)
            self._local.pid = os.getpid()
        producer = self._local.producer
        assert isinstance(producer, Producer)
        return producer

    def _channel_errors(self) -> tuple[type[BaseException], ...]:
        connection: Connection = self._local.connection
        return tuple(connection.connection_errors) + tuple(connection.channel_errors)

    def _hang_up(self) -> None:
        self._local.pid = None
        self._local.connection.collect(socket_timeout=self._timeout_seconds)
