-- compatible_from: 10
-- The name of a deployment that is being deleted is free for the next one of its workspace.

ALTER TABLE deployments DROP CONSTRAINT deployments_name_key;
CREATE UNIQUE INDEX deployments_name ON deployments (name) WHERE status <> 'AWAITING_DELETE';
