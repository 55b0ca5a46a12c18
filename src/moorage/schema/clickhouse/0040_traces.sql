-- compatible_from: 40
-- Trace runs and feedback, as rows that merge. One dialect for the embedded engine and for a server or a cluster.
--
-- The engine keeps the last non-NULL value of each column among rows of one key, so POST and PATCH are rows of their own,
-- from any process, without reading before writing. Hence every column outside the key is Nullable, and a list is JSON text.
-- A PATCH wins over the POST in whatever order they arrive, so what both may carry has a twin: a POST writes `name`, a
-- PATCH writes `patched_name`, and who reads takes the twin first. Among patches the last to arrive wins.

CREATE TABLE IF NOT EXISTS trace_run_rows
(
    -- The key. All four are known to POST and PATCH alike: start_time and id are the last segment of dotted_order.
    tenant_id UUID,
    session_id UUID,
    start_time DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)),
    id UUID CODEC(ZSTD(1)),

    -- Fixed when the run is made: POST and PATCH say the same, so there is no twin.
    trace_id Nullable(UUID) CODEC(ZSTD(1)),
    parent_run_id Nullable(UUID) CODEC(ZSTD(1)),
    dotted_order Nullable(String) CODEC(ZSTD(1)),
    is_root Nullable(Bool),
    trace_tier LowCardinality(Nullable(String)),

    -- What both may carry, each column with its twin.
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

    -- When the last row of a run came, and when the first did: what an export promises to hold was there when it began.
    ingested_at Nullable(DateTime64(6, 'UTC')) CODEC(Delta, ZSTD(1)),
    first_ingested_at SimpleAggregateFunction(min, Nullable(DateTime64(6, 'UTC'))) DEFAULT ingested_at CODEC(Delta, ZSTD(1)),
    -- What the long values of a row hold. An export adds them up to know where a part of bounded size ends; to ask the values
    -- themselves for their sizes unpacks half of them. A sum, so that it is the same before and after rows are merged.
    payload_bytes SimpleAggregateFunction(sum, UInt64) DEFAULT
        length(ifNull(inputs, '')) + length(ifNull(patched_inputs, ''))
        + length(ifNull(outputs, '')) + length(ifNull(patched_outputs, ''))
        + length(ifNull(error, '')) + length(ifNull(patched_error, ''))
        + length(ifNull(extra_without_metadata, '')) + length(ifNull(patched_extra_without_metadata, ''))
        + length(ifNull(metadata_json, '')) + length(ifNull(patched_metadata_json, ''))
        + length(ifNull(events, '')) + length(ifNull(patched_events, ''))
        + length(ifNull(tags, '')) + length(ifNull(patched_tags, ''))
        CODEC(ZSTD(1)),
    -- A tombstone: once a row of the key has it, the run is gone, whatever arrives before or after.
    deleted_at Nullable(DateTime64(6, 'UTC')) CODEC(ZSTD(1)),

    -- For finding candidates in this table, without FINAL: rows are halves of runs here, so a hit is confirmed on the run
    -- itself. FINAL with such an index loses runs. Whoever looks them up says the same expression (store/run_columns.py);
    -- an ALIAS column for it would make every statement a millisecond dearer, whatever it reads.
    --
    -- Words have two indexes, of which a search needs one only. Most words are ids, each of them once: whoever looks for
    -- letters alone does not look through these. A word with a digit lies within a word with a digit, and one of letters
    -- within letters side by side, so nothing is looked for in both. All words of a dictionary are looked through: large
    -- blocks, in which none is told by what it shares with the one before, take half of the time.
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
    -- `key=value`, with the text of strings and the JSON of everything else. The thread goes by a name of its own.
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
    -- Acknowledged means durable: without these two an insert is on the disk some seconds after its answer.
    fsync_after_insert = 1,
    fsync_part_directory = 1,
    -- What is merged replaces what was inserted, and has to be on the disk before that goes. A server of its own keeps the
    -- parts that it has merged for eight minutes and trusts that the kernel has written the new one by then; the embedded
    -- engine deletes them at once, and a power cut would take acknowledged rows with it.
    min_rows_to_fsync_after_merge = 1,
    -- One run is read as often as many: small granules, since a whole one is unpacked, and parts of one file, in which
    -- its columns lie side by side.
    index_granularity = 512,
    min_bytes_for_wide_part = 4000000000,
    min_compress_block_size = 16384,
    max_compress_block_size = 262144,
    -- A merge reads and writes all columns of its parts at once: small buffers, or it takes hundreds of megabytes.
    min_columns_to_activate_adaptive_write_buffer = 10,
    -- Two thirds of what a run costs are merges: ten parts of a size are merged into the next, not five.
    merge_selector_base = 10,
    -- For each of the two indexes of words.
    text_index_max_memory_usage_before_flush = 50000000;

