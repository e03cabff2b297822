-- What is owed, tried, paid and told. The statements on running work are called inside a transaction
-- that holds the job's row under its token (see `own` in jobs.sql).

-- name: next_collection_number
SELECT coalesce(max(number), 0) + 1 AS number
FROM charge_attempts
WHERE
    invoice_id = %(invoice_id)s
    AND state NOT IN ('created', 'sending', 'unknown', 'pending', 'requires_action');

-- name: lock_invoice
-- Locks the debt, so that one transaction at a time decides about it.
SELECT
    invoices.tenant, invoices.state, invoices.currency, invoices.disputed,
    invoices.total_minor - invoices.paid_minor - invoices.credited_minor AS open_minor,
    payment_methods.token AS payment_token
FROM invoices
LEFT JOIN subscriptions ON subscriptions.id = invoices.subscription_id
LEFT JOIN payment_methods ON payment_methods.id = subscriptions.payment_method_id
WHERE invoices.id = %(invoice_id)s
FOR UPDATE OF invoices;

-- name: live_attempt
SELECT
    attempt.id, attempt.invoice_id, attempt.number, attempt.state, attempt.amount_minor,
    attempt.currency, attempt.idempotency_key AS key, attempt.reason, attempt.first_sent_at,
    attempt.probe_count, attempt.payment_token, object.id AS object_id,
    object.gateway_reference AS object_reference
FROM charge_attempts AS attempt
JOIN payment_objects AS object ON object.id = attempt.payment_object_id
WHERE
    attempt.invoice_id = %(invoice_id)s
    AND attempt.state IN ('created', 'sending', 'unknown', 'pending', 'requires_action');

-- name: attempt_in_doubt
SELECT
    attempt.id, attempt.invoice_id, attempt.number, attempt.state, attempt.amount_minor,
    attempt.currency, attempt.idempotency_key AS key, attempt.reason, attempt.first_sent_at,
    attempt.probe_count, attempt.payment_token, object.id AS object_id,
    object.gateway_reference AS object_reference
FROM charge_attempts AS attempt
JOIN payment_objects AS object ON object.id = attempt.payment_object_id
WHERE
    attempt.id = %(attempt_id)s
    AND attempt.state IN ('unknown', 'pending', 'requires_action');

-- name: open_object
-- One payment object a debt and gateway; the one that is there already is used.
INSERT INTO payment_objects (id, tenant, invoice_id, gateway, currency, amount_minor)
VALUES (%(id)s, %(tenant)s, %(invoice_id)s, %(gateway)s, %(currency)s, %(amount_minor)s)
ON CONFLICT DO NOTHING;

-- name: get_object
SELECT id, amount_minor
FROM payment_objects
WHERE invoice_id = %(invoice_id)s AND gateway = %(gateway)s AND NOT cancelled;

-- name: open_attempt
-- → created. Guard: one live attempt a debt, by a partial unique index.
INSERT INTO charge_attempts (
    id, tenant, invoice_id, payment_object_id, number, currency, amount_minor, payment_token,
    idempotency_key, request_sha256, job_id, token
)
VALUES (
    %(id)s, %(tenant)s, %(invoice_id)s, %(object_id)s, %(number)s, %(currency)s,
    %(amount_minor)s, %(payment_token)s, %(key)s, %(request_sha256)s, %(job_id)s, %(token)s
);

-- name: declare_attempt
-- created → sending. Guard: state and token. Rows: 1 or 0.
UPDATE charge_attempts
SET state = 'sending', first_sent_at = clock_timestamp(), token = %(token)s
WHERE id = %(attempt_id)s AND state = 'created' AND token <= %(token)s;

-- name: cancel_attempt
-- created → cancelled, for nothing is due any more. Guard: state and token. Rows: 1 or 0.
UPDATE charge_attempts
SET state = 'cancelled', reason = %(reason)s, token = %(token)s
WHERE id = %(attempt_id)s AND state = 'created' AND token <= %(token)s;

-- name: keep_object
-- Guard: no other id is known yet. Rows: 1 or 0.
UPDATE payment_objects
SET gateway_reference = %(reference)s
WHERE
    id = %(object_id)s
    AND (gateway_reference IS NULL OR gateway_reference = %(reference)s);

-- name: keep_evidence
-- Append only, whoever owns the job by now.
INSERT INTO attempt_evidence (attempt_id, source, raw)
VALUES (%(attempt_id)s, %(source)s, %(raw)s);

-- name: answer_attempt
-- sending, unknown, pending, requires_action → what the answer says, checked by the trigger.
-- Guard: token. Rows: 1, or 0 when a newer owner has written.
UPDATE charge_attempts
SET
    state = %(state)s,
    token = %(token)s,
    reason = %(reason)s,
    decline_code = %(decline_code)s,
    gateway_reference = coalesce(%(charge_reference)s, gateway_reference),
    probe_count = probe_count
    + CASE WHEN state IN ('unknown', 'pending', 'requires_action') THEN 1 ELSE 0 END,
    next_probe_at = clock_timestamp() + make_interval(secs => %(probe_after_seconds)s),
    needs_person = %(needs_person)s,
    resolved_at = CASE
        WHEN %(state)s IN ('succeeded', 'declined', 'failed_not_sent') THEN clock_timestamp()
    END
WHERE id = %(attempt_id)s AND token <= %(token)s
RETURNING id, tenant, invoice_id, currency;

-- name: gateway_of_attempt
SELECT object.gateway
FROM charge_attempts AS attempt
JOIN payment_objects AS object ON object.id = attempt.payment_object_id
WHERE attempt.id = %(attempt_id)s;

-- name: open_amount
SELECT total_minor - paid_minor - credited_minor AS open_minor
FROM invoices
WHERE id = %(invoice_id)s
FOR UPDATE;

-- name: add_payment
-- Rows: 1, or 0 when this money is in the books already.
INSERT INTO payments (
    id, tenant, invoice_id, attempt_id, gateway, gateway_reference, currency, amount_minor,
    applied_minor
)
VALUES (
    %(id)s, %(tenant)s, %(invoice_id)s, %(attempt_id)s, %(gateway)s, %(gateway_reference)s,
    %(currency)s, %(amount_minor)s, %(applied_minor)s
)
ON CONFLICT DO NOTHING;

-- name: apply_payment
-- open → paid once nothing is open any more.
UPDATE invoices
SET
    paid_minor = paid_minor + %(applied_minor)s,
    state = CASE
        WHEN state IN ('open', 'uncollectible')
            AND paid_minor + credited_minor + %(applied_minor)s = total_minor
            THEN 'paid'
        ELSE state
    END,
    paid_at = CASE
        WHEN paid_minor + credited_minor + %(applied_minor)s = total_minor
            THEN clock_timestamp()
        ELSE paid_at
    END
WHERE id = %(invoice_id)s;

-- name: post
-- One side of a balanced transaction; zero amounts are not posted.
INSERT INTO ledger_entries (
    transaction_id, tenant, account, currency, amount_minor, invoice_id, payment_id
)
SELECT
    %(transaction_id)s, %(tenant)s, side.account, %(currency)s, side.amount_minor,
    %(invoice_id)s, %(payment_id)s
FROM unnest(%(accounts)s::text[], %(amounts_minor)s::bigint[]) AS side (account, amount_minor)
WHERE side.amount_minor <> 0;
