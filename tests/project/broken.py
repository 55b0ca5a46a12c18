"""A module that cannot be imported."""

import a_package_that_nobody_installed  # noqa: F401
