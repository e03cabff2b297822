-- Every change of a job's state, named. The row count is checked by the caller.
-- Time is the database's clock: statement_timestamp() where an index must be used, for
-- clock_timestamp() is volatile and would be filtered row by row.

-- name: insert
-- → pending. Guard: a business key is new in job_keys, an id is new in jobs; an id that exists
-- takes no key, or that key would name a job of another for ever. Ids are distinct in one call.
-- Rows: one for each job that this call made.
WITH input AS (
    SELECT *
    FROM unnest(
        %(ids)s::uuid[], %(tenants)s::text[], %(kinds)s::text[], %(queues)s::text[],
        %(lanes)s::text[], %(keys)s::text[], %(priorities)s::smallint[],
        %(max_attempts)s::smallint[], %(run_ats)s::timestamptz[],
        %(delays)s::double precision[], %(expires_ats)s::timestamptz[],
        %(parent_ids)s::uuid[], %(actors)s::text[], %(arguments)s::text[]
    ) WITH ORDINALITY AS t (
        id, tenant, kind, queue, lane, business_key, priority, max_attempts, run_at, delay,
        expires_at, parent_id, actor, arguments, position
    )
),

keyed AS (
    INSERT INTO job_keys (tenant, kind, business_key, job_id)
    SELECT DISTINCT ON (tenant, kind, business_key) tenant, kind, business_key, id
    FROM input
    WHERE business_key IS NOT NULL AND NOT EXISTS (SELECT FROM jobs WHERE jobs.id = input.id)
    ORDER BY tenant, kind, business_key, position
    ON CONFLICT DO NOTHING
    RETURNING job_id
),

opened AS (
    INSERT INTO lanes (lane, queue)
    SELECT DISTINCT lane, queue FROM input WHERE lane <> queue
    ON CONFLICT DO NOTHING
),

made AS (
    INSERT INTO jobs (
        id, tenant, kind, queue, lane, business_key, priority, max_attempts, run_at, expires_at,
        parent_id, arguments
    )
    SELECT
        id, tenant, kind, queue, lane, business_key, priority, max_attempts,
        coalesce(run_at, clock_timestamp() + make_interval(secs => delay)), expires_at, parent_id, arguments::jsonb
    FROM input
    WHERE business_key IS NULL OR id IN (SELECT job_id FROM keyed)
    ORDER BY position
    ON CONFLICT (id) DO NOTHING
    RETURNING id
),

audit AS (
    INSERT INTO job_audit (job_id, sequence, verb, to_state, attempt, actor)
    SELECT made.id, 1, 'enqueue', 'pending', 0, input.actor
    FROM made JOIN input USING (id)
)

SELECT id FROM made;

-- name: known_keys
-- The ids of jobs that were there first. A statement of its own: the one above cannot see rows that
-- another transaction committed while it waited.
SELECT input.position, job_keys.job_id
FROM unnest(%(tenants)s::text[], %(kinds)s::text[], %(keys)s::text[])
    WITH ORDINALITY AS input (tenant, kind, business_key, position)
JOIN job_keys USING (tenant, kind, business_key);

-- name: claim
-- pending → running. Guard: due, of a known kind, in an open lane, and not expired unless an effect
-- is open: then somebody must look what became of it, however late.
-- A new token, a lease. Rows: the jobs taken, at most the limit, most urgent first.
-- One index range a (lane, priority), so that waiting rows of closed lanes and rows that are not
-- due yet cost nothing; ANY(ARRAY(...)), for a join turns into a scan of the table.
WITH claimed AS (
    UPDATE jobs
    SET
        state = 'running',
        version = version + 1,
        attempt = attempt + 1,
        token = nextval('job_tokens'),
        lease_until = clock_timestamp() + make_interval(secs => %(ttl_seconds)s),
        started_at = clock_timestamp(),
        worker = %(worker)s
    WHERE id = ANY(ARRAY(
        SELECT due.id
        FROM lanes
        CROSS JOIN generate_series(9, 0, -1) AS urgency (priority)
        CROSS JOIN LATERAL (
            SELECT candidate.id
            FROM jobs AS candidate
            WHERE
                candidate.state = 'pending'
                AND candidate.lane = lanes.lane
                AND candidate.priority = urgency.priority
                AND candidate.run_at <= statement_timestamp()
                AND candidate.kind = ANY(%(kinds)s::text[])
                AND (
                    candidate.expires_at IS NULL
                    OR candidate.expires_at > statement_timestamp()
                    OR candidate.effect_open
                )
            ORDER BY candidate.run_at, candidate.id
            LIMIT %(limit)s
            FOR UPDATE SKIP LOCKED
        ) AS due
        WHERE
            lanes.queue = %(queue)s
            AND NOT lanes.paused
            AND (lanes.closed_until IS NULL OR lanes.closed_until <= statement_timestamp())
        LIMIT %(limit)s
    ))
    RETURNING
        id, kind, queue, tenant, arguments, attempt, max_attempts, outage_count, token,
        lease_until, started_at, worker, version, priority, run_at
),

