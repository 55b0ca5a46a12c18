"""The server process of `moorage dev` and `serve`."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import typer

from moorage import __version__
from moorage.cli import server
from moorage.cli.apart import Apart, end_when_idle, unreachable_socket
from moorage.cli.children import tell_load, tell_parent
from moorage.cli.connections import websocket
from moorage.cli.listening import Address
from moorage.kernel.errors import MoorageError
from moorage.settings.agents import AgentSettings
from moorage.wiring.agents import AgentServer, agent_server, load_project

# Longer than clients and front doors keep theirs: a request sent while we close its connection is lost.
_KEEP_ALIVE_S = 130
# Limit of one WebSocket message, which is in memory as a whole before it can be checked.
_MESSAGE_BYTES_MAX = 25_000_000
_TELL_S = 0.25


def run(
    settings: AgentSettings,
    config: Path,
    conninfo: str,
    address: Address,
    listening: socket.socket,
    apart: Apart,
    *,
    development: bool,
) -> server.Stopped:
    """Serve until SIGINT or SIGTERM. Raises StartupError or a similar error when it cannot start."""
    project = load_project(config)
    # A process forked by a graph would keep the address open, so it closes the socket. Not with `close`, which the
    # event loop's reference would delay.
    os.register_at_fork(after_in_child=partial(_close_at_once, listening))

    tells: list[asyncio.Task[None]] = []

    def on_ready(running: AgentServer) -> None:
        _pause_on_signals(running)
        if (pipe := tell_parent()) is not None:
            tells.append(asyncio.create_task(_tell_load(running, pipe)))
        _announce(address, running, settings.mount_prefix, development=development)

    try:
        parts = agent_server(settings, project, conninfo, apart.start_another, development=development)
        # Only a front door reaches a unix socket, and it names the client.
        trusted: dict[str, Any] = {"forwarded_allow_ips": "*"} if address.uds else {}
        return server.run(
            parts,
            listening,
            on_ready,
            begin_leave=_begin_leave,
            connections_per_client_max=settings.connections_per_client_max,
            timeout_keep_alive=_KEEP_ALIVE_S,
            ws=websocket,
            ws_max_size=min(settings.body_bytes_max, _MESSAGE_BYTES_MAX),
            **trusted,
        )
    finally:
        apart.stop()


def run_apart(settings: AgentSettings, config: Path, conninfo: str) -> server.Stopped:
    """Execute only runs on their last attempt, one at a time, until none are left."""
    started = []

    def on_ready(running: AgentServer) -> None:
        started.append(asyncio.create_task(end_when_idle(running.is_idle)))

    one_at_a_time = settings.model_copy(update={"slots": 1})
    parts = agent_server(one_at_a_time, load_project(config), conninfo, None)
    return server.run(parts, unreachable_socket(), on_ready)


def _close_at_once(listening: socket.socket) -> None:
    """Close the socket by its number. Does nothing if it is closed already: the number may then be another file's."""
    if (number := listening.fileno()) >= 0:
        os.close(number)


def _pause_on_signals(running: AgentServer) -> None:
    """Pause and resume work on signals. The platform sends them when another revision takes over, or when this one is
    wanted again.

    A program that does not know the signals ignores them, since a revision may run an older moorage.
    """
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGURG, running.pause_work)
    loop.add_signal_handler(signal.SIGCONT, running.resume_work)


def _begin_leave(running: AgentServer) -> Callable[[], bool]:
    """Pause for good: ignore the signals by which the platform pauses and resumes all processes of a revision."""
    for number in (signal.SIGURG, signal.SIGCONT):
        asyncio.get_running_loop().remove_signal_handler(number)
    running.pause_work()
    return running.is_idle


async def _tell_load(running: AgentServer, pipe: int) -> None:
    """Report the load to the parent until the parent no longer listens."""
    listens = True
    while listens:
        with suppress(MoorageError):  # the database is away: report the load when it is back
            listens = tell_load(pipe, await running.load())
        await asyncio.sleep(_TELL_S)


def _announce(address: Address, running: AgentServer, prefix: str, *, development: bool) -> None:
    for fault in running.graph_faults:  # first, because the project's author looks for it
        typer.secho(f"error: {fault}", fg=typer.colors.RED, err=True)
    served = ", ".join(running.graph_ids) or "no graph"
    typer.echo(f"moorage {__version__} serves {served} at {address}{prefix}", err=True)
    if address.uds is None:
        typer.echo(f"  API: {address}{prefix}/docs", err=True)
        if development and not prefix:
            typer.echo(f"  Playground: {address}/", err=True)
