"""A module that imports a missing name from a module of the project. Python's message contains the
path of that module.
"""

from graphs import a_name_that_is_not_there  # noqa: F401
