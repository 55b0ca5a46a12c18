-- compatible_from: 1
-- Runs that were lost and wait: few at any time, and looked for with each beat.
CREATE INDEX runs_lost ON runs (run_id) WHERE status = 'pending' AND attempt > 0;
