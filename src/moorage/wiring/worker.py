"""From PlatformSettings to a process that shares the work of a platform and serves no requests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from moorage.kernel.clickhouse import ClickHouse
from moorage.kernel.crypto import read_master_keys
from moorage.kernel.errors import StartupError, UnavailableError
from moorage.kernel.migrations import migrate
from moorage.kernel.postgres import Postgres
from moorage.settings.platform import PlatformSettings
from moorage.traces.store.projects import ProjectStore
from moorage.wiring.exports import ExportParts, export_options, export_parts
from moorage.wiring.platform import Engines
from moorage.worker.leases import worker_name


@asynccontextmanager
async def export_worker(settings: PlatformSettings, home: Path, engines: Engines) -> AsyncIterator[ExportParts]:
    """Run the workers until the context ends. Raises StartupError that names the missing or invalid variable."""
    given = settings.secret_key.get_secret_value() if settings.secret_key else None
    keys = read_master_keys(given, home / "secret-key")
    postgres, clickhouse = Postgres(engines.postgres, settings.pool_max), ClickHouse(engines.clickhouse)
    try:
        await _open(postgres, clickhouse)
        await migrate(postgres, "platform")
        await clickhouse.migrate()
        parts = export_parts(
            export_options(settings, home),
            worker_name=worker_name(),
            postgres=postgres,
            clickhouse=clickhouse,
            keys=keys,
            projects=ProjectStore(postgres),
        )
        await parts.room.destinations.check_here()
        parts.start()
        try:
            yield parts
        finally:
            await parts.stop()
    finally:
        await clickhouse.close()
        await postgres.close()


async def _open(postgres: Postgres, clickhouse: ClickHouse) -> None:
    try:
        await postgres.open()
    except UnavailableError as error:
        raise StartupError("DATABASE_URI: no PostgreSQL answers there, or it does not let us in") from error
    try:
        await clickhouse.open()
    except UnavailableError as error:
        raise StartupError("CLICKHOUSE_URL: no ClickHouse answers there, or it does not let us in") from error