audit AS (
    INSERT INTO job_audit (job_id, sequence, verb, from_state, to_state, attempt, token, actor)
    SELECT id, version, 'claim', 'pending', 'running', attempt, token, %(worker)s
    FROM claimed
)

SELECT
    id, kind, queue, tenant, arguments, attempt, max_attempts, outage_count, token, lease_until,
    started_at, worker
FROM claimed
ORDER BY priority DESC, run_at, id;

-- name: renew
-- running stays running. Guard: token. Rows: 1, or 0 when the job is no longer ours.
UPDATE jobs
SET lease_until = clock_timestamp() + make_interval(secs => %(ttl_seconds)s)
WHERE id = %(id)s AND token = %(token)s;

-- name: own
-- Locks a running job against a change of owner until the transaction ends. Guard: token.
-- Rows: 1, or 0 when the job is no longer ours.
SELECT 1
FROM jobs
WHERE id = %(id)s AND token = %(token)s
FOR SHARE;

-- name: open_effect
-- running stays running; a call to the outside is declared. Guard: token. Rows: 1 or 0.
UPDATE jobs
SET effect_open = true
WHERE id = %(id)s AND token = %(token)s;

-- name: record
-- running → completed, failed, dead_letter or pending; a run that would wait ends cancelled if
-- somebody asked for it and no effect is open. Guard: token, and a verb with the state it leads to.
-- Rows: 1, or 0 when the job is no longer ours.
WITH ended AS (
    UPDATE jobs
    SET
        state = CASE
            WHEN
                %(state)s = 'pending'
                AND cancel_requested
                AND (%(closes_effect)s OR NOT effect_open)
                THEN 'cancelled'
            ELSE %(state)s
        END,
        version = version + 1,
        attempt = CASE WHEN %(spend)s THEN attempt ELSE attempt - 1 END,
        outage_count = %(outages)s,
        run_at = CASE
            WHEN %(state)s = 'pending'
                THEN clock_timestamp() + make_interval(secs => %(delay_seconds)s)
            ELSE run_at
        END,
        finished_at = CASE
            WHEN
                %(state)s = 'pending'
                AND NOT (cancel_requested AND (%(closes_effect)s OR NOT effect_open))
                THEN NULL
            ELSE clock_timestamp()
        END,
        effect_open = effect_open AND NOT %(closes_effect)s,
        token = NULL,
        lease_until = NULL,
        worker = NULL,
        result = %(result)s,
        error = %(error)s,
        error_fingerprint = %(error_fingerprint)s
    WHERE
        id = %(id)s
        AND token = %(token)s
        AND (%(verb)s::text, %(state)s::text) IN (
            ('complete', 'completed'),
            ('fail', 'failed'),
            ('bury', 'dead_letter'),
            ('reschedule', 'pending'),
            ('defer', 'pending')
        )
    RETURNING id, state, version, attempt, started_at
),

history AS (
    INSERT INTO job_attempts (
        token, job_id, attempt, spent, started_at, outcome, error, error_fingerprint, worker
    )
    SELECT
        %(token)s, id, %(attempt)s, %(spend)s, started_at, %(outcome)s, %(error)s,
        %(error_fingerprint)s, %(worker)s
    FROM ended
),

