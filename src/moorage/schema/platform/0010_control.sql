-- compatible_from: 1
-- Deployments, their revisions and uploads, and OAuth providers.

-- `source_config` is what callers set; what the server adds to it (custom_url) is made when it is read, and
-- `source_revision_config` is what the latest revision was made of, and the next begins with. The secrets are one sealed
-- map of name to value: they are only ever replaced as a whole, and their names stand beside it, so that it is opened for
-- nobody who only wants to see what there is. `number` is the installation's own, small and never used twice at a time:
-- users and databases of agents are named by it.
CREATE TABLE deployments (
    id uuid PRIMARY KEY,
    workspace_id uuid NOT NULL REFERENCES workspaces,
    number int NOT NULL UNIQUE,
    name text NOT NULL UNIQUE,
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
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    actor text NOT NULL,
    worker text,
    lease_until timestamptz,
    attempt int NOT NULL DEFAULT 0,
    not_before timestamptz NOT NULL DEFAULT now()
);
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
    is_dynamic_client boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    actor text NOT NULL,
    UNIQUE (workspace_id, provider_id)
);
