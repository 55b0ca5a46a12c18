"""The engines of a home and its front door: started together, watched, and stopped in order."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from moorage.cli.listening import Address, listening_on
from moorage.embedded.agents import stop_agents
from moorage.embedded.caddy import EmbeddedCaddy
from moorage.embedded.clickhouse import EmbeddedClickHouse
from moorage.embedded.front_door import BodyLimits
from moorage.embedded.postgres import EmbeddedPostgres
from moorage.embedded.watch import watched
from moorage.kernel.errors import EngineError, StartupError

_NOWHERE = Address("127.0.0.1", 0)


class PlatformEngines:
    """Without an address they can only be stopped."""

    def __init__(self, home: Path, address: Address = _NOWHERE, limits: BodyLimits = BodyLimits()) -> None:
        self._home = home
        self._address = address
        self._sockets = ExitStack()
        self._postgres = EmbeddedPostgres(home)
        self._clickhouse = EmbeddedClickHouse(home)
        self.front_door = EmbeddedCaddy(home, str(address), limits, self._listen)

    def _listen(self) -> socket.socket:
        try:
            return self._sockets.enter_context(listening_on(self._address))
        except StartupError as error:
            raise EngineError(str(error)) from error

    @contextmanager
    def running(
        self, database_uri: str | None, clickhouse_url: str | None
    ) -> Iterator[tuple[Future[str], Future[str]]]:
        """Starts all and watches them; yields where PostgreSQL and ClickHouse answer, soon. What is given runs already.

        The body waits for the results, which raise EngineError, before it relies on the engines.
        """
        # First: it tells at once that the address is taken, and answers for us while we start.
        self.front_door.start()
        with ThreadPoolExecutor(2, "engine-start") as starter, ExitStack() as watchers:
            watchers.enter_context(watched(self.front_door))

            def start(given: str | None, engine: EmbeddedPostgres | EmbeddedClickHouse) -> Future[str]:
                if given:
                    done: Future[str] = Future()
                    done.set_result(given)
                    return done
                watchers.enter_context(watched(engine))
                return starter.submit(engine.start)

            yield start(database_uri, self._postgres), start(clickhouse_url, self._clickhouse)

    def stop(self) -> None:
        """What fails to stop does not keep the rest from stopping. Signals are ignored from here on: it takes seconds, and
        half of it would be worse than either.
        """
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        # In the order in which nobody misses another.
        agents = partial(stop_agents, self._home)
        stops = (self.front_door.stop, agents, self._clickhouse.stop, self._postgres.stop)
        failures = [failure for stop in stops if (failure := _failure_of(stop))]
        self._sockets.close()
        if failures:
            raise EngineError(" ".join(failures))


def _failure_of(stop: Callable[[], None]) -> str | None:
    try:
        stop()
    except EngineError as error:
        return str(error)
    return None
