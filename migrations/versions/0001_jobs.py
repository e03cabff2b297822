"""
The job engine: lanes, jobs, their attempts, their audit trail and their business keys.

Why: the row in `jobs` is the truth, the broker is a doorbell. Tokens come from one global sequence,
so that tokens of different jobs can be compared; attempts are keyed by token and written when a run
ends, so that the table is append-only; `job_keys` outlives the jobs, so that a business key is
unique for ever. The append-only tables are partitioned by month, with a default partition that
keeps every insert possible.

Locks taken: none that matter, all objects are new.

Way back: `downgrade` drops the objects and with them every job; before that, stop all workers and
beats and take a dump.
"""

from __future__ import annotations

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

LANES = """
CREATE TABLE lanes (
    lane text PRIMARY KEY,
    queue text NOT NULL,
    paused boolean NOT NULL DEFAULT false,
    paused_reason text,
    closed_until timestamptz,
    closed_reason text,
    CONSTRAINT lanes_paused_has_reason CHECK (NOT paused OR paused_reason IS NOT NULL)
);
INSERT INTO lanes (lane, queue)
SELECT name, name
FROM unnest(ARRAY['charges', 'invoices', 'reminders', 'maintenance', 'default']) AS name;
"""

JOBS = """
CREATE SEQUENCE job_tokens AS bigint CACHE 1;

CREATE TABLE jobs (
    id uuid PRIMARY KEY,
    tenant text NOT NULL,
    kind text NOT NULL,
    queue text NOT NULL,
    lane text NOT NULL,
    state text NOT NULL DEFAULT 'pending',
    priority smallint NOT NULL DEFAULT 4,
    attempt smallint NOT NULL DEFAULT 0,
    max_attempts smallint NOT NULL,
    crash_count smallint NOT NULL DEFAULT 0,
    outage_count smallint NOT NULL DEFAULT 0,
    version integer NOT NULL DEFAULT 1,
    alone boolean NOT NULL DEFAULT false,
    effect_open boolean NOT NULL DEFAULT false,
    cancel_requested boolean NOT NULL DEFAULT false,
    run_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz,
    started_at timestamptz,
    finished_at timestamptz,
    token bigint,
    lease_until timestamptz,
    worker text,
    parent_id uuid,
    business_key text,
    arguments jsonb NOT NULL,
    result jsonb,
    error text,
    error_fingerprint text,
    CONSTRAINT jobs_state_known CHECK (
        state IN ('pending', 'running', 'completed', 'failed', 'dead_letter', 'cancelled')
    ),
    CONSTRAINT jobs_running_has_lease CHECK (
        (state = 'running') = (token IS NOT NULL)
        AND (state = 'running') = (lease_until IS NOT NULL)
    ),
    CONSTRAINT jobs_ended_has_time CHECK (
        (state IN ('completed', 'failed', 'dead_letter', 'cancelled')) = (finished_at IS NOT NULL)
    ),
    CONSTRAINT jobs_result_is_of_completed CHECK (result IS NULL OR state = 'completed'),
    CONSTRAINT jobs_counters_not_negative CHECK (
        attempt >= 0 AND crash_count >= 0 AND outage_count >= 0
    ),
    CONSTRAINT jobs_max_attempts_in_range CHECK (max_attempts BETWEEN 1 AND 25),
    CONSTRAINT jobs_attempt_within_max CHECK (attempt <= max_attempts),
    CONSTRAINT jobs_priority_in_range CHECK (priority BETWEEN 0 AND 9)
)
-- Each job is updated twice or more within seconds; the default waits for a fifth of the table
-- to be dead, and claims read the dead entries of the due index meanwhile.
WITH (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

CREATE INDEX jobs_due ON jobs (lane, priority, run_at, id) WHERE state = 'pending';
CREATE INDEX jobs_lease ON jobs (lease_until) WHERE state = 'running';
CREATE INDEX jobs_expiring ON jobs (expires_at)
    WHERE state = 'pending' AND expires_at IS NOT NULL;
CREATE INDEX jobs_unhappy ON jobs (state, id) WHERE state IN ('failed', 'dead_letter');

CREATE TABLE job_keys (
    tenant text NOT NULL,
    kind text NOT NULL,
    business_key text NOT NULL,
    job_id uuid NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant, kind, business_key)
);
"""

HISTORY = """
CREATE TABLE job_attempts (
    token bigint NOT NULL,
    job_id uuid NOT NULL,
    attempt smallint NOT NULL,
    spent boolean NOT NULL,
    started_at timestamptz NOT NULL,
    finished_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    outcome text NOT NULL,
    error text,
    error_fingerprint text,
    worker text,
    PRIMARY KEY (token, finished_at)
) PARTITION BY RANGE (finished_at);
CREATE INDEX job_attempts_job ON job_attempts (job_id);

CREATE TABLE job_audit (
    job_id uuid NOT NULL,
    sequence integer NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    verb text NOT NULL,
    from_state text,
    to_state text NOT NULL,
    attempt smallint NOT NULL,
    token bigint,
    actor text NOT NULL,
    reason text,
    details jsonb,
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    PRIMARY KEY (job_id, sequence, at)
) PARTITION BY RANGE (at);

CREATE TABLE job_attempts_default PARTITION OF job_attempts DEFAULT;
CREATE TABLE job_audit_default PARTITION OF job_audit DEFAULT;

CREATE FUNCTION ensure_month_partitions(parent regclass, months_ahead integer) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    month date := date_trunc('month', clock_timestamp() AT TIME ZONE 'UTC')::date;
    made integer := 0;
    child text;
BEGIN
    FOR ahead IN 0 .. months_ahead LOOP
        child := format('%s_%s', parent, to_char(month + make_interval(months => ahead),
        'YYYY_MM')); IF to_regclass(child) IS NULL THEN
            EXECUTE format(
                'CREATE TABLE %I PARTITION OF %s FOR VALUES FROM (%L) TO (%L)',
                child,
                parent,
                ((month + make_interval(months => ahead))::date)::text || ' 00:00:00+00',
                ((month + make_interval(months => ahead + 1))::date)::text || ' 00:00:00+00'
            );
            made := made + 1;
        END IF;
    END LOOP;
    RETURN made;
END
$$;
SELECT ensure_month_partitions('job_attempts', 3), ensure_month_partitions('job_audit', 3);
"""


def upgrade() -> None:
    """Create the job engine's objects."""
    for statements in (LANES, JOBS, HISTORY):
        op.execute(statements)


def downgrade() -> None:
    """Drop them, and every job with them."""
    op.execute("DROP TABLE job_audit, job_attempts, job_keys, jobs, lanes")
    op.execute("DROP FUNCTION ensure_month_partitions(regclass, integer)")
    op.execute("DROP SEQUENCE job_tokens")
