"""
What every job store promises about claims: who gets which job, when, and for how long.

Checked in memory and over real Postgres.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta, timezone
from uuid import UUID, uuid4

import pytest
from support.job_benches import (
    KIND,
    KINDS,
    TTL_SECONDS,
    JobBench,
    PostgresBench,
    claim,
    claim_one,
    new_job,
    recording,
    rescue,
    view,
)
from support.threads import at_once
from support.waiting import until

from billing_jobs.domain.job import ClaimedJob, JobState, NewJob, Verb


def claimed_numbers(jobs: list[ClaimedJob]) -> list[object]:
    """Return the numbers that the test gave its jobs."""
    return [job.arguments["n"] for job in jobs]


def test_a_claim_gives_the_job_a_lease_and_a_token(bench: JobBench) -> None:
    """What the executor sees, and what guards its writes."""
    new = new_job(arguments={"n": 7}, max_attempts=3)
    bench.store.insert([new])
    before = bench.now()

    job = claim_one(bench)

    assert (job.id, job.kind, job.queue, job.tenant) == (new.id, KIND, "default", "acme")
    assert (job.arguments, job.attempt, job.max_attempts) == ({"n": 7}, 1, 3)
    assert (job.outage_count, job.worker) == (0, "w1")
    assert before <= job.started_at <= bench.now()
    assert job.lease_until - job.started_at >= timedelta(seconds=TTL_SECONDS - 0.01)
    assert view(bench, new.id).state is JobState.RUNNING
    assert bench.audit(new.id)[-1].verb == Verb.CLAIM
    assert bench.audit(new.id)[-1].actor == "w1"


def test_the_most_urgent_job_is_claimed_first(bench: JobBench) -> None:
    """9 is most urgent, as callers of apply_async(priority=...) read it; within one, the oldest."""
    for number, priority in enumerate([4, 0, 9, 4, 9, 1, 8]):
        bench.store.insert([new_job(priority=priority, arguments={"n": number})])
        bench.pass_seconds(1)

    one_by_one = [claimed_numbers(claim(bench))[0] for _ in range(2)]
    together = claimed_numbers(claim(bench, limit=10))

    assert one_by_one == [2, 4]
    assert together == [6, 0, 3, 5, 1]


def test_the_oldest_due_moment_wins_and_not_the_order_of_recording(bench: JobBench) -> None:
    """A retry that is due since a minute comes before a job that was recorded just now."""
    now = bench.now()
    late, early = new_job(run_at=now + timedelta(seconds=2)), new_job(run_at=now)
    bench.store.insert([late, early])
    bench.pass_seconds(3)

    assert [job.id for job in claim(bench, limit=2)] == [early.id, late.id]


def test_a_claim_takes_no_more_than_its_limit(bench: JobBench) -> None:
    """What one worker takes, the others cannot run meanwhile."""
    bench.store.insert([new_job() for _ in range(5)])

    assert [len(claim(bench, limit=n)) for n in (2, 2, 2, 2)] == [2, 2, 1, 0]


@pytest.mark.parametrize("how", ["run_at", "delay"])
def test_a_job_is_not_claimed_before_its_time(bench: JobBench, how: str) -> None:
    """A retry after 9 s is not one after 8."""
    moment = bench.now() + timedelta(seconds=60)
    later = new_job(run_at=moment) if how == "run_at" else new_job(delay_seconds=60.0)
    bench.store.insert([later])
    early = claim(bench)

    bench.pass_seconds(61)

    assert early == []
    assert claim_one(bench).id == later.id


def test_a_moment_in_another_zone_is_the_same_moment(bench: JobBench) -> None:
    """Callers pass aware datetimes of any zone."""
    zone = timezone(timedelta(hours=14))
    later = new_job(run_at=(bench.now() + timedelta(seconds=60)).astimezone(zone))
    bench.store.insert([later])
    assert claim(bench) == []

    bench.pass_seconds(61)

    assert claim_one(bench).id == later.id


def test_a_kind_that_this_worker_does_not_know_is_left_to_others(bench: JobBench) -> None:
    """During a deployment, old workers must not bury the new kinds."""
    bench.store.insert([new_job(kind="brand_new")])

    assert claim(bench) == []
    assert bench.store.due_queues() == ["default"]


def test_another_queues_job_is_not_claimed(bench: JobBench) -> None:
    """A worker serves the queues it was started for."""
    bench.store.insert([new_job(queue="charges", lane="charges")])

    assert claim(bench) == []
    assert bench.store.due_queues() == ["charges"]


def test_an_expired_job_is_neither_due_nor_claimed(bench: JobBench) -> None:
    """Work that came too late is not done; it waits only to be called off."""
    bench.store.insert([new_job(expires_at=bench.now() + timedelta(seconds=5))])
    bench.pass_seconds(6)

    assert claim(bench) == []
    assert bench.store.due_queues() == []
    assert bench.store.next_due_seconds() is None


def test_an_expired_job_with_an_open_effect_is_claimed_all_the_same(bench: JobBench) -> None:
    """It was neither claimed nor cancelled before: nobody would ever look what became of it."""
    bench.store.insert([new_job(expires_at=bench.now() + timedelta(seconds=50))])
    job = claim_one(bench)
    assert bench.open_effect(job)
    bench.store.record(job, recording(Verb.RESCHEDULE))
    bench.pass_seconds(60)

    assert bench.store.expire(limit=10) == []
    assert bench.store.due_queues() == ["default"]
    assert bench.store.next_due_seconds() == 0.0
    assert claim_one(bench).id == job.id


def test_a_paused_lane_costs_its_jobs_nothing_and_holds_them(bench: JobBench) -> None:
    """An operator stops the charges; reminders go on."""
    bench.store.insert([new_job(), new_job(queue="charges", lane="charges")])
    bench.pause_lane("default")

    assert claim(bench) == []
    assert bench.store.due_queues() == ["charges"]
    bench.pause_lane("charges")
    assert bench.store.next_due_seconds() is None

    bench.open_lane("default")

    assert claim_one(bench).attempt == 1


def test_a_closed_lane_opens_by_itself(bench: JobBench) -> None:
    """A breaker closes the lane of a gateway for a while; nobody has to open it."""
    bench.store.insert([new_job()])
    bench.close_lane("default", 30)
    assert claim(bench) == []
    assert bench.store.due_queues() == []
    assert bench.store.next_due_seconds() is None

    bench.pass_seconds(31)

    assert bench.store.due_queues() == ["default"]
    assert len(claim(bench)) == 1


def test_a_lane_of_its_own_is_served_under_its_queue(bench: JobBench) -> None:
    """A gateway account gets a lane, and closing it leaves the rest of the queue alone."""
    slow = new_job(queue="charges", lane="charges/acct_1")
    quick = new_job(queue="charges", lane="charges")
    bench.store.insert([slow, quick])
    bench.close_lane("charges/acct_1", 30)

    def charges() -> list[UUID]:
        jobs = bench.store.claim("charges", KINDS, limit=9, ttl_seconds=TTL_SECONDS, worker="w1")
        return [job.id for job in jobs]

    assert charges() == [quick.id]
    bench.open_lane("charges/acct_1")
    assert charges() == [slow.id]


def test_many_workers_never_take_one_job_twice(bench: JobBench) -> None:
    """The claim is the only lock there is: 8 threads, 200 jobs, each taken by one."""
    bench.store.insert([new_job(arguments={"n": n}) for n in range(200)])

    def take(number: int) -> list[ClaimedJob]:
        taken: list[ClaimedJob] = []
        while jobs := claim(bench, limit=3, worker=f"w{number}"):
            taken.extend(jobs)
        return taken

    taken = [job for jobs in at_once(8, take) for job in jobs]

    # A claim may come away empty while others hold the last rows, so the rest is taken here.
    taken += take(9)
    assert sorted(str(number) for number in claimed_numbers(taken)) == sorted(
        str(n) for n in range(200)
    )
    assert len({job.token for job in taken}) == 200


def test_tokens_grow_with_each_claim_over_all_jobs(bench: JobBench) -> None:
    """Tokens of different jobs are comparable, and a later owner always has the greater one."""
    bench.store.insert([new_job(), new_job()])

    tokens = []
    for _ in range(4):
        job = claim_one(bench)
        tokens.append(job.token)
        bench.store.record(job, recording(Verb.RESCHEDULE, delay_seconds=0.0))

    assert tokens == sorted(set(tokens))


def test_a_renewed_lease_holds_for_another_ttl(bench: JobBench) -> None:
    """A long run keeps its job as long as its worker lives."""
    bench.store.insert([new_job()])
    job = claim_one(bench)
    bench.pass_seconds(TTL_SECONDS - 1)

    assert bench.store.renew(job, ttl_seconds=TTL_SECONDS)

    bench.pass_seconds(TTL_SECONDS - 1)
    assert rescue(bench) == []
    bench.pass_seconds(2)
    assert rescue(bench) == [job.id]


def test_a_lease_that_somebody_else_has_is_not_renewed(bench: JobBench) -> None:
    """The worker learns here that it is too late, before it calls out."""
    bench.store.insert([new_job()])
    job = claim_one(bench)
    bench.pass_seconds(TTL_SECONDS + 1)
    rescue(bench)
    newer = claim_one(bench)

    assert not bench.store.renew(job, ttl_seconds=TTL_SECONDS)
    assert bench.store.renew(newer, ttl_seconds=TTL_SECONDS)


def test_a_job_that_has_ended_or_never_was_is_not_renewed(bench: JobBench) -> None:
    """A heartbeat that comes after the end changes nothing."""
    bench.store.insert([new_job()])
    job = claim_one(bench)
    bench.store.record(job, recording())

    assert not bench.store.renew(job, ttl_seconds=TTL_SECONDS)
    assert not bench.store.renew(replace(job, id=uuid4()), ttl_seconds=TTL_SECONDS)


def test_due_queues_are_told_once_each_in_order(bench: JobBench) -> None:
    """The dispatcher rings once a queue, however many jobs wait."""
    queues = ["reminders", "charges", "reminders"]
    bench.store.insert([new_job(queue=queue, lane=queue) for queue in queues])
    bench.store.insert([new_job(queue="invoices", lane="invoices", delay_seconds=60.0)])

    assert bench.store.due_queues() == ["charges", "reminders"]


def test_the_next_due_moment_is_the_nearest_of_all(bench: JobBench) -> None:
    """The dispatcher sleeps until then, so a retry is late by milliseconds and not by a tick."""
    assert bench.store.next_due_seconds() is None
    delays: list[NewJob] = [new_job(delay_seconds=s, priority=p) for s, p in ((90.0, 9), (30.0, 0))]
    bench.store.insert(delays)

    seconds = bench.store.next_due_seconds()
    assert seconds is not None
    assert 20.0 < seconds <= 30.0

    bench.pass_seconds(31)
    assert bench.store.next_due_seconds() == 0.0


def test_what_is_not_there_is_answered_with_nothing(bench: JobBench) -> None:
    """An unknown id is a question, not an error."""
    nobody = uuid4()

    assert bench.store.get(nobody) is None
    assert bench.store.attempts(nobody) == []
    assert bench.audit(nobody) == []
    assert bench.store.cancel(nobody, actor="op", reason="x") is None
    assert not bench.store.replay(nobody, actor="op", reason="x")
    assert not bench.store.resolve(nobody, actor="op", reason="x")


def test_a_delay_is_kept_by_the_servers_own_clock(postgres: PostgresBench) -> None:
    """The one test that really waits: everywhere else rows are moved into the past."""
    postgres.clear()
    job = new_job(delay_seconds=0.3)
    postgres.store.insert([job])
    assert claim(postgres) == []

    (claimed,) = until(lambda: claim(postgres), "the job becomes due")

    assert claimed.id == job.id
    assert claimed.started_at >= view(postgres, job.id).created_at + timedelta(seconds=0.3)