-- What everyone reads: one row a run. A write that tells usage says all of it: a field that is no part of it is -1, a cost of
-- -10^15 or `{}`, which hides what an earlier write said of that field, and is nothing to who reads.
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

-- Where a run is, by its id alone. Rows of one run are equal, so it does not matter how often one is inserted.
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
    -- The engine orders UUIDs by their random half: those of a page are all over the table, each in a granule of its own.
    index_granularity = 128,
    min_bytes_for_wide_part = 4000000000,
    -- The engine takes every part as 5 MB larger than it is when it looks for some to merge. So the five rows of a small insert
    -- would count as much as the 100,000 keys of such a part, and these would be written anew with every few inserts. What is
    -- merged less often lies in a few parts more, of a few rows.
    merge_selector_base = 20;

CREATE MATERIALIZED VIEW IF NOT EXISTS trace_run_keys_filled TO trace_run_keys AS
SELECT tenant_id, id, session_id, start_time, trace_id FROM trace_run_rows;

-- The runs of a trace, by the id of the trace alone, with their tokens and costs, which those above them add up. Pages read
-- usage from here, their runs' own too: it costs a tenth of what it costs from the runs. It is one JSON text, since it is
-- sent as one. A run that says no trace is one by itself.
CREATE TABLE IF NOT EXISTS trace_keys
(
    tenant_id UUID,
    trace_id UUID CODEC(ZSTD(1)),
    session_id UUID CODEC(ZSTD(1)),
    start_time DateTime64(6, 'UTC') CODEC(Delta, ZSTD(1)),
    id UUID CODEC(ZSTD(1)),
    -- From the root to the parent, with commas: also of those that have not come themselves.
    parent_run_ids Nullable(String) CODEC(ZSTD(1)),
    first_token_time Nullable(DateTime64(6, 'UTC')) CODEC(ZSTD(1)),
    patched_first_token_time Nullable(DateTime64(6, 'UTC')) CODEC(ZSTD(1)),
    usage Nullable(String) CODEC(ZSTD(1)),
    patched_usage Nullable(String) CODEC(ZSTD(1))
)
ENGINE = CoalescingMergeTree
PARTITION BY toYYYYMM(start_time)
-- Ids that begin with a time are in its order by their bytes, but not as UUIDs: so the traces of a page lie side by side.
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
-- What hides a run that was deleted says no trace, and is no run.
WHERE isNotNull(trace_run_rows.trace_id) OR isNull(deleted_at);

-- What was deleted: the id of a run, or of a trace for all of its runs. Ingest drops what comes late for one of these.
-- What is stored already has deleted_at set in trace_run_rows.
CREATE TABLE IF NOT EXISTS deleted_runs
(
    tenant_id UUID,
    id UUID,
    deleted_at DateTime64(6, 'UTC')
)
ENGINE = ReplacingMergeTree
ORDER BY (tenant_id, id)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, min_rows_to_fsync_after_merge = 1;

-- Feedback lies beside the runs, since filters and exports join it. The last row of an id wins as a whole.
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
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, min_rows_to_fsync_after_merge = 1, ttl_only_drop_parts = 1;
