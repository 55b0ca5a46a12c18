-- compatible_from: 1
-- The state of a revision that its commit was told at the forge, and when the next try is due.

ALTER TABLE revisions ADD COLUMN told_state text;
ALTER TABLE revisions ADD COLUMN tell_at timestamptz NOT NULL DEFAULT now();
