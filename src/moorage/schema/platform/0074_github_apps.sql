-- compatible_from: 74
-- Code before this would show the private key of an app to the forge, as a token.
-- Apps of GitHub: the private key of the app is the sealed token, and an installation of it gives tokens of an hour.

ALTER TABLE integrations ADD COLUMN app_id text;
ALTER TABLE integrations ADD COLUMN installation_id bigint;
ALTER TABLE integrations ADD CONSTRAINT integrations_app_check CHECK ((app_id IS NULL) = (installation_id IS NULL));
