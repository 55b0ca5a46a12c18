"""The web server process: uvicorn around the application, with an orderly stop."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import structlog
import typer
import uvicorn
import uvloop

from moorage import __version__
from moorage.cli.children import stop_with_parent
from moorage.cli.errors import INTERRUPTED, exit_by
from moorage.cli.listening import Address
from moorage.settings import AgentSettings
from moorage.wiring import Project, agent_server, read_project

log = structlog.get_logger(__name__)

_STOP_S = 5
_LEFT_S = 1


class _Server(uvicorn.Server):
    """Leaves signals to us, since uvicorn raises them again before our engines are stopped; and stops work first,
    since a stream of a run that goes on would keep its connection open.
    """

    def __init__(self, config: uvicorn.Config, before_shutdown: Callable[[], Awaitable[None]]) -> None:
        super().__init__(config)
        self._before_shutdown = before_shutdown

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def shutdown(self, sockets: Any = None) -> None:
        await self._before_shutdown()
        await super().shutdown(sockets)


@dataclass(frozen=True)
class Stopped:
    """How a server has stopped, and whether user code is left that does not want to."""

    by: signal.Signals | None
    cleanly: bool

    def leave(self) -> None:
        """End the process. To wait for what ignores its cancellation, or blocks a thread, could take for ever."""
        if not self.cleanly:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(INTERRUPTED if self.by == signal.SIGINT else 0)
        exit_by(self.by)


def run(settings: AgentSettings, config: Path, conninfo: str, address: Address, listening: socket.socket) -> Stopped:
    """Serve until SIGINT or SIGTERM. Raises StartupError and its kin when it cannot start."""
    project = read_project(config)
    # The child of a graph that forks would keep the address. Not `close`: the event loop's hold would put that off.
    os.register_at_fork(after_in_child=partial(os.close, listening.fileno()))
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    try:
        stopped_by = runner.run(_serve(settings, project, conninfo, address, listening))
    except BaseException:
        runner.close()
        raise
    cleanly = runner.run(_end_what_is_left())
    if cleanly:
        runner.close()
    return Stopped(stopped_by, cleanly)


async def _end_what_is_left() -> bool:
    """Whether all tasks and threads have ended."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    threads = asyncio.create_task(asyncio.get_running_loop().shutdown_default_executor())
    _, left = await asyncio.wait([*tasks, threads], timeout=_LEFT_S)
    if left:
        log.warning("some work does not end; it is left behind", tasks=len(left - {threads}), threads=threads in left)
    return not left


async def _serve(
    settings: AgentSettings, project: Project, conninfo: str, address: Address, listening: socket.socket
) -> signal.Signals | None:
    async with agent_server(settings, project, conninfo) as running:
        options = uvicorn.Config(
            running.app,
            loop="none",
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=_STOP_S,
            server_header=False,
        )
        server = _Server(options, running.stop_work)
        received = _stop_on_signals(server)
        stop_with_parent()
        _announce(address, running.graph_ids, settings.mount_prefix)
        await server.serve([listening])
    return received[0] if received else None


def _stop_on_signals(server: uvicorn.Server) -> list[signal.Signals]:
    """The signals that came, first first. A second one stops without waiting for connections."""
    received: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        received.append(number)
        server.force_exit = len(received) > 1
        server.should_exit = True

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
    return received


def _announce(address: Address, graph_ids: list[str], prefix: str) -> None:
    typer.echo(f"moorage {__version__} serves {', '.join(graph_ids)} at {address}{prefix}", err=True)
    if address.uds is None:
        typer.echo(f"  API: {address}{prefix}/docs", err=True)
