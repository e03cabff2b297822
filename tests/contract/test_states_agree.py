"""
The state machine exists three times: in Python, in the SQL, in the CHECKs of the table.

Here rows are put into every state, every statement is run on each of them, and what really happened
is compared with the Python table. A transition that is added to one of them alone fails.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from uuid import UUID, uuid4

import psycopg
import pytest
from support.job_benches import KIND, PostgresBench, new_job

import billing_jobs
from billing_jobs.adapters.postgres.engine import Connection, statements
from billing_jobs.domain.job import (
    ALLOWED_PAIRS,
    CRASHES_MAX,
    RUN_ENDS,
    TERMINAL_STATES,
    TRANSITIONS,
    JobState,
    Verb,
)

SQL = statements("jobs")

#: A kind whose expired lease goes to a person.
FRAGILE = "fragile"

#: The states that have an end.
ENDED = TERMINAL_STATES | {JobState.DEAD_LETTER}

Pair = tuple[JobState, JobState]
Row = dict[str, object]
Write = Callable[[Connection, Sequence[Row]], None]

#: What changed, by the verb that the audit trail names.
Changes = Mapping[Verb, frozenset[Pair]]

INSERT = """
INSERT INTO jobs (
    id, tenant, kind, queue, lane, state, max_attempts, attempt, crash_count, effect_open,
    cancel_requested, run_at, expires_at, token, lease_until, started_at, worker, finished_at,
    result, arguments
) VALUES (
    %(id)s, 'acme', %(kind)s, 'default', 'default', %(state)s, 4, 1, %(crash_count)s,
    %(effect_open)s, %(cancel_requested)s, clock_timestamp() - interval '1 minute',
    CASE WHEN %(late)s THEN clock_timestamp() - interval '1 second' END, %(token)s,
    CASE
        WHEN %(leased)s AND %(vanished)s THEN clock_timestamp() - interval '1 minute'
        WHEN %(leased)s THEN clock_timestamp() + interval '1 hour'
    END,
    clock_timestamp(), 'w1', CASE WHEN %(finished)s THEN clock_timestamp() END,
    CASE WHEN %(with_result)s THEN '{}'::jsonb END, '{}'
)
"""


def row(state: str, **changes: object) -> Row:
    """Return a row of the shape that its state must have, with what the test changes."""
    running = state == JobState.RUNNING
    return {
        "id": uuid4(),
        "kind": KIND,
        "state": str(state),
        "crash_count": 0,
        "effect_open": False,
        "cancel_requested": False,
        "late": False,
        "vanished": False,
        "token": uuid4().int >> 66 if running else None,
        "leased": running,
        "finished": state in ENDED,
        "with_result": False,
        **changes,
    }


#: What `record` looks at, and what some other statement looks at.
FLAGS: Mapping[str, Sequence[object]] = {
    "effect_open": (False, True),
    "cancel_requested": (False, True),
}
MORE_FLAGS: Mapping[str, Sequence[object]] = {
    "crash_count": (0, CRASHES_MAX - 1),
    "kind": (KIND, FRAGILE),
    "late": (False, True),
    "vanished": (False, True),
}


def rows_of_every_state(flags: Mapping[str, Sequence[object]]) -> list[Row]:
    """Return rows of all states, with every mixture of flags."""
    mixtures = [dict(zip(flags, values, strict=True)) for values in product(*flags.values())]
    return [row(state, **mixture) for state in JobState for mixture in mixtures]


def one_by_one(name: str, **parameters: object) -> Write:
    """Return the running of a statement on each row, under the row's token or one nobody has."""

    def run(connection: Connection, rows: Sequence[Row]) -> None:
        connection.cursor().executemany(
            SQL[name],
            [{**parameters, "id": item["id"], "token": item["token"] or -1} for item in rows],
        )

    return run


def all_at_once(name: str, **parameters: object) -> Write:
    """Return the running of a statement that finds its rows itself."""

    def run(connection: Connection, rows: Sequence[Row]) -> None:
        connection.execute(SQL[name], {**parameters, "limit": len(rows), "actor": "dispatcher"})

    return run


def insert_again(connection: Connection, rows: Sequence[Row]) -> None:
    """Record jobs under ids that are there, half of them with a key."""
    fields = {"tenants": "acme", "kinds": KIND, "queues": "default", "lanes": "default"}
    fields |= {"priorities": "4", "max_attempts": "4", "delays": "0", "actors": "x"}
    empty = ("run_ats", "expires_ats", "parent_ids")
    connection.execute(
        SQL["insert"],
        {
            **{name: [value] * len(rows) for name, value in fields.items()},
            **{name: [None] * len(rows) for name in empty},
            "ids": [item["id"] for item in rows],
            "keys": [str(n) if n % 2 else None for n in range(len(rows))],
            "arguments": ["{}"] * len(rows),
        },
    )


