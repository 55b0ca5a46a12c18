"""An agent's container as a process of this machine: `python -m moorage.embedded.container`, which reads from stdin
which container to run.

The process represents its container. It starts the container, or adopts one that an earlier process left running;
prints the container's output; passes signals on; and ends when the container ends, with the same exit code. So agents
in containers are found after a crash of the platform, restarted, drained and stopped in the same way as agents that are
processes.

A container has its own network. Connections to the socket that the platform passes are relayed to the agent's port on
the container's loopback, and the ports of this machine that the agent may reach are relayed there too. So the agent
listens on no port of this machine, and reaches only the given ports of this machine.
"""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import uvloop

from moorage.embedded.docker import Container, Docker, DockerError
from moorage.kernel.encoding import decode, encode
from moorage.kernel.errors import MoorageError, UnavailableError

# The label with a digest of the request that made the container.
MADE_OF = "moorage.made-of"
_STOP_S = 5
_SILENT_S = 3.0
_AGAIN_S = 0.5
_DIAL_S = 0.05
_BACKLOG = 2048
_PIECE_BYTES = 2**16
_CLONE_NEWNET = 0x40000000
_LISTENS = "0A"  # the state of a listening socket, as /proc/net/tcp writes it
_KILLED = 128 + signal.SIGKILL

Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True)
class ContainerRun:
    """A container to run. `body` is the body of the API's request for a new container; `fd` a listening socket, relayed
    to `port` of the container; `ports` the ports of this machine that the container may reach.
    """

    host: str
    name: str
    body: dict[str, Any]
    fd: int
    port: int
    ports: Sequence[int]

    @property
    def made_of(self) -> str:
        return hashlib.sha256(encode(self.body)).hexdigest()


class Network:
    """A container's network, seen from this machine. Raises OSError when its process is not on this machine."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ours = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self._theirs = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    def listen(self, port: int) -> socket.socket:
        """Return a socket that listens on the container's loopback."""
        with self._entered():
            made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(("127.0.0.1", port))
        made.listen(_BACKLOG)
        return made

    async def dial(self, port: int) -> Streams:
        with self._entered():
            made = socket.socket()
        try:
            made.setblocking(False)
            await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", port))
        except OSError:
            made.close()
            raise
        return await asyncio.open_connection(sock=made)

    def listening_ports(self) -> set[int]:
        return {port for name in ("tcp", "tcp6") for port in _listening(Path(f"/proc/{self._pid}/net/{name}"))}

    @contextmanager
    def _entered(self) -> Iterator[None]:
        """Enter the network while a socket is made: a socket belongs to the network of the thread that makes it."""
        _set_network(self._theirs)
        try:
            yield
        finally:
            _set_network(self._ours)


