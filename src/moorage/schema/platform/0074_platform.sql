-- compatible_from: 74
-- The platform's data besides trace runs and feedback, room by room. Outside of the accounts' room, workspace_id may have no
-- foreign key.

-- Accounts: workspaces, and the API keys that open them.

-- `plan` NULL: the installation's default plan, read from its setting.
CREATE TABLE workspaces (
    id uuid PRIMARY KEY,
    display_name text NOT NULL,
    tenant_handle text UNIQUE,
    plan text CHECK (plan IN ('developer', 'plus', 'enterprise')),
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    actor text NOT NULL
);

-- The key itself is not stored: `digest` is its SHA-256. A slow hash is not needed, since a key is random and long. Rows of
-- revoked keys are kept, so that their past actions can still be attributed and the same key can never be created again.
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
-- Every process polls for newly revoked keys twice a second.
CREATE INDEX api_keys_revoked ON api_keys (revoked_at) WHERE revoked_at IS NOT NULL;

-- Links that open the console once. The code itself is not stored; using the link deletes the row.
CREATE TABLE login_links (
    digest bytea PRIMARY KEY,
    key_id uuid NOT NULL REFERENCES api_keys (id) ON DELETE CASCADE,
    expires_at timestamptz NOT NULL
);

-- The audit log.

-- One row before each change and one row in audit_outcomes after it. Neither is ever updated. No foreign keys to workspaces or
-- API keys, since the log outlives them.
CREATE TABLE audit_changes (
    id uuid PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT now(),
    workspace_id uuid NOT NULL,
    actor text NOT NULL,
    operation text NOT NULL,
    method text NOT NULL,
    path text NOT NULL,
    client_host text,
    client_port integer,
    forwarded_for text,
    resource_ids uuid[] NOT NULL
);
CREATE INDEX audit_changes_at ON audit_changes (at, id);
CREATE INDEX audit_changes_workspace ON audit_changes (workspace_id, at, id);

-- A change has no outcome if its process was killed while making it.
CREATE TABLE audit_outcomes (
    change_id uuid PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT now(),
    status integer NOT NULL,
    resource_ids uuid[] NOT NULL
);
CREATE INDEX audit_outcomes_at ON audit_outcomes (at);

-- Makes the log append-only for every client. Retention may delete rows that are older than 30 days.
CREATE FUNCTION audit_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        IF OLD.at < now() - interval '30 days' THEN
            RETURN OLD;
        END IF;
    END IF;
    RAISE EXCEPTION 'the audit log is append-only' USING ERRCODE = 'insufficient_privilege';
END
$$;
-- Sets the time from the database's clock, so that no client can insert a row that is old enough to be deleted.
CREATE FUNCTION audit_date() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.at = now();
    RETURN NEW;
END
$$;
CREATE TRIGGER audit_changes_date BEFORE INSERT ON audit_changes FOR EACH ROW EXECUTE FUNCTION audit_date();
CREATE TRIGGER audit_outcomes_date BEFORE INSERT ON audit_outcomes FOR EACH ROW EXECUTE FUNCTION audit_date();
CREATE TRIGGER audit_changes_stay BEFORE UPDATE OR DELETE ON audit_changes FOR EACH ROW EXECUTE FUNCTION audit_refuse();
CREATE TRIGGER audit_outcomes_stay BEFORE UPDATE OR DELETE ON audit_outcomes FOR EACH ROW EXECUTE FUNCTION audit_refuse();
CREATE TRIGGER audit_changes_whole BEFORE TRUNCATE ON audit_changes EXECUTE FUNCTION audit_refuse();
CREATE TRIGGER audit_outcomes_whole BEFORE TRUNCATE ON audit_outcomes EXECUTE FUNCTION audit_refuse();

-- Traces: projects, retention, deletions, the configuration of feedback keys, and prices.

