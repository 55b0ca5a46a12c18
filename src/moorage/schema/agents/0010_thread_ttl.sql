-- compatible_from: 1
-- When a thread expires, and what becomes of it then. Threads without `expires_at` are kept.

ALTER TABLE threads
    ADD COLUMN ttl_minutes double precision,
    ADD COLUMN ttl_strategy text CHECK (ttl_strategy IN ('delete', 'keep_latest')),
    ADD COLUMN expires_at timestamptz;
CREATE INDEX threads_expire ON threads (expires_at) WHERE expires_at IS NOT NULL;
