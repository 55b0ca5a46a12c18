-- compatible_from: 3
-- What models cost, as a workspace says it. What it does not say is in the table that is shipped with the program.

CREATE TABLE model_prices (
    id uuid PRIMARY KEY,
    workspace_id uuid NOT NULL,
    name text NOT NULL,
    -- Runs that started earlier have another price. NULL: since ever.
    start_time timestamptz,
    -- Under which keys of the invocation parameters the name of the model may stand.
    match_path text[] NOT NULL,
    -- A regular expression for the name. It is matched here and not in the program: this engine has no pattern that
    -- takes exponential time, and one that takes long is stopped.
    match_pattern text NOT NULL,
    -- NULL: of any provider.
    provider text,
    -- US dollars per token.
    prompt_cost numeric NOT NULL,
    completion_cost numeric NOT NULL,
    -- Kinds of tokens that have a price of their own: {"cache_read": "0.0000003"}.
    prompt_cost_details jsonb NOT NULL DEFAULT '{}',
    completion_cost_details jsonb NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    actor text NOT NULL
);
CREATE INDEX model_prices_workspace ON model_prices (workspace_id);
