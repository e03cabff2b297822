"""The log: one vocabulary, one line an event, and nothing in it that must not leave the house."""

from __future__ import annotations

import doctest
import json
import logging
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from io import StringIO
from pathlib import Path
from uuid import UUID

import pytest
import structlog
from hypothesis import example, given
from hypothesis import strategies as st

from billing_jobs import logs
from billing_jobs.logs import ALLOWED_FIELDS, ALWAYS_FIELDS, Event, configure_logging, get_logger

CARD = "4242424242424242"
ADDRESS = "ann.lee@example.com"
PASSWORD = "hunter2-geheim"
TOKEN = "sk_live_51Habcdef0123456789"
SECRETS = (CARD, "4242 4242 4242 4242", "4242-4242-4242-4242", ADDRESS, PASSWORD, TOKEN)
#: One text with all of them, as an error message may have it.
CONFESSION = (
    f"card {CARD} (4242 4242 4242 4242, 4242-4242-4242-4242) of <{ADDRESS}> refused by "
    f"postgresql://app:{PASSWORD}@db:5432/x, redis://:{PASSWORD}@cache, password={PASSWORD} "
    f"'token': '{PASSWORD}', Authorization: Bearer {PASSWORD} with {TOKEN}"
)
FAMILIES = {
    "job", "doorbell", "lock", "write", "beat", "worker", "charge", "db", "broker", "admin", "log",
}  # fmt: skip

type_of_terminal = type("Terminal", (StringIO,), {"isatty": lambda _: True})


@contextmanager
def logging_as_found() -> Iterator[None]:
    """Put the logging of the test process back as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        structlog.reset_defaults()


@pytest.fixture
def stream() -> Iterator[StringIO]:
    """Configure a worker's log in JSON, and return what it wrote to."""
    with logging_as_found():
        written = StringIO()
        configure_logging(role="worker", env="test", log_format="json", stream=written)
        yield written


def lines(stream: StringIO) -> list[dict[str, object]]:
    """Return each line as the object it has to be."""
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def last(stream: StringIO) -> dict[str, object]:
    """Return the newest line."""
    return lines(stream)[-1]


def test_a_line_says_when_what_and_by_whom(stream: StringIO) -> None:
    """Whoever reads one line of a hundred machines must know where it came from."""
    get_logger("worker").info(Event.JOB_CLAIMED, count=3, lane="charges")

    line = last(stream)
    assert line.keys() >= ALWAYS_FIELDS
    assert line["event"] == "job.claimed"
    assert line["level"] == "info"
    assert line["logger"] == "billing_jobs.worker"
    assert (line["service"], line["role"], line["env"]) == ("billing-jobs", "worker", "test")
    assert (line["count"], line["lane"]) == (3, "charges")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", str(line["ts"]))


def test_the_vocabulary_has_the_families_and_words_of_the_design() -> None:
    """Alerts and runbooks are written against these names."""
    names = [event.value for event in Event]

    assert len(names) == len(set(names))
    assert {name.partition(".")[0] for name in names} == FAMILIES
    assert all(re.fullmatch(r"[a-z]+\.[a-z_]+", name) for name in names)
    assert {"job.rescued", "job.replayed", "job.buried", "charge.unknown"} <= set(names)
    assert all(event.fields <= ALLOWED_FIELDS for event in Event)
    assert not ALLOWED_FIELDS & ALWAYS_FIELDS, "what the process says, no caller may say"


def test_a_field_that_nobody_agreed_on_is_dropped_by_name(stream: StringIO) -> None:
    """The name shows the developer what is missing; the value is not shown to anybody."""
    get_logger().warning(Event.DOORBELL_LOST, payload={"card": CARD}, customer="Ann Lee", queue="q")

    line = last(stream)
    assert line["dropped_fields"] == ["customer", "payload"]
    assert line["queue"] == "q"
    assert CARD not in stream.getvalue()
    assert "Ann" not in stream.getvalue()


def test_a_caller_cannot_speak_for_the_process(stream: StringIO) -> None:
    """A field named `role` or `ts` must not make a line lie about where it came from."""
    get_logger().info(Event.ADMIN_ACTION, role="beat", ts="yesterday", host="x")

    line = last(stream)
    assert line["role"] == "worker"
    assert line["dropped_fields"] == ["host", "role", "ts"]


def test_bound_fields_and_context_are_on_every_line_until_they_end(stream: StringIO) -> None:
    """A job's id belongs to each line of its run, those of libraries included."""
    log = get_logger().bind(queue="charges")

    with logs.log_context(job_id="j-1", email=ADDRESS):
        with logs.log_context(attempt=2):
            log.info(Event.JOB_ATTEMPT_STARTED)
            logging.getLogger("kombu").warning("connection reset")
        log.debug(Event.JOB_COMPLETED)
        log.info(Event.JOB_COMPLETED)
    log.info(Event.WORKER_DRAINED)

    started, reset, completed, drained = lines(stream)
    assert (started["job_id"], started["attempt"], started["queue"]) == ("j-1", 2, "charges")
    assert (reset["job_id"], reset["attempt"]) == ("j-1", 2)
    assert (completed["job_id"], "attempt" in completed) == ("j-1", False)
    assert "job_id" not in drained
    assert ADDRESS not in stream.getvalue()


