-- compatible_from: 1
-- Claims take the oldest run that may start: without this they sort all that wait.
CREATE INDEX runs_claim ON runs (run_id) WHERE status = 'pending';
