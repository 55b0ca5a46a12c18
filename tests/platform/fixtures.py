"""One platform for the whole session. A test module says `pytest_plugins = "tests.platform.fixtures"` to have it.

Tests share it, so each makes what it needs under names of its own; one that stops or kills makes its own platform.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.platform.serving import Platform, make_folder, make_platform

# Thousands of requests with bad keys would wait for their 401. That they do is shown in tests/http.
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
    """Plain HTTP to the shared platform, with its first key."""
    with platform.client() as client:
        yield client


@pytest.fixture(scope="module")
def platform_folder() -> Iterator[Path]:
    """For the homes of platforms that a module makes itself."""
    with make_folder() as folder:
        yield folder
