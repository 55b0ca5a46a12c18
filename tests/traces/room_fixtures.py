"""Projects, feedback, deletion and retention, and their routes.

A test module uses them with `pytest_plugins = "tests.traces.room_fixtures"`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from moorage.kernel.clickhouse import ClickHouse
from moorage.kernel.postgres import Postgres
from tests.accounts.houses import House
from tests.traces.rooms import ROUTERS, Room, caller_of

pytest_plugins = ("tests.accounts.fixtures", "tests.traces.fixtures")


@pytest.fixture
async def room(platform_postgres: Postgres, clickhouse: ClickHouse, tmp_path: Path) -> Room:
    """Build the room without the rows of the test before: the cost of a removal grows with the files of a table."""
    for table in ("trace_run_rows", "trace_run_keys", "trace_keys", "feedback_rows"):
        await clickhouse.command(f"TRUNCATE TABLE {table}")
    return Room(platform_postgres, clickhouse, tmp_path)


@pytest.fixture
async def room_api(house: House, room: Room) -> AsyncIterator[httpx.AsyncClient]:
    """Return a client of the routes, with a key of `room.caller`'s workspace that has all rights."""
    house.app.state.traces = SimpleNamespace(
        projects=room.projects,
        feedback=room.feedback,
        feedback_keys=room.feedback_keys,
        feedback_tokens=room.feedback_tokens,
        deletion=room.deletion,
        retention=room.retention,
    )
    for router in ROUTERS:
        house.app.include_router(router, prefix="/api/v1")
    workspace = await house.make_workspace()
    room.caller = caller_of(workspace["id"])
    async with house.client(workspace["api_key"]) as client:
        client.base_url = httpx.URL("http://moorage.test/api/v1")
        yield client
