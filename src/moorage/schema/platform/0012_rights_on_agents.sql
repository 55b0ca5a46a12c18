-- compatible_from: 1
-- Calling agents and ruling the installation become rights of their own: agents:read, agents:invoke and operator.

-- Before, deployments:read was enough to call agents and to read their threads: keys that hold it keep that.
UPDATE api_keys SET scopes = scopes || '{agents:invoke,agents:read}' WHERE 'deployments:read' = ANY(scopes);

-- Before, workspaces:manage of any workspace ruled the installation. From now on only operators do: the keys that came with
-- the installation, or where none of them is left, the keys that manage its oldest workspace.
WITH first AS (
    SELECT id FROM api_keys
    WHERE actor = 'installation' AND description = 'First API key' AND revoked_at IS NULL
), managing AS (
    SELECT id FROM api_keys
    WHERE 'workspaces:manage' = ANY(scopes) AND revoked_at IS NULL
        AND workspace_id = (SELECT id FROM workspaces ORDER BY created_at, id LIMIT 1)
        AND NOT EXISTS (SELECT 1 FROM first)
)
UPDATE api_keys SET scopes = scopes || '{operator}' WHERE id IN (SELECT id FROM first UNION ALL SELECT id FROM managing);

-- Every process asks twice a second which keys were revoked just now.
CREATE INDEX api_keys_revoked ON api_keys (revoked_at) WHERE revoked_at IS NOT NULL;
