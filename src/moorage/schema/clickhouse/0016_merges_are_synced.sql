-- compatible_from: 12
-- What is merged replaces what was inserted, and has to be on the disk before that goes. A server of its own keeps the parts
-- that it has merged for eight minutes and trusts that the kernel has written the new one by then; the embedded engine deletes
-- them at once, and a power cut would take acknowledged rows with it.
ALTER TABLE trace_run_rows MODIFY SETTING min_rows_to_fsync_after_merge = 1;
ALTER TABLE trace_run_keys MODIFY SETTING min_rows_to_fsync_after_merge = 1;
ALTER TABLE trace_keys MODIFY SETTING min_rows_to_fsync_after_merge = 1;
ALTER TABLE deleted_runs MODIFY SETTING min_rows_to_fsync_after_merge = 1;
ALTER TABLE feedback_rows MODIFY SETTING min_rows_to_fsync_after_merge = 1;
ALTER TABLE deployment_logs MODIFY SETTING min_rows_to_fsync_after_merge = 1;
ALTER TABLE moorage_migrations MODIFY SETTING min_rows_to_fsync_after_merge = 1;
