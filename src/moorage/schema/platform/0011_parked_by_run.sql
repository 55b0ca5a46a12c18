-- compatible_from: 1
-- Updates of one run are written in the order in which they arrived: whatever comes for a run asks what waits of it.

CREATE INDEX parked_updates_by_run ON parked_updates (workspace_id, run_id, arrived_at, id);
