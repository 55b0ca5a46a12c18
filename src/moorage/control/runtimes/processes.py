"""Agents as processes of this machine, behind the front door of its platform.

A revision listens at a socket of its own, which we open: when it crashes, requests wait for the one that is started in its
place. A switch is a rename of the link that the front door dials.
"""

from __future__ import annotations

import asyncio
import os
import secrets as random
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import httpx
import structlog

from moorage.control.isolation import Isolation
from moorage.control.places import Build, Place
from moorage.control.records.orders import LeasedDeployment, Order
from moorage.control.runtimes import DeployError
from moorage.control.runtimes.environment import agent_environment
from moorage.control.runtimes.log_tail import LogTail, last_words, write_line
from moorage.control.store.agent_databases import AgentDatabases
from moorage.control.store.logs import LogStore
from moorage.embedded import agents, processes
from moorage.embedded.agents import AgentProcess
from moorage.kernel.encoding import decode, encode
from moorage.kernel.errors import MoorageError, UnavailableError

log = structlog.get_logger(__name__)

_POLL_S = 0.05
_ASK_S = 5.0
_DIALLED_S = 1.0  # what was dialled before a switch has arrived by then
_STOP_S = 10.0
_DRAIN_POLL_S = 0.25
_TAIL_S = 0.5
_WATCH_S = 1.0
_CRASHES_MAX = 5
_CRASHES_WITHIN_S = 60.0
_BACK_OFF_S = (0.0, 0.5, 1.0, 2.0, 4.0)
_MEGABYTE = 2**20


@dataclass(frozen=True)
class AgentKey:
    """A key of the workspace for one deployment's traces."""

    id: UUID
    key: str


@dataclass(frozen=True)
class ProcessRules:
    """What this installation says of agents. `platform` is its origin as processes of this machine reach it."""

    home: Path
    platform: str
    isolation: Isolation
    start_timeout_s: float = 60
    drain_s: float = 300


@dataclass
class _Running:
    order: Order
    process: AgentProcess
    tail: LogTail
    listening: socket.socket | None  # None: it was started by a platform before us
    crashed_at: deque[float] = field(default_factory=lambda: deque(maxlen=_CRASHES_MAX))
    leaves: bool = False
    is_down: bool = False


