"""A new master key: all sealed values are wrapped again, and the old key is no longer needed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from moorage.kernel.crypto import KEY_BYTES, MasterKeys, SealedColumn
from moorage.wiring import platform
from tests.accounts.houses import make_house

pytest_plugins = "tests.accounts.fixtures"

OLD, NEW, LOST = (bytes([number]) * KEY_BYTES for number in (1, 2, 3))
COLUMN = SealedColumn("sealed_things", "id", "secret")


@pytest.fixture
async def things(platform_postgres):
    """Create a table with a sealed column, as destinations and secrets have."""
    await platform_postgres.execute("CREATE TABLE sealed_things (id text PRIMARY KEY, secret bytea)")
    yield platform_postgres
    await platform_postgres.execute("DROP TABLE sealed_things")


async def test_a_rotation_rewraps_everything_and_says_what_is_left(things):
    sealed = {str(number): MasterKeys([OLD]).seal(b"value", COLUMN.place(number)) for number in range(20)}
    sealed["lost"] = MasterKeys([LOST]).seal(b"value", COLUMN.place("lost"))
    for row_id, secret in [*sealed.items(), ("none", None)]:
        await things.execute("INSERT INTO sealed_things VALUES (%s, %s)", (row_id, secret))
    house = make_house(things, master_keys=MasterKeys([NEW, OLD]), columns=(COLUMN,))
    key = await house.make_operator()
    async with house.client(key) as http:
        rotation = (await http.post("/master-key/rotate")).json()
        again = (await http.post("/master-key/rotate")).json()
    assert rotation == {"key_id": MasterKeys([NEW]).ids[0], "rewrapped": 20, "left": 1}
    assert (again["rewrapped"], again["left"]) == (0, 1)
    rows = await things.fetch("SELECT id, secret FROM sealed_things WHERE id NOT IN ('lost', 'none')")
    assert {MasterKeys([NEW]).open(row["secret"], COLUMN.place(row["id"])) for row in rows} == {b"value"}


def test_a_rotation_finds_the_sealed_columns_of_all_rooms():
    source = Path(platform.__file__).parents[1]
    texts = [
        file.read_text()
        for room in ("control", "exports", "traces", "agents")
        for file in (source / room).rglob("*.py")
    ]
    made = {found for text in texts for found in re.findall(r'SealedColumn\("(\w+)", "(\w+)", "(\w+)"\)', text)}
    assert made
    assert made == {(column.table, column.id_column, column.column) for column in platform._SEALED}


async def test_a_value_that_changes_meanwhile_is_not_overwritten(things, monkeypatch):
    keys = MasterKeys([NEW, OLD])
    await things.execute(
        "INSERT INTO sealed_things VALUES ('a', %s)", (MasterKeys([OLD]).seal(b"old", COLUMN.place("a")),)
    )
    house = make_house(things, master_keys=keys, columns=(COLUMN,))
    read = house.store.read_outdated

    async def read_and_change(*args):
        rows = await read(*args)
        await things.execute("UPDATE sealed_things SET secret = %s", (keys.seal(b"new", COLUMN.place("a")),))
        return rows

    monkeypatch.setattr(house.store, "read_outdated", read_and_change)
    assert (await house.accounts.rotation.rotate())["rewrapped"] == 0
    [row] = await things.fetch("SELECT secret FROM sealed_things")
    assert keys.open(row["secret"], COLUMN.place("a")) == b"new"
