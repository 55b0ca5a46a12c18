-- compatible_from: 1
-- The audit log: a row for each change before it is made, and a row with its outcome after. Neither is ever updated.

-- No reference to workspaces or keys: the log outlives them.
CREATE TABLE audit_changes (
    id uuid PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT now(),
    workspace_id uuid NOT NULL,
    actor text NOT NULL,
    operation text NOT NULL,
    method text NOT NULL,
    path text NOT NULL,
    client_host text,
    client_port integer,
    forwarded_for text,
    resource_ids uuid[] NOT NULL
);
CREATE INDEX audit_changes_at ON audit_changes (at, id);
CREATE INDEX audit_changes_workspace ON audit_changes (workspace_id, at, id);

-- Missing for a change whose process was killed while it was made.
CREATE TABLE audit_outcomes (
    change_id uuid PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT now(),
    status integer NOT NULL,
    resource_ids uuid[] NOT NULL
);
CREATE INDEX audit_outcomes_at ON audit_outcomes (at);

-- Append-only, whatever the program that is connected wants. Retention may remove rows from an age of 30 days on.
CREATE FUNCTION audit_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        IF OLD.at < now() - interval '30 days' THEN
            RETURN OLD;
        END IF;
    END IF;
    RAISE EXCEPTION 'the audit log is append-only' USING ERRCODE = 'insufficient_privilege';
END
$$;
-- The time is the database's: a row that says it is old could be deleted.
CREATE FUNCTION audit_date() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.at = now();
    RETURN NEW;
END
$$;
CREATE TRIGGER audit_changes_date BEFORE INSERT ON audit_changes FOR EACH ROW EXECUTE FUNCTION audit_date();
CREATE TRIGGER audit_outcomes_date BEFORE INSERT ON audit_outcomes FOR EACH ROW EXECUTE FUNCTION audit_date();
CREATE TRIGGER audit_changes_stay BEFORE UPDATE OR DELETE ON audit_changes FOR EACH ROW EXECUTE FUNCTION audit_refuse();
CREATE TRIGGER audit_outcomes_stay BEFORE UPDATE OR DELETE ON audit_outcomes FOR EACH ROW EXECUTE FUNCTION audit_refuse();
CREATE TRIGGER audit_changes_whole BEFORE TRUNCATE ON audit_changes EXECUTE FUNCTION audit_refuse();
CREATE TRIGGER audit_outcomes_whole BEFORE TRUNCATE ON audit_outcomes EXECUTE FUNCTION audit_refuse();
