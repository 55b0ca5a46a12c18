"""Inserts are on the disk when they are answered, or they are refused. There is nothing between."""

from __future__ import annotations

from uuid import uuid4

import pytest

from moorage.kernel.clickhouse import ClickHouse
from moorage.kernel.errors import UnavailableError

pytest_plugins = "tests.traces.fixtures"

ROWS = 2000


async def insert(clickhouse: ClickHouse, **settings: str) -> None:
    columns = {
        "id": ("UUID", [uuid4() for _ in range(ROWS)]),
        "text": ("Nullable(String)", ["text " * 400] * ROWS),
    }
    await clickhouse.insert("insert_or_refuse", columns, settings)


async def test_an_insert_without_enough_memory_is_refused_and_leaves_no_row(clickhouse: ClickHouse) -> None:
    await clickhouse.command(
        "CREATE TABLE insert_or_refuse (id UUID, text Nullable(String)) ENGINE = MergeTree ORDER BY id"
    )
    count = "SELECT count() FROM insert_or_refuse"
    with pytest.raises(UnavailableError, match="memory"):
        await insert(clickhouse, max_memory_usage="1000000")
    assert await clickhouse.value(count) == 0
    await insert(clickhouse)
    assert await clickhouse.value(count) == ROWS
    await clickhouse.command("DROP TABLE insert_or_refuse")
