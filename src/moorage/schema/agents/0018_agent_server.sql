-- compatible_from: 18
-- Assistants, threads, runs, the frames of resumable streams, checkpoints, webhooks, crons, and items of the long-term store.

CREATE TABLE assistants (
    assistant_id uuid PRIMARY KEY,
    graph_id text NOT NULL,
    name text NOT NULL,
    description text,
    config jsonb NOT NULL,
    context jsonb NOT NULL,
    metadata jsonb NOT NULL,
    version int NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    actor text
);
CREATE INDEX assistants_metadata ON assistants USING gin (metadata jsonb_path_ops);
CREATE INDEX assistants_created ON assistants (created_at DESC);

-- Every version that an assistant ever had. A new version never changes an old row.
CREATE TABLE assistant_versions (
    assistant_id uuid NOT NULL REFERENCES assistants ON DELETE CASCADE,
    version int NOT NULL,
    graph_id text NOT NULL,
    name text NOT NULL,
    description text,
    config jsonb NOT NULL,
    context jsonb NOT NULL,
    metadata jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    actor text,
    PRIMARY KEY (assistant_id, version)
);

-- `status` is the state in which the last run left the thread. Whether a thread is busy is read from its runs and never stored.
CREATE TABLE threads (
    thread_id uuid PRIMARY KEY,
    metadata jsonb NOT NULL DEFAULT '{}',
    config json NOT NULL DEFAULT '{}',
    status text NOT NULL DEFAULT 'idle' CHECK (status IN ('idle', 'interrupted', 'error')),
    "values" jsonb,
    interrupts jsonb NOT NULL DEFAULT '{}',
    error jsonb,
    -- Graph and assistant in the metadata before the first run; a rollback restores them.
    before_runs jsonb,
    -- When the thread expires, and whether it is then deleted or cut to its latest state. NULL in `expires_at`: kept.
    ttl_minutes double precision,
    ttl_strategy text CHECK (ttl_strategy IN ('delete', 'keep_latest')),
    expires_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    state_updated_at timestamptz NOT NULL DEFAULT now(),
    actor text
);
CREATE INDEX threads_metadata ON threads USING gin (metadata jsonb_path_ops);
CREATE INDEX threads_created ON threads (created_at DESC);
CREATE INDEX threads_updated ON threads (updated_at DESC);
CREATE INDEX threads_expire ON threads (expires_at) WHERE expires_at IS NOT NULL;

-- kwargs is json, not jsonb: it is never searched, and json can hold the NUL that callers may send as \u0000.
-- A temporary run (stateless, on_completion delete) has no thread row; its thread_id only names it.
CREATE TABLE runs (
    run_id uuid PRIMARY KEY,
    thread_id uuid NOT NULL,
    assistant_id uuid NOT NULL,
    graph_id text NOT NULL,
    status text NOT NULL CHECK (status IN ('pending', 'running', 'success', 'error', 'timeout', 'interrupted')),
    temporary boolean NOT NULL DEFAULT false,
    metadata jsonb NOT NULL,
    kwargs json NOT NULL,
    multitask_strategy text NOT NULL,
    error jsonb,
    cancel_action text CHECK (cancel_action IN ('interrupt', 'rollback')),
    -- The URL that is called when the run ends.
    webhook text,
    -- The user on whose behalf any process executes the run. It may hold secrets that the graph needs, such as the user's
    -- token, so it is removed when the run ends.
    auth_user json,
    -- The process whose client follows the run from its first frame. Another process may execute the run.
    accepted_by text,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    not_before timestamptz NOT NULL DEFAULT now(),
    attempt int NOT NULL DEFAULT 0,
    worker text,
    lease_until timestamptz,
    deadline timestamptz,
    -- Start of the first attempt.
    started_at timestamptz,
    actor text
);
-- The database itself enforces that a thread has at most one running run.
CREATE UNIQUE INDEX runs_one_running ON runs (thread_id) WHERE status = 'running';
CREATE INDEX runs_pending ON runs (thread_id, run_id) WHERE status = 'pending';
CREATE INDEX runs_leased ON runs (lease_until) WHERE status = 'running';
CREATE INDEX runs_by_thread ON runs (thread_id, created_at DESC);
CREATE INDEX runs_by_assistant ON runs (assistant_id);
-- Claims take the oldest run that may start. Without this index they would sort all waiting runs.
CREATE INDEX runs_claim ON runs (run_id) WHERE status = 'pending';
-- Lost runs that wait for their next attempt: few at any time, and each beat looks for them.
CREATE INDEX runs_lost ON runs (run_id) WHERE status = 'pending' AND attempt > 0;

