"""A web server process: uvicorn around an application, with an orderly stop."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import structlog
import uvicorn
import uvloop

from moorage.cli.children import LEAVE
from moorage.cli.connections import limited_connections
from moorage.cli.errors import INTERRUPTED, exit_by

log = structlog.get_logger(__name__)

_STOP_S = 5
_LEFT_S = 1
_ARRIVES_S = 1.0  # time for the request of an accepted connection to arrive
_LOOK_S = 0.1


class Serving(Protocol):
    """Running parts of a server: their web application, and how to stop its work before its connections."""

    @property
    def app(self) -> Any: ...

    @property
    def stop_work(self) -> Callable[[], Awaitable[None]]: ...


S = TypeVar("S", bound=Serving)


class _Server(uvicorn.Server):
    """A uvicorn server that leaves signals to us, since uvicorn would raise them again before our engines are stopped.
    It stops work first, since the stream of a run that goes on would keep its connection open.
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

    async def leave(self, is_idle: Callable[[], bool]) -> None:
        """Leave new connections to other processes behind the same socket, and stop once nothing is under way here."""
        for listening in self.servers:
            listening.close()
        await asyncio.sleep(_ARRIVES_S)
        while self.server_state.tasks or not is_idle():  # noqa: ASYNC110 - uvicorn tells nobody of its requests' ends
            await asyncio.sleep(_LOOK_S)
        self.should_exit = True


@dataclass(frozen=True)
class Stopped:
    """The result of stopping a server, and whether code of the user still runs."""

    by: signal.Signals | None
    cleanly: bool

    def leave(self) -> None:
        """End the process. Waiting for tasks that ignore their cancellation, or that block a thread, could take for
        ever.
        """
        if not self.cleanly:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(INTERRUPTED if self.by == signal.SIGINT else 0)
        exit_by(self.by)


def run(
    parts: AbstractAsyncContextManager[S],
    listening: socket.socket,
    on_ready: Callable[[S], None],
    *,
    stop_on: Collection[signal.Signals] = (signal.SIGINT, signal.SIGTERM),
    begin_leave: Callable[[S], Callable[[], bool]] | None = None,
    connections_per_client_max: int = 0,
    **options: Any,
) -> Stopped:
    """Serve until one of the signals comes, or until the process has left.

    On the signal LEAVE, `begin_leave` stops taking work and returns a function that says whether the work is done.
    `options` are uvicorn's. Raises StartupError or a similar error if the parts do not start.
    """
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    try:
        options.setdefault("ws", "none")
        options["http"] = limited_connections(connections_per_client_max)
        stopped_by = runner.run(_serve(parts, listening, on_ready, begin_leave, stop_on, options))
    except BaseException:
        runner.close()
        raise
    cleanly = runner.run(_end_what_is_left())
    if cleanly:
        runner.close()
    return Stopped(stopped_by, cleanly)


async def _end_what_is_left() -> bool:
    """Cancel the remaining tasks and wait for threads. Returns True if all have ended."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    threads = asyncio.create_task(asyncio.get_running_loop().shutdown_default_executor())
    _, left = await asyncio.wait([*tasks, threads], timeout=_LEFT_S)
    if left:
        log.warning(
            "some work did not end in time and is abandoned", tasks=len(left - {threads}), threads=threads in left
        )
    return not left


async def _serve(
    parts: AbstractAsyncContextManager[S],
    listening: socket.socket,
    on_ready: Callable[[S], None],
    begin_leave: Callable[[S], Callable[[], bool]] | None,
    stop_on: Collection[signal.Signals],
    options: dict[str, Any],
) -> signal.Signals | None:
    async with parts as running:
        _settle_garbage_collector()
        config = uvicorn.Config(
            running.app,
            loop="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=_STOP_S,
            server_header=False,
            **options,
        )
        server = _Server(config, running.stop_work)
        received = _stop_on_signals(server, stop_on)
        if begin_leave is not None:
            _leave_on_signal(server, partial(begin_leave, running))
        on_ready(running)
        await server.serve([listening])
    return received[0] if received else None


def _settle_garbage_collector() -> None:
    """Keep objects of the start out of the garbage collector, since they live for ever, and make later full collections
    rare.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def _leave_on_signal(server: _Server, begin_leave: Callable[[], Callable[[], bool]]) -> None:
    leaving: set[asyncio.Task[None]] = set()  # keeps references, since the event loop has only weak ones

    def leave() -> None:
        leaving.add(asyncio.create_task(server.leave(begin_leave())))

    asyncio.get_running_loop().add_signal_handler(LEAVE, leave)


def _stop_on_signals(server: uvicorn.Server, numbers: Collection[signal.Signals]) -> list[signal.Signals]:
    """Stop the server on signals, and return the list of those that came, in order. A second signal stops without
    waiting for connections.
    """
    received: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        received.append(number)
        server.force_exit = len(received) > 1
        server.should_exit = True

    for number in numbers:
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
    return received
