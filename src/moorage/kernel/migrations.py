"""Numbered SQL files, forward only, each applied once under an advisory lock.

A schema is a folder of `NNNN_<what>.sql`. If older code can run on the result, the file's first line says so: `--
compatible_from: N`, the oldest file number whose code may serve. A server refuses a database whose newest migration is
not compatible with the server's own.

The first file contains the whole schema up to its number. It does not upgrade a database that has only part of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

import structlog

from moorage.kernel.errors import StartupError
from moorage.kernel.postgres import Postgres

log = structlog.get_logger(__name__)

_TABLE = """
CREATE TABLE IF NOT EXISTS moorage_migrations (
    schema text NOT NULL,
    number int NOT NULL,
    name text NOT NULL,
    compatible_from int NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (schema, number)
)
"""
_APPLIED = "SELECT number, compatible_from FROM moorage_migrations WHERE schema = %s ORDER BY number"
_RECORD = "INSERT INTO moorage_migrations (schema, number, name, compatible_from) VALUES (%s, %s, %s, %s)"
# One lock for all schemas of a database. Any fixed number works, as long as nothing else uses it.
_LOCK = "SELECT pg_advisory_xact_lock(7209661)"


@dataclass(frozen=True)
class Migration:
    number: int
    name: str
    compatible_from: int
    sql: str


def read_migrations(schema: str) -> list[Migration]:
    """Return the files of one schema, in order."""
    folder = files("moorage") / "schema" / schema
    found = [_parsed(file.name, file.read_text()) for file in folder.iterdir() if file.name.endswith(".sql")]
    return sorted(found, key=lambda migration: migration.number)


def _parsed(filename: str, sql: str) -> Migration:
    number, _, name = filename.removesuffix(".sql").partition("_")
    compatible = re.match(r"-- compatible_from: (\d+)", sql)
    return Migration(int(number), name, int(compatible[1]) if compatible else int(number), sql)


async def migrate(postgres: Postgres, schema: str) -> list[str]:
    """Bring the database up to date. Returns the names of the applied migrations. Safe to run concurrently.

    Raises StartupError when the database is too new or too old for this program.
    """
    known = read_migrations(schema)
    async with postgres.connection() as connection, connection.transaction():
        await connection.execute(_LOCK)
        await connection.execute(_TABLE)
        applied = {
            row["number"]: row["compatible_from"]
            for row in await (await connection.execute(_APPLIED, (schema,))).fetchall()
        }
        refuse_other_versions(f"The database's {schema} schema", known, applied)
        due = [migration for migration in known if migration.number not in applied]
        for migration in due:
            await connection.execute(migration.sql)
            record = (schema, migration.number, migration.name, migration.compatible_from)
            await connection.execute(_RECORD, record)
    for migration in due:
        log.debug("migration applied", schema=schema, number=migration.number, name=migration.name)
    return [f"{schema}/{migration.number:04}_{migration.name}" for migration in due]


def refuse_other_versions(subject: str, known: list[Migration], applied: Mapping[int, int]) -> None:
    """Check that this program may serve on the schema. `applied` maps each number to the number it is compatible from.

    Raises StartupError when the schema is newer and not compatible, or older than the first file.
    """
    if not applied:
        return
    newest, first = known[-1].number, known[0].number
    if (needed := max(applied.values())) > newest:
        raise StartupError(
            f"{subject} is at version {max(applied)} and serves programs from {needed} on; this one knows {newest}. "
            "Install a newer moorage, or restore the data from before the upgrade."
        )
    if first not in applied:
        raise StartupError(
            f"{subject} is at version {max(applied)}, and this moorage upgrades from version {first} on. "
            f"Start a moorage that brings it to version {first} first."
        )
