-- compatible_from: 1
-- What a thread's metadata said of graph and assistant before its first run, which a rollback puts back.

ALTER TABLE threads ADD COLUMN before_runs jsonb;
