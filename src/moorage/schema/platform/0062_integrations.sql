-- compatible_from: 1
-- Access to the repositories of a forge. `number` is what clients of the v1 listing read as an installation's id.

CREATE TABLE integrations (
    id uuid PRIMARY KEY,
    number bigint GENERATED ALWAYS AS IDENTITY,
    workspace_id uuid NOT NULL REFERENCES workspaces ON DELETE CASCADE,
    kind text NOT NULL CHECK (kind IN ('github', 'gitlab', 'gitea')),
    name text NOT NULL,
    base_url text NOT NULL,
    sealed_token bytea NOT NULL,
    sealed_webhook_secret bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    actor text NOT NULL,
    UNIQUE (workspace_id, name)
);
CREATE INDEX deployments_by_integration ON deployments ((source_config->>'integration_id'))
    WHERE source_config ? 'integration_id';
