-- compatible_from: 12
-- Which of its columns a row fills, a bit for each, in the order of FILLED (store/run_columns.py). Most writers leave most of
-- them empty, and always the same ones: readers read those that were filled lately, and see here when that was not enough.
-- The engine works it out, for older rows when they are read.
ALTER TABLE trace_run_rows ADD COLUMN IF NOT EXISTS filled SimpleAggregateFunction(groupBitOr, UInt64) DEFAULT
    isNotNull(parent_run_id) * 1
    + isNotNull(name) * 2
    + isNotNull(patched_name) * 4
    + isNotNull(run_type) * 8
    + isNotNull(patched_run_type) * 16
    + isNotNull(end_time) * 32
    + isNotNull(patched_end_time) * 64
    + isNotNull(first_token_time) * 128
    + isNotNull(patched_first_token_time) * 256
    + isNotNull(error) * 512
    + isNotNull(patched_error) * 1024
    + isNotNull(inputs) * 2048
    + isNotNull(patched_inputs) * 4096
    + isNotNull(outputs) * 8192
    + isNotNull(patched_outputs) * 16384
    + isNotNull(extra_without_metadata) * 32768
    + isNotNull(patched_extra_without_metadata) * 65536
    + isNotNull(metadata_json) * 131072
    + isNotNull(patched_metadata_json) * 262144
    + isNotNull(events) * 524288
    + isNotNull(patched_events) * 1048576
    + isNotNull(serialized) * 2097152
    + isNotNull(patched_serialized) * 4194304
    + isNotNull(tags) * 8388608
    + isNotNull(patched_tags) * 16777216
    + isNotNull(attachments) * 33554432
    + isNotNull(patched_attachments) * 67108864
    + isNotNull(reference_example_id) * 134217728
    + isNotNull(patched_reference_example_id) * 268435456
    + isNotNull(thread_id) * 536870912
    + isNotNull(patched_thread_id) * 1073741824
    + isNotNull(total_tokens) * 2147483648
    + isNotNull(patched_total_tokens) * 4294967296
    + isNotNull(prompt_tokens) * 8589934592
    + isNotNull(patched_prompt_tokens) * 17179869184
    + isNotNull(completion_tokens) * 34359738368
    + isNotNull(patched_completion_tokens) * 68719476736
    + isNotNull(total_cost) * 137438953472
    + isNotNull(patched_total_cost) * 274877906944
    + isNotNull(prompt_cost) * 549755813888
    + isNotNull(patched_prompt_cost) * 1099511627776
    + isNotNull(completion_cost) * 2199023255552
    + isNotNull(patched_completion_cost) * 4398046511104
    + isNotNull(prompt_token_details) * 8796093022208
    + isNotNull(patched_prompt_token_details) * 17592186044416
    + isNotNull(completion_token_details) * 35184372088832
    + isNotNull(patched_completion_token_details) * 70368744177664
    + isNotNull(prompt_cost_details) * 140737488355328
    + isNotNull(patched_prompt_cost_details) * 281474976710656
    + isNotNull(completion_cost_details) * 562949953421312
    + isNotNull(patched_completion_cost_details) * 1125899906842624
    CODEC(ZSTD(1));

-- Nobody waits for it, half a minute for a million runs.
ALTER TABLE trace_run_rows MATERIALIZE COLUMN filled SETTINGS mutations_sync = 0;
