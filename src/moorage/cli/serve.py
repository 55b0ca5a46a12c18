"""`moorage dev`, `serve`, `migrate` and `version`: the agent server of one langgraph.json."""

from __future__ import annotations

import asyncio
import platform
import socket
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moorage import __version__
from moorage.cli.apart import Apart
from moorage.cli.children import stop_with_parent
from moorage.cli.errors import exit_by, plain_errors
from moorage.cli.listening import Address, listening_on
from moorage.cli.output import Output, OutputOption, show_json
from moorage.cli.scaling import Scale
from moorage.embedded.postgres import EmbeddedPostgres, default_home
from moorage.embedded.watch import watched
from moorage.kernel.logs import configure_logs
from moorage.settings.agents import AgentSettings

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
    reload: Annotated[bool, typer.Option(help="Restart the server when a file that it can import changes.")] = True,
) -> None:
    """Serve the graphs of langgraph.json for development, and reload them when they change."""
    address = Address(host, port)
    if not reload:
        with listening_on(address) as listening:
            _serve(config, home, address, listening, development=True)
        return
    from moorage.cli.reload import serve_and_restart  # imports the watcher, which is not needed to serve

    with listening_on(address) as listening, _database(config, home):  # opened here, to outlive a restart of the server
        exit_by(serve_and_restart([*_arguments(config, home, address), "--development"], config, listening))


@plain_errors
def serve(
    config: Config = Path("langgraph.json"),
    host: Host = "127.0.0.1",
    port: Port = 2024,
    uds: Annotated[Path | None, typer.Option(help="Listen on this unix socket instead of a port.")] = None,
    home: Home = None,
    workers: Annotated[int, typer.Option(min=1, envvar="MOORAGE_WORKERS", help="Number of server processes.")] = 1,
    workers_max: Annotated[
        int | None,
        typer.Option(min=1, envvar="MOORAGE_WORKERS_MAX", help="Maximum number under load. Default: --workers."),
    ] = None,
    fd: Annotated[int | None, typer.Option(hidden=True)] = None,
    apart: Annotated[bool, typer.Option(hidden=True)] = False,
    development: Annotated[bool, typer.Option("--development", hidden=True)] = False,
) -> None:
    """Serve the graphs of langgraph.json."""
    stop_with_parent()
    address = Address(host, port, uds)
    if workers_max is not None and workers_max < workers:
        raise typer.BadParameter("--workers-max must not be below --workers")
    if apart:  # a child of a server, which serves no requests
        _work_apart(config, home)
        return
    if fd is None and uds is None and host not in _LOOPBACK:
        typer.echo(f"warning: anyone who can reach {host} may use this server: it asks for no key", err=True)
    # `fd` is passed by the process that listens: `dev`, the parent of several workers, or the platform.
    with listening_on(address) if fd is None else socket.socket(fileno=fd) as listening:
        if max(workers, workers_max or 1) == 1:
            _serve(config, home, address, listening, development=development)
            return
        from moorage.cli.workers import run_workers  # not needed for a single process

        settings = AgentSettings()
        scale = Scale(
            workers,
            workers_max or workers,
            settings.runs_per_worker,
            settings.streams_per_worker,
            settings.scale_down_s,
        )
        configure_logs(settings.log_level, as_json=settings.log_json)
        with _database(config, home):  # one database for all workers
            exit_by(run_workers(scale, _arguments(config, home, address), listening))


@plain_errors
def migrate(config: Config = Path("langgraph.json"), home: Home = None) -> None:
    """Bring the database up to date, and print what was applied. `dev` and `serve` do this on their own."""
    settings = AgentSettings()
    configure_logs(settings.log_level, as_json=settings.log_json)
    with _database(config, home) as conninfo:
        from moorage.wiring.agents import migrate_agents  # slow to import, so imported while the database starts

        applied = asyncio.run(migrate_agents(conninfo.result()))
    for name in applied:
        typer.echo(f"applied {name}")
    if not applied:
        typer.echo("up to date")


def print_version(*, wanted: bool) -> None:
    """`moorage --version`."""
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


def show_version(output: OutputOption = Output.TABLE) -> None:
    """Print the version of moorage; with -o json also the versions of Python and LangGraph."""
    if output is Output.TABLE:
        typer.echo(__version__)
    else:
        show_json({"moorage": __version__, "langgraph": version("langgraph"), "python": platform.python_version()})


def _arguments(config: Path, home: Path | None, address: Address) -> list[str]:
    """Return the command line of a child that serves with the same options."""
    arguments = ["serve", "--config", str(config), "--host", address.host, "--port", str(address.port)]
    if address.uds:
        arguments += ["--uds", str(address.uds)]
    if home:
        arguments += ["--home", str(home)]
    return arguments


def _serve(config: Path, home: Path | None, address: Address, listening: socket.socket, *, development: bool) -> None:
    settings = AgentSettings()
    configure_logs(settings.log_level, as_json=settings.log_json)
    with _database(config, home) as conninfo:
        from moorage.cli import agent_server  # slow to import, so imported while the database starts

        apart = Apart([*_arguments(config, home, address), "--apart"])
        stopped = agent_server.run(
            settings, config, conninfo.result(), address, listening, apart, development=development
        )
    stopped.leave()


def _work_apart(config: Path, home: Path | None) -> None:
    settings = AgentSettings()
    configure_logs(settings.log_level, as_json=settings.log_json)
    with _database(config, home) as conninfo:
        from moorage.cli import agent_server  # slow to import, so imported while the database starts

        stopped = agent_server.run_apart(settings, config, conninfo.result())
    stopped.leave()


@contextmanager
def _database(config: Path, home: Path | None) -> Iterator[Future[str]]:
    """Yield the future conninfo of the database. An embedded database starts meanwhile, and stops after its last user.

    The body must wait for the result, which raises EngineError, before it uses the database.
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
