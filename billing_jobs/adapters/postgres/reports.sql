-- Numbers for people: where jobs and money stand. Read only.

-- name: job_counts
SELECT kind, state, count(*) AS jobs
FROM jobs
GROUP BY kind, state;

-- name: unsettled
-- Jobs that run or are due within the horizon, and debts whose outcome is unknown.
SELECT
    (
        SELECT count(*)
        FROM jobs
        WHERE
            queue <> 'maintenance'
            AND (
                state = 'running'
                OR (
                    state = 'pending'
                    AND (
                        run_at <= statement_timestamp() + make_interval(secs => %(horizon_seconds)s)
                        -- Begun and not at its end, however long it waits.
                        OR attempt > 0
                        OR outage_count > 0
                        OR effect_open
                    )
                )
            )
    ) AS jobs,
    (SELECT count(*) FROM charge_attempts WHERE state = 'unknown') AS unknown_charges,
    (
        SELECT count(*)
        FROM jobs
        WHERE
            state = 'running'
            AND lease_until < statement_timestamp() - make_interval(secs => %(stuck_seconds)s)
    ) AS stuck;

-- name: amounts
SELECT
    coalesce(billed.currency, collected.currency) AS currency,
    coalesce(billed.amount_minor, 0)::bigint AS invoiced,
    coalesce(collected.amount_minor, 0)::bigint AS charged
FROM (
    SELECT currency, sum(total_minor) AS amount_minor
    FROM invoices
    WHERE state <> 'draft'
    GROUP BY currency
) AS billed
FULL JOIN (
    SELECT currency, sum(amount_minor) AS amount_minor
    FROM payments
    GROUP BY currency
) AS collected USING (currency)
ORDER BY 1;

-- name: payments
SELECT gateway_reference, currency, amount_minor
FROM payments;

-- name: totals
SELECT
    (SELECT count(*) FROM invoices WHERE state <> 'draft') AS invoices,
    (SELECT count(*) FROM payments) AS charges,
    (SELECT count(*) FROM charge_attempts WHERE state = 'declined') AS declined,
    (SELECT count(*) FROM job_attempts WHERE outcome IN ('failed', 'not_sent')) AS retries,
    (SELECT count(*) FROM job_attempts WHERE outcome = 'unknown') AS unknown_outcomes,
    (SELECT count(*) FROM jobs WHERE state = 'dead_letter') AS dead_letters,
    (SELECT count(*) FROM notices WHERE state = 'sent') AS mails;

-- name: first_completed
SELECT min(finished_at) AS at
FROM jobs
WHERE state = 'completed' AND finished_at >= %(since)s;

-- name: list_jobs
SELECT
    id, kind, queue, tenant, state, attempt, max_attempts, run_at, created_at, finished_at,
    arguments, business_key AS key, result, error, effect_open, version, crash_count
FROM jobs
WHERE
    (%(state)s::text IS NULL OR state = %(state)s)
    AND (%(kind)s::text IS NULL OR kind = %(kind)s)
    AND (%(after)s::uuid IS NULL OR id < %(after)s::uuid)
ORDER BY id DESC
LIMIT %(limit)s;

-- name: ping
SELECT
    current_setting('server_version_num')::integer AS version,
    clock_timestamp() AS now,
    to_regclass('alembic_version') IS NOT NULL AS migrated;

-- name: revision
SELECT version_num
FROM alembic_version;
