"""The control plane, served to tests.

A test module uses it with `pytest_plugins = "tests.control.fixtures"`.
"""

from __future__ import annotations

import pytest

from tests.control.houses import ControlHouse, make_control_house

pytest_plugins = ["tests.accounts.fixtures"]


@pytest.fixture
async def control(platform_postgres, tmp_path) -> ControlHouse:
    """Serve the control plane, with a new workspace for each test."""
    return await make_control_house(platform_postgres, tmp_path)


@pytest.fixture
async def client(control):
    async with control.client() as client:
        yield client
