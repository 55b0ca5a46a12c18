-- Machines that run agents for a workspace. Code before this one would run their deployments on the platform's machine.

CREATE TABLE listeners (
    id uuid PRIMARY KEY,
    workspace_id uuid NOT NULL REFERENCES workspaces ON DELETE CASCADE,
    version text,
    compute_type text NOT NULL CHECK (compute_type IN ('k8s', 'machine')),
    compute_id text NOT NULL,
    compute_config jsonb NOT NULL,
    last_seen_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    actor text NOT NULL,
    UNIQUE (workspace_id, compute_id)
);
CREATE INDEX deployments_by_listener ON deployments ((source_config->>'listener_id'))
    WHERE source_config ? 'listener_id';
