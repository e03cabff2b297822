"""
What every job store promises about recording jobs: all or nothing, and one job a business key.

Checked in memory and over real Postgres. Claims are `test_job_store_claims.py`, how runs end is
`test_job_store_ends.py`.
"""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

import pytest
from support.job_benches import (
    KIND,
    JobBench,
    claim_one,
    new_job,
    recording,
    view,
)
from support.threads import at_once

from billing_jobs.domain.errors import EnqueueError, InputError
from billing_jobs.domain.job import JobState, Verb


def test_a_new_job_reads_as_it_was_written(bench: JobBench) -> None:
    """The row is the truth: nothing of a job may be lost or changed on its way in."""
    new = new_job(
        arguments={"invoice": "i-1", "deep": {"list": [1, None, True]}},
        key="i-1:1",
        priority=7,
        max_attempts=3,
        parent_id=uuid4(),
        actor="api",
    )

    (recorded,) = bench.store.insert([new])

    found = view(bench, new.id)
    assert (recorded.id, recorded.created, recorded.queue) == (new.id, True, "default")
    assert (found.kind, found.queue, found.tenant, found.key) == (KIND, "default", "acme", "i-1:1")
    assert found.arguments == new.arguments
    assert (found.state, found.attempt, found.max_attempts) == (JobState.PENDING, 0, 3)
    assert (found.finished_at, found.result, found.error) == (None, None, None)
    assert (found.effect_open, found.version, found.crash_count) == (False, 1, 0)
    assert [
        (line.verb, line.from_state, line.to_state, line.actor) for line in bench.audit(new.id)
    ] == [(Verb.ENQUEUE, None, JobState.PENDING, "api")]


def test_the_second_insert_of_a_key_returns_the_first_id(bench: JobBench) -> None:
    """G11: the same debt asked for twice is one job, and both callers can follow it."""
    first, again = new_job(key="i-1:1"), new_job(key="i-1:1")
    bench.store.insert([first])

    (recorded,) = bench.store.insert([again])

    assert (recorded.id, recorded.created) == (first.id, False)
    assert bench.store.get(again.id) is None
    assert len(bench.audit(first.id)) == 1


def test_a_key_twice_in_one_call_makes_the_first_job_only(bench: JobBench) -> None:
    """A caller that bills a list with a doubled line still makes one job of it."""
    first, other, again = new_job(key="k"), new_job(key="j"), new_job(key="k")

    recorded = bench.store.insert([first, other, again])

    assert [(item.id, item.created) for item in recorded] == [
        (first.id, True),
        (other.id, True),
        (first.id, False),
    ]


def test_a_key_is_unique_within_its_tenant_and_kind(bench: JobBench) -> None:
    """Two tenants, or a charge and a reminder, may well use the same words."""
    jobs = [new_job(key="k"), new_job(key="k", tenant="other"), new_job(key="k", kind="other")]

    recorded = bench.store.insert(jobs)

    assert [item.created for item in recorded] == [True, True, True]


def test_a_key_stays_taken_when_its_job_has_ended(bench: JobBench) -> None:
    """A job that is done must not be done again because somebody asks again."""
    first = new_job(key="k")
    bench.store.insert([first])
    bench.store.record(claim_one(bench), recording())

    (recorded,) = bench.store.insert([new_job(key="k")])

    assert (recorded.id, recorded.created) == (first.id, False)


def test_the_same_id_twice_is_one_job(bench: JobBench) -> None:
    """A plain message that the broker delivers twice carries the same id."""
    job = new_job()
    bench.store.insert([job])

    (recorded,) = bench.store.insert([replace(job, arguments={"n": 2})])

    assert (recorded.id, recorded.created) == (job.id, False)
    assert view(bench, job.id).arguments == {"n": 1}


def test_the_same_id_twice_in_one_call_is_made_once(bench: JobBench) -> None:
    """It failed on the audit trail's primary key, or told both callers that they made the job."""
    job = new_job()

    recorded = bench.store.insert([job, job])

    assert [(item.id, item.created) for item in recorded] == [(job.id, True), (job.id, False)]
    assert len(bench.audit(job.id)) == 1


def test_an_id_that_exists_takes_no_key(bench: JobBench) -> None:
    """A task id used again for another invoice must not make that invoice unchargeable for ever."""
    job = new_job(key="i-1")
    bench.store.insert([job])
    bench.store.insert([replace(job, key="i-2")])

    (recorded,) = bench.store.insert([new_job(key="i-2")])

    assert recorded.created


def test_more_than_one_statement_of_jobs_is_recorded_in_the_callers_order(bench: JobBench) -> None:
    """A statement takes a thousand; a caller may bring more, with keys in any order."""
    jobs = [new_job(key=f"k{n % 2000}", arguments={"n": n}) for n in range(2100)]

    recorded = bench.store.insert(jobs)

    assert [item.id for item in recorded] == [jobs[n % 2000].id for n in range(2100)]
    assert [item.created for item in recorded] == [True] * 2000 + [False] * 100


def test_nothing_to_insert_is_nothing(bench: JobBench) -> None:
    """An empty page of due subscriptions is no error."""
    assert bench.store.insert([]) == []


def test_duplicates_from_many_threads_are_one_job_with_one_id(bench: JobBench) -> None:
    """Two services and a human press the button in the same instant."""
    recorded = at_once(16, lambda _: bench.store.insert([new_job(key="one debt")])[0])

    assert sum(item.created for item in recorded) == 1
    assert len({item.id for item in recorded}) == 1
    assert bench.store.get(recorded[0].id) is not None


def test_the_same_keys_in_opposite_order_wait_for_nobody_for_ever(bench: JobBench) -> None:
    """Two callers that record the same keys must not deadlock."""
    keys = [f"k{n}" for n in range(50)]

    def record(number: int) -> int:
        order = keys if number % 2 else keys[::-1]
        return sum(item.created for item in bench.store.insert([new_job(key=k) for k in order]))

    assert sum(at_once(8, record)) == len(keys)


@pytest.mark.parametrize(
    "wrong",
    [
        {"priority": 10},
        {"priority": -1},
        {"max_attempts": 0},
        {"max_attempts": 26},
        {"arguments": {"text": "a\x00b"}},
    ],
    ids=str,
)
def test_what_the_table_refuses_is_an_enqueue_error_and_leaves_nothing(
    bench: JobBench, wrong: dict[str, object]
) -> None:
    """All or nothing: the good job of the same call is not recorded either."""
    good = new_job(key="good")

    with pytest.raises(EnqueueError, match="not recorded"):
        bench.store.insert([good, new_job(**wrong)])

    assert bench.store.get(good.id) is None
    assert bench.store.insert([new_job(key="good")])[0].created


def test_a_transaction_that_is_none_is_refused(bench: JobBench) -> None:
    """A caller who passes the wrong thing must not believe that it was part of a transaction."""
    with pytest.raises(InputError, match="nqueue"):
        bench.store.insert([new_job()], transaction="my transaction")