def raise_confession() -> None:
    """Raise an error whose message tells everything."""
    raise RuntimeError(CONFESSION)


def through_our_logger() -> None:
    """Every way into a line of ours: fields, bound fields, context, an error."""
    log = get_logger().bind(reason=CONFESSION, note=CONFESSION)
    with logs.log_context(actor=CONFESSION, customer=CONFESSION):
        log.info(Event.JOB_FAILED, queue=[CONFESSION, (CONFESSION,)], outcome={"a": CONFESSION})
        log.info(Event.JOB_FAILED, **{CONFESSION: 1, "kind": CONFESSION.encode()})
        log.info(Event.WORKER_STARTED, worker=f"redis://:{PASSWORD}@cache")
    try:
        raise_confession()
    except RuntimeError as error:
        log.exception(Event.JOB_ATTEMPT_FAILED, lane=error)
        log.warning(Event.JOB_ATTEMPT_FAILED, error=error)


def through_a_library() -> None:
    """Every way through the standard library: message, arguments, exception, stack, extra."""
    library = logging.getLogger("some.library")
    library.warning(CONFESSION)
    library.error("refused: %s %r", CONFESSION, {"why": CONFESSION}, extra={"customer": CONFESSION})
    try:
        raise_confession()
    except RuntimeError:
        library.exception("it failed", stack_info=True)
        library.warning("again", exc_info=True)


def through_structlog() -> None:
    """Every way through structlog itself, which a registered kind may use."""
    native = structlog.get_logger("plugin")
    native.info(CONFESSION, reason=CONFESSION, customer=CONFESSION)
    try:
        raise_confession()
    except RuntimeError as error:
        native.exception("it failed")
        native.warning("again", exc_info=error)


@pytest.mark.parametrize("log_format", ["json", "pretty"])
@pytest.mark.parametrize("write", [through_our_logger, through_a_library, through_structlog])
def test_planted_secrets_do_not_come_out(write: Callable[[], None], log_format: str) -> None:
    """Logs are read by many, kept for long and sent to other firms."""
    with logging_as_found():
        stream = StringIO()
        configure_logging(role="worker", log_format=log_format, stream=stream, level="DEBUG")
        write()

    text = stream.getvalue()
    assert text.count("***") >= 3
    assert not [secret for secret in SECRETS if secret in text]


def test_what_only_looks_like_a_secret_is_left_alone(stream: StringIO) -> None:
    """A masked job id or amount would make the log useless where it is needed."""
    ids = [UUID(int=seed * 1111111111111111111111111111111) for seed in range(1, 300)]
    for job_id in ids:
        get_logger().info(Event.JOB_COMPLETED, job_id=job_id, amount_minor=4242424242424242)
    get_logger().info(Event.WORKER_STARTED, worker="celery@host.example.com")
    logging.getLogger("a").info("order 1234567890123456 took 15 ms in redis://cache:6379/0")

    told = lines(stream)
    assert [line.get("job_id") for line in told[:-2]] == [str(job_id) for job_id in ids]
    assert told[0]["amount_minor"] == 4242424242424242
    assert told[-2]["worker"] == "celery@host.example.com"
    assert told[-1]["message"] == "order 1234567890123456 took 15 ms in redis://cache:6379/0"


@given(st.uuids())
@example(UUID("aaaaaaaa-aaaa-4aaa-8123-123456789010"))
@example(UUID("12345677-1234-4567-aaaa-aaaaaaaaaaaa"))
def test_no_uuid_is_taken_for_a_card(job_id: UUID) -> None:
    """Digits between hyphens may well pass the check sum of a card."""
    assert logs.scrub(f"job {job_id}") == f"job {job_id}"


@given(st.text(alphabet="abc/:@;#?%=+", min_size=1, max_size=20))
def test_any_password_in_a_url_is_masked(password: str) -> None:
    """Passwords hold the characters that end a part of a URL, and people do not escape them."""
    masked = logs.mask_passwords(f"redis://user:Z{password}Z@host:6379/0")

    assert masked == "redis://user:***@host:6379/0"


def test_values_are_plain_and_bounded(stream: StringIO) -> None:
    """A line that is too long is cut off by the collector, and then it is no JSON any more."""
    get_logger().info(
        Event.JOB_CLAIMED,
        lane="x" * 10_000,
        queue=list(range(1000)),
        count=None,
        run_at=datetime(2026, 1, 2, tzinfo=UTC),
        kind=Event.JOB_CLAIMED,
        attempt=Decimal("1.50"),
        actor=date(2026, 1, 2),
        duration_ms=1.5,
        outcome=object(),
    )

    line = last(stream)
    assert len(str(line["lane"])) == logs.TEXT_LIMIT
    assert line["queue"] == list(range(logs.ITEM_LIMIT))
    assert line["run_at"] == "2026-01-02 00:00:00+00:00"
    assert (line["kind"], line["attempt"], line["actor"]) == ("job.claimed", "1.50", "2026-01-02")
    assert (line["duration_ms"], line["count"], line["outcome"]) == (1.5, None, "<object>")


