-- compatible_from: 1
-- What the long values of a row hold. An export adds them up to know where a part of bounded size ends; to ask the values
-- themselves for their sizes unpacks half of them. A sum, so that it is the same before and after rows are merged.
ALTER TABLE trace_run_rows ADD COLUMN IF NOT EXISTS payload_bytes SimpleAggregateFunction(sum, UInt64) DEFAULT
    length(ifNull(inputs, '')) + length(ifNull(patched_inputs, ''))
    + length(ifNull(outputs, '')) + length(ifNull(patched_outputs, ''))
    + length(ifNull(error, '')) + length(ifNull(patched_error, ''))
    + length(ifNull(extra_without_metadata, '')) + length(ifNull(patched_extra_without_metadata, ''))
    + length(ifNull(metadata_json, '')) + length(ifNull(patched_metadata_json, ''))
    + length(ifNull(events, '')) + length(ifNull(patched_events, ''))
    + length(ifNull(tags, '')) + length(ifNull(patched_tags, ''))
    CODEC(ZSTD(1));
