"""What a caller learns of its job through Celery's AsyncResult, which reads the row."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from redis import Redis
from support.caller import Caller
from support.cluster import Cluster, cluster
from support.waiting import until

from billing_jobs.embedded.postgres import EmbeddedPostgres

IMPORTS = """
from billing_jobs.tasks import charge, reminder
from billing_jobs.worker.app import app, runtime
"""


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> Iterator[Cluster]:
    """A cluster with one worker."""
    with cluster(tmp_path_factory.mktemp("results"), postgres_server) as started:
        started.processes.worker()
        yield started


@pytest.fixture(scope="module")
def caller(made: Cluster) -> Iterator[Caller]:
    """A process of another service."""
    with made.calling() as started:
        started.value(IMPORTS)
        yield started


def test_get_waits_for_the_row_and_returns_its_result(caller: Caller, made: Cluster) -> None:
    """Celery would answer None at once for a task whose results it ignores."""
    (invoice_id,) = made.bill("pm_sandbox_ok")

    caller.value(f"handle = charge.delay('{invoice_id}')\nhandle.id")
    # There is no beat here, so the test itself makes sure that somebody rings.
    made.ring("charges")
    result = caller.value("handle.get(timeout=30)")

    assert result["outcome"] == "succeeded"
    assert caller.value("handle.state") == "SUCCESS"
    assert caller.value("app.AsyncResult(handle.id).result") == result
    assert len(made.captures(invoice_id)) == 1


def test_get_gives_up_after_its_timeout_and_the_job_goes_on(caller: Caller, made: Cluster) -> None:
    """A page must not hang on a worker that is busy, and giving up cancels nothing."""
    job_id = made.gated("a long job")
    made.ring("default")
    until(lambda: made.running_on("a long job"), "a running job")

    answer = caller.run(f"app.AsyncResult('{job_id}').get(timeout=0.2)")
    state = caller.value(f"app.AsyncResult('{job_id}').state")
    made.open_gate("a long job")

    assert answer.error == "TimeoutError"
    assert state == "STARTED"
    assert made.ended(job_id) == "completed"


def test_a_failed_job_raises_with_the_reason(caller: Caller, made: Cluster) -> None:
    """A caller that gets a value for a charge that was refused ships the goods for nothing."""
    invoice_id = uuid4()

    caller.value(f"handle = charge.delay('{invoice_id}')\nhandle.id")
    made.ring("charges")
    answer = caller.run("handle.get(timeout=30)")

    assert answer.error == "JobNotSuccessful"
    assert f"(charge) is failed: There is no invoice {invoice_id}" in answer.message
    assert caller.value("handle.state, handle.failed(), handle.successful()") == [
        "FAILURE",
        True,
        False,
    ]
    told = caller.value("str(handle.get(propagate=False))")
    assert "is failed" in told


@pytest.mark.parametrize(
    ("change", "state"),
    [
        ("state = 'dead_letter', finished_at = now(), error = 'broken'", "FAILURE"),
        ("state = 'cancelled', finished_at = now()", "REVOKED"),
        ("attempt = 1", "RETRY"),
        ("attempt = 0", "PENDING"),
    ],
)
def test_every_state_of_a_job_has_a_word_of_celerys(
    change: str, state: str, caller: Caller, made: Cluster
) -> None:
    """Dashboards and retries of other services branch on Celery's words."""
    code = f"handle = reminder.apply_async(('{uuid4()}',), countdown=600)\nhandle.id"
    job_id = caller.value(code)
    made.query(f"UPDATE jobs SET {change} WHERE id = %s", job_id)

    assert caller.value("handle.state") == state
    if state in {"FAILURE", "REVOKED"}:
        answer = caller.run("handle.get(timeout=5)")
        assert answer.error == "JobNotSuccessful"


def test_an_unknown_id_is_pending_in_celerys_sense(caller: Caller) -> None:
    """Celery's PENDING means that nobody knows; a caller must not read a failure into it."""
    assert caller.value(f"app.AsyncResult('{uuid4()}').state") == "PENDING"
    assert caller.value("app.AsyncResult('never sent').state") == "PENDING"


def test_no_result_and_no_subscription_is_left_in_the_broker(caller: Caller, made: Cluster) -> None:
    """Results in the broker expire and fill it; one that nobody fetches must cost nothing."""
    caller.value(f"handle = charge.delay('{uuid4()}')\nhandle.id")
    made.ring("charges")
    caller.value("str(handle.get(timeout=30, propagate=False))")

    with Redis(unix_socket_path=str(made.broker.socket)) as client:
        keys = {key.decode() for key in client.keys("*")}
        subscribed = [entry["name"] for entry in client.client_list() if int(entry["sub"]) > 0]

    assert not {key for key in keys if key.startswith("celery-task-meta")}
    assert subscribed == []
