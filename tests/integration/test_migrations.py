"""The way up and down: the schema is the same however it was reached, and two may go at once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from uuid import uuid4

import psycopg
import pytest
from alembic import command
from alembic.script import ScriptDirectory
from support.books import query
from support.waiting import until

from billing_jobs.cli import migrations
from billing_jobs.embedded.postgres import EmbeddedPostgres

#: What a reader of the catalog sees of everything that migrations make. An extension stays behind
#: on the way back, for it may serve others.
SCHEMA = """
SELECT 'column', attrelid::regclass::text, concat_ws(
    ' ', attname, format_type(atttypid, atttypmod), attnotnull, pg_get_expr(adbin, adrelid)
)
FROM pg_attribute
JOIN pg_class ON pg_class.oid = attrelid
LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
WHERE relnamespace = 'public'::regnamespace AND attnum > 0 AND NOT attisdropped
UNION ALL
SELECT 'table', oid::regclass::text, concat_ws(
    ' ', relkind, reloptions, pg_get_partkeydef(oid), pg_get_expr(relpartbound, oid)
)
FROM pg_class WHERE relnamespace = 'public'::regnamespace
UNION ALL
SELECT 'constraint', conrelid::regclass::text, conname || ' ' || pg_get_constraintdef(oid)
FROM pg_constraint WHERE connamespace = 'public'::regnamespace
UNION ALL
SELECT 'index', tablename, indexdef FROM pg_indexes WHERE schemaname = 'public'
UNION ALL
SELECT 'function', proname, pg_get_functiondef(oid)
FROM pg_proc
WHERE
    pronamespace = 'public'::regnamespace
    AND NOT EXISTS (SELECT FROM pg_depend WHERE objid = pg_proc.oid AND deptype = 'e')
UNION ALL
SELECT 'trigger', tgrelid::regclass::text, pg_get_triggerdef(oid)
FROM pg_trigger WHERE NOT tgisinternal
ORDER BY 1, 2, 3
"""

Schema = list[tuple[object, ...]]

#: The lock of `migrations/env.py`, under which one upgrade goes at a time.
LOCK = 5011971001

UPGRADE = "import sys; from billing_jobs.cli import migrations; migrations.upgrade(sys.argv[1])"


@pytest.fixture
def empty_url(postgres_server: EmbeddedPostgres) -> Iterator[str]:
    """A database without anything in it."""
    name = f"empty_{uuid4().hex[:12]}"
    with psycopg.connect(postgres_server.dsn, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        try:
            yield postgres_server.url.replace("/postgres?", f"/{name}?")
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def schema(url: str) -> Schema:
    """Return what the catalog shows, without alembic's own table."""
    return [row for row in query(url, SCHEMA) if "alembic_version" not in str(row[1])]


def revisions() -> list[str]:
    """Return all revisions, oldest first."""
    scripts = ScriptDirectory(str(migrations.directory())).walk_revisions()
    return [script.revision for script in scripts][::-1]


def test_every_step_down_leaves_what_was_there_before_the_step_up(empty_url: str) -> None:
    """A way back that forgets a function or an index breaks the next way up."""
    before: list[Schema] = [schema(empty_url)]
    for revision in revisions():
        migrations.upgrade(empty_url, revision)
        before.append(schema(empty_url))

    after: list[Schema] = [schema(empty_url)]
    for revision in [*revisions()[:-1][::-1], "base"]:
        migrations.downgrade(empty_url, revision)
        after.append(schema(empty_url))

    assert before[0] == []
    assert len({len(found) for found in before}) == len(before), "a step that changes nothing"
    assert after[::-1] == before

    migrations.upgrade(empty_url)

    assert schema(empty_url) == before[-1]


def test_the_schema_of_one_step_is_the_schema_of_many(empty_url: str, database_url: str) -> None:
    """Whoever starts today has the same database as whoever started last year."""
    for revision in revisions():
        migrations.upgrade(empty_url, revision)

    assert schema(empty_url) == schema(database_url)
    assert query(empty_url, "SELECT version_num FROM alembic_version") == [(migrations.head(),)]


def test_an_upgrade_of_what_is_up_to_date_changes_nothing(database_url: str) -> None:
    """Every deployment calls it."""
    query(database_url, "INSERT INTO job_keys VALUES ('t', 'k', 'b', gen_random_uuid())")
    before = schema(database_url)

    migrations.upgrade(database_url)

    assert schema(database_url) == before
    assert query(database_url, "SELECT count(*) FROM job_keys") == [(1,)]


def test_two_upgrades_at_once_are_one(empty_url: str, database_url: str) -> None:
    """Every replica of a deployment upgrades first; the second one finds nothing to do."""
    plain = empty_url.replace("postgresql+psycopg://", "postgresql://")
    with psycopg.connect(plain) as gate:
        gate.execute("SELECT pg_advisory_lock(%s)", (LOCK,))
        upgrades = [
            subprocess.Popen([sys.executable, "-c", UPGRADE, empty_url], stderr=subprocess.PIPE)
            for _ in range(2)
        ]
        try:
            waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory'"
            here = f"{waiting} AND datname = current_database()"
            until(lambda: query(empty_url, here) == [(2,)], "both wait for their turn")
            gate.execute("SELECT pg_advisory_unlock(%s)", (LOCK,))
            errors = [upgrade.communicate(timeout=60)[1].decode() for upgrade in upgrades]
        finally:
            for upgrade in upgrades:
                upgrade.kill()
                upgrade.wait()

    assert [
        (upgrade.returncode, error) for upgrade, error in zip(upgrades, errors, strict=True)
    ] == [
        (0, ""),
        (0, ""),
    ]
    assert schema(empty_url) == schema(database_url)


def test_the_sql_can_be_read_before_it_is_run(
    empty_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where only an administrator may change the schema, the text is handed over."""
    command.upgrade(migrations.configuration(empty_url), "head", sql=True)

    written = capsys.readouterr().out
    assert "CREATE TABLE jobs (" in written
    assert migrations.head() in written
    assert schema(empty_url) == []


def test_each_months_partition_is_made_once(database_url: str) -> None:
    """The function is called every day; a gap or a doubled month would refuse inserts."""
    made = "SELECT ensure_month_partitions('job_audit', 5)"

    assert query(database_url, made) == [(2,)]
    assert query(database_url, made) == [(0,)]

    months = query(
        database_url,
        "SELECT pg_get_expr(relpartbound, pg_class.oid) FROM pg_inherits "
        "JOIN pg_class ON pg_class.oid = inhrelid "
        "WHERE inhparent = 'job_audit'::regclass ORDER BY relname",
    )
    bounds = [str(row[0]).split("'")[1::2] for row in months if row[0] != "DEFAULT"]
    assert len(bounds) == 6
    assert [end for _, end in bounds[:-1]] == [start for start, _ in bounds[1:]]


def test_rows_of_today_lie_in_the_partition_of_this_month(database_url: str) -> None:
    """The default partition only catches what nobody foresaw: a full one cannot be split."""
    query(
        database_url,
        "INSERT INTO job_audit (job_id, sequence, verb, to_state, attempt, actor) "
        "VALUES (gen_random_uuid(), 1, 'enqueue', 'pending', 0, 'test')",
    )

    month = "'job_audit_' || to_char(at AT TIME ZONE 'UTC', 'YYYY_MM')"
    assert query(database_url, f"SELECT tableoid::regclass::text = {month} FROM job_audit") == [
        (True,)
    ]
