-- compatible_from: 1
-- What deployments print: while they are built, and while they run.

-- Who inserts may do so again after a crash: a line is the same line when its time and its position are the same, and is
-- kept once.
CREATE TABLE IF NOT EXISTS deployment_logs
(
    tenant_id UUID,
    deployment_id UUID,
    kind LowCardinality(String),
    logged_at DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)),
    revision_id UUID CODEC(ZSTD(1)),
    position UInt64 CODEC(ZSTD(1)),
    severity UInt8 CODEC(ZSTD(1)),
    message String CODEC(ZSTD(1)),
    run_id LowCardinality(String)
)
ENGINE = ReplacingMergeTree
PARTITION BY toMonday(logged_at)
ORDER BY (tenant_id, deployment_id, kind, logged_at, revision_id, position)
TTL toDateTime(logged_at) + INTERVAL 30 DAY
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, ttl_only_drop_parts = 1;
