"""Settings from the environment. Each field says what it is for; the tables of docs/settings.md are made from it."""
