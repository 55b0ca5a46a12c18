-- compatible_from: 1
-- The user on whose behalf a run is executed, for whichever process executes it. It may hold what a graph needs to act for
-- the user, such as a token, so it goes when the run ends.

ALTER TABLE runs ADD COLUMN auth_user json;
