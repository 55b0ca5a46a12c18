-- compatible_from: 40
-- Trace runs and feedback, stored as rows that merge. The embedded engine, a server and a cluster all use this schema.
--
-- Among rows of one key, the engine keeps the last non-NULL value of each column. So any process can write a POST and a PATCH as
-- separate rows without reading first. Hence every column outside the key is Nullable, and lists are JSON text.
-- A PATCH wins over the POST, whichever arrives first. So each column that both may set has a twin: a POST writes `name`, a
-- PATCH writes `patched_name`, and readers prefer the twin. Among several PATCHes the last to arrive wins.

CREATE TABLE IF NOT EXISTS trace_run_rows
(
    -- The key. POST and PATCH both know all four columns: start_time and id are the last segment of dotted_order.
    tenant_id UUID,
    session_id UUID,
    start_time DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)),
    id UUID CODEC(ZSTD(1)),

    -- Fixed when the run is created: POST and PATCH have the same value, so there is no twin.
    trace_id Nullable(UUID) CODEC(ZSTD(1)),
    parent_run_id Nullable(UUID) CODEC(ZSTD(1)),
    dotted_order Nullable(String) CODEC(ZSTD(1)),
    is_root Nullable(Bool),
    trace_tier LowCardinality(Nullable(String)),

    -- Columns that both POST and PATCH may set, each with its twin.
    name LowCardinality(Nullable(String)),
    patched_name LowCardinality(Nullable(String)),
    run_type LowCardinality(Nullable(String)),
    patched_run_type LowCardinality(Nullable(String)),
    end_time Nullable(DateTime64(6, 'UTC')) CODEC(ZSTD(1)),
    patched_end_time Nullable(DateTime64(6, 'UTC')) CODEC(ZSTD(1)),
    first_token_time Nullable(DateTime64(6, 'UTC')) CODEC(ZSTD(1)),
    patched_first_token_time Nullable(DateTime64(6, 'UTC')) CODEC(ZSTD(1)),
    error Nullable(String) CODEC(ZSTD(1)),
    patched_error Nullable(String) CODEC(ZSTD(1)),
    inputs Nullable(String) CODEC(ZSTD(3)),
    patched_inputs Nullable(String) CODEC(ZSTD(3)),
    outputs Nullable(String) CODEC(ZSTD(3)),
    patched_outputs Nullable(String) CODEC(ZSTD(3)),
    extra_without_metadata Nullable(String) CODEC(ZSTD(3)),
    patched_extra_without_metadata Nullable(String) CODEC(ZSTD(3)),
    metadata_json Nullable(String) CODEC(ZSTD(3)),
    patched_metadata_json Nullable(String) CODEC(ZSTD(3)),
    events Nullable(String) CODEC(ZSTD(1)),
    patched_events Nullable(String) CODEC(ZSTD(1)),
    serialized Nullable(String) CODEC(ZSTD(1)),
    patched_serialized Nullable(String) CODEC(ZSTD(1)),
    tags Nullable(String) CODEC(ZSTD(1)),
    patched_tags Nullable(String) CODEC(ZSTD(1)),
    attachments Nullable(String) CODEC(ZSTD(1)),
    patched_attachments Nullable(String) CODEC(ZSTD(1)),
    reference_example_id Nullable(UUID) CODEC(ZSTD(1)),
    patched_reference_example_id Nullable(UUID) CODEC(ZSTD(1)),
    thread_id Nullable(String) CODEC(ZSTD(1)),
    patched_thread_id Nullable(String) CODEC(ZSTD(1)),
    prompt_tokens Nullable(Int64) CODEC(ZSTD(1)),
    patched_prompt_tokens Nullable(Int64) CODEC(ZSTD(1)),
    completion_tokens Nullable(Int64) CODEC(ZSTD(1)),
    patched_completion_tokens Nullable(Int64) CODEC(ZSTD(1)),
    total_tokens Nullable(Int64) CODEC(ZSTD(1)),
    patched_total_tokens Nullable(Int64) CODEC(ZSTD(1)),
    prompt_cost Nullable(Decimal(38, 12)) CODEC(ZSTD(1)),
    patched_prompt_cost Nullable(Decimal(38, 12)) CODEC(ZSTD(1)),
    completion_cost Nullable(Decimal(38, 12)) CODEC(ZSTD(1)),
    patched_completion_cost Nullable(Decimal(38, 12)) CODEC(ZSTD(1)),
    total_cost Nullable(Decimal(38, 12)) CODEC(ZSTD(1)),
    patched_total_cost Nullable(Decimal(38, 12)) CODEC(ZSTD(1)),
    prompt_token_details Nullable(String) CODEC(ZSTD(1)),
    patched_prompt_token_details Nullable(String) CODEC(ZSTD(1)),
    completion_token_details Nullable(String) CODEC(ZSTD(1)),
    patched_completion_token_details Nullable(String) CODEC(ZSTD(1)),
    prompt_cost_details Nullable(String) CODEC(ZSTD(1)),
    patched_prompt_cost_details Nullable(String) CODEC(ZSTD(1)),
    completion_cost_details Nullable(String) CODEC(ZSTD(1)),
    patched_completion_cost_details Nullable(String) CODEC(ZSTD(1)),

    -- When the last and the first row of the run arrived. An export contains the runs whose first row had arrived at its cutoff.
    ingested_at Nullable(DateTime64(6, 'UTC')) CODEC(Delta, ZSTD(1)),
    first_ingested_at SimpleAggregateFunction(min, Nullable(DateTime64(6, 'UTC'))) DEFAULT ingested_at CODEC(Delta, ZSTD(1)),
    -- Size of the row's long values. An export adds these sizes up to find where a part of bounded size ends; measuring the
    -- values themselves would decompress half of them. A sum, so that merging rows does not change the total.
    payload_bytes SimpleAggregateFunction(sum, UInt64) DEFAULT
        length(ifNull(inputs, '')) + length(ifNull(patched_inputs, ''))
        + length(ifNull(outputs, '')) + length(ifNull(patched_outputs, ''))
        + length(ifNull(error, '')) + length(ifNull(patched_error, ''))
        + length(ifNull(extra_without_metadata, '')) + length(ifNull(patched_extra_without_metadata, ''))
        + length(ifNull(metadata_json, '')) + length(ifNull(patched_metadata_json, ''))
        + length(ifNull(events, '')) + length(ifNull(patched_events, ''))
        + length(ifNull(tags, '')) + length(ifNull(patched_tags, ''))
        CODEC(ZSTD(1)),
    -- A tombstone: once any row of the key has it, the run is deleted, whatever arrives before or after.
    deleted_at Nullable(DateTime64(6, 'UTC')) CODEC(ZSTD(1)),

    -- Indexes that find candidates in this table, without FINAL. A row may be only half of a run, so each hit is confirmed on
    -- the whole run. FINAL with such an index loses runs. Queries must use the same expression (store/run_columns.py); an
    -- ALIAS column for it would add a millisecond to every statement, whatever it reads.
    --
    -- Words have two indexes, and a search needs only one. Most words are ids that occur once; a search for letters alone
    -- does not scan these. A word with a digit can only be part of a word with a digit, and a word of letters only part of a
    -- sequence of letters, so no search needs both. A search scans all words of a dictionary: large blocks without
    -- front coding take half of the time.
    INDEX by_letters translate(
            concat(ifNull(coalesce(patched_inputs, inputs), ''), ' ', ifNull(coalesce(patched_outputs, outputs), '')),
            'ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789', 'abcdefghijklmnopqrstuvwxyz          ')
        TYPE text(
            tokenizer = 'splitByNonAlpha', posting_list_codec = 'bitpacking',
            dictionary_block_size = 4096, dictionary_block_frontcoding_compression = 0),
    INDEX by_digits lower(arrayStringConcat(extractAll(
            concat(ifNull(coalesce(patched_inputs, inputs), ''), ' ', ifNull(coalesce(patched_outputs, outputs), '')),
            '[A-Za-z]*[0-9][A-Za-z0-9]*'), ' '))
        TYPE text(
            tokenizer = 'splitByNonAlpha', posting_list_codec = 'bitpacking',
            dictionary_block_size = 4096, dictionary_block_frontcoding_compression = 0),
    -- `key=value`: strings as plain text, everything else as JSON. The thread has a key that no metadata uses.
    INDEX by_metadata arrayConcat(
            arrayMap(
                pair -> concat(pair.1, '=', if(startsWith(pair.2, '"'), JSONExtractString(pair.2), pair.2)),
                JSONExtractKeysAndValuesRaw(ifNull(coalesce(patched_metadata_json, metadata_json), ''))),
            if(isNull(coalesce(patched_thread_id, thread_id)), [],
                [concat('\0thread=', assumeNotNull(coalesce(patched_thread_id, thread_id)))]))
        TYPE text(tokenizer = 'array', posting_list_codec = 'bitpacking')
)
ENGINE = CoalescingMergeTree
PARTITION BY toYYYYMM(start_time)
ORDER BY (tenant_id, session_id, start_time, id)
SETTINGS
    -- Acknowledged means durable: without these two settings an insert reaches the disk some seconds after its answer.
    fsync_after_insert = 1,
    fsync_part_directory = 1,
    -- A merged part must be on the disk before its source parts are deleted. A separate server keeps the source parts for
    -- eight minutes and trusts that the kernel has written the new part by then. The embedded engine deletes them at once, so
    -- without this setting a power cut could lose acknowledged rows.
    min_rows_to_fsync_after_merge = 1,
    -- Reads of a single run are as frequent as reads of many. Small granules, since a whole granule is decompressed; and
    -- parts of one file, so that the columns of a run lie side by side.
    index_granularity = 512,
    min_bytes_for_wide_part = 4000000000,
    min_compress_block_size = 16384,
    max_compress_block_size = 262144,
    -- A merge reads and writes all columns of its parts at once. Without small buffers it takes hundreds of megabytes.
    min_columns_to_activate_adaptive_write_buffer = 10,
    -- Merges are two thirds of the cost of a run, so ten parts of a size are merged at once, not five.
    merge_selector_base = 10,
    -- For each of the two indexes of words.
    text_index_max_memory_usage_before_flush = 50000000;

