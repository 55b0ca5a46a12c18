"""The listener's end of tunnels: connections to the platform, each of which carries one connection to this machine."""

from __future__ import annotations

import asyncio
import re
from asyncio import StreamReader, StreamWriter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

from moorage.embedded.agents import short_path
from moorage.embedded.front_door import PLATFORM_SOCKET
from moorage.kernel.errors import MoorageError
from moorage.kernel.pipes import close, pipe

log = structlog.get_logger(__name__)

# Idle open tunnels. A request that finds none waits for the next one.
_IDLE = 8
_OPEN_TIMEOUT_S = 10.0
_BACK_OFF_S = (0.2, 0.5, 1.0, 2.0, 5.0)
_REFUSED = 4400
_NOT_FOUND = 404
_NAME = re.compile(r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?")


class ListenerRefusedError(MoorageError):
    """The platform refuses the listener, for a reason that waiting does not change."""

    code = "refused"


@dataclass(frozen=True)
class TunnelRules:
    """Settings of tunnels. `url` is where tunnels are opened, with the platform's key; `hello` is the first message of
    each.
    """

    url: str
    key: str
    hello: str
    front_door: Path


class TunnelEnd:
    """Keeps tunnels open, and forwards connections that come through them."""

    def __init__(self, rules: TunnelRules) -> None:
        self._rules = rules
        self._carried: set[asyncio.Task[None]] = set()
        self._is_connected, self._is_new = False, True

    async def keep_open(self) -> None:
        """Keep idle tunnels open for ever. Raises ListenerRefusedError."""
        keeping = [asyncio.create_task(self._keep_one()) for _ in range(_IDLE)]
        try:
            await asyncio.gather(*keeping)
        finally:
            for task in keeping:
                task.cancel()
            await asyncio.gather(*keeping, return_exceptions=True)

    async def drain(self, bound_s: float) -> None:
        """Let requests that are under way end."""
        if self._carried:
            log.info("waiting for requests under way", requests=len(self._carried))
            await asyncio.wait(self._carried, timeout=bound_s)

    async def _keep_one(self) -> None:
        failures = 0
        while True:
            try:
                tunnel = await self._open()
                failures = 0
                await self._await_use(tunnel)
            except ConnectionClosed as error:
                _refuse(error)
            except InvalidStatus as error:
                if error.response.status_code == _NOT_FOUND:
                    raise ListenerRefusedError(
                        f"{self._rules.url} takes no listeners: check MOORAGE_URL, and whether the platform is too old"
                    ) from error
                self._tell(error)
            except (OSError, InvalidHandshake, TimeoutError) as error:
                self._tell(error)
            except InvalidURI as error:
                raise ListenerRefusedError(
                    f"{self._rules.url} is not the address of a platform: check MOORAGE_URL"
                ) from error
            else:
                continue
            await asyncio.sleep(_BACK_OFF_S[min(failures, len(_BACK_OFF_S) - 1)])
            failures += 1

    async def _open(self) -> ClientConnection:
        headers = {"X-Api-Key": self._rules.key}
        tunnel = await connect(
            self._rules.url, additional_headers=headers, compression=None, open_timeout=_OPEN_TIMEOUT_S, max_size=None
        )
        await tunnel.send(self._rules.hello)
        if not self._is_connected:
            self._is_connected = True
            log.info("connected to the platform")
        return tunnel

    async def _await_use(self, tunnel: ClientConnection) -> None:
        """Wait until a request takes the tunnel. The caller then opens another in its place."""
        try:
            leads_to = await tunnel.recv(decode=False)
        except BaseException:
            await _closed(tunnel)
            raise
        task = asyncio.create_task(self._carry(tunnel, leads_to))
        self._carried.add(task)
        task.add_done_callback(self._carried.discard)

    async def _carry(self, tunnel: ClientConnection, leads_to: bytes) -> None:
        async def receive() -> bytes | None:
            try:
                return await tunnel.recv(decode=False)
            except ConnectionClosed:
                return None

        try:
            reader, writer = await self._dial(leads_to)
        except OSError as error:
            log.debug("cannot connect a request", reason=str(error))
            await _closed(tunnel)
            return
        try:
            await pipe(reader, writer, tunnel.send, receive)
        finally:
            await close(writer)
            await _closed(tunnel)

    async def _dial(self, leads_to: bytes) -> tuple[StreamReader, StreamWriter]:
        """Connect to the platform of this machine or to one of its deployments, and to nothing else. Raises OSError."""
        kind, _, name = leads_to.decode(errors="replace").partition(" ")
        if kind == "platform" and not name:
            path = self._rules.front_door / PLATFORM_SOCKET
        elif kind == "deployment" and _NAME.fullmatch(name):
            path = self._rules.front_door / "front" / f"d-{name}.sock"
        else:
            raise ConnectionRefusedError("no such place")
        with short_path(path) as address:
            return await asyncio.open_unix_connection(address)

    def _tell(self, error: Exception) -> None:
        """Log a failure once, not once for each tunnel."""
        if self._is_connected or self._is_new:
            log.warning("cannot reach the platform; trying again", reason=str(error) or type(error).__name__)
        self._is_connected = self._is_new = False


def _refuse(error: ConnectionClosed) -> None:
    """Raise ListenerRefusedError if the platform refused. A connection that just broke is opened again."""
    if error.rcvd is not None and error.rcvd.code >= _REFUSED:
        raise ListenerRefusedError(error.rcvd.reason or "The platform refuses this listener")


async def _closed(tunnel: ClientConnection) -> None:
    with suppress(ConnectionClosed, OSError):
        await tunnel.close()
