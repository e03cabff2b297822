"""
The log vocabulary: every event name with its fields, and how a line is rendered.

Logs are for machines: one JSON object a line, an event name from one list, fields from one list.
What is in neither list does not come out, so that no payload, name, e-mail address, card number
or password can slip in with a new keyword. Modules write through `get_logger`, which is the
standard library's logging and costs nothing at import; a process of ours renders with structlog
once `configure_logging` ran. In a service that merely calls `delay()`, nothing is configured: our
lines go wherever that service sends its own.

This module decides neither the level nor the format (the settings do), and knows nothing of ours.
"""

from __future__ import annotations

import hashlib
import logging
import re
import socket
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, StrEnum
from importlib import metadata
from itertools import islice
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Final, Self, TextIO
from uuid import UUID

if TYPE_CHECKING:
    from structlog.typing import Processor

SERVICE: Final = "billing-jobs"
_ROOT_NAME: Final = "billing_jobs"

#: Longest text of one field: the first line of a message tells the story, a dump does not.
TEXT_LIMIT: Final = 2000
#: Most items of one list, and most frames of one stack.
ITEM_LIMIT: Final = 20
_MASK: Final = "***"
_TIMESTAMP: Final = "%Y-%m-%dT%H:%M:%S.%fZ"

#: On every line, written by the process and not by the caller.
ALWAYS_FIELDS: Final = frozenset(
    ("ts", "level", "event", "logger", "service", "version", "env", "host", "pid", "role")
)
#: Bound once for a piece of work, see `log_context`.
_CONTEXT: Final = (
    "request_id trace_id span_id job_id kind queue attempt fence worker task_id actor tenant"
)
_OUTCOME: Final = "outcome duration_ms error.type error.code error.fingerprint error.stack"
_CHARGE: Final = "charge_id invoice_id gateway amount_minor currency reason"


