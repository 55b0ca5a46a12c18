"""`moorage worker`: writes a platform's exports, on the machine of `moorage up` or on another.

On another machine it needs the addresses of the engines and the master key of their secrets.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
import typer

from moorage.cli.errors import exit_by, plain_errors
from moorage.cli.platform import Home, check_extra, home_of, read_settings
from moorage.embedded.clickhouse import EmbeddedClickHouse
from moorage.embedded.postgres import EmbeddedPostgres
from moorage.embedded.processes import FileLock
from moorage.kernel.errors import StartupError
from moorage.kernel.logs import configure_logs
from moorage.settings.platform import PlatformSettings

if TYPE_CHECKING:
    from moorage.wiring.platform import Engines

log = structlog.get_logger(__name__)


@plain_errors
def worker(home: Home = None) -> None:
    """Write exports for a platform. Ctrl-C returns unfinished work to the queue.

    If `moorage up` runs with the same home, no setting is needed. Elsewhere, set DATABASE_URI, CLICKHOUSE_URL,
    MOORAGE_SECRET_KEY, and the platform's settings of exports.
    """
    check_extra()
    folder = home_of(home)
    settings = read_settings(MOORAGE_HOME=home)
    configure_logs(settings.log_level, as_json=settings.log_json)
    _check_reach(settings, folder)
    with ExitStack() as engines:
        where = _engines(settings, folder, engines)
        exit_by(asyncio.run(_work(settings, folder, where)))


def _check_reach(settings: PlatformSettings, home: Path) -> None:
    """Check that the worker can reach a platform. Raises StartupError that names the missing settings: with engines of
    its own, a worker would find no work.
    """
    reach = {
        "DATABASE_URI": settings.database_uri or _runs(home / "postgres"),
        "CLICKHOUSE_URL": settings.clickhouse_url or _runs(home / "clickhouse"),
        "MOORAGE_SECRET_KEY": settings.secret_key or (home / "secret-key").exists(),
    }
    if missing := [name for name, found in reach.items() if not found]:
        raise StartupError(
            f"{' and '.join(missing)} not set, and no platform runs in {home}. Set the same values as the platform, "
            "or give its --home"
        )


def _runs(engine: Path) -> bool:
    """Return True if the engine in that directory is up. A running engine holds this lock."""
    if not (engine / "server.lock").exists():
        return False
    with FileLock(engine / "server.lock") as alive:
        return not alive.try_take()


def _engines(settings: PlatformSettings, home: Path, opened: ExitStack) -> Engines:
    """Return the given engines, or the platform's own, which stay up as long as somebody uses them."""
    # Slow to import, so after the checks that need no import.
    from moorage.wiring.platform import Engines

    def url(given: str | None, engine: EmbeddedPostgres | EmbeddedClickHouse) -> str:
        if given:
            return given
        opened.callback(engine.stop)
        return engine.start()

    return Engines(
        url(settings.database_uri, EmbeddedPostgres(home)), url(settings.clickhouse_url, EmbeddedClickHouse(home))
    )


async def _work(settings: PlatformSettings, home: Path, engines: Engines) -> signal.Signals:
    """Work until a signal comes, and return that signal."""
    from moorage.wiring.worker import export_worker  # needs the extra `platform`, which may not be installed

    stopped: asyncio.Future[signal.Signals] = asyncio.get_running_loop().create_future()

    def stop(number: signal.Signals) -> None:
        if not stopped.done():
            stopped.set_result(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
    async with export_worker(settings, home, engines):
        typer.echo(f"moorage worker is at work: {settings.export_slots} export runs at once")
        return await stopped
