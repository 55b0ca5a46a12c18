-- compatible_from: 2
-- Projects (wire: sessions), how long their runs are kept, what was asked to be deleted, and how feedback is read.
-- Runs and feedback themselves lie in ClickHouse; workspace_id has no foreign key, since accounts are another room.

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