class Event(StrEnum):
    """Everything that may happen, as `family.name`; `fields` tell more than the context does."""

    fields: frozenset[str]

    def __new__(cls, name: str, fields: str = "") -> Self:
        """Keep the names of the fields with the name of the event."""
        event = str.__new__(cls, name)
        event._value_ = name
        event.fields = frozenset(fields.split())
        return event

    JOB_ENQUEUED = "job.enqueued", "count run_at priority"  #: written down
    JOB_CLAIMED = "job.claimed", "count lane duration_ms"  #: a worker owns it until its lease ends
    JOB_ATTEMPT_STARTED = "job.attempt_started"  #: an executor was called
    JOB_ATTEMPT_FAILED = "job.attempt_failed", f"{_OUTCOME} reason retry_in_s"  #: no success
    JOB_RESCHEDULED = "job.rescheduled", f"{_OUTCOME} reason run_at"  #: later; attempt spent
    JOB_DEFERRED = "job.deferred", f"{_OUTCOME} reason run_at"  #: it waits; no attempt spent
    JOB_COMPLETED = "job.completed", f"{_OUTCOME} count amount_minor currency"  #: done and recorded
    JOB_FAILED = "job.failed", f"{_OUTCOME} reason"  #: refused for good
    JOB_BURIED = "job.buried", f"{_OUTCOME} reason"  #: dead letter: a person has to look
    JOB_REPLAYED = "job.replayed", "reason"  #: a dead letter is pending again
    JOB_CANCELLED = "job.cancelled", "reason"  #: it will not run any more
    JOB_RESCUED = "job.rescued", "count reason outcome lease_age_s"  #: its lease had run out
    JOB_HANDED_BACK = "job.handed_back", "count reason"  #: by a stopping worker; no attempt spent
    JOB_ADOPTED = "job.adopted"  #: a plain Celery message became a job
    JOB_PRUNED = "job.pruned", "count duration_ms"  #: past its retention, deleted
    DOORBELL_RUNG = "doorbell.rung", "reason"  #: the broker took a ring
    DOORBELL_LOST = "doorbell.lost", f"{_OUTCOME} reason"  #: it did not; the dispatcher will ring
    DOORBELL_SWEPT = "doorbell.swept", "count"  #: the dispatcher rang for jobs left without a ring
    LOCK_ACQUIRED = "lock.acquired", "lock lease_seconds"  #: a named lock is ours
    LOCK_RENEWED = "lock.renewed", "lock lease_seconds"  #: it is ours for another while
    LOCK_LOST = "lock.lost", "lock reason"  #: it, or a job's lease, was not renewed in time
    LOCK_RELEASED = "lock.released", "lock"  #: it was given back
    WRITE_FENCED = "write.fenced", "operation"  #: another worker owns the job; nothing was written
    BEAT_STARTED = "beat.started"  #: a beat turns
    BEAT_FIRED = "beat.fired", "schedule period due_at lateness_ms"  #: a tick became a job
    BEAT_DUPLICATE_SUPPRESSED = "beat.duplicate_suppressed", "schedule period"  #: another beat had
    BEAT_LATE = "beat.late", "schedule period due_at lateness_ms"  #: later than the schedule allows
    BEAT_STEP_FAILED = "beat.step_failed", f"{_OUTCOME} step"  #: one step failed, the others go on
    BEAT_STOPPED = "beat.stopped"  #: a beat ended
    WORKER_STARTED = "worker.started", "concurrency queues"  #: a worker takes rings
    WORKER_DRAINING = (
        "worker.draining",
        "deadline_s running",
    )  #: it was told to stop, no more claims
    WORKER_DRAINED = "worker.drained", "duration_ms count"  #: it ended with nothing in its hands
    WORKER_KILLED = "worker.killed", "reason exit_code"  #: by a limit or by the system
    CHARGE_SENT = "charge.sent", _CHARGE  #: it leaves the house
    CHARGE_CONFIRMED = "charge.confirmed", _CHARGE  #: the gateway took the money
    CHARGE_DECLINED = "charge.declined", _CHARGE  #: the gateway said no
    CHARGE_UNKNOWN = "charge.unknown", f"{_CHARGE} {_OUTCOME}"  #: money may have moved
    CHARGE_RESOLVED = "charge.resolved", f"{_CHARGE} outcome rung"  #: an unknown one is known now
    DB_LOST = "db.lost", _OUTCOME  #: Postgres cannot be reached
    DB_RECONNECTED = "db.reconnected", "duration_ms"  #: Postgres answers again
    BROKER_LOST = "broker.lost", _OUTCOME  #: no rings for now; no work is lost
    BROKER_RESTORED = "broker.restored", "duration_ms"  #: the broker answers again
    ADMIN_ACTION = "admin.action", "action count reason amount_minor currency"  #: by a person
    LOG_MESSAGE = "log.message", f"{_OUTCOME} message"  #: a library's line, scrubbed


#: The only names that pass from a caller.
ALLOWED_FIELDS: Final = frozenset(_CONTEXT.split()).union(*(event.fields for event in Event))

_STRUCTLOG_KEYS: Final = frozenset(
    ("event", "exc_info", "stack_info", "_record", "_from_structlog", *ALWAYS_FIELDS)
)
#: Libraries whose lines of detail carry arguments, statements or whole mails.
_QUIET_LOGGERS: Final = ("sqlalchemy", "urllib3", "stripe", "mail.log", "asyncio")
#: Names of machines look like e-mail addresses (`celery@host.example`).
_MACHINE_FIELD: Final = "worker"

_URL_PASSWORD = re.compile(r"(://[^:@/\s;]*:)(?:(?!;\w+://)\S)*@")
_NAMED_SECRET = re.compile(
    r"((?:password|passwd|pwd|passphrase|secret|token|api_?key|authorization)"
    r"[\"']?\s*[=:]\s*(?:bearer\s+|basic\s+)?[\"']?)[^\s\"'&;,)}]+",
    re.IGNORECASE,
)
_KEY = re.compile(r"\b(?:sk|rk|whsec|Bearer)[_ ](?:live_|test_)?[\w.~+/-]{6,}=*")
_ADDRESS = re.compile(r"[\w.+%'-]+@[\w-]+(?:\.[\w-]+)+")
# No digit, letter or hyphen around it: parts of a UUID are not card numbers.
_CARD = re.compile(r"(?<![\w-])\d(?:[ -]?\d){12,18}(?![\w-])")

_context: ContextVar[Mapping[str, object]] = ContextVar(
    "billing_jobs_log_context", default=MappingProxyType({})
)


