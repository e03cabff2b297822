"""
The books: customers, subscriptions, invoices, charge attempts, payments, ledger and notices.

Why: double billing is refused by the database itself. One live charge attempt a debt, one payment
object a debt and gateway, one period a subscription and component, no overlapping periods, one
notice a step; a unique conflict means "already done". The state machine of charge attempts is
enforced by a trigger that holds the pairs of `ATTEMPT_TRANSITIONS`.

Locks taken: none that matter, all objects are new. The extension btree_gist is created; it is
trusted, so the owner of the database may do that.

Way back: `downgrade` drops the objects and with them the books; take a dump before. The extension
stays, others may use it.
"""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

PEOPLE = """
CREATE EXTENSION IF NOT EXISTS btree_gist;

CREATE TABLE customers (
    id uuid PRIMARY KEY,
    tenant text NOT NULL,
    reference text NOT NULL,
    name text NOT NULL,
    email text NOT NULL,
    country text NOT NULL,
    timezone text NOT NULL,
    locale text NOT NULL,
    currency text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (tenant, reference),
    CONSTRAINT customers_currency_form CHECK (currency ~ '^[A-Z]{3}$')
);

CREATE TABLE payment_methods (
    id uuid PRIMARY KEY,
    tenant text NOT NULL,
    customer_id uuid NOT NULL REFERENCES customers,
    reference text NOT NULL,
    gateway text NOT NULL,
    token text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (tenant, reference)
);
CREATE INDEX payment_methods_customer ON payment_methods (customer_id);

CREATE TABLE subscriptions (
    id uuid PRIMARY KEY,
    tenant text NOT NULL,
    customer_id uuid NOT NULL REFERENCES customers,
    payment_method_id uuid REFERENCES payment_methods,
    reference text NOT NULL,
    description text NOT NULL,
    currency text NOT NULL,
    unit_amount_minor bigint NOT NULL,
    quantity integer NOT NULL,
    tax_rate_ppm integer NOT NULL,
    net_days integer NOT NULL,
    timezone text NOT NULL,
    period_unit text NOT NULL,
    period_count integer NOT NULL,
    anchor_date date NOT NULL,
    month_end boolean NOT NULL,
    ends_on date,
    state text NOT NULL DEFAULT 'active',
    next_index integer NOT NULL,
    next_period_start date NOT NULL,
    next_period_start_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (tenant, reference),
    UNIQUE (id, currency),
    CONSTRAINT subscriptions_state_known CHECK (state IN ('active', 'cancelled')),
    CONSTRAINT subscriptions_unit_known CHECK (period_unit IN ('week', 'month', 'quarter', 'year')),
    CONSTRAINT subscriptions_counts_positive CHECK (period_count > 0 AND quantity > 0),
    CONSTRAINT subscriptions_amounts_not_negative CHECK (
        unit_amount_minor >= 0 AND tax_rate_ppm >= 0 AND net_days >= 0
    )
);
CREATE INDEX subscriptions_due ON subscriptions (next_period_start_at, id) WHERE state = 'active';
CREATE INDEX subscriptions_customer ON subscriptions (customer_id);
"""

INVOICES = """
CREATE TABLE number_series (
    tenant text NOT NULL,
    series text NOT NULL,
    next_number bigint NOT NULL DEFAULT 1,
    last_issued_on date,
    PRIMARY KEY (tenant, series)
);

CREATE TABLE invoices (
    id uuid PRIMARY KEY,
    tenant text NOT NULL,
    customer_id uuid NOT NULL REFERENCES customers,
    subscription_id uuid REFERENCES subscriptions,
    series text NOT NULL,
    number bigint,
    state text NOT NULL DEFAULT 'draft',
    currency text NOT NULL,
    subtotal_minor bigint NOT NULL,
    tax_minor bigint NOT NULL,
    total_minor bigint NOT NULL,
    paid_minor bigint NOT NULL DEFAULT 0,
    credited_minor bigint NOT NULL DEFAULT 0,
    disputed boolean NOT NULL DEFAULT false,
    period daterange,
    issued_on date,
    due_on date,
    customer_snapshot jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    issued_at timestamptz,
    paid_at timestamptz,
    UNIQUE (tenant, series, number),
    UNIQUE (id, currency),
    FOREIGN KEY (subscription_id, currency) REFERENCES subscriptions (id, currency),
    CONSTRAINT invoices_state_known CHECK (
        state IN ('draft', 'open', 'paid', 'void', 'uncollectible')
    ),
    CONSTRAINT invoices_draft_has_no_number CHECK ((state = 'draft') = (number IS NULL)),
    CONSTRAINT invoices_sum CHECK (subtotal_minor + tax_minor = total_minor),
    CONSTRAINT invoices_not_overpaid CHECK (
        paid_minor >= 0 AND credited_minor >= 0 AND paid_minor + credited_minor <= total_minor
    ),
    CONSTRAINT invoices_paid_is_whole CHECK (
        state <> 'paid' OR paid_minor + credited_minor = total_minor
    )
);
CREATE INDEX invoices_customer ON invoices (customer_id);
CREATE INDEX invoices_subscription ON invoices (subscription_id);
CREATE INDEX invoices_open ON invoices (due_on, id) WHERE state = 'open';

CREATE TABLE invoice_lines (
    invoice_id uuid NOT NULL REFERENCES invoices,
    position integer NOT NULL,
    description text NOT NULL,
    quantity integer NOT NULL,
    unit_amount_minor bigint NOT NULL,
    net_minor bigint NOT NULL,
    tax_rate_ppm integer NOT NULL,
    tax_minor bigint NOT NULL,
    PRIMARY KEY (invoice_id, position)
);

CREATE TABLE invoice_taxes (
    invoice_id uuid NOT NULL REFERENCES invoices,
    rate_ppm integer NOT NULL,
    base_minor bigint NOT NULL,
    tax_minor bigint NOT NULL,
    PRIMARY KEY (invoice_id, rate_ppm)
);

CREATE TABLE billing_periods (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant text NOT NULL,
    subscription_id uuid NOT NULL REFERENCES subscriptions,
    component text NOT NULL,
    index integer NOT NULL,
    period daterange NOT NULL,
    invoice_id uuid NOT NULL REFERENCES invoices DEFERRABLE INITIALLY DEFERRED,
    released_at timestamptz,
    CONSTRAINT billing_periods_bounded CHECK (
        NOT isempty(period) AND NOT lower_inf(period) AND NOT upper_inf(period)
    ),
    CONSTRAINT billing_periods_no_overlap EXCLUDE USING gist (
        subscription_id WITH =, component WITH =, period WITH &&
    ) WHERE (released_at IS NULL)
);
CREATE UNIQUE INDEX billing_periods_once ON billing_periods (subscription_id, component, index)
    WHERE released_at IS NULL;
"""

