"""Plain Celery messages of services that know the broker and nothing else become jobs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4, uuid5

import pytest
from celery import Celery
from redis import Redis
from support.cluster import Cluster, cluster
from support.processes import says
from support.waiting import until

from billing_jobs.adapters.clock import SystemClock
from billing_jobs.embedded.postgres import EmbeddedPostgres
from billing_jobs.worker.options import MESSAGES


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> Iterator[Cluster]:
    """A cluster with one worker and no beat: nothing but the message itself can wake it."""
    with cluster(tmp_path_factory.mktemp("adoption"), postgres_server) as started:
        started.processes.worker("-Q", "charges,reminders")
        yield started


@pytest.fixture(scope="module")
def stranger(made: Cluster) -> Iterator[Celery]:
    """A service with a Celery application of its own: it has a broker and none of our settings."""
    app = Celery("stranger", broker=made.broker.url, set_as_current=False)
    yield app
    app.close()


def test_a_plain_message_sent_twice_under_one_id_is_one_job_that_runs(
    stranger: Celery, made: Cluster
) -> None:
    """The broker delivers twice when it likes; the id of the message is the id of the job."""
    (invoice_id,) = made.bill("pm_sandbox_ok")
    task_id = str(uuid4())
    before = made.query("SELECT count(*) FROM jobs")

    for _ in range(2):
        stranger.send_task(
            "billing.reminder",
            kwargs={"invoice_id": str(invoice_id)},
            task_id=task_id,
            queue="reminders",
        )

    until(lambda: made.engine.store.attempts(UUID(task_id)), "a run")
    _all_adopted(made)
    assert made.query("SELECT count(*) - 1 FROM jobs") == before
    assert made.query(
        "SELECT actor FROM job_audit WHERE job_id = %s AND sequence = 1", task_id
    ) == [("message",)]


def test_a_plain_charge_takes_the_money_once_also_beside_a_call(
    stranger: Celery, made: Cluster
) -> None:
    """Two services ask for the same debt, each by its own way: the debt's key makes it one job."""
    (invoice_id,) = made.bill("pm_sandbox_ok")

    stranger.send_task("billing.charge", kwargs={"invoice_id": str(invoice_id)}, queue="charges")
    _all_adopted(made)
    # The job was there before the message, so adopting it rang for nothing new.
    made.ring("charges")

    made.paid(invoice_id)
    assert len(made.captures(invoice_id)) == 1
    assert made.query(
        "SELECT count(*) FROM jobs WHERE kind = 'charge' AND arguments ->> 'invoice_id' = %s",
        str(invoice_id),
    ) == [(1,)]


def test_a_message_with_a_time_becomes_a_row_at_once_and_is_held_by_no_worker(
    stranger: Celery, made: Cluster
) -> None:
    """A worker that holds a message with an eta dies with the broker, and copies run on others."""
    eta = SystemClock().now() + timedelta(days=1)
    task_id = str(uuid4())

    stranger.send_task(
        "billing.reminder",
        kwargs={"invoice_id": str(uuid4())},
        task_id=task_id,
        eta=eta,
        expires=eta + timedelta(days=1),
        queue="reminders",
    )

    until(lambda: made.state(UUID(task_id)) == "pending", "the row")
    _all_adopted(made)
    ((run_at, expires_at),) = made.query(
        "SELECT run_at, expires_at FROM jobs WHERE id = %s", task_id
    )
    assert (run_at, expires_at) == (eta, eta + timedelta(days=1))


def test_a_message_whose_id_is_any_text_becomes_a_job_under_an_id_made_of_it(
    stranger: Celery, made: Cluster
) -> None:
    """Celery takes any text as an id, a row only a UUID; the same text must be the same job."""
    job_id = uuid5(MESSAGES, "dunning-of-march")

    for _ in range(2):
        stranger.send_task(
            "billing.reminder", (str(uuid4()),), task_id="dunning-of-march", queue="reminders"
        )

    assert made.ended(job_id) == "failed"
    _all_adopted(made)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"kwargs": {"invoice_id": "no id"}}, "invoice_id: Input should be a valid UUID"),
        ({"args": ("a", "b", "c")}, "takes 2 arguments"),
        ({"kwargs": {}, "link": {"task": "shop.receipt", "args": []}}, "carries callbacks"),
    ],
)
def test_a_message_that_can_be_no_job_is_refused_with_its_reason_and_not_kept(
    options: dict[str, Any], reason: str, stranger: Celery, made: Cluster
) -> None:
    """Put back, it would come again for ever; its text stays out of the log, its fault does not."""
    stranger.send_task("billing.reminder", **options, queue="reminders")

    log = made.processes.log_of(made.processes.running[0])
    until(lambda: says(log, reason), f"the reason in {log}")
    _all_adopted(made)


def test_a_time_that_is_none_is_refused_like_any_other_fault(
    stranger: Celery, made: Cluster
) -> None:
    """Programs in other languages write times as they like; one of them must not end a worker."""
    headers = {"task": "billing.reminder", "id": str(uuid4()), "lang": "go", "eta": "at noon"}
    with stranger.producer_or_acquire() as producer:
        producer.publish([[str(uuid4())], {}, {}], routing_key="reminders", headers=headers)

    log = made.processes.log_of(made.processes.running[0])
    until(lambda: says(log, "The time 'at noon' is not in ISO 8601"), f"the reason in {log}")
    _all_adopted(made)


def test_while_postgres_is_away_a_message_is_put_back_and_becomes_a_job_afterwards(
    stranger: Celery, made: Cluster
) -> None:
    """Until the row is committed the message is all there is."""
    nowhere = {"database_url": "postgresql://nobody@127.0.0.1:1/nowhere"}
    lost = made.processes.worker("-Q", "invoices", settings=nowhere)
    ids = [uuid4() for _ in range(2)]

    # One fails where its key is looked up, the other where it is written.
    for task, job_id in zip(("charge", "reminder"), ids, strict=True):
        stranger.send_task(
            f"billing.{task}", (str(uuid4()),), task_id=str(job_id), queue="invoices"
        )
    log = made.processes.log_of(lost)
    until(lambda: all(says(log, f"[{job_id}] reject requeue=True") for job_id in ids), str(log))
    made.processes.stop(lost)
    stranger.control.add_consumer("invoices", destination=["worker0@test"])

    assert [made.ended(job_id) for job_id in ids] == ["failed"] * 2
    _all_adopted(made)


def _all_adopted(made: Cluster) -> None:
    """Wait until no message of a stranger is left, neither waiting nor held by a worker."""

    def nothing_left() -> bool:
        with Redis(unix_socket_path=str(made.broker.socket)) as client:
            return not client.exists("unacked") and not made.messages()

    until(nothing_left, "a broker that holds nothing")
