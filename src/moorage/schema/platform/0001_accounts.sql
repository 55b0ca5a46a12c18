-- compatible_from: 1
-- Workspaces and the API keys that open them.

-- A plan of NULL is the installation's own, so that its setting holds for all who have no other.
CREATE TABLE workspaces (
    id uuid PRIMARY KEY,
    display_name text NOT NULL,
    tenant_handle text UNIQUE,
    plan text CHECK (plan IN ('developer', 'plus', 'enterprise')),
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    actor text NOT NULL
);

-- The key itself is nowhere: `digest` is its SHA-256, and no slow hash, since a key is random and long. A revoked key
-- stays, so that what it did can still be told, and so that it can never be made again.
CREATE TABLE api_keys (
    id uuid PRIMARY KEY,
    workspace_id uuid NOT NULL REFERENCES workspaces ON DELETE CASCADE,
    digest bytea NOT NULL UNIQUE,
    short_key text NOT NULL,
    description text NOT NULL,
    scopes text[] NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz,
    last_used_at timestamptz,
    revoked_at timestamptz,
    actor text NOT NULL
);
CREATE INDEX api_keys_workspace ON api_keys (workspace_id, created_at);
