-- compatible_from: 71
-- Deploy keys: the private key is the sealed token, the server must have one of the host keys.

ALTER TABLE integrations DROP CONSTRAINT integrations_kind_check;
ALTER TABLE integrations ADD CONSTRAINT integrations_kind_check CHECK (kind IN ('github', 'gitlab', 'gitea', 'ssh'));
ALTER TABLE integrations ADD COLUMN public_key text;
ALTER TABLE integrations ADD COLUMN host_keys text[] NOT NULL DEFAULT '{}';
