"""A revision that runs as a process of this machine: its state, and the operations on it."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import socket as sockets  # `Running` has a field `socket`
import time
from collections import deque
from collections.abc import Awaitable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import httpx

from moorage.control.places import Place
from moorage.control.records.orders import Order
from moorage.control.runtimes.log_tail import LogTail, write_line
from moorage.embedded import agents, processes, processor_groups, users
from moorage.embedded.agents import AgentProcess
from moorage.embedded.processor_groups import ProcessorShare
from moorage.kernel.encoding import encode

POLL_S = 0.05
CRASHES_MAX = 5
STOP_S = 10.0
_LOOK_S = 0.25
_DIALLED_S = 1.0  # by then, connections from before a switch have arrived
_DRAIN_POLL_S = 0.25
_MEGABYTE = 2**20
# Variables that name the revision, so they differ between revisions.
_OF_REVISION = frozenset({"LANGSMITH_HOST_REVISION_ID", "LANGSMITH_LANGGRAPH_REVISION_ID"})

T = TypeVar("T")


@dataclass
class Running:
    order: Order
    process: AgentProcess
    socket: Path
    tail: LogTail
    engine_limits_processors: bool  # if False, the platform does
    listening: sockets.socket | None  # None: an earlier platform started it
    told: str | None  # `digest_of` its environment; None: an earlier platform started it
    crashed_at: deque[float] = field(default_factory=lambda: deque(maxlen=CRASHES_MAX))
    leaving: asyncio.Future[None] | None = None  # set while it is being stopped because another revision serves
    stands_by: bool = False  # its streams have ended
    is_down: bool = False

    def close(self) -> None:
        if self.listening is not None:
            self.listening.close()
            self.listening = None

    def stay(self) -> None:
        """Cancel a stop that has begun: the revision is wanted after all."""
        if self.leaving is not None:
            self.leaving.cancel()
        self.leaving, self.stands_by = None, False
        self.process.resume()

    def hold_to_limits(self, place: Place) -> None:
        """Apply the limits, each of which is per worker. Slow: reads all processes of the machine."""
        parts = self.process.parts(has_workers=self.order.workers_max > 1)
        self._share_processors(parts)
        self._check_memory(place, parts)

    def _share_processors(self, parts: Mapping[int, Iterable[int]]) -> None:
        spec, workers = self.order.resource_spec, self.order.workers_max
        limit = spec.get("cpu_limit")
        if limit and not self.engine_limits_processors and processor_groups.are_available():
            share = ProcessorShare((spec.get("cpu") or limit) * workers, limit * workers)
            processor_groups.hold(self.process.key, itertools.chain.from_iterable(parts.values()), share)

    def _check_memory(self, place: Place, parts: Mapping[int, Iterable[int]]) -> None:
        """Check the memory of each worker. The processes beside the workers together may take as much as one worker."""
        limit_mb = self.order.resource_spec.get("memory_limit_mb")
        for head, pids in parts.items():
            used_mb = agents.resident_bytes(pids) // _MEGABYTE
            if limit_mb and used_mb > limit_mb:
                text = f"out of memory: the agent took {used_mb} MB, and its memory_limit_mb is {limit_mb}"
                tell(place, self.order, text, "critical")
                if head == self.process.pid:
                    self.process.kill()
                else:
                    agents.kill_all(pids)


def digest_of(environment: Mapping[str, str], workers: int) -> str:
    """Return a digest of the environment variables that revisions may share."""
    shared = {name: value for name, value in environment.items() if name not in _OF_REVISION}
    return hashlib.sha256(encode([workers, sorted(shared.items())])).hexdigest()


async def is_well(path: Path, process: AgentProcess, bound_s: float) -> bool:
    """Return True once `/ok` is answered. A connection alone proves nothing, since the socket accepts before the agent
    is up.
    """
    asking = asyncio.create_task(_answers_ok(path, bound_s))
    give_up_at = time.monotonic() + bound_s
    try:
        while not asking.done() and process.is_alive() and time.monotonic() < give_up_at:
            await asyncio.wait([asking], timeout=_LOOK_S)
        if not process.is_alive():  # its end closes the connection; anyio fails when that meets a cancellation
            await asyncio.wait([asking], timeout=_LOOK_S)
        return asking.done() and asking.result()
    finally:
        asking.cancel()


async def _answers_ok(path: Path, bound_s: float) -> bool:
    with suppress(httpx.HTTPError, OSError), agents.short_path(path) as address:
        transport = httpx.AsyncHTTPTransport(uds=address, verify=False)  # no TLS: loading authorities is slow
        async with httpx.AsyncClient(transport=transport, base_url="http://agent", timeout=bound_s) as client:
            return (await client.get("/ok")).status_code == httpx.codes.OK
    return False


async def drained(path: Path, bound_s: float) -> None:
    """Wait until no request is open, or the time limit has passed."""
    await asyncio.sleep(_DIALLED_S)
    for _ in range(int(bound_s / _DRAIN_POLL_S)):
        if not await asyncio.to_thread(agents.count_connections, path.name):
            return
        await asyncio.sleep(_DRAIN_POLL_S)


async def to_its_end(work: Awaitable[T]) -> T:
    """Wait for the work to end even if the caller is cancelled, so that every started process is recorded."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def stop_process(process: AgentProcess) -> None:
    process.terminate()
    process.ends_within(STOP_S)
    process.kill()
    process.ends_within(STOP_S)


def end_all_of(place: Place, process: AgentProcess) -> None:
    """Kill the process at once, with all processes of the deployment's user if it has a user of its own."""
    process.kill()
    if processes.is_root():
        users.end_all(place.uid)


def stop_all(place: Place) -> None:
    for file in place.run.glob("*.pid") if place.run.exists() else ():
        if process := agents.read_process(file):
            process.kill()
            process.ends_within(STOP_S)


def live_sockets(place: Place) -> set[str]:
    """Return the names of the sockets on which processes of a deployment accept, whichever platform started them."""
    found = (agents.read_process(file) for file in place.run.glob("*.pid"))
    return {process.socket for process in found if process}


def rename_files(place: Place, old: Order, new: Order) -> None:
    """Rename the files of a running process for the next revision. The pid file, which proves the process, is last."""
    before, after = old.revision_id, new.revision_id
    place.log_file(before).replace(place.log_file(after))
    with suppress(FileNotFoundError):
        place.log_file(before).with_suffix(".tail").replace(place.log_file(after).with_suffix(".tail"))
    place.pid_file(before).replace(place.pid_file(after))


def tell(place: Place, order: Order, text: str, level: str) -> None:
    output = os.open(place.log_file(order.revision_id), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        write_line(output, text, level)
    finally:
        os.close(output)


def size_bytes(file: Path) -> int:
    with suppress(FileNotFoundError):
        return file.stat().st_size
    return 0