-- One row for each run, for all readers. A write that sets usage sets every usage field: absent fields are -1, a cost of
-- -10^15, or `{}`. These values hide the field's earlier value, and the view shows them as NULL.
CREATE VIEW IF NOT EXISTS trace_runs AS
SELECT
    tenant_id,
    session_id,
    id,
    trace_id,
    parent_run_id,
    -- A segment of dotted_order is 22 characters of time, then the id. The last one is the run's own.
    arrayMap(segment -> toUUIDOrZero(substring(segment, 23)), arrayPopBack(splitByChar('.', ifNull(dotted_order, '')))) AS parent_run_ids,
    dotted_order,
    is_root,
    coalesce(patched_name, name) AS name,
    coalesce(patched_run_type, run_type) AS run_type,
    start_time,
    coalesce(patched_end_time, end_time) AS end_time,
    coalesce(patched_first_token_time, first_token_time) AS first_token_time,
    multiIf(isNotNull(error), 'error', isNotNull(end_time), 'success', 'pending') AS status,
    coalesce(patched_error, error) AS error,
    coalesce(patched_inputs, inputs) AS inputs,
    coalesce(patched_outputs, outputs) AS outputs,
    coalesce(patched_metadata_json, metadata_json) AS metadata_json,
    -- The metadata is stored once, and put back where callers look for it.
    multiIf(
        isNull(metadata_json), coalesce(patched_extra_without_metadata, extra_without_metadata),
        length(ifNull(coalesce(patched_extra_without_metadata, extra_without_metadata), '')) <= 2,
        concat('{"metadata":', metadata_json, '}'),
        concat('{"metadata":', metadata_json, ',', substring(coalesce(patched_extra_without_metadata, extra_without_metadata), 2))
    ) AS extra,
    coalesce(patched_events, events) AS events,
    coalesce(patched_serialized, serialized) AS serialized,
    JSONExtract(coalesce(patched_tags, trace_run_rows.tags, '[]'), 'Array(String)') AS tags,
    multiIf(
        isNull(patched_attachments), trace_run_rows.attachments,
        isNull(trace_run_rows.attachments), patched_attachments,
        jsonMergePatch(trace_run_rows.attachments, patched_attachments)
    ) AS attachments,
    coalesce(patched_reference_example_id, reference_example_id) AS reference_example_id,
    coalesce(patched_thread_id, thread_id) AS thread_id,
    trace_tier,
    nullIf(coalesce(patched_prompt_tokens, trace_run_rows.prompt_tokens), -1) AS prompt_tokens,
    nullIf(coalesce(patched_completion_tokens, trace_run_rows.completion_tokens), -1) AS completion_tokens,
    nullIf(coalesce(patched_total_tokens, trace_run_rows.total_tokens), -1) AS total_tokens,
    nullIf(coalesce(patched_prompt_cost, trace_run_rows.prompt_cost), -1000000000000000) AS prompt_cost,
    nullIf(coalesce(patched_completion_cost, trace_run_rows.completion_cost), -1000000000000000) AS completion_cost,
    nullIf(coalesce(patched_total_cost, trace_run_rows.total_cost), -1000000000000000) AS total_cost,
    nullIf(coalesce(patched_prompt_token_details, trace_run_rows.prompt_token_details), '{}') AS prompt_token_details,
    nullIf(coalesce(patched_completion_token_details, trace_run_rows.completion_token_details), '{}') AS completion_token_details,
    nullIf(coalesce(patched_prompt_cost_details, trace_run_rows.prompt_cost_details), '{}') AS prompt_cost_details,
    nullIf(coalesce(patched_completion_cost_details, trace_run_rows.completion_cost_details), '{}') AS completion_cost_details,
    dateDiff('microsecond', start_time, end_time) / 1e6 AS latency_s,
    ingested_at,
    first_ingested_at
