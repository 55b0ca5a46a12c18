-- compatible_from: 12
-- Two indexes of words instead of one, of which a search needs one only. Most words are ids, each of them once: whoever
-- looks for letters alone does not look through these. A word with a digit lies within a word with a digit, and one of
-- letters within letters side by side, so nothing is looked for in both. Whoever looks something up says the same
-- expression (store/run_columns.py). All words of a dictionary are looked through: large blocks, in which none is told by
-- what it shares with the one before, take half of the time.
-- Older code finds what it found, without an index.
ALTER TABLE trace_run_rows
    ADD INDEX IF NOT EXISTS by_letters translate(
            concat(ifNull(coalesce(patched_inputs, inputs), ''), ' ', ifNull(coalesce(patched_outputs, outputs), '')),
            'ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789', 'abcdefghijklmnopqrstuvwxyz          ')
        TYPE text(
            tokenizer = 'splitByNonAlpha', posting_list_codec = 'bitpacking',
            dictionary_block_size = 4096, dictionary_block_frontcoding_compression = 0),
    ADD INDEX IF NOT EXISTS by_digits lower(arrayStringConcat(extractAll(
            concat(ifNull(coalesce(patched_inputs, inputs), ''), ' ', ifNull(coalesce(patched_outputs, outputs), '')),
            '[A-Za-z]*[0-9][A-Za-z0-9]*'), ' '))
        TYPE text(
            tokenizer = 'splitByNonAlpha', posting_list_codec = 'bitpacking',
            dictionary_block_size = 4096, dictionary_block_frontcoding_compression = 0);

-- For each of the two: a merge takes as much memory for both as it took for the one.
ALTER TABLE trace_run_rows MODIFY SETTING text_index_max_memory_usage_before_flush = 50000000;

-- Nobody waits for the parts to be written anew, some minutes for a few million runs: until then they are read without
-- an index, and everything in them is found.
ALTER TABLE trace_run_rows DROP INDEX IF EXISTS by_text SETTINGS alter_sync = 0;
ALTER TABLE trace_run_rows
    MATERIALIZE INDEX IF EXISTS by_letters, MATERIALIZE INDEX IF EXISTS by_digits SETTINGS mutations_sync = 0;
