"""
What a caller of `apply_async` may say, in the words of a job.

Owns the reading of Celery's options and positional arguments. An option that would be lost is
refused by name, for a caller who is not told believes in it.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NoReturn
from uuid import NAMESPACE_URL, UUID, uuid5

from billing_jobs.domain.errors import ArgumentsInvalid, OptionRefused
from billing_jobs.lifecycle import Options
from billing_jobs.registry import TASK_PREFIX
from billing_jobs.worker.app import runtime

#: Ids of plain messages that are no UUIDs are made into one under this name.
MESSAGES = uuid5(NAMESPACE_URL, "billing-jobs:messages")

#: Options that become columns of the job.
KEPT_OPTIONS = frozenset(
    {"countdown", "eta", "expires", "key", "priority", "queue", "task_id", "tenant"}
)

#: Celery would fire these too early: before the job has run.
REFUSED_OPTIONS = ("link", "link_error", "chain", "chord", "group_id")

#: What says how a message travels, and no message does; and what Celery adds by itself.
MESSAGE_OPTIONS = frozenset(
    {
        "add_to_parent",
        "argsrepr",
        "compression",
        "connection",
        "group_index",
        "headers",
        "ignore_result",
        "kwargsrepr",
        "parent_id",
        "producer",
        "publisher",
        "replaced_task_nesting",
        "reply_to",
        "retry",
        "retry_policy",
        "root_id",
        "router",
        "serializer",
        "shadow",
        "stamped_headers",
        *REFUSED_OPTIONS,
    }
)


def read_options(given: Mapping[str, object]) -> Options:
    """Turn the options of `apply_async` into those of a job, or raise `OptionRefused`."""
    for name in REFUSED_OPTIONS:
        if given.get(name):
            raise OptionRefused(
                f"{name} is refused: Celery would act on it before the job has run. "
                "Let the executor enqueue follow-up work with Completed(result, then=[...])."
            )
    for name in given.keys() - KEPT_OPTIONS - MESSAGE_OPTIONS:
        _refuse_unknown(name)
    if given.get("eta") is not None and given.get("countdown") is not None:
        raise OptionRefused("eta and countdown both say when the job may run. Give one of them.")
    task_id, priority = given.get("task_id"), given.get("priority")
    return Options(
        id=None if task_id is None else job_id_of(str(task_id)),
        key=_text(given.get("key")),
        run_at=_moment("eta", given.get("eta")),
        delay_seconds=_number("countdown", given.get("countdown")) or 0.0,
        expires_at=_expiry(given.get("expires")),
        priority=None if priority is None else _whole("priority", priority),
        queue=_text(given.get("queue")),
        tenant=_text(given.get("tenant")),
    )


def arguments_by_name(
    kind: str, args: Sequence[object], kwargs: Mapping[str, object]
) -> dict[str, object]:
    """Give positional arguments their names, in the order of the kind's model."""
    names = list(runtime().engine.registry.get(kind).arguments.model_fields)
    if len(args) > len(names):
        raise ArgumentsInvalid(
            f"{TASK_PREFIX}{kind} takes {len(names)} arguments ({', '.join(names)}), "
            f"not {len(args)}."
        )
    arguments = dict(zip(names, args, strict=False))
    twice = arguments.keys() & kwargs.keys()
    if twice:
        raise ArgumentsInvalid(f"{TASK_PREFIX}{kind} got {', '.join(sorted(twice))} twice.")
    return {**arguments, **kwargs}


def job_id_of(task_id: str) -> UUID:
    """
    Return the id of the job behind a Celery task id; ids that are no UUIDs are made into one.

    >>> job_id_of("0195f3a0-0000-7000-8000-000000000000").version
    7
    >>> job_id_of("nightly") == job_id_of("nightly")
    True
    """
    try:
        return UUID(task_id)
    except ValueError:
        return uuid5(MESSAGES, task_id)


def aware(text: object) -> datetime | None:
    """Read the time of a plain message; Celery means UTC where it names no zone."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        raise OptionRefused(f"The time {str(text)[:40]!r} is not in ISO 8601.") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _refuse_unknown(name: str) -> NoReturn:
    near = difflib.get_close_matches(name, KEPT_OPTIONS, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(sorted(KEPT_OPTIONS))}."
    raise OptionRefused(f"A job has no option {name!r}. {hint}")


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _number(name: str, value: object) -> float | None:
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    raise OptionRefused(f"{name} is {value!r}, which is no number of seconds.")


def _whole(name: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise OptionRefused(f"{name} is {value!r}, which is no whole number.")


def _moment(name: str, value: object) -> datetime | None:
    if value is None or isinstance(value, datetime):
        return value
    try:
        return datetime.fromisoformat(str(value))
    except ValueError:
        raise OptionRefused(
            f"{name} is {value!r}, which is no moment. Pass an aware datetime, for example in UTC."
        ) from None


def _expiry(value: object) -> datetime | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return runtime().engine.clock.now() + timedelta(seconds=value)
    return _moment("expires", value)
