-- compatible_from: 40
-- Which columns a row fills was kept so that readers could leave out empty ones. That brought less than a fifth of a read
-- (decision 9), and every insert paid for it.
ALTER TABLE trace_run_rows DROP COLUMN IF EXISTS filled SETTINGS alter_sync = 0, mutations_sync = 0;