FROM trace_run_rows FINAL
WHERE isNull(deleted_at);

-- Finds the place of a run by its id alone. All rows of one run are equal, so repeated inserts do no harm.
CREATE TABLE IF NOT EXISTS trace_run_keys
(
    tenant_id UUID,
    id UUID CODEC(ZSTD(1)),
    session_id UUID CODEC(ZSTD(1)),
    start_time DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)),
    trace_id Nullable(UUID) CODEC(ZSTD(1))
)
ENGINE = CoalescingMergeTree
PARTITION BY toYYYYMM(start_time)
ORDER BY (tenant_id, id, session_id, start_time)
SETTINGS
    fsync_after_insert = 1,
    fsync_part_directory = 1,
    min_rows_to_fsync_after_merge = 1,
    -- The engine orders UUIDs by their random half, so the ids of a page are spread over the table, each in another granule.
    index_granularity = 128,
    min_bytes_for_wide_part = 4000000000,
    -- When the engine selects parts to merge, it takes each as 5 MB larger than it is. So the five rows of a small insert would
    -- count as much as a part of 100,000 keys, and every few inserts would rewrite such a part. Merging less often
    -- leaves a few more parts of a few rows.
    merge_selector_base = 20;

CREATE MATERIALIZED VIEW IF NOT EXISTS trace_run_keys_filled TO trace_run_keys AS
SELECT tenant_id, id, session_id, start_time, trace_id FROM trace_run_rows;

