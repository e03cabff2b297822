-- Subscriptions, their periods and the invoices made of them.

-- name: next_period_start
SELECT next_period_start
FROM subscriptions
WHERE id = %(subscription_id)s;

-- name: due_subscription
SELECT
    subscriptions.id, subscriptions.tenant, subscriptions.description, subscriptions.currency,
    subscriptions.unit_amount_minor, subscriptions.quantity, subscriptions.tax_rate_ppm,
    subscriptions.net_days, subscriptions.timezone, subscriptions.period_unit,
    subscriptions.period_count, subscriptions.anchor_date, subscriptions.month_end,
    subscriptions.ends_on, subscriptions.state, subscriptions.next_index,
    clock_timestamp() AS now
FROM subscriptions
WHERE subscriptions.id = %(subscription_id)s;

-- name: due_subscriptions
SELECT id, tenant, next_period_start
FROM subscriptions
WHERE
    state = 'active'
    AND next_period_start_at <= statement_timestamp()
    AND (%(after)s::uuid IS NULL OR id > %(after)s::uuid)
ORDER BY id
LIMIT %(limit)s;

-- name: advance_subscription
-- The next period becomes due, or the subscription ends. Guard: the period billed is the next one.
-- Rows: 1, or 0 when this period has been billed before.
UPDATE subscriptions
SET
    next_index = next_index + 1,
    next_period_start = %(next_period_start)s,
    next_period_start_at = %(next_due_at)s,
    state = CASE
        WHEN %(next_period_start)s > ends_on THEN 'cancelled'
        ELSE state
    END
WHERE id = %(subscription_id)s AND next_index = %(index)s AND state = 'active'
RETURNING tenant, customer_id;

-- name: take_period
-- Rows: 1, or 0 when this period has been billed before.
INSERT INTO billing_periods (tenant, subscription_id, component, index, period, invoice_id)
VALUES (
    %(tenant)s, %(subscription_id)s, 'subscription', %(index)s,
    daterange(%(period_start)s, %(period_end)s), %(invoice_id)s
)
ON CONFLICT DO NOTHING;

-- name: draft_invoice
INSERT INTO invoices (
    id, tenant, customer_id, subscription_id, series, currency, subtotal_minor, tax_minor,
    total_minor, period, issued_on, due_on, customer_snapshot
)
SELECT
    %(invoice_id)s, %(tenant)s, customers.id, %(subscription_id)s, %(series)s, %(currency)s,
    %(subtotal_minor)s, %(tax_minor)s, %(total_minor)s,
    daterange(%(period_start)s, %(period_end)s), %(issued_on)s, %(due_on)s,
    jsonb_build_object(
        'name', customers.name, 'email', customers.email, 'country', customers.country,
        'locale', customers.locale
    )
FROM customers
WHERE customers.id = %(customer_id)s;

-- name: add_line
INSERT INTO invoice_lines (
    invoice_id, position, description, quantity, unit_amount_minor, net_minor, tax_rate_ppm,
    tax_minor
)
VALUES (
    %(invoice_id)s, %(position)s, %(description)s, %(quantity)s, %(unit_amount_minor)s,
    %(net_minor)s, %(tax_rate_ppm)s, %(tax_minor)s
);

-- name: add_tax
INSERT INTO invoice_taxes (invoice_id, rate_ppm, base_minor, tax_minor)
VALUES (%(invoice_id)s, %(rate_ppm)s, %(base_minor)s, %(tax_minor)s);

-- name: take_number
-- Locks the series until the transaction ends, so it comes last before the commit.
INSERT INTO number_series (tenant, series, next_number, last_issued_on)
VALUES (%(tenant)s, %(series)s, 2, %(issued_on)s)
ON CONFLICT (tenant, series) DO UPDATE
SET
    next_number = number_series.next_number + 1,
    last_issued_on = greatest(number_series.last_issued_on, excluded.last_issued_on)
RETURNING next_number - 1 AS number;

-- name: issue_invoice
-- draft → open, or paid at once when nothing is owed.
UPDATE invoices
SET
    state = CASE WHEN total_minor = 0 THEN 'paid' ELSE 'open' END,
    number = %(number)s,
    issued_at = clock_timestamp()
WHERE id = %(invoice_id)s AND state = 'draft';

-- name: open_notice
-- → queued; one that still waits goes to the address that the customer has now.
-- Rows: 1, or 0 when the notice of this step is there already.
INSERT INTO notices (
    id, tenant, invoice_id, customer_id, step, channel, recipient, message_id, token
)
SELECT
    %(id)s, invoices.tenant, invoices.id, customers.id, %(step)s, 'mail', customers.email,
    %(message_id)s, %(token)s
FROM invoices
JOIN customers ON customers.id = invoices.customer_id
WHERE invoices.id = %(invoice_id)s
ON CONFLICT (id) DO UPDATE
SET recipient = excluded.recipient
WHERE notices.state = 'queued' AND notices.recipient <> excluded.recipient;

-- name: get_notice
SELECT
    notices.id, notices.message_id, notices.state, notices.recipient, notices.step,
    customers.name, invoices.series, invoices.number, invoices.currency, invoices.due_on,
    invoices.state AS invoice_state, invoices.disputed,
    invoices.total_minor - invoices.paid_minor - invoices.credited_minor AS open_minor
FROM notices
JOIN invoices ON invoices.id = notices.invoice_id
JOIN customers ON customers.id = notices.customer_id
WHERE notices.invoice_id = %(invoice_id)s AND notices.step = %(step)s;

-- name: begin_data
-- queued → sending. Guard: state and token. Rows: 1 or 0.
UPDATE notices
SET state = 'sending', data_started_at = clock_timestamp(), token = %(token)s
WHERE id = %(notice_id)s AND state = 'queued' AND token <= %(token)s;

-- name: answer_notice
-- queued, sending → what became of it; back to queued when it provably was not taken.
-- Guard: token. Rows: 1 or 0.
UPDATE notices
SET
    state = %(state)s,
    token = %(token)s,
    reason = %(reason)s,
    data_started_at = CASE WHEN %(state)s = 'queued' THEN NULL ELSE data_started_at END,
    resolved_at = CASE WHEN %(state)s = 'queued' THEN NULL ELSE clock_timestamp() END
WHERE id = %(notice_id)s AND state IN ('queued', 'sending') AND token <= %(token)s;
