"""Numbered SQL files: applied once each, in order, even when many processes start at once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from moorage.kernel import migrations
from moorage.kernel.errors import StartupError
from moorage.kernel.migrations import migrate, read_migrations
from moorage.kernel.postgres import Postgres
from tests.kernel.databases import Engine

pytest_plugins = "tests.kernel.fixtures"

MIGRATE = """
import asyncio, sys
from moorage.kernel.migrations import migrate
from moorage.kernel.postgres import Postgres

async def main():
    postgres = Postgres(sys.argv[1], 2)
    await postgres.open()
    applied = await migrate(postgres, "agents")
    await postgres.close()
    print(len(applied))

asyncio.run(main())
"""
RECORD = "INSERT INTO moorage_migrations (schema, number, name, compatible_from) VALUES (%s, %s, 'later', %s)"

WriteFile = Callable[[str, str], None]


@pytest.fixture
def conninfo(engine: Engine) -> str:
    """Create an empty database for each test."""
    return engine.make_database()


@pytest.fixture
def write_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WriteFile:
    """Write a file of the schema `test`, in place of the package's files."""
    folder = tmp_path / "schema" / "test"
    folder.mkdir(parents=True)
    monkeypatch.setattr(migrations, "files", lambda package: tmp_path)
    return lambda name, sql: (folder / name).write_text(sql) and None


async def steps(postgres: Postgres) -> list[str]:
    return [row["what"] for row in await postgres.fetch("SELECT what FROM steps ORDER BY number")]


# --- one at a time ----------------------------------------------------------------------------------------------------


async def test_every_file_is_applied_once_in_the_order_of_its_number(postgres: Postgres, write_file: WriteFile):
    write_file("0010_third.sql", "INSERT INTO steps (what) VALUES ('third')")
    write_file("0002_second.sql", "INSERT INTO steps (what) VALUES ('second')")
    write_file("0001_first.sql", "CREATE TABLE steps (number serial, what text); INSERT INTO steps (what) VALUES ('1')")
    assert await migrate(postgres, "test") == ["test/0001_first", "test/0002_second", "test/0010_third"]
    assert await migrate(postgres, "test") == []
    assert await steps(postgres) == ["1", "second", "third"]


async def test_a_later_file_is_applied_to_what_is_there(postgres: Postgres, write_file: WriteFile):
    write_file("0001_first.sql", "CREATE TABLE steps (number serial, what text)")
    await migrate(postgres, "test")
    write_file("0002_second.sql", "-- compatible_from: 1\nINSERT INTO steps (what) VALUES ('second, 100 %')")
    assert await migrate(postgres, "test") == ["test/0002_second"]
    assert await steps(postgres) == ["second, 100 %"]


async def test_a_file_that_fails_leaves_nothing_of_the_upgrade(postgres: Postgres, write_file: WriteFile):
    write_file("0001_first.sql", "CREATE TABLE steps (number serial, what text)")
    write_file("0002_broken.sql", "CREATE TABLE broken (")
    with pytest.raises(psycopg.errors.SyntaxError):
        await migrate(postgres, "test")
    assert await postgres.fetch("SELECT to_regclass('steps') AS found") == [{"found": None}]
    write_file("0002_broken.sql", "INSERT INTO steps (what) VALUES ('repaired')")
    assert len(await migrate(postgres, "test")) == 2


async def test_schemas_are_counted_apart(postgres: Postgres, write_file: WriteFile):
    await postgres.execute("CREATE TABLE steps (number serial, what text)")
    write_file("0001_first.sql", "INSERT INTO steps (what) VALUES ('test')")
    await migrate(postgres, "test")
    await postgres.execute(RECORD, ("another", 7, 7))
    assert await migrate(postgres, "test") == []


# --- many at once -----------------------------------------------------------------------------------------------------


async def test_of_two_pools_at_once_one_applies_everything_and_the_other_nothing(conninfo: str):
    pools = [Postgres(conninfo, 2), Postgres(conninfo, 2)]
    for pool in pools:
        await pool.open()
    applied = await asyncio.gather(*(migrate(pool, "agents") for pool in pools))
    for pool in pools:
        await pool.close()
    everything = [f"agents/{m.number:04}_{m.name}" for m in read_migrations("agents")]
    assert sorted(applied) == [[], everything]


def test_of_three_processes_at_once_one_applies_everything(conninfo: str):
    started = [
        subprocess.Popen([sys.executable, "-c", MIGRATE, conninfo], stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    said = [process.communicate(timeout=30)[0] for process in started]
    counts = sorted(int(text.splitlines()[-1]) for text in said)
    assert counts == [0, 0, len(read_migrations("agents"))]


# --- a database from another version ----------------------------------------------------------------------------------


async def test_a_database_of_an_incompatible_newer_version_is_refused_in_plain_words(postgres: Postgres):
    await migrate(postgres, "agents")
    newest = read_migrations("agents")[-1].number
    await postgres.execute(RECORD, ("agents", newest + 2, newest + 1))
    with pytest.raises(StartupError) as refused:
        await migrate(postgres, "agents")
    message = str(refused.value)
    assert f"version {newest + 2}" in message
    assert f"this one knows {newest}" in message
    assert "Install a newer moorage" in message


async def test_a_database_of_a_compatible_newer_version_is_served(postgres: Postgres):
    await migrate(postgres, "agents")
    newest = read_migrations("agents")[-1].number
    await postgres.execute(RECORD, ("agents", newest + 1, newest))
    assert await migrate(postgres, "agents") == []


async def test_a_database_from_before_the_first_file_is_refused_in_plain_words(
    postgres: Postgres, write_file: WriteFile
):
    write_file("0003_third.sql", "CREATE TABLE steps (number serial, what text)")
    await migrate(postgres, "test")
    write_file("0003_third.sql", "INSERT INTO steps (what) VALUES ('again')")
    await postgres.execute("UPDATE moorage_migrations SET number = 2 WHERE schema = 'test'")
    with pytest.raises(
        StartupError, match=r"at version 2, and this moorage upgrades from version 3 on\. Start a moorage that"
    ):
        await migrate(postgres, "test")
    assert await steps(postgres) == []


async def test_one_incompatible_step_on_the_way_is_enough_to_refuse(postgres: Postgres):
    await migrate(postgres, "agents")
    newest = read_migrations("agents")[-1].number
    await postgres.execute(RECORD, ("agents", newest + 1, newest + 1))
    await postgres.execute(RECORD, ("agents", newest + 2, 1))
    with pytest.raises(StartupError):
        await migrate(postgres, "agents")


async def test_a_refused_database_is_left_as_it_was(postgres: Postgres, write_file: WriteFile):
    write_file("0001_first.sql", "CREATE TABLE steps (number serial, what text)")
    await migrate(postgres, "test")
    await postgres.execute(RECORD, ("test", 3, 3))
    write_file("0002_second.sql", "INSERT INTO steps (what) VALUES ('second')")
    with pytest.raises(StartupError):
        await migrate(postgres, "test")
    assert await steps(postgres) == []


def test_each_file_of_the_package_says_from_where_it_is_compatible():
    for migration in read_migrations("agents"):
        assert migration.sql.startswith("-- compatible_from: ")
        assert 1 <= migration.compatible_from <= migration.number
