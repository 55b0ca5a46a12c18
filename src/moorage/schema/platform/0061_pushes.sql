-- compatible_from: 1
-- What is known of the branch that a deployment follows: its newest commit that was acted on, and when it was last asked for.

ALTER TABLE deployments ADD COLUMN pushed_commit_sha text;
ALTER TABLE deployments ADD COLUMN pushes_looked_at timestamptz;
