-- compatible_from: 1
-- How callers of a revision's agent authenticate: by keys of the platform, or as the project itself says. Known when it is built.

ALTER TABLE revisions ADD COLUMN authentication text CHECK (authentication IN ('platform_keys', 'custom'));
