-- compatible_from: 1
-- Assistants, threads, runs, the frames of resumable streams, and checkpoints.

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

-- `status` is how the last run left the thread; that a thread is busy is read from its runs and never stored.
CREATE TABLE threads (
    thread_id uuid PRIMARY KEY,
    metadata jsonb NOT NULL DEFAULT '{}',
    config json NOT NULL DEFAULT '{}',
    status text NOT NULL DEFAULT 'idle' CHECK (status IN ('idle', 'interrupted', 'error')),
    "values" jsonb,
    interrupts jsonb NOT NULL DEFAULT '{}',
    error jsonb,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    state_updated_at timestamptz NOT NULL DEFAULT now(),
    actor text
);
CREATE INDEX threads_metadata ON threads USING gin (metadata jsonb_path_ops);
CREATE INDEX threads_created ON threads (created_at DESC);
CREATE INDEX threads_updated ON threads (updated_at DESC);

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
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    not_before timestamptz NOT NULL DEFAULT now(),
    attempt int NOT NULL DEFAULT 0,
    worker text,
    lease_until timestamptz,
    deadline timestamptz,
    actor text
);
-- The law that a thread runs one run at a time, held by the database itself.
CREATE UNIQUE INDEX runs_one_running ON runs (thread_id) WHERE status = 'running';
CREATE INDEX runs_pending ON runs (thread_id, run_id) WHERE status = 'pending';
CREATE INDEX runs_leased ON runs (lease_until) WHERE status = 'running';
CREATE INDEX runs_by_thread ON runs (thread_id, created_at DESC);
CREATE INDEX runs_by_assistant ON runs (assistant_id);

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
    PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id, task_id, idx)
);
