-- compatible_from: 1
-- The certificate that the front door shows at the host name of a deployment, as it was last seen. Without a state it was not
-- looked at yet.

ALTER TABLE deployments ADD COLUMN certificate_state text CHECK (certificate_state IN ('pending', 'issued', 'failed'));
ALTER TABLE deployments ADD COLUMN certificate_message text;
ALTER TABLE deployments ADD COLUMN certificate_expires_at timestamptz;
ALTER TABLE deployments ADD COLUMN certificate_look_at timestamptz;