-- Called sessions on the wire. Their runs and feedback are in ClickHouse.
CREATE TABLE projects (
    id uuid PRIMARY KEY,
    workspace_id uuid NOT NULL,
    name text NOT NULL,
    description text,
    extra jsonb,
    default_dataset_id uuid,
    reference_dataset_id uuid,
    -- NULL: the workspace's setting.
    trace_tier text CHECK (trace_tier IN ('longlived', 'shortlived')),
    -- NULL: the workspace's setting; 0: for ever.
    longlived_ttl_days int CHECK (longlived_ttl_days BETWEEN 0 AND 36500),
    test_run_number int,
    start_time timestamptz NOT NULL DEFAULT now(),
    end_time timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    actor text
);
-- Ingest finds projects by name. Two processes that see a new name at the same time must create only one project.
CREATE UNIQUE INDEX projects_name ON projects (workspace_id, name);
CREATE INDEX projects_started ON projects (workspace_id, start_time DESC, id);
CREATE INDEX projects_experiments ON projects (reference_dataset_id) WHERE reference_dataset_id IS NOT NULL;

-- Retention of a workspace's runs, unless a project has its own setting. No row: for ever.
CREATE TABLE retention_settings (
    workspace_id uuid PRIMARY KEY,
    id uuid NOT NULL,
    default_trace_tier text NOT NULL CHECK (default_trace_tier IN ('longlived', 'shortlived')),
    -- NULL: for ever.
    longlived_ttl_days int CHECK (longlived_ttl_days BETWEEN 1 AND 36500),
    shortlived_ttl_days int NOT NULL DEFAULT 14 CHECK (shortlived_ttl_days BETWEEN 1 AND 36500),
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    actor text
);

-- Orders to remove data from the trace store: given traces, traces with given metadata, or a whole project. Tombstones take
-- effect for readers and ingest at once. The removal follows later; it survives crashes and may be repeated.
CREATE TABLE trace_deletions (
    id uuid PRIMARY KEY,
    workspace_id uuid NOT NULL,
    project_id uuid,
    trace_ids uuid[],
    metadata jsonb,
    status text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'running', 'done')),
    created_at timestamptz NOT NULL DEFAULT now(),
    ended_at timestamptz,
    not_before timestamptz NOT NULL DEFAULT now(),
    attempt int NOT NULL DEFAULT 0,
    worker text,
    lease_until timestamptz,
    actor text,
    CHECK (num_nonnulls(project_id, trace_ids, metadata) = 1)
);
CREATE INDEX trace_deletions_pending ON trace_deletions (not_before) WHERE status = 'pending';
CREATE INDEX trace_deletions_leased ON trace_deletions (lease_until) WHERE status = 'running';

-- The meaning of the values of a feedback key.
CREATE TABLE feedback_configs (
    workspace_id uuid NOT NULL,
    feedback_key text NOT NULL,
    feedback_config jsonb NOT NULL,
    is_lower_score_better boolean NOT NULL DEFAULT false,
    modified_at timestamptz NOT NULL DEFAULT now(),
    actor text,
    PRIMARY KEY (workspace_id, feedback_key)
);

-- A token lets whoever holds it give feedback of one key on one run, without an API key. Its id is the secret.
CREATE TABLE feedback_tokens (
    id uuid PRIMARY KEY,
    workspace_id uuid NOT NULL,
    run_id uuid NOT NULL,
    feedback_key text NOT NULL,
    -- Each use of the token writes this feedback; NULL: each use creates a new one.
    feedback_id uuid,
    expires_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    actor text
);
CREATE INDEX feedback_tokens_by_run ON feedback_tokens (workspace_id, run_id, created_at DESC);
CREATE INDEX feedback_tokens_expired ON feedback_tokens (expires_at);

-- Feedback keys that are computed from other keys: a weighted sum or average.
CREATE TABLE feedback_formulas (
    id uuid PRIMARY KEY,
    workspace_id uuid NOT NULL,
    dataset_id uuid,
    session_id uuid,
    feedback_key text NOT NULL,
    aggregation_type text NOT NULL CHECK (aggregation_type IN ('sum', 'avg')),
    formula_parts jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    modified_at timestamptz NOT NULL DEFAULT now(),
    actor text
);
CREATE UNIQUE INDEX feedback_formulas_key
    ON feedback_formulas (workspace_id, feedback_key, session_id, dataset_id) NULLS NOT DISTINCT;