def end(verb: Verb, state: JobState) -> Write:
    """Return the ending of each row's run by a verb in a state, whether that makes sense or not."""
    said: Row = {"verb": verb.value, "state": state.value, "outcome": "x", "reason": None}
    said |= {"attempt": 1, "worker": "w1", "spend": True, "outages": 0, "delay_seconds": 1.0}
    said |= {"closes_effect": False, "result": None, "error": None, "error_fingerprint": None}
    return one_by_one("record", **said)


PERSON = {"actor": "op", "reason": "x"}

#: Every statement of jobs.sql that writes, and the verbs under which it changes states.
WRITERS: Mapping[str, tuple[list[Write], set[Verb]]] = {
    "insert": ([insert_again], set()),
    "claim": (
        [
            all_at_once(
                "claim", queue="default", kinds=[KIND, FRAGILE], ttl_seconds=60.0, worker="w1"
            )
        ],
        {Verb.CLAIM},
    ),
    "renew": ([one_by_one("renew", ttl_seconds=60.0)], set()),
    "open_effect": ([one_by_one("open_effect")], set()),
    "record": ([end(verb, state) for verb in Verb for state in JobState], {*RUN_ENDS, Verb.CANCEL}),
    "rescue": (
        [all_at_once("rescue", ttl_seconds=0.0, bury_kinds=[FRAGILE], crashes_max=CRASHES_MAX)],
        {Verb.RESCUE, Verb.CANCEL},
    ),
    "expire": ([all_at_once("expire")], {Verb.EXPIRE}),
    "cancel": ([one_by_one("cancel", **PERSON)], {Verb.CANCEL}),
    "replay": ([one_by_one("replay", **PERSON)], {Verb.REPLAY}),
    "resolve": ([one_by_one("resolve", **PERSON)], {Verb.RESOLVE}),
}


def changes_by(bench: PostgresBench, name: str, write: Write) -> Changes:
    """Run a statement on rows of every state; return what changed, by verb."""
    bench.clear()
    rows = rows_of_every_state(FLAGS if name == "record" else {**FLAGS, **MORE_FLAGS})
    with bench.database.connection() as connection, connection.transaction():
        connection.cursor().executemany(INSERT, rows)
        write(connection, rows)
    after = {item["id"]: item["state"] for item in bench.sql("SELECT id, state FROM jobs")}
    told = changes_told(bench)
    found: dict[Verb, set[Pair]] = defaultdict(set)
    for item in rows:
        pair = JobState(str(item["state"])), JobState(after[item["id"]])
        told_of_it = told[UUID(str(item["id"]))]
        expected = [] if pair[0] is pair[1] else [pair]
        assert [change for _, change in told_of_it] == expected, f"the trail is wrong on {item}"
        for verb, change in told_of_it:
            found[verb].add(change)
    return {verb: frozenset(pairs) for verb, pairs in found.items()}


def changes_told(bench: PostgresBench) -> Mapping[UUID, list[tuple[Verb, Pair]]]:
    """Return the changes of state that the audit trail tells of; a mere request is none."""
    told: dict[UUID, list[tuple[Verb, Pair]]] = defaultdict(list)
    for line in bench.sql(
        "SELECT job_id, verb, from_state, to_state FROM job_audit WHERE from_state <> to_state"
    ):
        pair = JobState(line["from_state"]), JobState(line["to_state"])
        told[line["job_id"]].append((Verb(line["verb"]), pair))
    return told


def merged(all_changes: Sequence[Changes]) -> Changes:
    """Add up what several statements changed."""
    found: dict[Verb, frozenset[Pair]] = dict.fromkeys(Verb, frozenset())
    for changes in all_changes:
        for verb, pairs in changes.items():
            found[verb] |= pairs
    return found


@pytest.fixture(scope="module")
def by_statement(postgres_jobs: PostgresBench) -> Mapping[str, Changes]:
    """What each statement does to rows of all states."""
    return {
        name: merged([changes_by(postgres_jobs, name, write) for write in writes])
        for name, (writes, _) in WRITERS.items()
    }


