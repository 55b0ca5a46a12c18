"""The engines of a home and its front door: started together, watched, and stopped in order."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import structlog

from moorage.cli.listening import Address, listening_on
from moorage.embedded import firewall
from moorage.embedded.agents import stop_agents
from moorage.embedded.caddy import EmbeddedCaddy
from moorage.embedded.clickhouse import EmbeddedClickHouse
from moorage.embedded.front_door import BodyLimits
from moorage.embedded.front_tls import Https
from moorage.embedded.postgres import EmbeddedPostgres
from moorage.embedded.processes import is_root
from moorage.embedded.watch import watched
from moorage.kernel.errors import EngineError, StartupError

log = structlog.get_logger(__name__)

_NOWHERE = Address("127.0.0.1", 0)
_LOOPBACK = {"127.0.0.1", "::1", "localhost"}


class PlatformEngines:
    """The engines of a home and its front door. Without an address they can only be stopped."""

    def __init__(
        self,
        home: Path,
        address: Address = _NOWHERE,
        limits: BodyLimits = BodyLimits(),
        https: Https | None = None,
        *,
        connections_per_client_max: int = 0,
    ) -> None:
        self._home = home
        self._addresses = [address, *([Address(address.host, https.port)] if https else [])]
        self._connections_per_client_max = connections_per_client_max
        self._sockets = ExitStack()
        self._postgres = EmbeddedPostgres(home)
        self._clickhouse = EmbeddedClickHouse(home)
        self.front_door = EmbeddedCaddy(home, str(address), limits, self._listen, https)

    def _listen(self) -> list[socket.socket]:
        """Open the listening sockets, or none of them if one fails: the start is then tried again."""
        with ExitStack() as opened:
            try:
                listening = [opened.enter_context(listening_on(address)) for address in self._addresses]
            except StartupError as error:
                raise EngineError(str(error)) from error
            self._sockets.push(opened.pop_all())
        return listening

    @contextmanager
    def running(
        self, database_uri: str | None, clickhouse_url: str | None
    ) -> Iterator[tuple[Future[str], Future[str]]]:
        """Start and watch all engines; yield the future addresses of PostgreSQL and ClickHouse. A given address is used
        as is.

        The body must wait for the results, which raise EngineError, before it uses the engines.
        """
        # First: it reports at once if its address is taken, and answers while the platform starts.
        self.front_door.start()
        self._limit_connections()
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

    def _limit_connections(self) -> None:
        """Limit the connections of each client. Caddy cannot do that; the kernel can, for root with nftables."""
        most = self._connections_per_client_max
        ports = [address.port for address in self._addresses]
        limited = most and is_root() and all(firewall.limit_connections(port, most) for port in ports)
        if most and not limited and self._addresses[0].host not in _LOOPBACK:
            log.warning(
                "cannot limit the connections of a client without root and nftables; limit them in a proxy",
                setting="MOORAGE_CONNECTIONS_PER_CLIENT",
            )

    def stop(self) -> None:
        """Stop all engines. If one fails to stop, the others are stopped anyway.

        Signals are ignored meanwhile: stopping takes seconds, and to stop only half of the engines would be worse.
        """
        # Dependents stop before their dependencies.
        agents = partial(stop_agents, self._home)
        stops = (self.front_door.stop, agents, self._clickhouse.stop, self._postgres.stop)
        with _ignored_signals():
            failures = [failure for stop in stops if (failure := _failure_of(stop))]
        self._sockets.close()
        if self._connections_per_client_max:
            for address in self._addresses:
                firewall.lift_connection_limit(address.port)
        if failures:
            raise EngineError(" ".join(failures))


@contextmanager
def _ignored_signals() -> Iterator[None]:
    """Ignore the stop signals in this context, and restore them after it: programs that are started later would inherit
    that the signals are ignored.
    """
    before = {
        number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _failure_of(stop: Callable[[], None]) -> str | None:
    try:
        stop()
    except EngineError as error:
        return str(error)
    return None
