"""One platform for the whole session.

A test module uses it with `pytest_plugins = "tests.platform.fixtures"`. Tests share the platform, so each names its
objects by itself. A test that stops or kills a platform makes its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.platform.serving import Platform, make_folder, make_platform

# Thousands of requests with bad keys would wait for their 401. tests/http shows that they do.
SETTINGS = {
    "MOORAGE_AGENT_START_SECONDS": "240",
    "MOORAGE_REFUSALS_PER_MINUTE": "0",
}


@pytest.fixture(scope="session")
def platform() -> Iterator[Platform]:
    with make_folder() as folder, make_platform(folder / "home", **SETTINGS) as running:
        yield running


@pytest.fixture
def api(platform: Platform) -> Iterator[httpx.Client]:
    """Return a plain HTTP client of the shared platform, with its first key."""
    with platform.client() as client:
        yield client


@pytest.fixture(scope="module")
def platform_folder() -> Iterator[Path]:
    """Make a folder for the homes of platforms that a module starts itself."""
    with make_folder() as folder:
        yield folder