@pytest.mark.parametrize("verb", Verb)
def test_the_sql_does_what_the_table_says_of_a_verb(
    by_statement: Mapping[str, Changes], verb: Verb
) -> None:
    """Not one pair more and not one less, whatever flags a row has."""
    assert merged(list(by_statement.values()))[verb] == TRANSITIONS[verb]


@pytest.mark.parametrize("pair", list(product(JobState, JobState)), ids="-".join)
def test_python_sql_and_checks_agree_about_a_pair(
    by_statement: Mapping[str, Changes], postgres: PostgresBench, pair: Pair
) -> None:
    """All 36, so that what nobody thought of is among them."""
    source, target = pair
    by_sql = any(pair in pairs for pairs in merged(list(by_statement.values())).values())

    assert by_sql == (pair in ALLOWED_PAIRS)
    # The CHECKs see a row and not its past: they refuse a change that forgets lease or end.
    assert bare_change_passes(postgres, source, target) == (shape(source) == shape(target))


@pytest.mark.parametrize("name", WRITERS)
def test_a_statement_changes_states_under_its_own_verbs_only(
    by_statement: Mapping[str, Changes], name: str
) -> None:
    """The trail names what happened by the right verb."""
    assert {verb for verb, pairs in by_statement[name].items() if pairs} == WRITERS[name][1]


def test_every_statement_that_writes_jobs_is_among_them() -> None:
    """A new statement must be tried here before it can be trusted."""
    writing = re.compile(r"\b(INSERT INTO|UPDATE|DELETE FROM)\s+jobs\b")
    package = Path(billing_jobs.__file__).parent
    sources = [*package.rglob("*.py"), *package.rglob("*.sql")]

    assert {name for name, text in SQL.items() if writing.search(text)} == set(WRITERS)
    assert [path.name for path in sources if writing.search(path.read_text("utf-8"))] == [
        "jobs.sql"
    ]


def test_nothing_leaves_a_terminal_state_and_something_leaves_every_other() -> None:
    """Terminal is what the table shows, not a list of its own."""
    assert set(JobState) - {source for source, _ in ALLOWED_PAIRS} == TERMINAL_STATES


def test_the_checks_know_the_states_that_python_knows(postgres: PostgresBench) -> None:
    """A state that only one side knows would be a row that the other cannot read or write."""
    ((definition,),) = (
        item.values()
        for item in postgres.sql(
            "SELECT pg_get_constraintdef(oid) AS text FROM pg_constraint "
            "WHERE conname = 'jobs_state_known'"
        )
    )

    assert set(re.findall(r"'(\w+)'", definition)) == set(JobState)


@pytest.mark.parametrize("state", JobState)
def test_the_checks_accept_exactly_the_shape_of_a_state(
    postgres: PostgresBench, state: JobState
) -> None:
    """Running has a token and a lease, an end has its time, a result is of a completed job."""
    accepted = {
        (token, lease, finished, result)
        for token, lease, finished, result in product((False, True), repeat=4)
        if accepts(
            postgres,
            row(
                state,
                token=uuid4().int >> 66 if token else None,
                leased=lease,
                finished=finished,
                with_result=result,
            ),
        )
    }

    results = (False, True) if state is JobState.COMPLETED else (False,)
    held, ended = shape(state)
    assert accepted == {(held, held, ended, result) for result in results}


def test_a_new_job_is_pending(postgres: PostgresBench) -> None:
    """The one way in: the trail says that it came from nowhere."""
    job = new_job()

    postgres.store.insert([job])

    (line,) = postgres.audit(job.id)
    assert (line.verb, line.from_state, line.to_state) == (Verb.ENQUEUE, None, JobState.PENDING)
    assert TRANSITIONS[Verb.ENQUEUE] == frozenset()


def shape(state: JobState) -> tuple[bool, bool]:
    """Return whether a row in this state has a lease, and whether it has an end."""
    return state is JobState.RUNNING, state in ENDED


def bare_change_passes(bench: PostgresBench, source: JobState, target: JobState) -> bool:
    """Change the state of a row and nothing else; say whether the CHECKs let it pass."""
    item = row(source)
    bench.sql(INSERT, **item)
    try:
        bench.sql("UPDATE jobs SET state = %(s)s WHERE id = %(id)s", s=target.value, id=item["id"])
    except psycopg.errors.CheckViolation:
        return False
    return True


def accepts(bench: PostgresBench, item: Row) -> bool:
    """Insert a row; say whether the CHECKs let it pass."""
    try:
        bench.sql(INSERT, **item)
    except psycopg.errors.CheckViolation:
        return False
    return True
