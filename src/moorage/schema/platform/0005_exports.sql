-- compatible_from: 5
-- Bulk export: destinations, exports and the runs that write their files. workspace_id has no foreign key, since accounts
-- are another room.

-- `credentials` is a sealed JSON object. Deleting a destination deletes them; the exports that went there stay to be read.
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