class Logger:
    """
    Writes events with fields; names that `ALLOWED_FIELDS` does not know are dropped.

    Crash safety: a line is handed to the logging of the process and nothing waits for it; the
    audit trail, not the log, is the record of what happened.
    """

    def __init__(self, name: str, fields: Mapping[str, object] | None = None) -> None:
        """Bind the fields of every line of this logger."""
        self._logger = logging.getLogger(name)
        self._fields = dict(fields or {})

    def bind(self, **fields: object) -> Logger:
        """Return a logger whose lines carry these fields too."""
        return Logger(self._logger.name, {**self._fields, **fields})

    def debug(self, event: Event, **fields: object) -> None:
        """Write what only a developer wants to know."""
        self._write(logging.DEBUG, event, fields, None)

    def info(self, event: Event, **fields: object) -> None:
        """Write what happened as it should."""
        self._write(logging.INFO, event, fields, None)

    def warning(
        self, event: Event, *, error: BaseException | None = None, **fields: object
    ) -> None:
        """Write what somebody should look at one day."""
        self._write(logging.WARNING, event, fields, error)

    def error(self, event: Event, *, error: BaseException | None = None, **fields: object) -> None:
        """Write what somebody should look at now."""
        self._write(logging.ERROR, event, fields, error)

    def exception(self, event: Event, **fields: object) -> None:
        """Write, inside `except`, an error with the exception that is being handled."""
        self._write(logging.ERROR, event, fields, sys.exc_info()[1])

    def _write(
        self,
        level: int,
        event: Event,
        fields: Mapping[str, object],
        error: BaseException | None,
    ) -> None:
        if self._logger.isEnabledFor(level):
            told = {**self._fields, **fields, **_error_fields(error)}
            self._logger.log(level, str(event), extra={"billing_jobs_fields": allowed(told)})


def get_logger(name: str = "") -> Logger:
    """Return the logger `billing_jobs.<name>`; cheap, and safe before logging is configured."""
    return Logger(f"{_ROOT_NAME}.{name}" if name else _ROOT_NAME)


@contextmanager
def log_context(**fields: object) -> Iterator[None]:
    """Put these fields on every line, libraries' lines too, until the block ends."""
    token = _context.set({**_context.get(), **allowed(fields)})
    try:
        yield
    finally:
        _context.reset(token)


def configure_logging(
    *,
    role: str,
    env: str = "dev",
    level: str = "INFO",
    log_format: str = "auto",
    stream: TextIO | None = None,
) -> None:
    """
    Send every line of this process, also those of libraries, to `stream` (default: stdout).

    `role` is worker, beat, api, runner or cli; `log_format` is json, pretty or auto: pretty on a
    terminal, else JSON. Calling it again replaces what the call before set up.
    """
    import structlog  # noqa: PLC0415 - a quarter of a second that a caller of delay() need not pay

    target = stream or sys.stdout
    pretty = log_format == "pretty" or (log_format == "auto" and target.isatty())
    process = {"role": role} if pretty else {"env": env, "role": role, **_process_fields()}
    processors: list[Processor] = [
        _Line(process),
        structlog.dev.ConsoleRenderer(colors=target.isatty(), timestamp_key="ts")
        if pretty
        else structlog.processors.JSONRenderer(ensure_ascii=False),
    ]
    handler = logging.StreamHandler(target)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processors=processors))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in _QUIET_LOGGERS:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )


class _Line:
    """The processor that builds a line out of what is allowed, whatever wrote it."""

    def __init__(self, process: Mapping[str, object]) -> None:
        self._process = process

    def __call__(
        self, _logger: object, _method: str, event_dict: MutableMapping[str, object]
    ) -> MutableMapping[str, object]:
        record = event_dict["_record"]
        assert isinstance(record, logging.LogRecord)
        return {
            "ts": datetime.fromtimestamp(record.created, tz=UTC).strftime(_TIMESTAMP),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            **self._process,
            **_context.get(),
            **_told(record, event_dict),
        }


def _told(
    record: logging.LogRecord, event_dict: MutableMapping[str, object]
) -> Mapping[str, object]:
    """What the writer said: one of our events, a structlog event, or a library's text."""
    fields = getattr(record, "billing_jobs_fields", None)
    if isinstance(fields, dict):
        return {"event": record.getMessage(), **fields}
    given = {name: value for name, value in event_dict.items() if name not in _STRUCTLOG_KEYS}
    text = {"message": event_dict.get("event"), **_error_fields(_raised(event_dict))}
    return {"event": Event.LOG_MESSAGE.value, **allowed({**given, **text})}


