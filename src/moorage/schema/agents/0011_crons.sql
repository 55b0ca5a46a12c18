-- compatible_from: 1
-- Crons: runs that start by the clock.

-- The payload is json, not jsonb, for the reason of runs.kwargs: it may hold a NUL, and nobody searches it.
-- `next_run_date` is null when a cron is switched off or over. `fired_at` tells whether the clock was set back since.
CREATE TABLE crons (
    cron_id uuid PRIMARY KEY,
    assistant_id uuid NOT NULL,
    thread_id uuid REFERENCES threads ON DELETE CASCADE,
    user_id text,
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
-- A thread that is deleted takes its crons with it.
CREATE INDEX crons_by_thread ON crons (thread_id);
CREATE INDEX crons_metadata ON crons USING gin (metadata jsonb_path_ops);