audit AS (
    INSERT INTO job_audit (
        job_id, sequence, verb, from_state, to_state, attempt, token, actor, reason
    )
    SELECT
        id, version,
        CASE WHEN state = 'cancelled' THEN 'cancel' ELSE %(verb)s END,
        'running', state, attempt, %(token)s, %(worker)s, %(reason)s
    FROM ended
)

SELECT state FROM ended;

-- name: rescue
-- running → pending, or dead_letter by the kind's policy or after too many crashes; a job that
-- would wait ends cancelled if somebody asked for it and no effect is open.
-- Guard: the lease expired, and the server has been up for a full ttl, so that every owner had the
-- chance to renew after a restart. No attempt is spent, the crash is counted.
-- Rows: the jobs freed, at most the limit.
WITH expired AS MATERIALIZED (
    SELECT id, token, worker, attempt, started_at
    FROM jobs
    WHERE
        state = 'running'
        AND lease_until < statement_timestamp()
        AND pg_postmaster_start_time()
        < statement_timestamp() - make_interval(secs => %(ttl_seconds)s)
    ORDER BY lease_until
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
),

rescued AS (
    UPDATE jobs
    SET
        state = CASE
            WHEN kind = ANY(%(bury_kinds)s::text[]) OR crash_count + 1 >= %(crashes_max)s
                THEN 'dead_letter'
            WHEN cancel_requested AND NOT effect_open THEN 'cancelled'
            ELSE 'pending'
        END,
        finished_at = CASE
            WHEN
                kind = ANY(%(bury_kinds)s::text[])
                OR crash_count + 1 >= %(crashes_max)s
                OR (cancel_requested AND NOT effect_open)
                THEN clock_timestamp()
        END,
        version = version + 1,
        attempt = attempt - 1,
        crash_count = crash_count + 1,
        run_at = clock_timestamp(),
        token = NULL,
        lease_until = NULL,
        worker = NULL,
        error = 'the worker vanished: its lease expired'
    WHERE id = ANY(ARRAY(SELECT id FROM expired))
    RETURNING id, state, version, attempt, crash_count
),

history AS (
    INSERT INTO job_attempts (token, job_id, attempt, spent, started_at, outcome, error, worker)
    SELECT
        expired.token, id, expired.attempt, false, expired.started_at, 'lease_expired',
        'the worker vanished: its lease expired', expired.worker
    FROM rescued JOIN expired USING (id)
),

audit AS (
    INSERT INTO job_audit (
        job_id, sequence, verb, from_state, to_state, attempt, token, actor, reason
    )
    SELECT
        id, rescued.version,
        CASE WHEN rescued.state = 'cancelled' THEN 'cancel' ELSE 'rescue' END,
        'running', rescued.state, rescued.attempt, expired.token,
        %(actor)s, 'lease expired, crash ' || rescued.crash_count
    FROM rescued JOIN expired USING (id)
)

SELECT id FROM rescued;

-- name: expire
-- pending → cancelled. Guard: expires_at has passed and no effect is open. Rows: at most the limit.
WITH gone AS (
    UPDATE jobs
    SET state = 'cancelled', version = version + 1, finished_at = clock_timestamp()
    WHERE id = ANY(ARRAY(
        SELECT id
        FROM jobs
        WHERE
            state = 'pending'
            AND expires_at IS NOT NULL
            AND expires_at <= statement_timestamp()
            AND NOT effect_open
        ORDER BY expires_at
        LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED
    ))
    RETURNING id, version, attempt
),

audit AS (
    INSERT INTO job_audit (
        job_id, sequence, verb, from_state, to_state, attempt, actor, reason
    )
    SELECT id, version, 'expire', 'pending', 'cancelled', attempt, %(actor)s, 'expired'
    FROM gone
)

SELECT id FROM gone;

-- name: cancel
-- pending → cancelled; a running job is asked to stop at its next safe point.
-- Guard: no effect is open. Rows: 1 with the state now, or 0 when it is too late or unknown.
WITH called_off AS (
    UPDATE jobs
    SET
        cancel_requested = (state = 'running'),
        state = CASE WHEN state = 'pending' THEN 'cancelled' ELSE state END,
        finished_at = CASE WHEN state = 'pending' THEN clock_timestamp() END,
        version = version + 1
    WHERE id = %(id)s AND state IN ('pending', 'running') AND NOT effect_open
    RETURNING id, state, version, attempt
),