def fail(depth: int) -> None:
    """Raise below so many frames."""
    if depth:
        fail(depth - 1)
    raise KeyError(CARD)


def test_an_error_is_told_by_type_place_and_fingerprint(stream: StringIO) -> None:
    """The fingerprint groups the same failure; the message may quote a customer."""
    log = get_logger()
    for depth in (1, 1, 2, 100):
        try:
            fail(depth)
        except KeyError:
            log.exception(Event.JOB_ATTEMPT_FAILED)

    first, same, other, deep = lines(stream)
    assert first["error.type"] == "builtins.KeyError"
    assert first["error.fingerprint"] == same["error.fingerprint"]
    assert first["error.fingerprint"] != other["error.fingerprint"]
    stack = deep["error.stack"]
    assert isinstance(stack, list)
    assert len(stack) == logs.ITEM_LIMIT
    assert str(stack[-1]).startswith("test_logs.py:fail:")


def test_the_code_of_an_error_is_told(stream: StringIO) -> None:
    """The code leads to the page that explains the error; an odd one is left out."""
    coded, odd = ValueError(), ValueError()
    coded.code = "lease-lost"  # type: ignore[attr-defined]
    odd.code = object()  # type: ignore[attr-defined]

    get_logger().error(Event.WRITE_FENCED, error=coded)
    get_logger().error(Event.WRITE_FENCED, error=odd)

    told, silent = lines(stream)
    assert told["error.code"] == "lease-lost"
    assert "error.stack" not in told, "an error that was not raised has no place"
    assert "error.code" not in silent


@pytest.mark.parametrize(
    ("log_format", "terminal", "is_json"),
    [
        ("auto", False, True),
        ("auto", True, False),
        ("json", True, True),
        ("pretty", False, False),
    ],
)
def test_people_and_programs_get_the_form_that_suits_them(
    log_format: str, *, terminal: bool, is_json: bool
) -> None:
    """A terminal gets readable lines without asking, a pipe gets JSON."""
    stream = type_of_terminal() if terminal else StringIO()
    with logging_as_found():
        configure_logging(role="worker", log_format=log_format, stream=stream)
        get_logger().info(Event.WORKER_STARTED, concurrency=2)

    assert stream.getvalue().startswith("{") == is_json
    assert ("\x1b[" in stream.getvalue()) == (terminal and not is_json)


def test_the_level_counts_and_talkative_libraries_are_quiet(stream: StringIO) -> None:
    """SQLAlchemy tells parameters at INFO, urllib3 whole URLs at DEBUG."""
    configure_logging(role="worker", level="DEBUG", log_format="json", stream=stream)
    for name in ("sqlalchemy.engine.Engine", "urllib3.connectionpool", "stripe", "mail.log"):
        logging.getLogger(name).info("parameters")
    get_logger().debug(Event.JOB_CLAIMED)
    configure_logging(role="worker", level="ERROR", log_format="json", stream=stream)
    get_logger().info(Event.JOB_COMPLETED)
    get_logger().warning(Event.JOB_DEFERRED)
    get_logger().error(Event.JOB_BURIED)

    assert [line["event"] for line in lines(stream)] == ["job.claimed", "job.buried"]


def test_an_uninstalled_package_still_logs(
    stream: StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run from a zip or a vendored copy, the version is not known, and that is all."""
    monkeypatch.setattr(logs, "SERVICE", "no-such-package-installed")
    configure_logging(role="cli", log_format="json", stream=stream)
    get_logger().info(Event.ADMIN_ACTION)

    assert last(stream)["version"] == "unknown"


def test_a_service_that_only_calls_delay_pays_and_prints_nothing() -> None:
    """Its own logging decides; structlog is not imported, and no line appears on its stdout."""
    script = (
        "import sys, billing_jobs.logs as logs\n"
        "logs.get_logger().info(logs.Event.DOORBELL_RUNG, payload='x')\n"
        "logs.get_logger().warning(logs.Event.DOORBELL_LOST, payload='x')\n"
        "ours = sorted(m for m in sys.modules if m.startswith('billing_jobs'))\n"
        "assert ours == ['billing_jobs', 'billing_jobs.logs'], ours\n"
        "assert 'structlog' not in sys.modules\n"
    )

    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=Path(__file__).parents[2],
    )

    assert (ended.returncode, ended.stdout) == (0, "")
    assert ended.stderr == "doorbell.lost\n"


def test_the_examples_in_docstrings_are_true() -> None:
    """An example that is wrong teaches the wrong thing."""
    result = doctest.testmod(logs)

    assert result.attempted > 0
    assert result.failed == 0
