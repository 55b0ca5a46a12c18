-- compatible_from: 12
-- A write that tells usage says all of it: a field that is no part of it is -1, a cost of -10^15 or `{}`, which hides what
-- an earlier write said of that field, and is nothing to who reads. Older code would show it as a number.
CREATE OR REPLACE VIEW trace_runs AS
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
