-- compatible_from: 71
-- Images that were pushed to the platform's own registry, for one deployment each.

CREATE TABLE pushed_blobs (
    object_key text PRIMARY KEY,
    deployment_id uuid NOT NULL REFERENCES deployments ON DELETE CASCADE,
    digest text NOT NULL,
    size_bytes bigint NOT NULL,
    used_at timestamptz NOT NULL DEFAULT now(),
    -- Its object is being removed: nobody is told of it any more.
    unwanted boolean NOT NULL DEFAULT false
);
CREATE UNIQUE INDEX pushed_blobs_wanted ON pushed_blobs (deployment_id, digest) WHERE NOT unwanted;

CREATE TABLE pushed_manifests (
    deployment_id uuid NOT NULL REFERENCES deployments ON DELETE CASCADE,
    digest text NOT NULL,
    media_type text NOT NULL,
    body bytea NOT NULL,
    parts text[] NOT NULL,
    used_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (deployment_id, digest)
);

CREATE TABLE pushed_tags (
    deployment_id uuid NOT NULL,
    tag text NOT NULL,
    digest text NOT NULL,
    PRIMARY KEY (deployment_id, tag),
    FOREIGN KEY (deployment_id, digest) REFERENCES pushed_manifests ON DELETE CASCADE
);
