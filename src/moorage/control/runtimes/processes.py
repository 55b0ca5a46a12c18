"""Agents as processes of this machine, behind the platform's front door.

A revision listens at a socket of its own, which the platform opens: when its process crashes, requests wait for the
next process. A switch renames the link that the front door connects to. The old revision takes no more runs, ends its
streams, and stands by for a while: a rollback to the same build reuses its process instead of starting one.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Container, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import structlog

from moorage.control.causes import start_failure
from moorage.control.places import Place, places_in
from moorage.control.records.orders import LeasedDeployment, Order
from moorage.control.records.states import Source
from moorage.control.runtimes import DeployError, Launcher, words_of
from moorage.control.runtimes.credentials import DeploymentCredentials, database_name
from moorage.control.runtimes.environment import Surroundings
from moorage.control.runtimes.excess import disk_excess, disk_limit_bytes, processes_excess
from moorage.control.runtimes.front_link import FrontLink
from moorage.control.runtimes.log_tail import LogTail, last_words, write_line
from moorage.control.runtimes.rules import AgentKey, ProcessRules
from moorage.control.runtimes.running import (
    CRASHES_MAX,
    POLL_S,
    STOP_S,
    Running,
    digest_of,
    drained,
    end_all_of,
    is_well,
    live_sockets,
    rename_files,
    size_bytes,
    stop_all,
    stop_process,
    tell,
    to_its_end,
)
from moorage.control.runtimes.stored_logs import StoredLogs
from moorage.control.store.agent_databases import AgentDatabases
from moorage.control.store.logs import LogStore
from moorage.embedded import agents, firewall, processor_groups
from moorage.embedded.agents import AgentProcess
from moorage.kernel.errors import MoorageError

log = structlog.get_logger(__name__)

_TAIL_S = 0.5
_WATCH_S = 1.0
_EXCESS_TURNS = 5
_CRASHES_WITHIN_S = 60.0
_BACK_OFF_S = (0.0, 0.5, 1.0, 2.0, 4.0)


class Processes:
    """The runtime of this machine.

    `make_key` and `revoke_key` are functions of accounts; `secrets_of` opens the secrets of a deployment; `report` sets
    the message of a revision that serves, or should; `launchers` are for the sources that run here.
    """

    def __init__(
        self,
        rules: ProcessRules,
        databases: AgentDatabases,
        logs: LogStore,
        *,
        make_key: Callable[[UUID, str], Awaitable[AgentKey]],
        revoke_key: Callable[[UUID, UUID], Awaitable[None]],
        secrets_of: Callable[[UUID], Awaitable[dict[str, str]]],
        report: Callable[[UUID, str | None], Awaitable[None]],
        launchers: Mapping[Source, Launcher],
    ) -> None:
        self._rules = rules
        self._databases = databases
        self._logs = StoredLogs(logs)
        self._credentials = DeploymentCredentials(databases, make_key, revoke_key)
        self._secrets_of = secrets_of
        self._report = report
        self._launchers = launchers
        self._running: dict[UUID, Running] = {}
        self._in_hand: set[UUID] = set()  # revisions that are being started or ended
        self._tasks: set[asyncio.Future[None]] = set()

    # --- a deployment -------------------------------------------------------------------------------------------------

    async def prepare(self, deployment: LeasedDeployment) -> None:
        place = self._place(deployment.number)
        await asyncio.to_thread(self._make, place)
        link = self._link(deployment.name)
        if not link.leads_to(place):  # the link leads to a deployment of that name that is being deleted
            link.remove()
        await self._credentials.create(place, deployment)

    async def remove(self, deployment: LeasedDeployment) -> None:
        place, link = self._place(deployment.number), self._link(deployment.name)
        if link.leads_to(place):  # otherwise the link belongs to the next deployment of that name
            link.remove()
        for found in self._of(deployment.number):
            if found.leaving is not None:
                found.leaving.cancel()
            self._forget(found)
        await asyncio.to_thread(stop_all, place)
        for launcher in set(self._launchers.values()):
            await launcher.remove_all(deployment.deployment_id, place)
        await self._credentials.remove(place, deployment)
        async with self._logs.lock:  # the log's read positions are in the folder that is removed next
            await asyncio.to_thread(place.remove)

    async def remove_unfinished(self, number: int) -> None:
        await asyncio.to_thread(self._place(number).remove_unfinished)

    async def remove_builds(self, number: int, keep: Collection[UUID]) -> None:
        await asyncio.to_thread(self._place(number).remove_builds, keep)

    # --- a revision ---------------------------------------------------------------------------------------------------

    async def fetch(self, order: Order, secrets: Mapping[str, str], say: Callable[[str], None]) -> str | None:
        return await self._launchers[order.source].fetch(order, secrets, say)

    async def start(self, order: Order, secrets: Mapping[str, str]) -> None:
        place = self._place(order.deployment_number)
        order = replace(order, image_pin=await self.fetch(order, secrets, log.debug))
        since_bytes = size_bytes(place.log_file(order.revision_id))
        running = await self._find(place, order) or await self._take_up(place, order, secrets)
        if running is None or not running.process.is_alive():
            most = max(each.workers_max for each in (order, *(found.order for found in self._of(place.number))))
            await self._databases.set_workers(database_name(place.number), most)
            running = await to_its_end(asyncio.to_thread(self._launch, place, order, secrets))
        running.stay()
        running.is_down = True  # until it answers, the watch loop leaves it alone
        try:
            await asyncio.to_thread(running.process.resume)
            await self._await_answer(place, running, since_bytes)
            running.is_down = False
        except DeployError:
            await self._end(place, running)
            raise

    async def switch(self, order: Order) -> None:
        """Point the link to the revision, by a rename, so that every request finds a link."""
        place = self._place(order.deployment_number)
        running = await self._find(place, order)
        self._link(order.deployment_name).point_to(running.socket if running else place.socket(order.revision_id))

    async def stop(self, order: Order) -> None:
        """Begin to stop the revision, and return at once."""
        place = self._place(order.deployment_number)
        running = await self._find(place, order)
        if running is None or running.leaving is not None:
            return
        for other in self._of(order.deployment_number):
            if other.stands_by and other.leaving is not None:  # one revision on standby is enough
                other.leaving.cancel()
                self._in_background(self._end(place, other))
        running.leaving = asyncio.ensure_future(self._leave(place, running))
        self._in_background(running.leaving)

    async def _find(self, place: Place, order: Order) -> Running | None:
        return self._running.get(order.revision_id) or await asyncio.to_thread(self._adopt, place, order)

    async def _take_up(self, place: Place, order: Order, secrets: Mapping[str, str]) -> Running | None:
        """Reuse the process of the revision that has just been replaced, if it has the same build and environment.

        The process still names the revision that it was started for.
        """
        told = digest_of(self._environment(place, order, secrets), order.workers)
        leaving = (each for each in self._of(place.number) if each.leaving is not None and each.told == told)
        found = next((each for each in leaving if each.order.made_of == order.made_of), None)
        if found is None or not found.process.is_alive():
            return None
        found.stay()
        async with self._logs.lock:
            await self._logs.store_locked([found.tail])
            await asyncio.to_thread(rename_files, place, found.order, order)
            del self._running[found.order.revision_id]
            found.order, found.tail = order, LogTail(order, place.log_file(order.revision_id))
            self._running[order.revision_id] = found
        return found

    async def reconcile(self, active: Sequence[Order], busy: Container[int], under_way: Container[UUID] = ()) -> None:
        wanted = {order.deployment_number: order for order in active}
        for order in active:
            if order.deployment_number in busy or order.revision_id in self._in_hand:
                continue
            if self._serves(order):
                await self.switch(order)
            else:
                self._in_hand.add(order.revision_id)
                self._in_background(self._serve(order))
        for place in await asyncio.to_thread(places_in, self._rules.home):
            serving = wanted.get(place.number)
            # The front door may still use another revision, which is stopped once the wanted one answers.
            if place.number not in busy and (serving is None or self._answers(serving)):
                await self._stop_others(place, serving, under_way)
        wanted_ids = {order.revision_id for order in active}
        for launcher in set(self._launchers.values()):
            await launcher.remove_unwanted(
                lambda place, id_: id_ in wanted_ids or id_ in under_way or self._runs(place, id_), busy
            )

    def _runs(self, place: Place, revision_id: UUID) -> bool:
        """Return True if a process was started for that revision. It may serve another revision by now."""
        known = {found.socket.name for found in self._of(place.number)}
        return place.socket(revision_id).name in known | live_sockets(place)

    def _answers(self, order: Order) -> bool:
        return self._serves(order) and order.revision_id not in self._in_hand

    def _serves(self, order: Order) -> bool:
        running = self._running.get(order.revision_id)
        return running is not None and running.leaving is None

    async def _serve(self, order: Order) -> None:
        try:
            await self.start(order, await self._secrets_of(order.deployment_id))
            if self._serves(order):  # no other revision has replaced it meanwhile
                await self.switch(order)
                await self._report(order.revision_id, None)
        except (OSError, MoorageError) as error:
            log.error("an agent cannot be started again", deployment=order.deployment_name, error=str(error))
            await self._report(order.revision_id, words_of(error))
        finally:
            self._in_hand.discard(order.revision_id)

    async def _stop_others(self, place: Place, wanted: Order | None, under_way: Container[UUID]) -> None:
        known = {found.order.revision_id: found.order for found in self._of(place.number)}
        running = {UUID(file.stem) for file in place.run.glob("*.pid")} | known.keys()
        for revision_id in running - ({wanted.revision_id} if wanted else set()) - self._in_hand:
            if revision_id in under_way:
                continue
            if revision_id in known:
                await self.stop(known[revision_id])
            else:
                self._in_hand.add(revision_id)
                self._in_background(self._end_left(place, revision_id))

    # --- processes ----------------------------------------------------------------------------------------------------

    def _launch(self, place: Place, order: Order, secrets: Mapping[str, str]) -> Running:
        environment = self._environment(place, order, secrets)
        self._make(place)  # also claims a user: until now a copied home shared its users with the original
        earlier = self._running.get(order.revision_id)
        path = earlier.socket if earlier else place.socket(order.revision_id)
        listening = (earlier.listening if earlier else None) or agents.listen_at(path)
        try:
            process = self._spawn(place, order, environment, listening, path)
        except OSError:
            listening.close()
            raise
        told = digest_of(environment, order.workers)
        if earlier is None:
            return self._remember(order, process, listening, told)
        earlier.process, earlier.listening, earlier.told = process, listening, told
        return earlier

    def _spawn(
        self, place: Place, order: Order, environment: Mapping[str, str], listening: socket.socket, path: Path
    ) -> AgentProcess:
        file = place.log_file(order.revision_id)
        output = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            write_line(output, f"revision {order.number} starts")
            database = self._databases.socket_directory
            launch = self._launchers[order.source].launch(
                order, place, environment, listening.fileno(), path, [database] if database else []
            )
            process = agents.launch(launch, output, listening, path.name)
        finally:
            os.close(output)
        try:
            agents.write_process(place.pid_file(order.revision_id), process)
        except OSError:  # without the file, nobody would find the process
            process.kill()
            raise
        return process

    def _make(self, place: Place) -> None:
        """Make the folders and the user, and open the ports that this user may reach."""
        place.make()
        if self._rules.isolation.has_firewall:
            firewall.admit(place.uid, self._rules.ports)

    def _environment(self, place: Place, order: Order, secrets: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of the agent. Raises DeployError when its build or image is not on this machine."""
        database, key = self._credentials.read(place)
        told = Surroundings(database, self._rules.platform, key, self._rules.offline_s, self._rules.body_bytes_max)
        return self._launchers[order.source].environment(order, place, secrets, told)

    def _remember(
        self, order: Order, process: AgentProcess, listening: socket.socket | None, told: str | None
    ) -> Running:
        place = self._place(order.deployment_number)
        path, tail = place.sockets / process.socket, LogTail(order, place.log_file(order.revision_id))
        by_engine = self._launchers[order.source].engine_limits_processors
        running = Running(order, process, path, tail, by_engine, listening, told)
        self._running[order.revision_id] = running
        return running

    def _adopt(self, place: Place, order: Order) -> Running | None:
        """Adopt a process that an earlier platform started and that still runs."""
        process = agents.read_process(place.pid_file(order.revision_id))
        return self._remember(order, process, None, None) if process else None

    async def _await_answer(self, place: Place, running: Running, since_bytes: int) -> None:
        """Wait until the agent answers `/ok`. Raises DeployError with the last lines of its output."""
        file = place.log_file(running.order.revision_id)
        give_up_at = time.monotonic() + self._rules.start_timeout_s
        while not await is_well(running.socket, running.process, give_up_at - time.monotonic()):
            if not running.process.is_alive():
                printed = last_words(file, since_bytes)
                raise DeployError(start_failure(running.order, "The agent ended at its start", printed))
            if time.monotonic() > give_up_at:
                silent = f"The agent did not answer /ok within {self._rules.start_timeout_s:.0f} s. It printed last"
                raise DeployError(start_failure(running.order, silent, last_words(file, since_bytes)))
            await asyncio.sleep(POLL_S)

    async def _leave(self, place: Place, running: Running) -> None:
        await asyncio.to_thread(running.process.pause)
        await drained(running.socket, self._rules.drain_s)
        if running.told is not None:
            running.stands_by = True
            await asyncio.sleep(self._rules.standby_s)
        await self._end(place, running)

    async def _end(self, place: Place, running: Running) -> None:
        revision_id = running.order.revision_id
        self._in_hand.add(revision_id)
        self._forget(running)
        try:
            await asyncio.to_thread(stop_process, running.process)
            await self._logs.store([running.tail])
            for file in place.run.glob(f"{revision_id}.*"):
                if file.suffix in {".pid", ".log", ".tail"}:
                    file.unlink(missing_ok=True)
            running.socket.unlink(missing_ok=True)
        finally:
            self._in_hand.discard(revision_id)

    async def _end_left(self, place: Place, revision_id: UUID) -> None:
        """End a revision that an earlier platform was about to stop, or kept on standby."""
        file = place.pid_file(revision_id)
        try:
            if process := await asyncio.to_thread(agents.read_process, file):
                await asyncio.to_thread(process.pause)
                await drained(place.sockets / process.socket, self._rules.drain_s)
                await asyncio.to_thread(stop_process, process)
            file.unlink(missing_ok=True)
        finally:
            self._in_hand.discard(revision_id)

    # --- loops --------------------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Restart crashed agents, and stop those that exceed their limits. Runs for ever."""
        for turn in itertools.count():
            await asyncio.sleep(_WATCH_S)
            for running in list(self._running.values()):
                try:
                    if not running.is_down:
                        await self._look_after(running)
                    if not running.is_down and turn % _EXCESS_TURNS == 0:
                        await self._check_excess(running)
                except (OSError, MoorageError) as error:
                    log.error("cannot look after an agent", error=str(error))
            await asyncio.to_thread(processor_groups.sweep)

    async def follow_logs(self) -> None:
        """Store the lines that agents print. Runs for ever."""
        while True:
            await asyncio.sleep(_TAIL_S)
            try:
                await self._logs.store([running.tail for running in self._running.values()])
            except (OSError, MoorageError) as error:  # such as a full disk; unrecorded lines are read again
                log.error("cannot follow the logs of agents", error=str(error))

    async def close(self) -> None:
        """Release the platform's resources. Agents keep running."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._logs.store([running.tail for running in self._running.values()])
        for running in self._running.values():
            running.close()

    def _is_known(self, running: Running) -> bool:
        """Return False for an agent that was just ended but that a loop still holds."""
        return self._running.get(running.order.revision_id) is running

    async def _look_after(self, running: Running) -> None:
        place = self._place(running.order.deployment_number)
        gave_up = running.process.gave_up()
        if running.process.is_alive():
            await asyncio.to_thread(running.hold_to_limits, place)
            return
        if running.leaving is not None or not self._is_known(running):
            return
        now = time.monotonic()
        running.crashed_at.append(now)
        if gave_up or (len(running.crashed_at) == CRASHES_MAX and now - running.crashed_at[0] < _CRASHES_WITHIN_S):
            await self._give_up(place, running)
            return
        recent = sum(now - crashed_at < _CRASHES_WITHIN_S for crashed_at in running.crashed_at)
        tell(place, running.order, "the agent has ended by itself and is started again", "error")
        running.is_down = True  # until it is up again, the watch loop leaves it alone
        self._in_background(self._start_again(place, running, _BACK_OFF_S[min(recent, CRASHES_MAX) - 1]))

    async def _start_again(self, place: Place, running: Running, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        if running.leaving is not None or not self._is_known(running):
            return
        before = running.process
        try:
            secrets = await self._secrets_of(running.order.deployment_id)
            await to_its_end(asyncio.to_thread(self._launch, place, running.order, secrets))
        except (OSError, MoorageError) as error:
            log.error("an agent cannot be started again", error=str(error))
        running.is_down = False
        await asyncio.sleep(STOP_S)  # workers whose parent has died end by themselves, if they can
        await asyncio.to_thread(before.kill)

    async def _give_up(self, place: Place, running: Running) -> None:
        text = f"the agent has ended {CRASHES_MAX} times within {_CRASHES_WITHIN_S:.0f} s and stays down"
        words = last_words(place.log_file(running.order.revision_id), 0)
        said = f"{text[0].upper()}{text[1:]}. It printed last"
        await self._stay_down(place, running, text, start_failure(running.order, said, words))

    async def _check_excess(self, running: Running) -> None:
        """End all processes of a deployment that exceeds its limit on processes or disk."""
        place, order = self._place(running.order.deployment_number), running.order
        most = self._launchers[order.source].limits(order)
        text = await asyncio.to_thread(processes_excess, place, most.processes) if most.processes else None
        limit_bytes = disk_limit_bytes(order.resource_spec, self._rules.disk_bytes_max)
        if text is None and limit_bytes:
            database_bytes = await self._databases.size_bytes(database_name(place.number))
            text = await asyncio.to_thread(disk_excess, place, database_bytes, limit_bytes)
        if text is not None and self._is_known(running):
            await self._stay_down(place, running, text, f"{text[0].upper()}{text[1:]}. The agent was stopped")
            await asyncio.to_thread(end_all_of, place, running.process)

    async def _stay_down(self, place: Place, running: Running, text: str, said: str) -> None:
        """Leave the agent down. The front door then answers at once that it is unavailable; the revision's message says
        why.
        """
        running.is_down = True
        tell(place, running.order, text, "critical")
        log.error("an agent stays down", deployment=running.order.deployment_name, reason=text)
        running.close()
        running.socket.unlink(missing_ok=True)
        await self._report(running.order.revision_id, said)

    # --- small things -------------------------------------------------------------------------------------------------

    def _place(self, number: int) -> Place:
        return Place(self._rules.home, number)

    def _link(self, name: str) -> FrontLink:
        return FrontLink(self._rules.home, name)

    def _of(self, number: int) -> list[Running]:
        return [found for found in self._running.values() if found.order.deployment_number == number]

    def _forget(self, running: Running) -> None:
        running.close()
        self._running.pop(running.order.revision_id, None)

    def _in_background(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