def _set_network(fd: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(fd, _CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _listening(table: Path) -> Iterator[int]:
    with suppress(OSError):
        for line in table.read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            if state == _LISTENS:
                yield int(local.rpartition(":")[2], 16)


class Attached:
    """One running container."""

    def __init__(self, run: ContainerRun, docker: Docker) -> None:
        self._run = run
        self._docker = docker
        self._is_stopping = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []  # uvloop drops servers of Unix sockets without a reference

    async def serve(self) -> int:
        """Run the container to its end and return its exit code."""
        container, since = await self._take_up() or await self._make()
        network = Network(container.pid)
        if (await self._known(container.id)).pid != container.pid:  # another process may have this number by now
            raise DockerError("The container has ended at its start")
        await self._open_relays(network)
        self._pass_signals_on(container.id)
        self._in_background(self._tell_where_it_listens(network))
        ended = await self._follow(container.id, since)
        if not self._is_stopping:
            _print(*self._last_words(ended))
        await self._docker.remove(container.id)
        return ended.exit_code

    def close(self) -> None:
        """Accept no more connections. At the end of the loop, uvloop would wait for ever for open servers."""
        for server in self._servers:
            server.close()

    async def _take_up(self) -> tuple[Container, float] | None:
        """Return the container that an earlier process left running from the same request, and the time of its last
        output.
        """
        found = await self._docker.container(self._run.name)
        if found is None:
            return None
        if found.is_running and found.labels.get(MADE_OF) == self._run.made_of:
            return found, os.fstat(sys.stdout.fileno()).st_mtime
        await self._docker.remove(found.id)
        return None

    async def _make(self) -> tuple[Container, float]:
        body = self._run.body
        labels = body.get("Labels", {}) | {MADE_OF: self._run.made_of}
        container_id = await self._docker.create(self._run.name, body | {"Labels": labels})
        try:
            await self._docker.start(container_id)
            found = await self._known(container_id)
            if found.is_running:
                return found, 0
            await self._follow(container_id, 0)
            raise DockerError(f"The container ended at once, with exit code {found.exit_code}")
        except MoorageError:
            await self._docker.remove(container_id)
            raise

    async def _known(self, container_id: str) -> Container:
        """Return the container, or a placeholder in the state stopped if it was removed."""
        return await self._docker.container(container_id) or Container(container_id, 0, 1, False, {})

    async def _open_relays(self, network: Network) -> None:
        for port in self._run.ports:
            here = partial(asyncio.open_connection, "127.0.0.1", port)
            self._servers.append(await asyncio.start_server(partial(_relay, here), sock=network.listen(port)))
        self._in_background(self._accept(network))

    async def _accept(self, network: Network) -> None:
        """Accept connections once the container does; until then, they wait in the socket's backlog."""
        inside, accepts = partial(network.dial, self._run.port), False
        while not accepts:
            await asyncio.sleep(_DIAL_S)
            with suppress(OSError):
                _, writer = await inside()
                writer.close()
                accepts = True
        listening = socket.socket(fileno=self._run.fd)
        self._servers.append(await asyncio.start_unix_server(partial(_relay, inside), sock=listening, backlog=_BACKLOG))

    def _pass_signals_on(self, container_id: str) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGURG, signal.SIGCONT):
            loop.add_signal_handler(number, self._pass_on, container_id, number)
        loop.add_signal_handler(signal.SIGTERM, self._stop, container_id)

    def _pass_on(self, container_id: str, number: signal.Signals) -> None:
        self._in_background(self._docker.signal(container_id, number.name))

    def _stop(self, container_id: str) -> None:
        self._is_stopping = True
        self._in_background(self._docker.stop(container_id, _STOP_S))

    async def _tell_where_it_listens(self, network: Network) -> None:
        """Report once if the container listens at another port than the one it was told."""
        wanted, ours = self._run.port, set(self._run.ports)
        while True:
            await asyncio.sleep(_SILENT_S)
            found = network.listening_ports()
            if wanted in found:
                return
            if others := sorted(found - ours):
                text = f"error: nothing listens at port {wanted} of the container, which PORT names; it listens at "
                _print(text + ", ".join(map(str, others)), "error")
                return

    async def _follow(self, container_id: str, since: float) -> Container:
        """Print the container's output until it has ended; continue after a restart of the engine."""
        while True:
            try:
                async for piece in self._docker.follow_output(container_id, since):
                    os.write(sys.stdout.fileno(), piece)
                    since = time.time()
                found = await self._known(container_id)
                if not found.is_running:
                    return found
            except UnavailableError as error:
                _print(str(error), "warning")
            await asyncio.sleep(_AGAIN_S)

    def _last_words(self, ended: Container) -> tuple[str, str]:
        if ended.out_of_memory or ended.exit_code == _KILLED:
            limit_mb = self._run.body["HostConfig"].get("Memory", 0) // 2**20
            return f"error: the container was killed, most likely out of memory: its limit is {limit_mb} MB", "critical"
        return f"the container has ended with exit code {ended.exit_code}", "error"

    def _in_background(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(_quietly(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _quietly(work: Awaitable[None]) -> None:
    try:
        await work
    except MoorageError as error:
        _print(str(error), "error")


async def _relay(
    dial: Callable[[], Awaitable[Streams]], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Relay the bytes of two connections in both directions until both have ended."""
    try:
        there_reader, there_writer = await dial()
    except OSError:
        writer.transport.abort()
        return
    try:
        await asyncio.gather(_pump(reader, there_writer), _pump(there_reader, writer))
    except OSError:  # one end is gone, so the rest of the other is dropped
        there_writer.transport.abort()
        writer.transport.abort()
    finally:
        there_writer.close()
        writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(_PIECE_BYTES):
        writer.write(piece)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


def _print(text: str, level: str) -> None:
    line = encode({"event": text, "level": level, "timestamp": datetime.now(UTC).isoformat()})
    os.write(sys.stdout.fileno(), line + b"\n")


async def main() -> int:
    run = ContainerRun(**decode(sys.stdin.buffer.read()))
    docker = Docker(run.host)
    attached = Attached(run, docker)
    try:
        return await attached.serve()
    except (MoorageError, OSError) as error:
        _print(f"error: {error}", "critical")
        return 1
    finally:
        attached.close()
        await docker.close()


if __name__ == "__main__":
    sys.exit(uvloop.run(main()))
