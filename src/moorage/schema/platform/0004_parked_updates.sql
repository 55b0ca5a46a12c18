-- compatible_from: 4
-- Updates of trace runs that came before the run itself, and do not say in which project it is. They were acknowledged,
-- so they wait here until the run arrives.

CREATE TABLE parked_updates (
    id uuid PRIMARY KEY,
    workspace_id uuid NOT NULL,
    run_id uuid NOT NULL,
    -- The update as it came, part by part.
    main bytea,
    payloads bytea[] NOT NULL,
    payload_names text[] NOT NULL,
    attachments bytea,
    arrived_at timestamptz NOT NULL DEFAULT now(),
    not_before timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX parked_updates_due ON parked_updates (not_before);
