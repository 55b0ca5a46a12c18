-- compatible_from: 12
-- The engine takes every part as 5 MB larger than it is when it looks for some to merge. So the five rows of a small insert
-- counted as much as the 100,000 keys of such a part, and these were written anew with every few inserts: two of three rows
-- that were merged anywhere were such keys. What is merged less often lies in a few parts more, of a few rows.
ALTER TABLE trace_run_keys MODIFY SETTING merge_selector_base = 20;
ALTER TABLE trace_keys MODIFY SETTING merge_selector_base = 20;