CHARGES = """
CREATE TABLE payment_objects (
    id uuid PRIMARY KEY,
    tenant text NOT NULL,
    invoice_id uuid NOT NULL,
    gateway text NOT NULL,
    currency text NOT NULL,
    amount_minor bigint NOT NULL,
    gateway_reference text,
    cancelled boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    FOREIGN KEY (invoice_id, currency) REFERENCES invoices (id, currency),
    UNIQUE (gateway, gateway_reference),
    CONSTRAINT payment_objects_amount_positive CHECK (amount_minor > 0)
);
CREATE UNIQUE INDEX payment_objects_one_a_debt ON payment_objects (invoice_id, gateway)
    WHERE NOT cancelled;

CREATE TABLE charge_attempts (
    id uuid PRIMARY KEY,
    tenant text NOT NULL,
    invoice_id uuid NOT NULL,
    payment_object_id uuid NOT NULL REFERENCES payment_objects,
    number integer NOT NULL,
    state text NOT NULL DEFAULT 'created',
    currency text NOT NULL,
    amount_minor bigint NOT NULL,
    payment_token text NOT NULL,
    idempotency_key text NOT NULL UNIQUE,
    request_sha256 text NOT NULL,
    job_id uuid NOT NULL,
    token bigint NOT NULL,
    reason text,
    decline_code text,
    gateway_reference text,
    probe_count integer NOT NULL DEFAULT 0,
    next_probe_at timestamptz,
    needs_person boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    first_sent_at timestamptz,
    resolved_at timestamptz,
    FOREIGN KEY (invoice_id, currency) REFERENCES invoices (id, currency),
    UNIQUE (invoice_id, number),
    CONSTRAINT charge_attempts_state_known CHECK (
        state IN (
            'created', 'sending', 'succeeded', 'declined', 'pending', 'requires_action',
            'failed_not_sent', 'unknown', 'cancelled'
        )
    ),
    CONSTRAINT charge_attempts_amount_positive CHECK (amount_minor > 0),
    CONSTRAINT charge_attempts_key_length CHECK (length(idempotency_key) <= 64),
    CONSTRAINT charge_attempts_sent_has_time CHECK (
        state IN ('created', 'cancelled') OR first_sent_at IS NOT NULL
    )
);
CREATE UNIQUE INDEX charge_attempts_one_live ON charge_attempts (invoice_id)
    WHERE state IN ('created', 'sending', 'unknown', 'pending', 'requires_action');
CREATE INDEX charge_attempts_in_doubt ON charge_attempts (next_probe_at)
    WHERE state = 'unknown';

CREATE FUNCTION guard_charge_attempt() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (
        NEW.amount_minor, NEW.currency, NEW.payment_token, NEW.idempotency_key,
        NEW.request_sha256, NEW.invoice_id
    ) IS DISTINCT FROM (
        OLD.amount_minor, OLD.currency, OLD.payment_token, OLD.idempotency_key,
        OLD.request_sha256, OLD.invoice_id
    ) THEN
        RAISE EXCEPTION 'charge attempt %: money, method, key and request never change', OLD.id
            USING ERRCODE = 'check_violation';
    END IF;
    IF NEW.token < OLD.token THEN
        RAISE EXCEPTION 'charge attempt %: token % is older than %', OLD.id, NEW.token, OLD.token
            USING ERRCODE = 'check_violation';
    END IF;
    IF NEW.state <> OLD.state AND (OLD.state || '>' || NEW.state) <> ALL (ARRAY[
        'created>sending', 'created>cancelled',
        'sending>succeeded', 'sending>declined', 'sending>pending', 'sending>requires_action',
        'sending>failed_not_sent', 'sending>unknown',
        'unknown>succeeded', 'unknown>declined', 'unknown>pending', 'unknown>requires_action',
        'unknown>failed_not_sent',
        'pending>succeeded', 'pending>declined',
        'requires_action>pending', 'requires_action>succeeded', 'requires_action>declined',
        'requires_action>cancelled'
    ]) THEN
        RAISE EXCEPTION 'charge attempt %: no way from % to %', OLD.id, OLD.state, NEW.state
            USING ERRCODE = 'check_violation';
    END IF;
    IF OLD.state = 'unknown' AND NEW.state <> 'unknown' AND NOT EXISTS (
        SELECT FROM attempt_evidence WHERE attempt_id = OLD.id
    ) THEN
        RAISE EXCEPTION 'charge attempt %: an unknown outcome is resolved by evidence only', OLD.id
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER charge_attempts_guard BEFORE UPDATE ON charge_attempts
    FOR EACH ROW EXECUTE FUNCTION guard_charge_attempt();

CREATE TABLE attempt_evidence (
    id bigint GENERATED ALWAYS AS IDENTITY,
    attempt_id uuid NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    source text NOT NULL,
    raw text NOT NULL,
    PRIMARY KEY (id, at)
) PARTITION BY RANGE (at);
CREATE INDEX attempt_evidence_attempt ON attempt_evidence (attempt_id);
CREATE TABLE attempt_evidence_default PARTITION OF attempt_evidence DEFAULT;
SELECT ensure_month_partitions('attempt_evidence', 3);
"""

