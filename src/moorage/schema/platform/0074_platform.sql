-- compatible_from: 74
-- What the platform knows besides trace runs and feedback, room by room. workspace_id has no foreign key where accounts are
-- another room.

-- Accounts: workspaces, and the API keys that open them.

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
-- Every process asks twice a second which keys were revoked just now.
CREATE INDEX api_keys_revoked ON api_keys (revoked_at) WHERE revoked_at IS NOT NULL;

-- Links that open the console once. The code itself is not stored; the row goes with its use.
CREATE TABLE login_links (
    digest bytea PRIMARY KEY,
    key_id uuid NOT NULL REFERENCES api_keys (id) ON DELETE CASCADE,
    expires_at timestamptz NOT NULL
);

-- The audit log.

-- A row for each change before it is made, and a row with its outcome after. Neither is ever updated. There is no reference to
-- workspaces or keys: the log outlives them.
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

-- Missing for a change whose process was killed while it was made.
CREATE TABLE audit_outcomes (
    change_id uuid PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT now(),
    status integer NOT NULL,
    resource_ids uuid[] NOT NULL
);
CREATE INDEX audit_outcomes_at ON audit_outcomes (at);

-- Append-only, whatever the program that is connected wants. Retention may remove rows from an age of 30 days on.
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
-- The time is the database's: a row that says it is old could be deleted.
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

-- Traces: projects, how long their runs are kept, what was asked to be deleted, how feedback is read, and prices.

-- On the wire: sessions. Their runs and feedback lie in ClickHouse.
CREATE TABLE projects (
    id uuid PRIMARY KEY,
    workspace_id uuid NOT NULL,
    name text NOT NULL,
    description text,
    extra jsonb,
    default_dataset_id uuid,
    reference_dataset_id uuid,
    -- NULL: as the workspace says.
    trace_tier text CHECK (trace_tier IN ('longlived', 'shortlived')),
    -- NULL: as the workspace says; 0: for ever.
    longlived_ttl_days int CHECK (longlived_ttl_days BETWEEN 0 AND 36500),
    test_run_number int,
    start_time timestamptz NOT NULL DEFAULT now(),
    end_time timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    actor text
);
-- Ingest finds projects by name, and two processes that see a new name at once must make one project.
CREATE UNIQUE INDEX projects_name ON projects (workspace_id, name);
CREATE INDEX projects_started ON projects (workspace_id, start_time DESC, id);
CREATE INDEX projects_experiments ON projects (reference_dataset_id) WHERE reference_dataset_id IS NOT NULL;

-- How long a workspace keeps runs unless a project says otherwise. No row: for ever.
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

-- What is to be removed from the trace store: some traces, those with some metadata, or all of a project. Readers and
-- ingest are told by tombstones at once; the removal itself takes its time, survives a crash, and may be repeated.
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

-- How the values of a feedback key are meant.
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
    -- Each use of the token sets this one feedback; NULL: each use makes another.
    feedback_id uuid,
    expires_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    actor text
);
CREATE INDEX feedback_tokens_by_run ON feedback_tokens (workspace_id, run_id, created_at DESC);
CREATE INDEX feedback_tokens_expired ON feedback_tokens (expires_at);

-- A key of feedback that is computed from others: a weighted sum or average.
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

-- What models cost, as a workspace says it. What it does not say is in the table that is shipped with the program.
CREATE TABLE model_prices (
    id uuid PRIMARY KEY,
    workspace_id uuid NOT NULL,
    name text NOT NULL,
    -- Runs that started earlier have another price. NULL: since ever.
    start_time timestamptz,
    -- Under which keys of the invocation parameters the name of the model may stand.
    match_path text[] NOT NULL,
    -- A regular expression for the name. It is matched here and not in the program: this engine has no pattern that
    -- takes exponential time, and one that takes long is stopped.
    match_pattern text NOT NULL,
    -- NULL: of any provider.
    provider text,
    -- US dollars per token.
    prompt_cost numeric NOT NULL,
    completion_cost numeric NOT NULL,
    -- Kinds of tokens that have a price of their own: {"cache_read": "0.0000003"}.
    prompt_cost_details jsonb NOT NULL DEFAULT '{}',
    completion_cost_details jsonb NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    actor text NOT NULL
);
CREATE INDEX model_prices_workspace ON model_prices (workspace_id);

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
-- Updates of one run are written in the order in which they arrived: whatever comes for a run asks what waits of it.
CREATE INDEX parked_updates_by_run ON parked_updates (workspace_id, run_id, arrived_at, id);

-- Bulk export: destinations, exports, and the runs that write their files.

