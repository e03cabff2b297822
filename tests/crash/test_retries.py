"""Retries that live in the database: their pace, and what the broker knows of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest
from support.cluster import Cluster, cluster
from support.waiting import until

from billing_jobs.embedded.postgres import EmbeddedPostgres

#: A retry may start so much later than its time, also on a busy machine.
LATE_SECONDS = 0.25


@pytest.fixture(scope="module")
def failing(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: EmbeddedPostgres
) -> Iterator[tuple[Cluster, list[UUID]]]:
    """A cluster in which three jobs fail each time they run."""
    with cluster(tmp_path_factory.mktemp("retries"), postgres_server, graceful=False) as made:
        made.start(concurrency=2)
        yield made, [made.enqueue("test_broken", {}) for _ in range(3)]


def test_while_retries_are_pending_the_broker_holds_no_message_with_a_time(
    failing: tuple[Cluster, list[UUID]],
) -> None:
    """A worker that holds a message with an eta dies with the broker; a long eta runs twice."""
    made, _ = failing
    jobs = [made.enqueue("test_broken_shortly", {}) for _ in range(3)]
    until(
        lambda: len(_runs(made, jobs)) >= len(jobs) and _waiting(made, jobs),
        "jobs that failed and wait",
    )

    held = made.messages()

    assert [message["headers"]["eta"] for message in held if message["headers"]["eta"]] == []
    assert {message["headers"]["task"] for message in held} <= {"billing.drain"}


@pytest.mark.timing
def test_a_failing_job_runs_again_after_one_four_and_nine_seconds_and_then_is_a_dead_letter(
    failing: tuple[Cluster, list[UUID]],
) -> None:
    """The promised pace, measured from the end of a run to the start of the next, by one clock."""
    made, jobs = failing

    ends = [made.ended(job_id) for job_id in jobs]

    assert ends == ["dead_letter"] * len(jobs)
    for job_id in jobs:
        runs = _runs(made, [job_id])
        assert [attempt for attempt, *_ in runs] == [1, 2, 3, 4]
        gaps = [(after[1] - before[2]).total_seconds() for before, after in pairwise(runs)]
        late = [gap - wanted for gap, wanted in zip(gaps, (1, 4, 9), strict=True)]
        assert all(0 <= seconds <= LATE_SECONDS for seconds in late), late


def _runs(made: Cluster, jobs: list[UUID]) -> list[tuple[Any, ...]]:
    return made.query(
        "SELECT attempt, started_at, finished_at FROM job_attempts "
        "WHERE job_id = ANY(%s) ORDER BY token",
        jobs,
    )


def _waiting(made: Cluster, jobs: list[UUID]) -> bool:
    rows = made.query(
        "SELECT count(*) FROM jobs WHERE id = ANY(%s) AND state = 'pending' AND run_at > now()",
        jobs,
    )
    return rows == [(len(jobs),)]
