"""
What other services do: call `delay()` and `apply_async()` from a plain process.

The calls run in a process of their own, which has our settings and nothing else of ours.
"""

from __future__ import annotations

import doctest
import json
from collections.abc import Iterator
from uuid import UUID, uuid4, uuid5

import pytest
from redis import Redis
from support.caller import Caller
from support.cluster import Cluster, cluster

from billing_jobs.embedded.postgres import EmbeddedPostgres
from billing_jobs.worker import options
from billing_jobs.worker.options import MESSAGES

IMPORTS = """
from datetime import UTC, date, datetime, timedelta
from uuid import UUID
from celery import chain, chord, group
from billing_jobs.tasks import charge, invoice, reminder
from billing_jobs.worker.app import app
"""


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> Iterator[Cluster]:
    """A cluster without a worker: what is asked here is what was written down."""
    with cluster(tmp_path_factory.mktemp("door"), postgres_server) as started:
        yield started


@pytest.fixture(scope="module")
def caller(made: Cluster) -> Iterator[Caller]:
    """A process of another service that has imported our tasks."""
    with made.calling() as started:
        started.value(IMPORTS)
        yield started


@pytest.mark.parametrize("call", ["charge.delay('{0}')", "charge.delay(invoice_id=UUID('{0}'))"])
def test_delay_writes_the_row_and_rings_once_with_no_argument_in_the_message(
    call: str, caller: Caller, made: Cluster
) -> None:
    """A plain call is the whole interface: the row is the job, the message is only a bell."""
    invoice_id = uuid4()
    _empty(made)

    job_id = caller.value(f"{call.format(invoice_id)}.id")

    assert made.query(
        "SELECT kind, queue, state, arguments, business_key FROM jobs WHERE id = %s", job_id
    ) == [("charge", "charges", "pending", {"invoice_id": str(invoice_id)}, f"{invoice_id}:1")]
    audit = made.query("SELECT verb, to_state, actor FROM job_audit WHERE job_id = %s", job_id)
    assert audit == [("enqueue", "pending", "caller")]
    (message,) = made.messages()
    assert message["headers"]["task"] == "billing.drain"
    assert str(invoice_id) not in json.dumps(message)


def test_the_same_debt_called_twice_is_one_job_and_both_callers_learn_it(caller: Caller) -> None:
    """A service that is not sure whether its call arrived simply calls again."""
    invoice_id = uuid4()

    ids = [caller.value(f"charge.delay('{invoice_id}').id") for _ in range(2)]

    assert ids[0] == ids[1]


def test_optional_and_typed_arguments_arrive_as_they_were_meant(
    caller: Caller, made: Cluster
) -> None:
    """Dates and ids travel as JSON and are the same for every way of calling."""
    subscription = uuid4()

    ids = {
        caller.value(f"invoice.delay('{subscription}', date(2026, 3, 1)).id"),
        caller.value(f"invoice.delay(subscription_id='{subscription}', period='2026-03-01').id"),
        caller.value(f"invoice.apply_async(('{subscription}',), {{'period': '2026-03-01'}}).id"),
    }

    (job_id,) = ids
    arguments = made.query("SELECT arguments FROM jobs WHERE id = %s", job_id)
    assert arguments == [({"subscription_id": str(subscription), "period": "2026-03-01"},)]


ID = "'0195f3a0-0000-7000-8000-000000000000'"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        ("charge.delay()", "ArgumentsInvalid", "invoice_id: Field required"),
        ("charge.delay('x')", "ArgumentsInvalid", "invoice_id: Input should be a valid UUID"),
        (f"charge.delay(invoice={ID})", "ArgumentsInvalid", "invoice: Extra inputs are not"),
        (f"charge.delay({ID}, 5)", "ArgumentsInvalid", "takes 1 arguments (invoice_id), not 2"),
        (f"charge.delay({ID}, invoice_id={ID})", "ArgumentsInvalid", "got invoice_id twice"),
        (f"charge.apply_async(({ID},), queue='chargse')", "UnknownQueue", "Did you mean 'charges'"),
        (f"charge.apply_async(({ID},), priority=10)", "OptionRefused", "priority 10 is out of"),
        (f"charge.apply_async(({ID},), priority='high')", "OptionRefused", "no whole number"),
        (f"charge.apply_async(({ID},), countdown='soon')", "OptionRefused", "no number of seconds"),
        (f"charge.apply_async(({ID},), contdown=9)", "OptionRefused", "Did you mean 'countdown'"),
        (f"charge.apply_async(({ID},), time_limit=9)", "OptionRefused", "no option 'time_limit'"),
        (f"charge.apply_async(({ID},), eta='noon')", "OptionRefused", "eta is 'noon'"),
        (f"charge.apply_async(({ID},), eta=datetime(2030, 1, 1))", "OptionRefused", "no time zone"),
        (
            f"charge.apply_async(({ID},), eta=datetime(2030, 1, 1, tzinfo=UTC), countdown=1)",
            "OptionRefused",
            "Give one of them",
        ),
        (f"charge({ID})", "OptionRefused", "cannot be called like a function"),
        (f"charge.apply(({ID},)).get()", "OptionRefused", "cannot be called like a function"),
        ("app.send_task('billing.charge', queue='bilingg')", "QueueNotFound", "bilingg"),
    ],
)
def test_a_wrong_call_is_an_error_at_the_caller_and_leaves_no_row(
    call: str, error: str, message: str, caller: Caller, made: Cluster
) -> None:
    """The one who can repair it is the one who hears of it, before anything is written."""
    before = made.query("SELECT count(*) FROM jobs")

    answer = caller.run(call)

    assert (answer.error, message in answer.message) == (error, True), answer
    assert made.query("SELECT count(*) FROM jobs") == before


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (f"charge.apply_async(({ID},), link=reminder.s({ID}))", "link"),
        (f"charge.apply_async(({ID},), link_error=reminder.s({ID}))", "link_error"),
        (f"chain(charge.si({ID}), reminder.si({ID}))()", "chain"),
        (f"group(charge.s({ID}), reminder.s({ID}))()", "group_id"),
        (f"chord([charge.s({ID})], reminder.si({ID}))()", "Chords"),
    ],
)
def test_what_celery_would_fire_before_the_job_has_run_is_refused_by_name(
    call: str, name: str, caller: Caller, made: Cluster
) -> None:
    """Linked to the end of the message, a receipt would go out before the money came in."""
    before = made.query("SELECT count(*) FROM jobs")

    answer = caller.run(call)

    assert answer.error in {"OptionRefused", "NotImplementedError"}
    assert f"{name} " in answer.message
    assert "then=[...]" in answer.message
    assert made.query("SELECT count(*) FROM jobs") == before


