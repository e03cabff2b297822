"""
Which kinds of jobs exist: the one door for ours, other modules' and other packages'.

Owns the table kind → executor, arguments, queue and policies. `@job` fills it at import,
`bootstrap.py` closes it; it is the only state at module level of the package.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from pydantic import BaseModel, ConfigDict, ValidationError

from billing_jobs.domain.errors import ArgumentsInvalid, UnknownJobKind, UnknownQueue
from billing_jobs.domain.job import ClaimedJob
from billing_jobs.domain.outcome import Outcome
from billing_jobs.ports import Ledger, Ports, Transaction

#: Every queue there is. An undeclared name is an error at the caller.
QUEUES = ("charges", "invoices", "reminders", "maintenance", "default")

#: The prefix of the Celery task of a kind.
TASK_PREFIX = "billing."


class Arguments(BaseModel):
    """Arguments of a kind: typed, unknown names refused, ids only."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)


class OnExpiredLease(StrEnum):
    """What it means that a worker vanished while it ran a job of this kind."""

    #: Repeatable: run it again.
    RETRY = "retry"
    #: Something may have left the house: run it again, and the executor looks before it acts.
    RECONCILE = "reconcile"
    #: A person must look.
    FAIL = "fail"


Executor = Callable[[ClaimedJob, Ports], Outcome]

#: Makes the business key of a job from its arguments; may read what is due in the caller's
#: transaction.
KeyRule = Callable[[Mapping[str, object], Ledger, Transaction | None], str]


@dataclass(frozen=True, slots=True)
class JobKind:
    """One kind of job. `max_attempts` None means the default of the settings."""

    name: str
    execute: Executor
    arguments: type[BaseModel]
    queue: str = "default"
    max_attempts: int | None = None
    on_expired_lease: OnExpiredLease = OnExpiredLease.RETRY
    key: KeyRule | None = None
    #: False for a kind that somebody else's money depends on: it is not called off by hand.
    cancellable: bool = True
    autoretry_for: tuple[type[Exception], ...] = (Exception,)

    @property
    def task_name(self) -> str:
        """The name of the kind's Celery task."""
        return TASK_PREFIX + self.name

    def validate(self, arguments: Mapping[str, object]) -> dict[str, object]:
        """Return the arguments as they are stored, or raise `ArgumentsInvalid` with every fault."""
        try:
            model = self.arguments.model_validate(dict(arguments))
        except ValidationError as error:
            faults = "; ".join(_fault(fault) for fault in error.errors(include_input=False))
            raise ArgumentsInvalid(
                f"The arguments of {self.name} do not fit: {faults}. "
                f"It takes {_signature(self.arguments)}."
            ) from None
        return model.model_dump(mode="json", exclude_none=True)


class Registry:
    """The kinds, by name."""

    def __init__(self) -> None:
        """Start empty and open."""
        self._kinds: dict[str, JobKind] = {}
        self._closed = False

    def add(self, kind: JobKind) -> None:
        """Register a kind; a name can be taken once, and only before the registry is closed."""
        if self._closed:
            raise UnknownJobKind(
                f"The job kind {kind.name!r} comes too late: the registry is closed. "
                "Register it when its module is imported."
            )
        if kind.name in self._kinds:
            raise UnknownJobKind(
                f"The job kind {kind.name!r} is registered twice. Give one of them another name."
            )
        if kind.queue not in QUEUES:
            raise UnknownQueue(_unknown_queue(kind.queue))
        self._kinds[kind.name] = kind

    def close(self) -> None:
        """Accept no more kinds."""
        self._closed = True

    def get(self, name: str) -> JobKind:
        """Return a kind, or raise `UnknownJobKind` with the nearest name."""
        try:
            return self._kinds[name]
        except KeyError:
            near = difflib.get_close_matches(name, self._kinds, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(self.names())}."
            raise UnknownJobKind(f"There is no job kind {name!r}. {hint}") from None

    def names(self) -> list[str]:
        """Return all names, sorted."""
        return sorted(self._kinds)

    def of_queue(self, queue: str) -> list[str]:
        """Return the kinds that a worker of this queue may claim: all, for a job may be moved."""
        check_queue(queue)
        return self.names()

    def buried_when_expired(self) -> list[str]:
        """Return the kinds whose expired lease goes to a person."""
        return [
            kind.name
            for kind in self._kinds.values()
            if kind.on_expired_lease is OnExpiredLease.FAIL
        ]


#: The table that `@job` fills.
registry = Registry()


def job(  # noqa: PLR0913 - what a kind may say about itself
    name: str,
    *,
    arguments: type[BaseModel],
    queue: str = "default",
    on_expired_lease: OnExpiredLease = OnExpiredLease.RETRY,
    key: KeyRule | None = None,
    max_attempts: int | None = None,
    cancellable: bool = True,
) -> Callable[[Executor], Executor]:
    """Register the decorated executor as a kind of job."""

    def register(execute: Executor) -> Executor:
        registry.add(
            JobKind(
                name=name,
                execute=execute,
                arguments=arguments,
                queue=queue,
                max_attempts=max_attempts,
                on_expired_lease=on_expired_lease,
                key=key,
                cancellable=cancellable,
            )
        )
        return execute

    return register


def check_queue(queue: str) -> str:
    """Return a declared queue's name, or raise `UnknownQueue`."""
    if queue not in QUEUES:
        raise UnknownQueue(_unknown_queue(queue))
    return queue


def argument_id(job: ClaimedJob, name: str) -> UUID:
    """Read an id out of stored arguments."""
    return UUID(str(job.arguments[name]))


def _unknown_queue(queue: str) -> str:
    near = difflib.get_close_matches(queue, QUEUES, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"There is no queue {queue!r}.{hint} Declared are {', '.join(QUEUES)}."


def _fault(fault: object) -> str:
    assert isinstance(fault, dict)
    place = ".".join(str(part) for part in fault["loc"]) or "arguments"
    return f"{place}: {fault['msg']}"


def _signature(model: type[BaseModel]) -> str:
    fields = (
        name if field.is_required() else f"{name} (optional)"
        for name, field in model.model_fields.items()
    )
    return ", ".join(fields) or "no arguments"