-- A workspace's own prices of models. For all other models the price table shipped with the program applies.
CREATE TABLE model_prices (
    id uuid PRIMARY KEY,
    workspace_id uuid NOT NULL,
    name text NOT NULL,
    -- The price applies to runs that started at this time or later. NULL: to all runs.
    start_time timestamptz,
    -- Keys of the invocation parameters that may hold the model's name.
    match_path text[] NOT NULL,
    -- A regular expression for the name. PostgreSQL matches it, not the program: here no pattern takes exponential time,
    -- and a match that takes too long is stopped.
    match_pattern text NOT NULL,
    -- NULL: any provider.
    provider text,
    -- US dollars per token.
    prompt_cost numeric NOT NULL,
    completion_cost numeric NOT NULL,
    -- Kinds of tokens with a separate price: {"cache_read": "0.0000003"}.
    prompt_cost_details jsonb NOT NULL DEFAULT '{}',
    completion_cost_details jsonb NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    actor text NOT NULL
);
CREATE INDEX model_prices_workspace ON model_prices (workspace_id);

-- Updates of trace runs that arrived before their run and do not name its project. They have been acknowledged, so they wait
-- here until the run arrives.
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
-- Updates of one run are written in the order of their arrival, so ingest looks up whether earlier updates of the run wait.
CREATE INDEX parked_updates_by_run ON parked_updates (workspace_id, run_id, arrived_at, id);

-- Bulk export: destinations, exports, and the runs that write their files.

-- Destinations of exports. `credentials` is a sealed JSON object. Deleting a destination deletes its credentials; its exports
-- remain readable.
CREATE TABLE export_destinations (
    id uuid PRIMARY KEY,
    workspace_id uuid NOT NULL,
    destination_type text NOT NULL CHECK (destination_type IN ('s3', 'gcs', 'azure', 'local')),
    display_name text NOT NULL,
    config jsonb NOT NULL,
    credentials bytea,
    credentials_keys text[] NOT NULL DEFAULT '{}',
    permissions jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    actor text NOT NULL
);
CREATE INDEX export_destinations_workspace ON export_destinations (workspace_id, created_at, id);

CREATE TABLE exports (
    id uuid PRIMARY KEY,
    workspace_id uuid NOT NULL,
    destination_id uuid NOT NULL,
    -- The location within the destination, copied here because the export outlives a deleted destination.
    bucket text,
    root text NOT NULL,
    -- NULL: all experiments of the workspace.
    session_id uuid,
    start_at timestamptz NOT NULL,
    end_at timestamptz,
    filter text,
    format_version text NOT NULL,
    compression text NOT NULL,
    export_fields text[],
    changed_since timestamptz,
    status text NOT NULL CHECK (
        status IN ('Created', 'Running', 'Completed', 'Failed', 'Cancelled', 'TimedOut', 'IntervalScheduled')
    ),
    -- The reason of a failure, as text.
    error text,
    -- For a schedule: its interval, and the start of the next window.
    interval_hours int CHECK (interval_hours BETWEEN 1 AND 168),
    next_start_at timestamptz,
    source_export_id uuid REFERENCES exports,
    -- Set when the export starts. Trace runs that arrive after the cutoff are not in it; it must end before the deadline.
    cutoff_at timestamptz,
    deadline_at timestamptz,
    -- The key of the manifest, once it is written.
    manifest text,
    webhook_url text,
    webhook_secret bytea,
    -- NULL: there is no webhook, or the export has not ended.
    webhook_status text CHECK (webhook_status IN ('pending', 'delivered', 'failed')),
    webhook_attempts int NOT NULL DEFAULT 0,
    -- The lease of the worker that writes the manifest or calls the webhook.
    worker text,
    attempt int NOT NULL DEFAULT 0,
    retry_number int NOT NULL DEFAULT 0,
    lease_until timestamptz,
    not_before timestamptz NOT NULL DEFAULT now(),
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz,
    actor text NOT NULL,
    CHECK ((interval_hours IS NULL) = (end_at IS NOT NULL)),
    CHECK ((status = 'IntervalScheduled') <= (next_start_at IS NOT NULL))
);
CREATE INDEX exports_workspace ON exports (workspace_id, created_at DESC, id);
-- Makes spawning safe to repeat: each window of a schedule has at most one export.
CREATE UNIQUE INDEX exports_one_of_window ON exports (source_export_id, start_at) WHERE source_export_id IS NOT NULL;
CREATE INDEX exports_unfinished ON exports (workspace_id, id) WHERE status IN ('Created', 'Running');
CREATE INDEX exports_scheduled ON exports (next_start_at) WHERE status = 'IntervalScheduled';
CREATE INDEX exports_untold ON exports (not_before) WHERE webhook_status = 'pending';
CREATE INDEX exports_leased ON exports (lease_until) WHERE worker IS NOT NULL;