def test_celerys_options_become_columns_of_the_row(caller: Caller, made: Cluster) -> None:
    """Whoever knows Celery already knows how to say when, where and how urgent."""
    task_id = uuid4()
    _empty(made)

    caller.value(
        f"reminder.apply_async(('{uuid4()}',), eta=datetime(2030, 1, 1, tzinfo=UTC), "
        f"expires=datetime(2030, 1, 2, tzinfo=UTC), priority=9, queue='default', "
        f"task_id='{task_id}', key='spring', tenant='acme', retry=False).id"
    )

    rows = made.query(
        "SELECT run_at::text, expires_at::text, priority, queue, tenant, business_key LIKE %s "
        "FROM jobs WHERE id = %s",
        "%:spring",
        task_id,
    )
    assert rows == [
        ("2030-01-01 00:00:00+00", "2030-01-02 00:00:00+00", 9, "default", "acme", True)
    ]
    # Not due yet: nobody is woken up.
    assert made.messages() == []


def test_relative_times_count_from_the_call(caller: Caller, made: Cluster) -> None:
    """A countdown is a wish of the caller's, whatever its clock says."""
    job_id = caller.value(f"charge.apply_async(('{uuid4()}',), countdown=600, expires=1200).id")

    ((run_in, expires_in),) = made.query(
        "SELECT extract(epoch FROM run_at - created_at)::float, "
        "extract(epoch FROM expires_at - created_at)::float FROM jobs WHERE id = %s",
        job_id,
    )
    assert run_in == pytest.approx(600, abs=5)
    assert expires_in == pytest.approx(1200, abs=5)


def test_a_task_id_of_any_form_names_its_job(caller: Caller, made: Cluster) -> None:
    """Celery allows any text as an id; the handle and the row must still find each other."""
    call = f"charge.apply_async(('{uuid4()}',), task_id='nightly-7')"

    job_id, state = caller.value(
        f"handle = {call}\n[handle.id, app.AsyncResult('nightly-7').state]"
    )

    assert UUID(job_id) == uuid5(MESSAGES, "nightly-7")
    assert state == "PENDING"
    assert made.state(UUID(job_id)) == "pending"


def test_retry_publishes_nothing(caller: Caller, made: Cluster) -> None:
    """Celery's own retry sends a new message with a countdown, and loses it with the broker."""
    _empty(made)
    before = made.query("SELECT count(*) FROM jobs")
    request = "id='0', args=['{0}'], kwargs={{}}, called_directly=False, delivery_info={{}}"
    caller.value(f"charge.push_request({request.format(uuid4())})")

    answer = caller.run("charge.retry(countdown=1)")

    caller.value("charge.pop_request() and None")
    assert answer.error == "Retry"
    assert made.messages() == []
    assert made.query("SELECT count(*) FROM jobs") == before


def test_revoking_a_handle_cancels_the_job_or_says_that_it_is_too_late(
    caller: Caller, made: Cluster
) -> None:
    """Celery's revoke is a broadcast that the next worker never heard: the charge would run."""
    job_id = caller.value(f"handle = charge.delay('{uuid4()}')\nhandle.revoke()\nhandle.id")

    again = caller.run("handle.revoke()")

    assert made.state(UUID(job_id)) == "cancelled"
    assert again.error == "OptionRefused"
    assert "cannot be called off any more" in again.message


def test_without_its_database_a_call_says_so_at_once(made: Cluster) -> None:
    """Half an error would make a service believe that its customer is going to be billed."""
    nowhere = "postgresql://nobody@127.0.0.1:1/nowhere"
    with made.calling({**made.environment, "BILLING_JOBS_DATABASE_URL": nowhere}) as lost:
        lost.value(IMPORTS)

        answers = [lost.run(f"charge.delay({ID})"), lost.run(f"reminder.delay({ID})")]

    assert {answer.error for answer in answers} == {"EnqueueError"}
    assert all("not recorded" in answer.message for answer in answers)


def test_the_numbers_in_the_texts_are_true() -> None:
    """An example in a docstring is read as a promise."""
    tried = doctest.testmod(options)

    assert tried.failed == 0
    assert tried.attempted > 0


def _empty(made: Cluster) -> None:
    """Forget the rings of other tests."""
    with Redis(unix_socket_path=str(made.broker.socket)) as client:
        client.flushall()
