"""Asks a module of the project for a name that it does not have; Python's complaint holds the path of that module."""

from graphs import a_name_that_is_not_there  # noqa: F401