-- One run for each partition, which is a day of a project. A run at work has a worker. A run that waits for its next attempt
-- has no worker and stays Running.
CREATE TABLE export_runs (
    id uuid PRIMARY KEY,
    export_id uuid NOT NULL REFERENCES exports ON DELETE CASCADE,
    workspace_id uuid NOT NULL,
    session_id uuid NOT NULL,
    start_at timestamptz NOT NULL,
    end_at timestamptz NOT NULL,
    status text NOT NULL DEFAULT 'Created' CHECK (
        status IN ('Created', 'Running', 'Completed', 'Failed', 'Cancelled', 'TimedOut')
    ),
    retry_number int NOT NULL DEFAULT 0,
    errors jsonb,
    -- The checkpoint. `files` holds everything up to the cursor and is verified; `pending` is the part being uploaded.
    latest_cursor text,
    rows_written bigint NOT NULL DEFAULT 0,
    bytes_written bigint NOT NULL DEFAULT 0,
    files jsonb NOT NULL DEFAULT '[]',
    pending jsonb,
    worker text,
    attempt int NOT NULL DEFAULT 0,
    lease_until timestamptz,
    not_before timestamptz NOT NULL DEFAULT now(),
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz
);
CREATE INDEX export_runs_export ON export_runs (export_id, start_at, session_id);
CREATE INDEX export_runs_waiting ON export_runs (export_id, start_at, id)
    WHERE worker IS NULL AND status IN ('Created', 'Running');
CREATE INDEX export_runs_unfinished ON export_runs (export_id) WHERE status <> 'Completed';
CREATE INDEX export_runs_at_work ON export_runs (lease_until) WHERE worker IS NOT NULL;

-- The control plane: deployments, their revisions, what they are built from, and the machines that run them.

-- `source_config` is set by callers; fields that the server adds (custom_url) are computed on read. `source_revision_config` is
-- the configuration of the latest revision, and the next revision starts from it. The secrets are one sealed map of name to
-- value, always replaced as a whole. Their names are stored beside it, so that listing the names needs no decryption. `number`
-- is small and unique within the installation, and is reused only after a deletion: it names users and databases of agents.
CREATE TABLE deployments (
    id uuid PRIMARY KEY,
    workspace_id uuid NOT NULL REFERENCES workspaces,
    number int NOT NULL UNIQUE,
    name text NOT NULL,
    display_name text,
    source text NOT NULL,
    status text NOT NULL CHECK (status IN ('AWAITING_DATABASE', 'READY', 'UNUSED', 'AWAITING_DELETE', 'UNKNOWN')),
    source_config jsonb NOT NULL,
    source_revision_config jsonb NOT NULL,
    sealed_secrets bytea NOT NULL,
    secret_names text[] NOT NULL,
    secrets_hash text NOT NULL,
    secret_references jsonb NOT NULL,
    revisions_made int NOT NULL DEFAULT 0,
    latest_revision_id uuid,
    active_revision_id uuid,
    deletes_project boolean NOT NULL DEFAULT false,
    -- The newest commit of the followed branch that was acted on, and the time of the last check for new commits.
    pushed_commit_sha text,
    pushes_looked_at timestamptz,
    -- The deployment's own host name, and the certificate that the front door served there at the last check. A NULL state means
    -- not checked yet.
    host_name text,
    certificate_state text CHECK (certificate_state IN ('pending', 'issued', 'failed')),
    certificate_message text,
    certificate_expires_at timestamptz,
    certificate_look_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    actor text NOT NULL,
    worker text,
    lease_until timestamptz,
    attempt int NOT NULL DEFAULT 0,
    not_before timestamptz NOT NULL DEFAULT now()
);
-- A new deployment may take the name and the host name of a deployment that is being deleted.
CREATE UNIQUE INDEX deployments_name ON deployments (name) WHERE status <> 'AWAITING_DELETE';
CREATE UNIQUE INDEX deployments_host_name ON deployments (host_name)
    WHERE host_name IS NOT NULL AND status <> 'AWAITING_DELETE';