-- Finds the runs of a trace by the trace's id alone, with the tokens and costs that their ancestors add up. Pages read all usage
-- from here, also that of their own runs: this costs a tenth of reading it from the runs. Usage is one JSON text, since it
-- is sent as one. A run without a trace_id is a trace by itself.
CREATE TABLE IF NOT EXISTS trace_keys
(
    tenant_id UUID,
    trace_id UUID CODEC(ZSTD(1)),
    session_id UUID CODEC(ZSTD(1)),
    start_time DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)),
    id UUID CODEC(ZSTD(1)),
    -- Ids from the root to the parent, separated by commas, including ancestors that have not arrived.
    parent_run_ids Nullable(String) CODEC(ZSTD(1)),
    first_token_time Nullable(DateTime64(6, 'UTC')) CODEC(ZSTD(1)),
    patched_first_token_time Nullable(DateTime64(6, 'UTC')) CODEC(ZSTD(1)),
    usage Nullable(String) CODEC(ZSTD(1)),
    patched_usage Nullable(String) CODEC(ZSTD(1))
)
ENGINE = CoalescingMergeTree
PARTITION BY toYYYYMM(start_time)
-- Time-ordered ids sort by time as bytes, but not as UUIDs. Ordering by bytes puts the traces of a page side by side.
ORDER BY (tenant_id, UUIDToNum(trace_id), session_id, start_time, id)
SETTINGS
    fsync_after_insert = 1,
    fsync_part_directory = 1,
    min_rows_to_fsync_after_merge = 1,
    index_granularity = 128,
    min_bytes_for_wide_part = 4000000000,
    merge_selector_base = 20; -- as above

