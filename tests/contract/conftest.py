"""The two job stores, for the contract tests of `JobStore`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.job_benches import JobBench, MemoryBench, PostgresBench, postgres_bench

from billing_jobs.embedded.postgres import EmbeddedPostgres


@pytest.fixture(scope="session")
def postgres_jobs(postgres_server: EmbeddedPostgres) -> Iterator[PostgresBench]:
    """One database for all of them: making one costs a second, emptying one does not."""
    with postgres_bench(postgres_server) as made:
        yield made


@pytest.fixture
def postgres(postgres_jobs: PostgresBench) -> PostgresBench:
    """The store in Postgres, empty."""
    postgres_jobs.clear()
    return postgres_jobs


@pytest.fixture(params=["memory", "postgres"])
def bench(request: pytest.FixtureRequest) -> JobBench:
    """Each store in turn, empty."""
    if request.param == "memory":
        return MemoryBench()
    made: PostgresBench = request.getfixturevalue("postgres")
    return made