-- Where exports write to. `credentials` is a sealed JSON object. Deleting a destination deletes them; the exports that went there
-- stay to be read.
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
    -- Where in it, since the destination may be gone when people still ask what went there.
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
    -- Why it failed, in words.
    error text,
    -- Of a schedule: its step, and where the next window begins.
    interval_hours int CHECK (interval_hours BETWEEN 1 AND 168),
    next_start_at timestamptz,
    source_export_id uuid REFERENCES exports,
    -- Set when it starts: trace runs that arrive later are not in it, and when it must have ended.
    cutoff_at timestamptz,
    deadline_at timestamptz,
    -- The key of the manifest, once it is written.
    manifest text,
    webhook_url text,
    webhook_secret bytea,
    -- NULL: nobody to tell, or not yet.
    webhook_status text CHECK (webhook_status IN ('pending', 'delivered', 'failed')),
    webhook_attempts int NOT NULL DEFAULT 0,
    -- The lease of whoever writes the manifest, or tells the webhook.
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
-- What makes spawning safe to repeat: a window of a schedule has one export.
CREATE UNIQUE INDEX exports_one_of_window ON exports (source_export_id, start_at) WHERE source_export_id IS NOT NULL;
CREATE INDEX exports_unfinished ON exports (workspace_id, id) WHERE status IN ('Created', 'Running');
CREATE INDEX exports_scheduled ON exports (next_start_at) WHERE status = 'IntervalScheduled';
CREATE INDEX exports_untold ON exports (not_before) WHERE webhook_status = 'pending';
CREATE INDEX exports_leased ON exports (lease_until) WHERE worker IS NOT NULL;

-- One for each partition: a day of a project. A run at work has a worker; one that waits for its next attempt has none
-- and stays Running.
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
    -- The checkpoint: everything up to the cursor is in `files`, verified; `pending` is the part that is being uploaded.
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

-- `source_config` is what callers set; what the server adds to it (custom_url) is made when it is read, and
-- `source_revision_config` is what the latest revision was made of, and the next begins with. The secrets are one sealed
-- map of name to value: they are only ever replaced as a whole, and their names stand beside it, so that it is opened for
-- nobody who only wants to see what there is. `number` is the installation's own, small and never used twice at a time:
-- users and databases of agents are named by it.
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
    -- The newest commit of the followed branch that was acted on, and when it was last asked for.
    pushed_commit_sha text,
    pushes_looked_at timestamptz,
    -- A host name of its own, and the certificate that the front door was last seen to show there. Without a state it was not
    -- looked at yet.
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
-- The name of a deployment that is being deleted is free for the next one, and so is its host name.
CREATE UNIQUE INDEX deployments_name ON deployments (name) WHERE status <> 'AWAITING_DELETE';
CREATE UNIQUE INDEX deployments_host_name ON deployments (host_name)
    WHERE host_name IS NOT NULL AND status <> 'AWAITING_DELETE';
CREATE INDEX deployments_by_integration ON deployments ((source_config->>'integration_id'))
    WHERE source_config ? 'integration_id';
CREATE INDEX deployments_by_listener ON deployments ((source_config->>'listener_id'))
    WHERE source_config ? 'listener_id';
CREATE INDEX deployments_workspace ON deployments (workspace_id, created_at DESC, id DESC);
-- Those that the listener has something to do for besides their revisions.
CREATE INDEX deployments_waiting ON deployments (not_before) WHERE status IN ('AWAITING_DATABASE', 'AWAITING_DELETE');

-- A revision never changes but for its status. One that deploys again what another has built names it in `build_of`:
-- always the revision that was built, never one that used the same build. `is_built` says that its build is still kept.
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
    -- How callers of its agent authenticate: by keys of the platform, or as the project itself says. Known when it is built.
    authentication text CHECK (authentication IN ('platform_keys', 'custom')),
    -- Its image by digest or id, once it was fetched: whatever the tag means later, this is what serves.
    image_pin text,
    -- The state that its commit was told at the forge, and when the next try is due.
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
-- One of a deployment is at work at a time, whatever the code believes.
CREATE UNIQUE INDEX revisions_at_work ON revisions (deployment_id)
    WHERE status IN ('AWAITING_BUILD', 'BUILDING', 'AWAITING_DEPLOY', 'DEPLOYING');
-- What nobody holds may be in any of these states: a holder that died leaves a revision BUILDING.
CREATE INDEX revisions_waiting ON revisions (not_before)
    WHERE worker IS NULL AND status IN ('AWAITING_BUILD', 'BUILDING', 'AWAITING_DEPLOY', 'DEPLOYING');
CREATE INDEX revisions_leased ON revisions (lease_until) WHERE worker IS NOT NULL;
-- A deployment that goes takes its revisions along.
CREATE INDEX revisions_builds ON revisions (build_of) WHERE build_of IS NOT NULL;

-- Places that a caller may put one tarball to. Callers know the path; `object_key` is where the bucket has what the first
-- of them brought.
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

-- Images that were pushed to the platform's own registry, for one deployment each.
CREATE TABLE pushed_blobs (
    object_key text PRIMARY KEY,
    deployment_id uuid NOT NULL REFERENCES deployments ON DELETE CASCADE,
    digest text NOT NULL,
    size_bytes bigint NOT NULL,
    used_at timestamptz NOT NULL DEFAULT now(),
    -- Its object is being removed: nobody is told of it any more.
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

-- Access to the repositories of a forge. `number` is what clients of the v1 listing read as an installation's id.
-- The sealed token of a deploy key (ssh) is its private key, and the server must have one of the host keys. Of an app it is
-- the private key of the app, and an installation of it gives tokens of an hour.
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

-- The client secret is sealed and never given out.
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
    -- Known of providers that were discovered: who issues their tokens, and where tokens are revoked.
    issuer text,
    revocation_url text,
    is_dynamic_client boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    actor text NOT NULL,
    UNIQUE (workspace_id, provider_id)
);

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
