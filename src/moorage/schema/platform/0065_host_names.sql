-- compatible_from: 1
-- Host names of their own that deployments are served at. A name belongs to one deployment of the installation.

ALTER TABLE deployments ADD COLUMN host_name text;
CREATE UNIQUE INDEX deployments_host_name ON deployments (host_name)
    WHERE host_name IS NOT NULL AND status <> 'AWAITING_DELETE';
-- Addresses that were kept while they did nothing. Nobody has checked them, so none begins to act by itself.
UPDATE deployments SET source_config = source_config - 'custom_url'
WHERE source_config ? 'custom_url' AND source <> 'external_docker';