def _raised(event_dict: Mapping[str, object]) -> BaseException | None:
    """The exception of a line, in each of the three forms that structlog and logging know."""
    match event_dict.get("exc_info"):
        case BaseException() as error:
            return error
        case (_, BaseException() as error, _):
            return error
        case True:
            return sys.exc_info()[1]
        case _:
            return None


def allowed(fields: Mapping[str, object]) -> dict[str, object]:
    """Return the fields whose names are known, scrubbed and capped, with the names of the rest."""
    passed: dict[str, object] = {
        name: _plain(value, machine=name == _MACHINE_FIELD)
        for name, value in fields.items()
        if name in ALLOWED_FIELDS
    }
    dropped = sorted(_plain_text(name) for name in fields if name not in ALLOWED_FIELDS)
    if dropped:
        passed["dropped_fields"] = dropped[:ITEM_LIMIT]
    return passed


def scrub(text: str) -> str:
    """
    Mask what looks like a secret or like personal data in free text.

    >>> scrub("cannot reach postgresql://app:hunter2@db/billing for ann@example.com")
    'cannot reach postgresql://app:***@db/billing for ***'
    """
    text = _KEY.sub(_MASK, mask_passwords(text))
    return _CARD.sub(_masked_card, _ADDRESS.sub(_MASK, text))


def mask_passwords(text: str) -> str:
    """
    Mask passwords only: those of URLs, and those that stand behind their name.

    >>> mask_passwords("redis://:secret@cache:6379/0?password=secret")
    'redis://:***@cache:6379/0?password=***'
    """
    return _NAMED_SECRET.sub(rf"\1{_MASK}", _URL_PASSWORD.sub(rf"\1{_MASK}@", text))


def _masked_card(match: re.Match[str]) -> str:
    digits = [int(character) for character in match[0] if character.isdigit()]
    doubled = (sum(divmod(2 * digit, 10)) for digit in digits[-2::-2])
    return match[0] if (sum(digits[-1::-2]) + sum(doubled)) % 10 else _MASK


def _plain(value: object, *, machine: bool = False) -> object:
    """Reduce a value to what JSON knows; of anything else only its type comes out."""
    plain: object = value.value if isinstance(value, Enum) else value
    match plain:
        case None | bool() | int() | float():
            pass
        case str() as text:
            plain = mask_passwords(text)[:TEXT_LIMIT] if machine else _plain_text(text)
        case UUID() | Decimal() | date() as written:
            plain = str(written)
        case list() | tuple() | set() | frozenset() as items:
            plain = [_plain(item) for item in islice(items, ITEM_LIMIT)]
        case other:
            plain = f"<{type(other).__name__}>"
    return plain


def _plain_text(text: str) -> str:
    # Cut first, so that scrubbing a huge text costs no more than scrubbing a long one.
    return scrub(text[: 2 * TEXT_LIMIT])[:TEXT_LIMIT]


def _error_fields(error: BaseException | None) -> dict[str, object]:
    """Tell type, code, place and fingerprint; never the message, which may quote anything."""
    if error is None:
        return {}
    frames = _frames(error.__traceback__)
    kind = f"{type(error).__module__}.{type(error).__qualname__}"
    place = "|".join((kind, *(frame.rpartition(":")[0] for frame in frames)))
    code = getattr(error, "code", None)
    return {
        "error.type": kind,
        **({"error.code": code} if isinstance(code, str | int) else {}),
        "error.fingerprint": hashlib.sha256(place.encode()).hexdigest()[:12],
        **({"error.stack": frames} if frames else {}),
    }


def _frames(traceback: TracebackType | None) -> list[str]:
    """Innermost frames last, as file:function:line."""
    frames = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        frames.append(f"{Path(code.co_filename).name}:{code.co_name}:{traceback.tb_lineno}")
        traceback = traceback.tb_next
    return frames[-ITEM_LIMIT:]


def _process_fields() -> dict[str, str]:
    try:
        version = metadata.version(SERVICE)
    except metadata.PackageNotFoundError:
        version = "unknown"
    return {"service": SERVICE, "version": version, "host": socket.gethostname()}
