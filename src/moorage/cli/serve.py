"""`moorage dev`, `serve`, `migrate` and `version`: the agent server of one langgraph.json."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moorage import __version__
from moorage.cli.errors import plain_errors
from moorage.embedded.postgres import EmbeddedPostgres, default_home
from moorage.embedded.watch import watched
from moorage.kernel.logs import configure_logs
from moorage.settings import AgentSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

Config = Annotated[
    Path, typer.Option("--config", "-c", exists=True, dir_okay=False, help="The project's langgraph.json.")
]
Host = Annotated[str, typer.Option(help="Address to listen on.")]
Port = Annotated[int, typer.Option(envvar="PORT", help="Port to listen on.")]
Home = Annotated[Path | None, typer.Option(help="State directory. Default: .moorage beside langgraph.json.")]

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@plain_errors
def dev(
    config: Config = Path("langgraph.json"),
    host: Host = "127.0.0.1",
    port: Port = 2024,
    home: Home = None,
    reload: Annotated[bool, typer.Option(help="Restart the server when a source file changes.")] = True,
) -> None:
    """Serve the graphs of langgraph.json for development, and reload them when they change."""
    if not reload:
        _serve(config, home, {"host": host, "port": port})
        return
    from moorage.cli import reload as reloading  # the watcher is not needed to serve

    arguments = ["serve", "--config", str(config), "--host", host, "--port", str(port)]
    if home:
        arguments += ["--home", str(home)]
    with _database(config, home):  # held here, it stays up while the server restarts
        reloading.serve_and_restart(arguments, config.resolve().parent)


@plain_errors
def serve(
    config: Config = Path("langgraph.json"),
    host: Host = "127.0.0.1",
    port: Port = 2024,
    uds: Annotated[Path | None, typer.Option(help="Listen on this unix socket instead of a port.")] = None,
    home: Home = None,
) -> None:
    """Serve the graphs of langgraph.json."""
    if uds is None and host not in _LOOPBACK:
        typer.echo(
            f"warning: open to everyone who reaches {host}: langgraph.json configures no authentication", err=True
        )
    _serve(config, home, {"uds": str(uds)} if uds else {"host": host, "port": port})


@plain_errors
def migrate(config: Config = Path("langgraph.json"), home: Home = None) -> None:
    """Bring the database up to date, and say what was applied. `dev` and `serve` do it themselves."""
    with _database(config, home) as conninfo:
        from moorage.wiring import migrate_agents  # heavy: imported while the database starts

        applied = asyncio.run(migrate_agents(conninfo.result()))
    for name in applied:
        typer.echo(f"applied {name}")
    if not applied:
        typer.echo("up to date")


def show_version() -> None:
    """Print the version of moorage."""
    typer.echo(__version__)


def _serve(config: Path, home: Path | None, listen: dict[str, Any]) -> None:
    settings = AgentSettings()
    configure_logs(settings.log_level, as_json=settings.log_json)
    with _database(config, home) as conninfo:
        from moorage.cli import server  # heavy: imported while the database starts

        server.run(settings, config, conninfo.result(), listen)


@contextmanager
def _database(config: Path, home: Path | None) -> Iterator[Future[str]]:
    """The conninfo of the database, soon: an embedded one starts meanwhile, and stops after its last user.

    The body waits for the result, which raises EngineError, before it relies on the database.
    """
    settings = AgentSettings()
    if settings.database_uri:
        given: Future[str] = Future()
        given.set_result(settings.database_uri)
        yield given
        return
    engine = EmbeddedPostgres(home or settings.home or default_home(config.resolve().parent))
    with ThreadPoolExecutor(1, "embedded-postgres") as starter:
        started = starter.submit(engine.start)
        try:
            with watched(engine):
                yield started
        finally:
            if started.exception() is None:
                engine.stop()
