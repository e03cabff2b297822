"""
The Celery settings that the package needs, each with its reason.

Computed when Celery first asks for its configuration, never at the import of `billing_jobs`. A
deployment changes values in a module of its own (`celeryconfig.py`) and names it in
BILLING_JOBS_CELERY_CONFIG; a `celeryconfig.py` that merely lies on the path of another service is
not looked at.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType

from celery.utils.imports import import_from_cwd
from kombu import Queue

from billing_jobs import bootstrap
from billing_jobs.config import load_settings
from billing_jobs.domain.errors import SettingsInvalid
from billing_jobs.registry import QUEUES

_settings = load_settings()

broker_url = bootstrap.broker_url(_settings)
# The same in every process on this broker, for the shortest visibility time-out wins.
broker_transport_options = {
    # Only a plain message that no worker has adopted yet comes back this way, so soon is better.
    "visibility_timeout": 120,
    "unacked_restore_interval": 10,
    "unacked_restore_throttle": 1,
    # Without it a publish to a silent peer waits for ever.
    "socket_timeout": 5,
    "socket_connect_timeout": 2,
    "socket_keepalive": True,
    "health_check_interval": 15,
    "client_name": f"billing_jobs-{os.getpid()}",
}
# Start order does not matter, and a worker never gives up on the broker.
broker_connection_retry_on_startup = True
broker_connection_max_retries = None

# The claim in Postgres decides who runs a job. A ring is acknowledged on receipt and may be lost.
task_acks_late = False
task_reject_on_worker_lost = False
task_retry_on_worker_lost = False
worker_cancel_long_running_tasks_on_connection_loss = False

# A busy worker takes no ring that it cannot start.
worker_prefetch_multiplier = 1
worker_disable_prefetch = True
# A guard against other programs that publish ETAs to our queues; we never do.
worker_eta_task_limit = 100
worker_max_tasks_per_child = 1000
worker_concurrency = _settings.worker_concurrency

# Direct queues are published through the default exchange, so they survive a flush of the broker.
task_queues = tuple(Queue(name, routing_key=name) for name in QUEUES)
task_default_queue = "default"
# A typing error is an error at the caller, not a list that nobody reads.
task_create_missing_queues = False

# Nothing but JSON, anywhere.
accept_content = ["json"]
task_serializer = "json"
result_serializer = "json"
event_serializer = "json"

# Results are the jobs' rows: the backend reads them and never writes.
task_ignore_result = True
result_backend = "billing_jobs.worker.results:JobsBackend"

enable_utc = True
timezone = "UTC"

beat_scheduler = "billing_jobs.worker.beat:Scheduler"
beat_max_loop_interval = 1
# `celery inspect ping` reaches beat and falls silent when it stops ticking.
beat_enable_remote_control = True
worker_enable_remote_control = True

# The deadline of a stop; see shutdown.py for why Celery must not use it itself.
worker_soft_shutdown_timeout = _settings.stop_deadline_seconds
worker_enable_soft_shutdown_on_idle = False

# Our own logging.
worker_hijack_root_logger = False
worker_redirect_stdouts = False


def selected() -> ModuleType:
    """
    Return the module of settings that this process uses: the deployment's, or this one.

    The deployment's may lie in the working directory, which the `celery` command does not search.
    """
    name = _settings.celery_config
    if name is None:
        return sys.modules[__name__]
    try:
        module: ModuleType = import_from_cwd(name)
    except ModuleNotFoundError as missing:
        if missing.name is None or not f"{name}.".startswith(f"{missing.name}."):
            raise
        raise SettingsInvalid(
            "The deployment's Celery settings cannot be found; nothing was started.",
            [f"celery_config = {name}: no such module in the working directory or on PYTHONPATH"],
        ) from missing
    return module
