"""
The Celery application, and this process's runtime behind it.

Owns the lazy making of both: nothing is read or connected at import, and a runtime is never carried
over a fork.
"""

from __future__ import annotations

import os
from types import ModuleType

from celery import Celery

from billing_jobs import bootstrap
from billing_jobs.bootstrap import Runtime
from billing_jobs.config import load_settings


class _Settings:
    """Stands for the module of Celery settings until Celery asks for the first value."""

    _module: ModuleType | None = None

    def __getattr__(self, name: str) -> object:
        return getattr(self._load(), name)

    def __dir__(self) -> list[str]:
        return dir(self._load())

    def _load(self) -> ModuleType:
        if self._module is None:
            from billing_jobs.worker import settings  # noqa: PLC0415 - reads the environment

            self._module = settings.selected()
        return self._module


app = Celery("billing_jobs", include=["billing_jobs.tasks", "billing_jobs.worker.shutdown"])
app.config_from_object(_Settings())


class _Process:
    """The runtime of one process, beside the process it belongs to."""

    held: tuple[int, Runtime] | None = None


_process = _Process()


def runtime() -> Runtime:
    """
    Return this process's runtime, made at the first call after each fork.

    Raises `SettingsInvalid` with everything that is wrong.
    """
    held = _process.held
    # No lock, for a lock may be held by another thread at the moment of a fork. Two threads that
    # are first at once make two, of which one is forgotten; neither has opened anything yet.
    if held is None or held[0] != os.getpid():
        held = _process.held = (os.getpid(), bootstrap.build(load_settings()))
    return held[1]


def use(prepared: Runtime) -> None:
    """Use a runtime that was put together elsewhere, until the process forks."""
    _process.held = (os.getpid(), prepared)
