"""Tunnels: connections that listeners open to the platform, and through which the platform sends requests.

A listener keeps some idle tunnels open. Each connection takes one tunnel, and the listener opens another. The first
message in a tunnel names its target; the bytes of one connection follow.
"""

from __future__ import annotations

import asyncio
from asyncio import StreamReader, StreamWriter
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from moorage.control.records.listeners import ListenerHello
from moorage.embedded.agents import listen_at
from moorage.kernel.encoding import encode
from moorage.kernel.errors import ConflictError, UnavailableError
from moorage.kernel.pipes import close, pipe

PLATFORM = b"platform"
_MESSAGES = 16  # unread messages in a tunnel; the listener waits before it sends more
WAIT_S = 3.0  # how long to wait for a tunnel while all are in use or the listener reconnects
_TUNNELS_MAX = 2048  # of one listener


def to_deployment(name: str) -> bytes:
    """Return the first message of a tunnel whose target is a deployment's agent."""
    return f"deployment {name}".encode()


class Tunnel:
    """A connection that a listener holds open. `send` writes a message, and raises ConnectionError when the connection
    is cut.
    """

    def __init__(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        self.send = send
        self._received: asyncio.Queue[bytes | None] = asyncio.Queue(_MESSAGES)
        self._ended = asyncio.Event()

    async def feed(self, message: bytes | None) -> None:
        """Take a message of the listener, or None at its end. Waits while nobody reads."""
        await self._received.put(message)

    async def receive(self) -> bytes | None:
        return await self._received.get()

    def end(self) -> None:
        self._ended.set()

    async def ended(self) -> None:
        await self._ended.wait()


@dataclass
class _Machine:
    """A listener that is connected."""

    name: str
    hello: ListenerHello
    idle: deque[Tunnel] = field(default_factory=deque)
    used: set[Tunnel] = field(default_factory=set)


class Tunnels:
    def __init__(self) -> None:
        self._machines: dict[UUID, _Machine] = {}
        self._arrived = asyncio.Condition()

    async def keep(self, listener_id: UUID, name: str, hello: ListenerHello, tunnel: Tunnel) -> None:
        """Offer a tunnel until it ends. Raises ConflictError for too many, or while another machine serves the
        listener.
        """
        machine = self._machines.get(listener_id)
        if machine is not None and machine.hello.instance != hello.instance:
            raise ConflictError(
                f"Another machine is connected as the listener {name}: stop it first, or use another name"
            )
        if machine is not None and len(machine.idle) + len(machine.used) >= _TUNNELS_MAX:
            raise ConflictError(f"The listener {name} has {_TUNNELS_MAX} tunnels, which is the most")
        if machine is None:
            machine = self._machines[listener_id] = _Machine(name, hello)
        machine.hello = hello
        machine.idle.append(tunnel)
        async with self._arrived:
            self._arrived.notify_all()
        try:
            await tunnel.ended()
        finally:
            self._forget(listener_id, machine, tunnel)

    def _forget(self, listener_id: UUID, machine: _Machine, tunnel: Tunnel) -> None:
        machine.used.discard(tunnel)
        with suppress(ValueError):
            machine.idle.remove(tunnel)
        if not machine.idle and not machine.used and self._machines.get(listener_id) is machine:
            del self._machines[listener_id]

    def connected(self) -> Collection[UUID]:
        return list(self._machines)

    def is_connected(self, listener_id: UUID) -> bool:
        return listener_id in self._machines

    def key_of(self, listener_id: UUID) -> str:
        """Return the key of the listener's own moorage. Raises UnavailableError while the listener is not connected."""
        machine = self._machines.get(listener_id)
        if machine is None:
            raise _away()
        return machine.hello.key

    def drop(self, listener_id: UUID) -> None:
        """Cut all tunnels of a listener that was deleted."""
        if machine := self._machines.pop(listener_id, None):
            for tunnel in (*machine.idle, *machine.used):
                tunnel.end()

    async def take(self, listener_id: UUID, leads_to: bytes) -> Tunnel:
        """Take a tunnel for one connection; the caller must end it. Raises UnavailableError when
        none is free in time.
        """
        while True:
            tunnel = await self._take_idle(listener_id)
            try:
                await tunnel.send(leads_to)
            except ConnectionError:  # it was cut while idle
                tunnel.end()
            else:
                return tunnel

    async def _take_idle(self, listener_id: UUID) -> Tunnel:
        try:
            async with asyncio.timeout(WAIT_S), self._arrived:
                await self._arrived.wait_for(lambda: self._has_idle(listener_id))
                machine = self._machines[listener_id]
                tunnel = machine.idle.popleft()
                machine.used.add(tunnel)
        except TimeoutError:
            raise _away() from None
        return tunnel

    def _has_idle(self, listener_id: UUID) -> bool:
        machine = self._machines.get(listener_id)
        return machine is not None and bool(machine.idle)


class Door:
    """A Unix socket that forwards its connections through the tunnels of a listener."""

    def __init__(self, tunnels: Tunnels, listener_id: UUID, leads_to: bytes, path: Path) -> None:
        self.path = path
        self._tunnels = tunnels
        self._listener_id = listener_id
        self._leads_to = leads_to
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Begin to listen. Idempotent."""
        if self._server is None:
            self._server = await asyncio.start_unix_server(self._let_through, sock=listen_at(self.path))

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        self.path.unlink(missing_ok=True)

    async def _let_through(self, reader: StreamReader, writer: StreamWriter) -> None:
        try:
            tunnel = await self._tunnels.take(self._listener_id, self._leads_to)
            try:
                if not await pipe(reader, writer, tunnel.send, tunnel.receive):
                    writer.write(_answer(b"502 Bad Gateway", "The deployment is not running"))
            finally:
                tunnel.end()
        except UnavailableError as error:
            writer.write(_answer(b"503 Service Unavailable", str(error)))
        finally:
            await close(writer)


def _answer(status: bytes, words: str) -> bytes:
    body = encode({"detail": words})
    headers = (b"Content-Type: application/json", b"Retry-After: 2", b"Connection: close")
    length = f"Content-Length: {len(body)}".encode()
    return b"\r\n".join((b"HTTP/1.1 " + status, *headers, length, b"", body))


def _away() -> UnavailableError:
    return UnavailableError("The machine that runs this deployment is not connected to the platform")