MONEY = """
CREATE TABLE payments (
    id uuid PRIMARY KEY,
    tenant text NOT NULL,
    invoice_id uuid NOT NULL REFERENCES invoices,
    attempt_id uuid NOT NULL UNIQUE REFERENCES charge_attempts,
    gateway text NOT NULL,
    gateway_reference text NOT NULL,
    currency text NOT NULL,
    amount_minor bigint NOT NULL,
    applied_minor bigint NOT NULL,
    received_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (gateway, gateway_reference),
    CONSTRAINT payments_applied_within_amount CHECK (
        amount_minor > 0 AND applied_minor BETWEEN 0 AND amount_minor
    )
);
CREATE INDEX payments_invoice ON payments (invoice_id);

CREATE TABLE ledger_entries (
    id bigint GENERATED ALWAYS AS IDENTITY,
    transaction_id uuid NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    tenant text NOT NULL,
    account text NOT NULL,
    currency text NOT NULL,
    amount_minor bigint NOT NULL,
    invoice_id uuid,
    payment_id uuid,
    PRIMARY KEY (id, at),
    CONSTRAINT ledger_entries_account_known CHECK (
        account IN ('receivable', 'revenue', 'tax', 'gateway', 'unapplied')
    )
) PARTITION BY RANGE (at);
CREATE INDEX ledger_entries_transaction ON ledger_entries (transaction_id);
CREATE TABLE ledger_entries_default PARTITION OF ledger_entries DEFAULT;
SELECT ensure_month_partitions('ledger_entries', 3);

CREATE FUNCTION guard_ledger_balance() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT FROM ledger_entries
        WHERE transaction_id = NEW.transaction_id
        GROUP BY currency
        HAVING sum(amount_minor) <> 0
    ) THEN
        RAISE EXCEPTION 'ledger transaction % does not balance', NEW.transaction_id
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END
$$;
CREATE CONSTRAINT TRIGGER ledger_entries_balance AFTER INSERT ON ledger_entries
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION guard_ledger_balance();

CREATE TABLE notices (
    id uuid PRIMARY KEY,
    tenant text NOT NULL,
    invoice_id uuid NOT NULL REFERENCES invoices,
    customer_id uuid NOT NULL REFERENCES customers,
    step text NOT NULL,
    channel text NOT NULL,
    recipient text NOT NULL,
    message_id text NOT NULL UNIQUE,
    state text NOT NULL DEFAULT 'queued',
    reason text,
    token bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    data_started_at timestamptz,
    resolved_at timestamptz,
    UNIQUE (invoice_id, step, channel, recipient),
    CONSTRAINT notices_state_known CHECK (
        state IN ('queued', 'sending', 'sent', 'bounced', 'cancelled', 'unknown')
    )
);
CREATE INDEX notices_invoice ON notices (invoice_id);
"""


def upgrade() -> None:
    """Create the books."""
    for statements in (PEOPLE, INVOICES, CHARGES, MONEY):
        op.execute(statements)


def downgrade() -> None:
    """Drop the books."""
    op.execute(
        "DROP TABLE notices, ledger_entries, payments, attempt_evidence, charge_attempts, "
        "payment_objects, billing_periods, invoice_taxes, invoice_lines, invoices, number_series, "
        "subscriptions, payment_methods, customers"
    )
    op.execute("DROP FUNCTION guard_ledger_balance(), guard_charge_attempt()")
