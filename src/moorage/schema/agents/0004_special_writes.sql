-- compatible_from: 1
-- A resume that stops again overwrites the interrupt that it answered. A rollback of that run needs it back.

ALTER TABLE checkpoint_writes
    ADD COLUMN overwritten_run_id text,
    ADD COLUMN overwritten_type text,
    ADD COLUMN overwritten_blob bytea;
