"""Settings from the environment. The tables of docs/settings.md are made from the help texts of the fields."""
