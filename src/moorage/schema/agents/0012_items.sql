-- compatible_from: 1
-- Items of the long-term store. Their vectors have a table of their own, which is made where an index is configured.

-- COLLATE "C" makes a prefix of a namespace a range of the primary key.
CREATE TABLE items (
    namespace text[] COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    value jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    ttl_minutes double precision,
    expires_at timestamptz,
    actor text,
    PRIMARY KEY (namespace, key)
);
CREATE INDEX items_expire ON items (expires_at) WHERE expires_at IS NOT NULL;
