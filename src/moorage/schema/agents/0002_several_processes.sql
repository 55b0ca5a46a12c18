-- compatible_from: 1
-- Several processes on one database: who accepted a run, and messages that are too long for NOTIFY.

-- The process whose client follows the run from its first frame, wherever it executes.
ALTER TABLE runs ADD COLUMN accepted_by text;

-- Read within moments or never: it need not survive a crash.
CREATE UNLOGGED TABLE broadcast_messages (
    message_id uuid PRIMARY KEY,
    body bytea NOT NULL,
    sent_at timestamptz NOT NULL DEFAULT now()
);