-- Frames of resumable streams, in order of (millis, number) within a run, kept for a while after it ended.
CREATE TABLE run_frames (
    run_id uuid NOT NULL,
    millis bigint NOT NULL,
    number int NOT NULL,
    frame bytea NOT NULL,
    written_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (run_id, millis, number)
);
CREATE INDEX run_frames_written ON run_frames (written_at);

-- Messages between processes that are too long for NOTIFY. They are read within moments or never, so the table is unlogged.
CREATE UNLOGGED TABLE broadcast_messages (
    message_id uuid PRIMARY KEY,
    body bytea NOT NULL,
    sent_at timestamptz NOT NULL DEFAULT now()
);

-- Checkpoints hold small values inline; every other value is a blob of its channel and version, shared by the
-- checkpoints that did not change it.
CREATE TABLE checkpoints (
    thread_id text NOT NULL,
    checkpoint_ns text NOT NULL,
    checkpoint_id text NOT NULL,
    parent_checkpoint_id text,
    run_id text,
    checkpoint jsonb NOT NULL,
    metadata jsonb NOT NULL,
    PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id)
);
CREATE TABLE checkpoint_blobs (
    thread_id text NOT NULL,
    checkpoint_ns text NOT NULL,
    channel text NOT NULL,
    version text NOT NULL,
    type text NOT NULL,
    blob bytea,
    PRIMARY KEY (thread_id, checkpoint_ns, channel, version)
);
CREATE TABLE checkpoint_writes (
    thread_id text NOT NULL,
    checkpoint_ns text NOT NULL,
    checkpoint_id text NOT NULL,
    task_id text NOT NULL,
    task_path text NOT NULL,
    idx int NOT NULL,
    run_id text,
    channel text NOT NULL,
    type text NOT NULL,
    blob bytea,
    -- A resumed run that stops again overwrites the interrupt that it answered. These columns let a rollback restore it.
    overwritten_run_id text,
    overwritten_type text,
    overwritten_blob bytea,
    PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id, task_id, idx)
);

-- Webhooks to call because a run ended. The statement that ends the run writes the row. It holds everything that is sent,
-- since the run's own row may be gone by then. `run` is json, not jsonb: its kwargs may hold a NUL.
CREATE TABLE webhook_deliveries (
    delivery_id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    run_id uuid NOT NULL,
    url text NOT NULL,
    run json NOT NULL,
    "values" jsonb,
    error jsonb,
    run_started_at timestamptz,
    run_ended_at timestamptz NOT NULL DEFAULT now(),
    status text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'sending', 'delivered', 'failed')),
    attempt int NOT NULL DEFAULT 0,
    not_before timestamptz NOT NULL DEFAULT now(),
    worker text,
    lease_until timestamptz,
    ended_at timestamptz
);
CREATE INDEX webhook_deliveries_pending ON webhook_deliveries (not_before) WHERE status = 'pending';
CREATE INDEX webhook_deliveries_leased ON webhook_deliveries (lease_until) WHERE status = 'sending';
CREATE INDEX webhook_deliveries_ended ON webhook_deliveries (ended_at) WHERE ended_at IS NOT NULL;

-- Schedules that start runs. As with runs.kwargs, the payload is json, not jsonb: it may hold a NUL and is never searched.
-- `next_run_date` is NULL for a cron that is switched off or over. `fired_at` shows whether the clock was set back since.
CREATE TABLE crons (
    cron_id uuid PRIMARY KEY,
    assistant_id uuid NOT NULL,
    thread_id uuid REFERENCES threads ON DELETE CASCADE,
    user_id text,
    -- The user on whose behalf its runs are executed: whoever made or changed it last.
    auth_user json,
    schedule text NOT NULL,
    timezone text,
    end_time timestamptz,
    enabled boolean NOT NULL,
    on_run_completed text CHECK (on_run_completed IN ('delete', 'keep')),
    payload json NOT NULL,
    metadata jsonb NOT NULL,
    next_run_date timestamptz,
    fired_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    actor text
);
CREATE INDEX crons_due ON crons (next_run_date) WHERE next_run_date IS NOT NULL;
CREATE INDEX crons_fired ON crons (fired_at) WHERE next_run_date IS NOT NULL;
-- For the cascade: deleting a thread deletes its crons.
CREATE INDEX crons_by_thread ON crons (thread_id);
CREATE INDEX crons_metadata ON crons USING gin (metadata jsonb_path_ops);

-- Items of the long-term store. Their vectors have a separate table, created only when an index is configured.

-- With COLLATE "C", a prefix of a namespace is a range of the primary key.
CREATE TABLE items (
    namespace text[] COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    value jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    ttl_minutes double precision,
    expires_at timestamptz,
    actor text,
    PRIMARY KEY (namespace, key)
);
CREATE INDEX items_expire ON items (expires_at) WHERE expires_at IS NOT NULL;