CREATE MATERIALIZED VIEW IF NOT EXISTS trace_keys_filled TO trace_keys AS
SELECT
    tenant_id, ifNull(trace_run_rows.trace_id, trace_run_rows.id) AS trace_id, session_id, start_time, id,
    if(isNull(dotted_order), NULL, arrayStringConcat(
        arrayMap(segment -> substring(segment, 23), arrayPopBack(splitByChar('.', ifNull(dotted_order, '')))), ',')) AS parent_run_ids,
    first_token_time, patched_first_token_time,
    if(isNull(total_tokens) AND isNull(prompt_tokens) AND isNull(completion_tokens) AND isNull(total_cost) AND
        isNull(prompt_cost) AND isNull(completion_cost) AND isNull(prompt_token_details) AND
        isNull(completion_token_details) AND isNull(prompt_cost_details) AND isNull(completion_cost_details), NULL,
        toJSONString(map('total_tokens', toString(total_tokens), 'prompt_tokens', toString(prompt_tokens),
            'completion_tokens', toString(completion_tokens), 'total_cost', toString(total_cost),
            'prompt_cost', toString(prompt_cost), 'completion_cost', toString(completion_cost),
            'prompt_token_details', prompt_token_details, 'completion_token_details', completion_token_details,
            'prompt_cost_details', prompt_cost_details, 'completion_cost_details', completion_cost_details))) AS usage,
    if(isNull(patched_total_tokens) AND isNull(patched_prompt_tokens) AND isNull(patched_completion_tokens) AND
        isNull(patched_total_cost) AND isNull(patched_prompt_cost) AND isNull(patched_completion_cost) AND
        isNull(patched_prompt_token_details) AND isNull(patched_completion_token_details) AND
        isNull(patched_prompt_cost_details) AND isNull(patched_completion_cost_details), NULL,
        toJSONString(map('total_tokens', toString(patched_total_tokens), 'prompt_tokens', toString(patched_prompt_tokens),
            'completion_tokens', toString(patched_completion_tokens), 'total_cost', toString(patched_total_cost),
            'prompt_cost', toString(patched_prompt_cost), 'completion_cost', toString(patched_completion_cost),
            'prompt_token_details', patched_prompt_token_details,
            'completion_token_details', patched_completion_token_details,
            'prompt_cost_details', patched_prompt_cost_details,
            'completion_cost_details', patched_completion_cost_details))) AS patched_usage
FROM trace_run_rows
-- Skips tombstone rows, which have deleted_at and no trace_id: they are not runs.
WHERE isNotNull(trace_run_rows.trace_id) OR isNull(deleted_at);

-- Tombstones: ids of deleted runs, and of deleted traces for all of their runs. Ingest drops late data for these ids.
-- Runs that are already stored have deleted_at set in trace_run_rows.
CREATE TABLE IF NOT EXISTS deleted_runs
(
    tenant_id UUID,
    id UUID,
    deleted_at DateTime64(6, 'UTC')
)
ENGINE = ReplacingMergeTree
ORDER BY (tenant_id, id)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, min_rows_to_fsync_after_merge = 1;

-- Feedback is stored beside the runs because filters and exports join it. The last row of an id replaces earlier ones.
CREATE TABLE IF NOT EXISTS feedback_rows
(
    tenant_id UUID,
    id UUID,
    session_id UUID,
    run_id Nullable(UUID),
    trace_id Nullable(UUID),
    start_time DateTime64(6, 'UTC'),
    key LowCardinality(String),
    score Nullable(Float64),
    value Nullable(String) CODEC(ZSTD(1)),
    comment Nullable(String) CODEC(ZSTD(1)),
    correction Nullable(String) CODEC(ZSTD(1)),
    source_type LowCardinality(Nullable(String)),
    source Nullable(String) CODEC(ZSTD(1)),
    extra Nullable(String) CODEC(ZSTD(1)),
    created_at DateTime64(6, 'UTC'),
    modified_at DateTime64(6, 'UTC'),
    is_deleted UInt8 DEFAULT 0,
    INDEX by_run run_id TYPE bloom_filter(0.01) GRANULARITY 1
)
ENGINE = ReplacingMergeTree(modified_at, is_deleted)
ORDER BY (tenant_id, id)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, min_rows_to_fsync_after_merge = 1;

CREATE VIEW IF NOT EXISTS feedback AS
SELECT * EXCEPT (is_deleted) FROM feedback_rows FINAL;

-- Output of deployments, from their builds and from their running agents. Inserts may be repeated after a crash: lines with the
-- same key, which includes time and position, are kept once.
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
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, min_rows_to_fsync_after_merge = 1, ttl_only_drop_parts = 1;
