-- compatible_from: 1
-- Links that open the console once. The code itself is not stored; the row goes with its use.

CREATE TABLE login_links (
    digest bytea PRIMARY KEY,
    key_id uuid NOT NULL REFERENCES api_keys (id) ON DELETE CASCADE,
    expires_at timestamptz NOT NULL
);
