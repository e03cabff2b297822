-- The import of a book: customers, payment methods, subscriptions.

-- name: now
SELECT clock_timestamp() AS now;

-- name: put_customer
-- Rows: 1 when new or changed, 0 when it is there already as given.
INSERT INTO customers (id, tenant, reference, name, email, country, timezone, locale, currency)
VALUES (
    %(id)s, %(tenant)s, %(reference)s, %(name)s, %(email)s, %(country)s, %(timezone)s, %(locale)s,
    %(currency)s
)
ON CONFLICT (tenant, reference) DO UPDATE
SET
    name = excluded.name, email = excluded.email, country = excluded.country,
    timezone = excluded.timezone, locale = excluded.locale
WHERE
    (
        customers.name, customers.email, customers.country, customers.timezone, customers.locale
    ) IS DISTINCT FROM (
        excluded.name, excluded.email, excluded.country, excluded.timezone, excluded.locale
    );

-- name: put_payment_method
-- Rows: 1 when new or changed, 0 when it is there already as given.
INSERT INTO payment_methods (id, tenant, customer_id, reference, gateway, token)
VALUES (%(id)s, %(tenant)s, %(customer_id)s, %(reference)s, %(gateway)s, %(token)s)
ON CONFLICT (tenant, reference) DO UPDATE
SET gateway = excluded.gateway, token = excluded.token
WHERE (payment_methods.gateway, payment_methods.token)
    IS DISTINCT FROM (excluded.gateway, excluded.token);

-- name: put_subscription
-- Rows: 1 when new, 0 when it is there already.
INSERT INTO subscriptions (
    id, tenant, customer_id, payment_method_id, reference, description, currency,
    unit_amount_minor, quantity, tax_rate_ppm, net_days, timezone, period_unit, period_count,
    anchor_date, month_end, ends_on, next_index, next_period_start, next_period_start_at
)
VALUES (
    %(id)s, %(tenant)s, %(customer_id)s, %(payment_method_id)s, %(reference)s, %(description)s,
    %(currency)s, %(unit_amount_minor)s, %(quantity)s, %(tax_rate_ppm)s, %(net_days)s,
    %(timezone)s, %(period_unit)s, %(period_count)s, %(anchor_date)s, %(month_end)s, %(ends_on)s,
    %(next_index)s, %(next_period_start)s, %(next_period_start_at)s
)
ON CONFLICT (tenant, reference) DO NOTHING;

-- name: subscription_terms
SELECT
    reference, customer_id, payment_method_id, description, currency, unit_amount_minor, quantity,
    tax_rate_ppm, net_days, period_unit, period_count, anchor_date, month_end, ends_on
FROM subscriptions
WHERE tenant = %(tenant)s AND reference = ANY(%(references)s);

-- name: customer_currencies
SELECT reference, currency
FROM customers
WHERE tenant = %(tenant)s AND reference = ANY(%(references)s);
