-- compatible_from: 1
-- The user on whose behalf the runs of a cron are executed: whoever made or changed it last.

ALTER TABLE crons ADD COLUMN auth_user json;
