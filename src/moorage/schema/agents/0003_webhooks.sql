-- compatible_from: 1
-- Webhooks: whom to tell of a run's end, and the deliveries, which are rows with leases.

ALTER TABLE runs
    ADD COLUMN webhook text,
    ADD COLUMN started_at timestamptz; -- of the first attempt

-- Written by the statement that ends the run, and complete: the run's own row may be gone by then.
-- `run` is json, not jsonb: it holds kwargs, which may hold a NUL.
CREATE TABLE webhook_deliveries (
    delivery_id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    run_id uuid NOT NULL,
    url text NOT NULL,
    run json NOT NULL,
    "values" jsonb,
    error jsonb,
    run_started_at timestamptz,
    run_ended_at timestamptz NOT NULL DEFAULT now(),
    status text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'sending', 'delivered', 'failed')),
    attempt int NOT NULL DEFAULT 0,
    not_before timestamptz NOT NULL DEFAULT now(),
    worker text,
    lease_until timestamptz,
    ended_at timestamptz
);
CREATE INDEX webhook_deliveries_pending ON webhook_deliveries (not_before) WHERE status = 'pending';
CREATE INDEX webhook_deliveries_leased ON webhook_deliveries (lease_until) WHERE status = 'sending';
CREATE INDEX webhook_deliveries_ended ON webhook_deliveries (ended_at) WHERE ended_at IS NOT NULL;