class Processes:
    """`make_key` and `revoke_key` are of accounts; `secrets_of` opens the secrets of a deployment."""

    def __init__(
        self,
        rules: ProcessRules,
        databases: AgentDatabases,
        logs: LogStore,
        *,
        make_key: Callable[[UUID, str], Awaitable[AgentKey]],
        revoke_key: Callable[[UUID, UUID], Awaitable[None]],
        secrets_of: Callable[[UUID], Awaitable[dict[str, str]]],
    ) -> None:
        self._rules = rules
        self._databases = databases
        self._logs = logs
        self._make_key = make_key
        self._revoke_key = revoke_key
        self._secrets_of = secrets_of
        self._running: dict[UUID, _Running] = {}
        self._starting: set[UUID] = set()
        self._tasks: set[asyncio.Future[None]] = set()

    # --- a deployment -------------------------------------------------------------------------------------------------

    async def prepare(self, deployment: LeasedDeployment) -> None:
        place = self._place(deployment.number)
        await asyncio.to_thread(place.make)
        file = place.run / "credentials.json"
        if not file.exists():
            made = await self._make_key(deployment.workspace_id, f"deployment {deployment.name}")
            credentials = {"database_password": random.token_urlsafe(32), "key": made.key, "key_id": str(made.id)}
            await asyncio.to_thread(_write_private, file, encode(credentials))
        password = decode(file.read_bytes())["database_password"]
        await self._databases.create(_database_name(deployment.number), password)

    async def remove(self, deployment: LeasedDeployment) -> None:
        place = self._place(deployment.number)
        self._unlink(deployment.name)
        mine = [found for found in self._running.values() if found.order.deployment_number == deployment.number]
        for found in mine:
            found.leaves = True
            self._forget(found)
        await asyncio.to_thread(_stop_all, place)
        await self._databases.remove(_database_name(deployment.number))
        file = place.run / "credentials.json"
        if file.exists():
            await self._revoke_key(deployment.workspace_id, UUID(decode(file.read_bytes())["key_id"]))
        await asyncio.to_thread(place.remove)

    # --- a revision ---------------------------------------------------------------------------------------------------

    async def start(self, order: Order, secrets: Mapping[str, str]) -> None:
        place = self._place(order.deployment_number)
        since_bytes = _size(place.log_file(order.revision_id))
        running = self._running.get(order.revision_id) or await asyncio.to_thread(self._adopt, place, order)
        if running is None or not running.process.is_alive():
            running = await asyncio.to_thread(self._launch, place, order, secrets)
        running.leaves, running.is_down = False, True  # until it answers nobody else looks after it
        try:
            await self._await_answer(place, running, since_bytes)
            running.is_down = False
        except DeployError:
            await self._end(place, running)
            raise

    async def switch(self, order: Order) -> None:
        """By a rename: no request meets a moment in between."""
        place = self._place(order.deployment_number)
        target = f"../{place.socket(order.revision_id).relative_to(place.front_door)}"  # front/ lies beside it
        link = self._link(order.deployment_name)
        if link.is_symlink() and str(link.readlink()) == target:
            return
        new = link.with_name(f".{link.name}.new")
        new.unlink(missing_ok=True)
        new.symlink_to(target)
        new.replace(link)

    async def stop(self, order: Order) -> None:
        """Returns at once; the revision leaves by itself."""
        place = self._place(order.deployment_number)
        running = self._running.get(order.revision_id) or await asyncio.to_thread(self._adopt, place, order)
        if running is not None and not running.leaves:
            running.leaves = True
            self._in_background(self._drain(place, running))

    async def reconcile(self, active: Sequence[Order], busy: Collection[int]) -> None:
        wanted = {order.revision_id: order for order in active}
        for order in active:
            if (
                order.deployment_number not in busy
                and not self._serves(order)
                and order.revision_id not in self._starting
            ):
                self._starting.add(order.revision_id)
                self._in_background(self._serve(order))
        for place in await asyncio.to_thread(self._places):
            if place.number not in busy:
                await self._stop_others(place, wanted)

    def _serves(self, order: Order) -> bool:
        running = self._running.get(order.revision_id)
        return running is not None and not running.leaves

    async def _serve(self, order: Order) -> None:
        try:
            await self.start(order, await self._secrets_of(order.deployment_id))
            await self.switch(order)
        except MoorageError as error:
            log.error("an agent cannot be started again", deployment=order.deployment_name, error=str(error))
        finally:
            self._starting.discard(order.revision_id)

    async def _stop_others(self, place: Place, wanted: Mapping[UUID, Order]) -> None:
        mine = [found for found in self._running.values() if found.order.deployment_number == place.number]
        for found in mine:
            if found.order.revision_id not in wanted:
                await self.stop(found.order)
        known = {found.order.revision_id for found in mine}
        for file in place.run.glob("*.pid"):
            revision_id = UUID(file.stem)
            if revision_id not in wanted and revision_id not in known and revision_id not in self._starting:
                self._starting.add(revision_id)
                self._in_background(self._drain_left(place, revision_id))

    # --- processes ----------------------------------------------------------------------------------------------------

    def _launch(self, place: Place, order: Order, secrets: Mapping[str, str]) -> _Running:
        build = place.read_build(order.build_id)
        if build is None:
            raise DeployError("What was built of this revision is no longer kept: deploy it anew")
        earlier = self._running.get(order.revision_id)
        listening = earlier.listening if earlier else None
        if listening is None:
            listening = agents.listen_at(place.socket(order.revision_id))
        file = place.log_file(order.revision_id)
        output = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            write_line(output, f"revision {order.number} starts")
            process = agents.launch(
                self._command(place, build, listening),
                self._environment(place, order, build, secrets),
                build.config_file.parent if processes.is_root() or not self._rules.isolation.program else place.root,
                place.uid,
                output,
                listening,
            )
        finally:
            os.close(output)
        agents.write_process(place.pid_file(order.revision_id), process)
        return self._remember(order, process, listening, earlier)

    def _command(self, place: Place, build: Build, listening: socket.socket) -> list[str]:
        fd = str(listening.fileno())
        # -P: a file of the project that is named as one of ours is not taken for it.
        argv = [str(build.python), "-P", "-m", "moorage", "serve", "--config", str(build.config_file), "--fd", fd]
        readable = [build.folder, Path(os.path.realpath(build.python)).parents[1], place.home / "run"]
        return self._rules.isolation.wrapped([*argv, "--uds", "agent.sock"], [place.agent_home], readable)

    def _environment(self, place: Place, order: Order, build: Build, secrets: Mapping[str, str]) -> dict[str, str]:
        known = decode((place.run / "credentials.json").read_bytes())
        database = self._databases.uri(_database_name(place.number), known["database_password"])
        platform = self._rules.platform
        return agent_environment(order, place, build, secrets, database=database, platform=platform, key=known["key"])

    def _remember(
        self, order: Order, process: AgentProcess, listening: socket.socket | None, earlier: _Running | None = None
    ) -> _Running:
        if earlier is not None:
            earlier.process, earlier.listening = process, listening
            return earlier
        tail = LogTail(order, self._place(order.deployment_number).log_file(order.revision_id))
        running = self._running[order.revision_id] = _Running(order, process, tail, listening)
        return running

    def _adopt(self, place: Place, order: Order) -> _Running | None:
        """What an earlier platform has started and still runs."""
        process = agents.read_process(place.pid_file(order.revision_id))
        return self._remember(order, process, None) if process else None

    async def _await_answer(self, place: Place, running: _Running, since_bytes: int) -> None:
        """Until it answers `/ok`. Raises DeployError with what it printed last."""
        file = place.log_file(running.order.revision_id)
        give_up_at = time.monotonic() + self._rules.start_timeout_s
        while not await _is_well(place.socket(running.order.revision_id), running.process):
            if not running.process.is_alive():
                raise DeployError(f"The agent ended at its start:\n{last_words(file, since_bytes)}")
            if time.monotonic() > give_up_at:
                bound = f"{self._rules.start_timeout_s:.0f} s"
                raise DeployError(f"The agent did not answer /ok within {bound}:\n{last_words(file, since_bytes)}")
            await asyncio.sleep(_POLL_S)

    async def _drained(self, path: Path) -> None:
        """When nobody waits for an answer of it any more, or its bound has passed."""
        await asyncio.sleep(_DIALLED_S)
        for _ in range(int(self._rules.drain_s / _DRAIN_POLL_S)):
            if not await asyncio.to_thread(agents.count_connections, path.name):
                return
            await asyncio.sleep(_DRAIN_POLL_S)

    async def _drain_left(self, place: Place, revision_id: UUID) -> None:
        """A revision that an earlier platform was about to stop."""
        try:
            await self._drained(place.socket(revision_id))
            await asyncio.to_thread(_kill_left, place.pid_file(revision_id))
        finally:
            self._starting.discard(revision_id)

    async def _drain(self, place: Place, running: _Running) -> None:
        await self._drained(place.socket(running.order.revision_id))
        if running.leaves:  # it may be wanted again by now
            await self._end(place, running)

    async def _end(self, place: Place, running: _Running) -> None:
        running.leaves = True
        self._close(running)
        await asyncio.to_thread(_stop, running.process)
        await self._store_lines([running])
        self._forget(running)
        for file in place.run.glob(f"{running.order.revision_id}.*"):
            if file.suffix in {".pid", ".log", ".tail"}:
                file.unlink(missing_ok=True)
        place.socket(running.order.revision_id).unlink(missing_ok=True)

    # --- loops --------------------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """For ever: what has crashed is started again, what takes too much memory is ended."""
        while True:
            await asyncio.sleep(_WATCH_S)
            for running in list(self._running.values()):
                if not running.leaves and not running.is_down:
                    try:
                        await self._look_after(running)
                    except (OSError, MoorageError) as error:
                        log.error("cannot look after an agent", error=str(error))

    async def follow_logs(self) -> None:
        """For ever: what agents print is stored."""
        while True:
            await asyncio.sleep(_TAIL_S)
            await self._store_lines(list(self._running.values()))

    async def close(self) -> None:
        """Let go of what runs: agents outlive us."""
        for task in self._tasks:
            task.cancel()
        await self._store_lines(list(self._running.values()))
        for running in self._running.values():
            self._close(running)

    async def _look_after(self, running: _Running) -> None:
        place = self._place(running.order.deployment_number)
        if running.process.is_alive():
            await asyncio.to_thread(self._check_memory, place, running)
            return
        now = time.monotonic()
        running.crashed_at.append(now)
        if len(running.crashed_at) == _CRASHES_MAX and now - running.crashed_at[0] < _CRASHES_WITHIN_S:
            self._give_up(place, running)
            return
        recent = sum(now - crashed_at < _CRASHES_WITHIN_S for crashed_at in running.crashed_at)
        _tell(place, running.order, "the agent has ended by itself and is started again", "error")
        running.is_down = True  # until it is up again nobody looks after it
        self._in_background(self._start_again(place, running, _BACK_OFF_S[min(recent, _CRASHES_MAX) - 1]))

    async def _start_again(self, place: Place, running: _Running, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        if running.leaves:
            return
        try:
            secrets = await self._secrets_of(running.order.deployment_id)
            await asyncio.to_thread(self._launch, place, running.order, secrets)
        except (OSError, MoorageError) as error:
            log.error("an agent cannot be started again", error=str(error))
        running.is_down = False

    def _give_up(self, place: Place, running: _Running) -> None:
        """The front door says at once that it is away."""
        running.is_down = True
        text = f"the agent has ended {_CRASHES_MAX} times within {_CRASHES_WITHIN_S:.0f} s and stays down"
        _tell(place, running.order, text, "critical")
        log.error("an agent crashes in a loop and stays down", deployment=running.order.deployment_name)
        self._close(running)
        place.socket(running.order.revision_id).unlink(missing_ok=True)

    def _check_memory(self, place: Place, running: _Running) -> None:
        limit_mb = running.order.source_config.get("resource_spec", {}).get("memory_limit_mb")
        used_mb = running.process.memory_bytes() // _MEGABYTE
        if limit_mb and used_mb > limit_mb:
            text = f"out of memory: the agent took {used_mb} MB, and its memory_limit_mb is {limit_mb}"
            _tell(place, running.order, text, "critical")
            running.process.kill()

    async def _store_lines(self, running: Sequence[_Running]) -> None:
        """Of all agents in one batch. What cannot be stored now is read again."""
        read = await asyncio.to_thread(lambda: [(found.tail, *found.tail.read()) for found in running])
        lines = [line for _, some, _ in read for line in some]
        if not lines:
            return
        try:
            await self._logs.insert(lines)
        except UnavailableError as error:
            log.warning("logs of agents cannot be stored now", error=str(error))
            return
        for tail, _, reached in read:
            await asyncio.to_thread(tail.keep, reached)

    # --- small things -------------------------------------------------------------------------------------------------

    def _place(self, number: int) -> Place:
        return Place(self._rules.home, number)

    def _places(self) -> list[Place]:
        folder = self._rules.home / "agents"
        numbers = [int(entry.name) for entry in folder.iterdir() if entry.name.isdigit()] if folder.exists() else []
        return [self._place(number) for number in numbers]

    def _link(self, name: str) -> Path:
        return self._rules.home / "front-door" / "front" / f"d-{name}.sock"

    def _unlink(self, name: str) -> None:
        self._link(name).unlink(missing_ok=True)

    def _forget(self, running: _Running) -> None:
        self._close(running)
        self._running.pop(running.order.revision_id, None)

    def _close(self, running: _Running) -> None:
        if running.listening is not None:
            running.listening.close()
            running.listening = None

    def _in_background(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _is_well(path: Path, process: AgentProcess) -> bool:
    """The process is asked too: the socket takes connections before it does."""
    with suppress(httpx.HTTPError, OSError), agents.short_path(path) as address:
        transport = httpx.AsyncHTTPTransport(uds=address)
        async with httpx.AsyncClient(transport=transport, base_url="http://agent", timeout=_ASK_S) as client:
            while process.is_alive():
                try:
                    async with asyncio.timeout(_POLL_S * 10):
                        return (await client.get("/ok")).status_code == httpx.codes.OK
                except TimeoutError:
                    continue
    return False


def _stop(process: AgentProcess) -> None:
    process.terminate()
    process.ends_within(_STOP_S)
    process.kill()
    process.ends_within(_STOP_S)


def _stop_all(place: Place) -> None:
    for file in place.run.glob("*.pid") if place.run.exists() else ():
        if process := agents.read_process(file):
            process.kill()
            process.ends_within(_STOP_S)


def _kill_left(file: Path) -> None:
    """A revision that nobody knows any more; its streams are of nobody."""
    if process := agents.read_process(file):
        _stop(process)
    file.unlink(missing_ok=True)


def _tell(place: Place, order: Order, text: str, level: str) -> None:
    output = os.open(place.log_file(order.revision_id), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        write_line(output, text, level)
    finally:
        os.close(output)


def _write_private(file: Path, data: bytes) -> None:
    new = file.with_suffix(".new")
    new.unlink(missing_ok=True)
    output = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(output, data)
        os.fsync(output)
    finally:
        os.close(output)
    new.replace(file)


def _size(file: Path) -> int:
    with suppress(FileNotFoundError):
        return file.stat().st_size
    return 0


def _database_name(number: int) -> str:
    return f"moorage_agent_{number}"