CREATE INDEX deployments_by_integration ON deployments ((source_config->>'integration_id'))
    WHERE source_config ? 'integration_id';
CREATE INDEX deployments_by_listener ON deployments ((source_config->>'listener_id'))
    WHERE source_config ? 'listener_id';
CREATE INDEX deployments_workspace ON deployments (workspace_id, created_at DESC, id DESC);
-- Deployments whose database has to be created, or that have to be deleted.
CREATE INDEX deployments_waiting ON deployments (not_before) WHERE status IN ('AWAITING_DATABASE', 'AWAITING_DELETE');

-- A revision's content never changes, only its status. A revision that reuses an earlier build names in `build_of` the revision
-- that was built, never another one that reused it. `is_built`: the revision's own build is still kept.
CREATE TABLE revisions (
    id uuid PRIMARY KEY,
    deployment_id uuid NOT NULL REFERENCES deployments ON DELETE CASCADE,
    workspace_id uuid NOT NULL,
    number int NOT NULL,
    status text NOT NULL,
    status_message text,
    source text NOT NULL,
    source_config jsonb NOT NULL,
    source_revision_config jsonb NOT NULL,
    repo_commit_sha text,
    build_of uuid REFERENCES revisions ON DELETE SET NULL,
    is_built boolean NOT NULL DEFAULT false,
    -- Authentication of the agent's callers: by keys of the platform, or by the project's own code. Known after the build.
    authentication text CHECK (authentication IN ('platform_keys', 'custom')),
    -- Digest or id of the revision's image, set by the first fetch. The revision keeps this image even if the tag moves.
    image_pin text,
    -- The last commit status written at the forge, and the time of the next try.
    told_state text,
    tell_at timestamptz NOT NULL DEFAULT now(),
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    actor text NOT NULL,
    worker text,
    lease_until timestamptz,
    attempt int NOT NULL DEFAULT 0,
    not_before timestamptz NOT NULL DEFAULT now(),
    UNIQUE (deployment_id, number)
);
-- The database enforces that a deployment has at most one revision at work.
CREATE UNIQUE INDEX revisions_at_work ON revisions (deployment_id)
    WHERE status IN ('AWAITING_BUILD', 'BUILDING', 'AWAITING_DEPLOY', 'DEPLOYING');
-- Revisions without a worker may be in any of these states: a worker that died leaves its revision BUILDING.
CREATE INDEX revisions_waiting ON revisions (not_before)
    WHERE worker IS NULL AND status IN ('AWAITING_BUILD', 'BUILDING', 'AWAITING_DEPLOY', 'DEPLOYING');
CREATE INDEX revisions_leased ON revisions (lease_until) WHERE worker IS NOT NULL;
-- For the cascade: deleting a deployment deletes its revisions.
CREATE INDEX revisions_builds ON revisions (build_of) WHERE build_of IS NOT NULL;

-- Paths to which a caller may upload one tarball. Callers know the path. `object_key` is the place in the bucket of the first
-- tarball that was uploaded there.
CREATE TABLE uploads (
    path text PRIMARY KEY,
    deployment_id uuid NOT NULL REFERENCES deployments ON DELETE CASCADE,
    workspace_id uuid NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL,
    uploaded_at timestamptz,
    object_key text,
    size_bytes bigint,
    actor text NOT NULL
);
CREATE INDEX uploads_deployment ON uploads (deployment_id);

