-- compatible_from: 1
-- Tokens that agents use on behalf of users, the sign-ins that bring them, and which agent uses which token.

-- Known of providers that were discovered: who issues their tokens, and where tokens are revoked.
ALTER TABLE oauth_providers ADD COLUMN issuer text;
ALTER TABLE oauth_providers ADD COLUMN revocation_url text;

-- `scopes` were granted and `asked_scopes` were asked for: providers rename some. `refresh_at` is empty for a token that
-- cannot be refreshed. A token that is to be revoked stays until its provider was told.
CREATE TABLE oauth_tokens (
    id uuid PRIMARY KEY,
    workspace_id uuid NOT NULL REFERENCES workspaces ON DELETE CASCADE,
    provider_row_id uuid NOT NULL REFERENCES oauth_providers ON DELETE CASCADE,
    user_id text NOT NULL,
    status text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'expired', 'revoking')),
    sealed_token bytea NOT NULL,
    scopes text[] NOT NULL,
    asked_scopes text[] NOT NULL,
    provider_account_label text,
    is_default boolean NOT NULL,
    expires_at timestamptz,
    refresh_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    actor text NOT NULL,
    worker text,
    lease_until timestamptz,
    attempt int NOT NULL DEFAULT 0,
    failures int NOT NULL DEFAULT 0,
    not_before timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX oauth_tokens_user ON oauth_tokens (workspace_id, provider_row_id, user_id);
CREATE INDEX oauth_tokens_actor ON oauth_tokens (workspace_id, actor);
-- One default of a user at a provider, whatever the code believes.
CREATE UNIQUE INDEX oauth_tokens_default ON oauth_tokens (provider_row_id, user_id)
    WHERE is_default AND status <> 'revoking';
CREATE INDEX oauth_tokens_due ON oauth_tokens (refresh_at) WHERE status = 'active' AND refresh_at IS NOT NULL;
CREATE INDEX oauth_tokens_revoking ON oauth_tokens (not_before) WHERE status = 'revoking';
CREATE INDEX oauth_tokens_leased ON oauth_tokens (lease_until) WHERE worker IS NOT NULL;

-- A sign-in that was begun. `state_digest` is all that is kept of what the provider hands back; `provider_changed_at` binds
-- the sign-in to the provider as it was when it began; `renews` is the token that the new one takes the place of.
CREATE TABLE oauth_sign_ins (
    id uuid PRIMARY KEY,
    workspace_id uuid NOT NULL REFERENCES workspaces ON DELETE CASCADE,
    provider_row_id uuid NOT NULL REFERENCES oauth_providers ON DELETE CASCADE,
    provider_changed_at timestamptz NOT NULL,
    user_id text NOT NULL,
    agent_id text,
    state_digest bytea NOT NULL,
    sealed_verifier bytea NOT NULL,
    scopes text[] NOT NULL,
    is_default boolean NOT NULL,
    renews uuid REFERENCES oauth_tokens ON DELETE SET NULL,
    status text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'exchanging', 'completed', 'failed')),
    token_id uuid REFERENCES oauth_tokens ON DELETE CASCADE,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL,
    actor text NOT NULL
);
CREATE INDEX oauth_sign_ins_user ON oauth_sign_ins (workspace_id, provider_row_id, user_id, created_at DESC);
CREATE INDEX oauth_sign_ins_expiry ON oauth_sign_ins (expires_at);

CREATE TABLE oauth_connections (
    id uuid PRIMARY KEY,
    workspace_id uuid NOT NULL REFERENCES workspaces ON DELETE CASCADE,
    agent_id text NOT NULL,
    oauth_token_id uuid NOT NULL REFERENCES oauth_tokens ON DELETE CASCADE,
    created_at timestamptz NOT NULL DEFAULT now(),
    actor text NOT NULL,
    UNIQUE (workspace_id, agent_id, oauth_token_id)
);
CREATE INDEX oauth_connections_token ON oauth_connections (oauth_token_id);