audit AS (
    INSERT INTO job_audit (job_id, sequence, verb, from_state, to_state, attempt, actor, reason)
    SELECT
        id, version, 'cancel', CASE WHEN state = 'cancelled' THEN 'pending' ELSE 'running' END,
        state, attempt, %(actor)s, %(reason)s
    FROM called_off
)

SELECT state FROM called_off;

-- name: replay
-- dead_letter → pending, under the same business and idempotency keys, with fresh attempts; a wish
-- to cancel from before does not outlive the person's decision to run it.
-- Guard: state. Rows: 1 or 0.
WITH replayed AS (
    UPDATE jobs
    SET
        state = 'pending', version = version + 1, attempt = 0, crash_count = 0,
        outage_count = 0, cancel_requested = false, run_at = clock_timestamp(),
        finished_at = NULL
    WHERE id = %(id)s AND state = 'dead_letter'
    RETURNING id, version
),

audit AS (
    INSERT INTO job_audit (job_id, sequence, verb, from_state, to_state, attempt, actor, reason)
    SELECT id, version, 'replay', 'dead_letter', 'pending', 0, %(actor)s, %(reason)s
    FROM replayed
)

SELECT id FROM replayed;

-- name: resolve
-- dead_letter → cancelled. Guard: state, and no effect is open: money that may have moved is looked
-- up by a replay, never closed unseen. Rows: 1 or 0.
WITH resolved AS (
    UPDATE jobs
    SET state = 'cancelled', version = version + 1
    WHERE id = %(id)s AND state = 'dead_letter' AND NOT effect_open
    RETURNING id, version, attempt
),

audit AS (
    INSERT INTO job_audit (job_id, sequence, verb, from_state, to_state, attempt, actor, reason)
    SELECT id, version, 'resolve', 'dead_letter', 'cancelled', attempt, %(actor)s, %(reason)s
    FROM resolved
)

SELECT id FROM resolved;

-- name: due_queues
-- Read only: the queues in which an open lane has a job that can be claimed.
SELECT DISTINCT lanes.queue
FROM lanes
WHERE
    NOT lanes.paused
    AND (lanes.closed_until IS NULL OR lanes.closed_until <= statement_timestamp())
    AND EXISTS (
        SELECT
        FROM generate_series(0, 9) AS urgency (priority)
        JOIN jobs
            ON
                jobs.state = 'pending'
                AND jobs.lane = lanes.lane
                AND jobs.priority = urgency.priority
                AND jobs.run_at <= statement_timestamp()
                AND (
                    jobs.expires_at IS NULL
                    OR jobs.expires_at > statement_timestamp()
                    OR jobs.effect_open
                )
    );

-- name: next_due
-- Read only: seconds until the next job of an open lane is due; negative when one is due already.
SELECT extract(EPOCH FROM min(first.run_at) - clock_timestamp())::double precision AS seconds
FROM lanes
CROSS JOIN generate_series(0, 9) AS urgency (priority)
CROSS JOIN LATERAL (
    SELECT run_at
    FROM jobs
    WHERE
        jobs.state = 'pending'
        AND jobs.lane = lanes.lane
        AND jobs.priority = urgency.priority
        AND (
            jobs.expires_at IS NULL OR jobs.expires_at > statement_timestamp() OR jobs.effect_open
        )
    ORDER BY run_at
    LIMIT 1
) AS first
WHERE
    NOT lanes.paused
    AND (lanes.closed_until IS NULL OR lanes.closed_until <= statement_timestamp());

-- name: get
SELECT
    id, kind, queue, tenant, state, attempt, max_attempts, run_at, created_at, finished_at,
    arguments, business_key AS key, result, error, effect_open, version, crash_count
FROM jobs
WHERE id = %(id)s;

-- name: attempts
SELECT token, attempt, started_at, finished_at, outcome, error, worker
FROM job_attempts
WHERE job_id = %(id)s
ORDER BY started_at, token;