-- Images pushed to the platform's own registry. Each belongs to one deployment.
CREATE TABLE pushed_blobs (
    object_key text PRIMARY KEY,
    deployment_id uuid NOT NULL REFERENCES deployments ON DELETE CASCADE,
    digest text NOT NULL,
    size_bytes bigint NOT NULL,
    used_at timestamptz NOT NULL DEFAULT now(),
    -- The object is being removed, so answers no longer mention the blob.
    unwanted boolean NOT NULL DEFAULT false
);
CREATE UNIQUE INDEX pushed_blobs_wanted ON pushed_blobs (deployment_id, digest) WHERE NOT unwanted;

CREATE TABLE pushed_manifests (
    deployment_id uuid NOT NULL REFERENCES deployments ON DELETE CASCADE,
    digest text NOT NULL,
    media_type text NOT NULL,
    body bytea NOT NULL,
    parts text[] NOT NULL,
    used_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (deployment_id, digest)
);

CREATE TABLE pushed_tags (
    deployment_id uuid NOT NULL,
    tag text NOT NULL,
    digest text NOT NULL,
    PRIMARY KEY (deployment_id, tag),
    FOREIGN KEY (deployment_id, digest) REFERENCES pushed_manifests ON DELETE CASCADE
);

-- Access to the repositories of a forge. Clients of the v1 listing read `number` as the id of an installation.
-- `sealed_token` of a deploy key (ssh) is its private key, and the server must have one of the host keys. `sealed_token` of an
-- app is the app's private key; its installation issues tokens that are valid for an hour.
CREATE TABLE integrations (
    id uuid PRIMARY KEY,
    number bigint GENERATED ALWAYS AS IDENTITY,
    workspace_id uuid NOT NULL REFERENCES workspaces ON DELETE CASCADE,
    kind text NOT NULL CHECK (kind IN ('github', 'gitlab', 'gitea', 'ssh')),
    name text NOT NULL,
    base_url text NOT NULL,
    sealed_token bytea NOT NULL,
    sealed_webhook_secret bytea NOT NULL,
    public_key text,
    host_keys text[] NOT NULL DEFAULT '{}',
    app_id text,
    installation_id bigint,
    created_at timestamptz NOT NULL DEFAULT now(),
    actor text NOT NULL,
    UNIQUE (workspace_id, name),
    CONSTRAINT integrations_app_check CHECK ((app_id IS NULL) = (installation_id IS NULL))
);

-- Machines that run agents for a workspace.
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

-- OAuth providers, the tokens that agents use on behalf of users, the sign-ins that bring them, and which agent uses which.

-- The client secret is sealed and never returned.
CREATE TABLE oauth_providers (
    id uuid PRIMARY KEY,
    workspace_id uuid NOT NULL REFERENCES workspaces ON DELETE CASCADE,
    provider_id text NOT NULL,
    name text NOT NULL,
    client_id text NOT NULL,
    sealed_client_secret bytea,
    auth_url text NOT NULL,
    token_url text NOT NULL,
    uses_pkce boolean NOT NULL,
    code_challenge_method text,
    provider_type text,
    mcp_server_url text,
    token_endpoint_auth_method text NOT NULL,
    -- Set for discovered providers: the issuer of their tokens, and the URL that revokes tokens.
    issuer text,
    revocation_url text,
    is_dynamic_client boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    actor text NOT NULL,
    UNIQUE (workspace_id, provider_id)
);

-- `scopes` are the granted scopes, `asked_scopes` the requested ones: providers rename some. `refresh_at` is NULL for a token
-- that cannot be refreshed. A token to be revoked stays until the revocation was sent to its provider.
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
-- The database enforces that a user has at most one default token at a provider.
CREATE UNIQUE INDEX oauth_tokens_default ON oauth_tokens (provider_row_id, user_id)
    WHERE is_default AND status <> 'revoking';
CREATE INDEX oauth_tokens_due ON oauth_tokens (refresh_at) WHERE status = 'active' AND refresh_at IS NOT NULL;
CREATE INDEX oauth_tokens_revoking ON oauth_tokens (not_before) WHERE status = 'revoking';
CREATE INDEX oauth_tokens_leased ON oauth_tokens (lease_until) WHERE worker IS NOT NULL;

-- Sign-ins that have begun. Of the state that the provider hands back, only its digest is stored. `provider_changed_at` binds
-- the sign-in to the provider's configuration at its start. `renews` is the token that the new token replaces.
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
