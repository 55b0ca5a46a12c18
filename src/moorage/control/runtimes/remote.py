"""Agents on the machines of listeners.

Each listener runs a moorage of its own, which builds and runs the agents and has their databases. The platform sends it
orders and requests through tunnels. The last order is recorded in the display name of the listener's deployment, which
changes in one transaction with its newest revision. So an order that was interrupted at any moment is recognized, and
never given twice.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import structlog

from moorage.control.builds import BuildError, Builds
from moorage.control.places import Place
from moorage.control.records.logs import LogKind, LogLevel, LogLine
from moorage.control.records.orders import LeasedDeployment, Order
from moorage.control.records.states import IMAGE_SOURCES, Authentication, RevisionStatus, Source
from moorage.control.runtimes import DeployError, words_of
from moorage.control.runtimes.environment import identity_of
from moorage.control.runtimes.front_link import FrontLink
from moorage.control.runtimes.listener_notes import ListenerNotes
from moorage.control.runtimes.listener_platform import ListenerPlatform
from moorage.control.runtimes.rules import AgentKey
from moorage.control.store.listeners import ListenerStore
from moorage.control.store.logs import LogStore
from moorage.control.tunnels import PLATFORM, Door, Tunnels, to_deployment
from moorage.embedded import processes
from moorage.kernel.errors import MoorageError, UnavailableError

log = structlog.get_logger(__name__)

_S = RevisionStatus
_BEFORE_DEPLOY = frozenset({_S.CREATING, _S.QUEUED, _S.AWAITING_BUILD, _S.BUILDING})
_ON_THEIR_WAY = _BEFORE_DEPLOY | {_S.AWAITING_DEPLOY, _S.DEPLOYING}
_POLL_S = 0.3
_LOGS_S = 2.0
_LOOK_S = 5.0  # how often a listener is compared with its orders
# The form of `_mark`. A deployment without a mark was made by the owner of the listener's machine.
_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_MARK = re.compile(f"{_UUID}/(?:{_UUID})?")

Say = Callable[[str], None]


@dataclass(frozen=True)
class RemoteRules:
    """Settings of listeners. `platform` is the platform's origin as seen from other machines."""

    home: Path
    platform: str
    offline_s: float = 900


@dataclass(frozen=True)
class RemoteBuild:
    """A build on a listener's machine."""

    commit: str | None
    authentication: Authentication | None = None


class Remote:
    """The runtime of listeners' machines.

    `make_key` and `revoke_key` are functions of accounts; `secrets_of` opens the secrets of a deployment; `report`
    stores the message of a revision that serves.
    """

    def __init__(
        self,
        rules: RemoteRules,
        tunnels: Tunnels,
        listeners: ListenerStore,
        builds: Builds,
        logs: LogStore,
        *,
        make_key: Callable[[UUID, str], Awaitable[AgentKey]],
        revoke_key: Callable[[UUID, UUID], Awaitable[None]],
        secrets_of: Callable[[UUID], Awaitable[dict[str, str]]],
        report: Callable[[UUID, str | None], Awaitable[None]],
    ) -> None:
        self._rules = rules
        self._tunnels = tunnels
        self._listeners = listeners
        self._builds = builds
        self._logs = logs
        self._make_key = make_key
        self._revoke_key = revoke_key
        self._secrets_of = secrets_of
        self._report = report
        self._doors: dict[Path, Door] = {}
        self._active: list[Order] = []
        self._looked_at: dict[UUID, float] = {}
        self._in_hand: set[UUID] = set()
        self._tasks: set[asyncio.Future[None]] = set()

    # --- a deployment -------------------------------------------------------------------------------------------------

    async def prepare(self, deployment: LeasedDeployment) -> None:
        place = self._place(deployment.number)
        await asyncio.to_thread(place.make)
        link = FrontLink(self._rules.home, deployment.name)
        if not link.leads_to(place):
            link.remove()
        if not ListenerNotes(place).exists():
            made = await self._make_key(deployment.workspace_id, f"deployment {deployment.name}")
            ListenerNotes(place).begin(made)

    async def remove(self, deployment: LeasedDeployment) -> None:
        """Remove the deployment. Raises UnavailableError while its listener is not connected, unless the listener was
        deleted.
        """
        assert deployment.listener_id, "it runs on the machine of a listener"
        place, link = self._place(deployment.number), FrontLink(self._rules.home, deployment.name)
        if link.leads_to(place):
            link.remove()
        if await self._listeners.exists(deployment.listener_id):
            platform = await self._platform(deployment.listener_id)
            found = await platform.find(deployment.name)
            if found is not None and _is_of(found, deployment.deployment_id):
                await platform.delete(found["id"])
        if door := self._doors.pop(_socket_of(place), None):
            await door.close()
        notes = ListenerNotes(place)
        if notes.exists():
            await self._revoke_key(deployment.workspace_id, UUID(notes.read()["key_id"]))
        await asyncio.to_thread(place.remove)

    # --- a revision ---------------------------------------------------------------------------------------------------

    async def build(self, order: Order, secrets: Mapping[str, str], say: Say) -> RemoteBuild:
        """Give the order, and wait until the listener has built it. Raises BuildError."""
        platform, found = await self._order(order, secrets, say)
        after: str | None = None
        while True:
            lines, next_after = await platform.read_logs(found["id"], found["latest_revision_id"], "build", after)
            for line in lines:
                say(line["message"])
            after = next_after or after
            if lines:
                continue
            if _S(found["latest_revision_status"]) not in _BEFORE_DEPLOY:
                break
            await asyncio.sleep(_POLL_S)
            found = await self._find_ordered(platform, order)
        if found["latest_revision_status"] == _S.BUILD_FAILED:
            raise BuildError(await _message(platform, found))
        return RemoteBuild(
            ListenerNotes(self._place(order.deployment_number)).read()["commits"].get(str(order.build_id))
        )

    async def fetch(self, order: Order, secrets: Mapping[str, str], say: Say) -> None:
        """Return None: the listener's machine fetches its images itself."""
        return

    async def start(self, order: Order, secrets: Mapping[str, str]) -> Authentication | None:
        """Wait until the listener serves the revision. Raises DeployError."""
        platform, found = await self._order(order, secrets, log.debug)
        while _S(found["latest_revision_status"]) in _ON_THEIR_WAY:
            await asyncio.sleep(_POLL_S)
            found = await self._find_ordered(platform, order)
        if found["latest_revision_status"] != _S.DEPLOYED:
            raise DeployError(await _message(platform, found))
        authentication: Authentication | None = found["authentication"]
        return authentication

    async def switch(self, order: Order) -> None:
        place = self._place(order.deployment_number)
        assert order.listener_id, "it runs on the machine of a listener"
        door = await self._door(_socket_of(place), order.listener_id, to_deployment(order.deployment_name))
        FrontLink(self._rules.home, order.deployment_name).point_to(door.path)

    async def stop(self, order: Order) -> None:
        """Do nothing: the listener itself stops a revision when it switches to the next one."""

    async def reconcile(self, active: Sequence[Order], busy: Container[int], under_way: Container[UUID] = ()) -> None:
        self._active = list(active)
        for order in active:
            if order.deployment_number not in busy:
                await self.switch(order)
        for listener_id in self._tunnels.connected():
            theirs = [order for order in active if order.listener_id == listener_id]
            if theirs and time.monotonic() - self._looked_at.get(listener_id, 0.0) > _LOOK_S:
                self._looked_at[listener_id] = time.monotonic()
                self._in_background(self._compare(listener_id, theirs, busy))

    async def _compare(self, listener_id: UUID, wanted: Sequence[Order], busy: Container[int]) -> None:
        """Give orders again that a listener lacks, as after its machine was replaced."""
        try:
            platform = await self._platform(listener_id)
            there = {each["name"]: each for each in await platform.read_all()}
        except MoorageError as error:
            log.warning("cannot look after a listener now", listener_id=str(listener_id), error=str(error))
            return
        for order in wanted:
            if order.deployment_number in busy or order.revision_id in self._in_hand:
                continue
            found = there.get(order.deployment_name)
            if found is None or found["display_name"] != _mark(order):
                self._in_hand.add(order.revision_id)
                self._in_background(self._serve(order))  # all at once: one in turn might be outdated when it starts
            else:
                self._note_revision(order, found)

    async def _serve(self, order: Order) -> None:
        try:
            await self.start(order, await self._secrets_of(order.deployment_id))
            await self._report(order.revision_id, None)
        except (OSError, MoorageError) as error:
            log.error(
                "an agent of a listener cannot be started again", deployment=order.deployment_name, error=str(error)
            )
            await self._report(order.revision_id, words_of(error))
        finally:
            self._in_hand.discard(order.revision_id)

    # --- orders -------------------------------------------------------------------------------------------------------

    async def _order(
        self, order: Order, secrets: Mapping[str, str], say: Say
    ) -> tuple[ListenerPlatform, dict[str, Any]]:
        """Give the order unless it was given already. Returns the listener's deployment."""
        assert order.listener_id, "it is for the machine of a listener"
        platform = await self._platform(order.listener_id)
        found = await platform.find(order.deployment_name)
        if found is not None and not _is_of(found, order.deployment_id):
            if not _MARK.fullmatch(found["display_name"] or ""):
                raise DeployError("The listener's machine has a deployment of its own by that name: use another name")
            await platform.delete(found["id"])
            raise UnavailableError(
                "An earlier deployment of that name is still being removed on the listener's machine"
            )
        if found is None:
            found = await platform.create(self._first(order, secrets))
        if found["display_name"] != _mark(order):
            found = await self._change(platform, found, order, secrets, say)
        self._note_revision(order, found)
        return platform, found

    async def _change(
        self,
        platform: ListenerPlatform,
        found: Mapping[str, Any],
        order: Order,
        secrets: Mapping[str, str],
        say: Say,
    ) -> dict[str, Any]:
        patch: dict[str, Any] = {
            "display_name": _mark(order),
            "source_config": {"resource_spec": _spec(order)},
            "secrets": self._secrets(order, secrets),
        }
        if order.source in IMAGE_SOURCES:
            return await platform.change(found["id"], {**patch, "source_revision_config": _image(order)})
        archive, commit = await self._builds.pack(order, say)
        try:
            path = await platform.upload(found["id"], archive)
        finally:
            archive.unlink(missing_ok=True)
        if commit:
            notes = ListenerNotes(self._place(order.deployment_number))
            notes.change(lambda known: known["commits"].update({str(order.build_id): commit}))
        config = order.source_revision_config.get("langgraph_config_path") or "langgraph.json"
        source = {"source_tarball_path": path, "langgraph_config_path": config}
        return await platform.change(
            found["id"], {**patch, "revision_source": "internal_source", "source_revision_config": source}
        )

    def _first(self, order: Order, secrets: Mapping[str, str]) -> dict[str, Any]:
        """Return the request that creates the deployment. With an image it has a first revision; otherwise the source
        comes later.
        """
        is_image = order.source in IMAGE_SOURCES
        return {
            "name": order.deployment_name,
            "display_name": _mark(order) if is_image else f"{order.deployment_id}/",
            "source": Source.EXTERNAL_DOCKER if is_image else Source.INTERNAL_SOURCE,
            "source_config": {"resource_spec": _spec(order)},
            "source_revision_config": _image(order) if is_image else {},
            "secrets": self._secrets(order, secrets),
        }

    def _secrets(self, order: Order, secrets: Mapping[str, str]) -> list[dict[str, str]]:
        """Return the deployment's secrets and the agent's identity, which names this platform and not the listener's
        moorage.
        """
        notes, platform = ListenerNotes(self._place(order.deployment_number)).read(), self._rules.platform
        commit = notes["commits"].get(str(order.build_id)) or order.repo_commit_sha or ""
        told = {
            "LANGSMITH_PROJECT": order.deployment_name,
            "LANGSMITH_API_URL": platform,
            **secrets,
            **identity_of(order, platform, notes["key"], self._rules.offline_s),
            "LANGSMITH_LANGGRAPH_GIT_REF_SHA": commit,
        }
        return [{"name": name, "value": value} for name, value in told.items()]

    async def _find_ordered(self, platform: ListenerPlatform, order: Order) -> dict[str, Any]:
        """Return the listener's deployment. Raises DeployError when it was given another order meanwhile."""
        found = await platform.find(order.deployment_name)
        if found is None or found["display_name"] != _mark(order):
            raise DeployError("The listener was given another order for this deployment")
        return found

    # --- loops --------------------------------------------------------------------------------------------------------

    async def follow_logs(self) -> None:
        """Store the lines that agents print on the listener's machine. Runs for ever."""
        while True:
            await asyncio.sleep(_LOGS_S)
            for order in list(self._active):
                if order.listener_id is None or not self._tunnels.is_connected(order.listener_id):
                    continue
                try:
                    await self._fetch_logs(order, order.listener_id)
                except (OSError, MoorageError) as error:
                    log.warning(
                        "cannot fetch the logs of an agent now", deployment=order.deployment_name, error=str(error)
                    )

    async def _fetch_logs(self, order: Order, listener_id: UUID) -> None:
        notes = ListenerNotes(self._place(order.deployment_number))
        if not notes.exists():
            return
        known = notes.read()
        if (there := known.get("deployment")) is None:
            return
        platform = await self._platform(listener_id)
        lines, after = await platform.read_logs(there, None, "deploy", known["logged"])
        if not lines:
            return
        try:
            stored = [_line(order, line, known["revisions"]) for line in lines]
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise UnavailableError(f"The listener's log cannot be read ({type(error).__name__})") from None
        await self._logs.insert(stored)
        if after:
            notes.change(lambda kept: kept.update(logged=after))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for door in self._doors.values():
            await door.close()

    # --- small things -------------------------------------------------------------------------------------------------

    def _note_revision(self, order: Order, found: Mapping[str, Any]) -> None:
        """Record the listener's id of our revision, which appears in the listener's log."""
        revision = found["latest_revision_id"]
        notes = ListenerNotes(self._place(order.deployment_number))
        if revision and notes.read()["revisions"].get(revision) != str(order.revision_id):

            def change(known: dict[str, Any]) -> None:
                if known.get("deployment") != found["id"]:  # the deployment was made anew, and its log with it
                    known.update(deployment=found["id"], logged=None, revisions={})
                known["revisions"][revision] = str(order.revision_id)

            notes.change(change)

    def _place(self, number: int) -> Place:
        return Place(self._rules.home, number)

    async def _platform(self, listener_id: UUID) -> ListenerPlatform:
        """Return the client of the listener. Raises UnavailableError while it is not connected."""
        key = self._tunnels.key_of(listener_id)
        folder = self._rules.home / "listeners"
        await asyncio.to_thread(processes.make_directory, folder, 0o700)
        door = await self._door(folder / f"{listener_id}.sock", listener_id, PLATFORM)
        return ListenerPlatform(door.path, key)

    async def _door(self, path: Path, listener_id: UUID, leads_to: bytes) -> Door:
        door = self._doors.get(path)
        if door is None:
            door = self._doors[path] = Door(self._tunnels, listener_id, leads_to, path)
        await door.open()
        return door

    def _in_background(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Future[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("cannot look after a listener", exc_info=error)


def _socket_of(place: Place) -> Path:
    return place.sockets / "listener.sock"


def _mark(order: Order) -> str:
    return f"{order.deployment_id}/{order.revision_id}"


def _is_of(found: Mapping[str, Any], deployment_id: UUID) -> bool:
    return str(found["display_name"] or "").startswith(f"{deployment_id}/")


def _spec(order: Order) -> dict[str, Any]:
    return {name: value for name, value in order.resource_spec.items() if value is not None}


def _image(order: Order) -> dict[str, str]:
    return {"image_uri": order.source_revision_config["image_uri"]}


async def _message(platform: ListenerPlatform, found: Mapping[str, Any]) -> str:
    revision = None
    with suppress(DeployError):
        revision = await platform.read_revision(found["id"], found["latest_revision_id"])
    status = found["latest_revision_status"]
    return str((revision or {}).get("status_message") or f"The listener says {status} and no more")


def _line(order: Order, line: Mapping[str, Any], revisions: Mapping[str, str]) -> LogLine:
    """Return the line as it is stored. It keeps its position on the listener, so reading it again
    gives the same row.
    """
    position = int(line["id"].rpartition("-")[2], 16)
    revision_id = UUID(revisions.get(line["revision_id"]) or str(order.revision_id))
    logged_at = datetime.fromtimestamp(line["timestamp"] / 1000, UTC)
    ids = (order.workspace_id, order.deployment_id, revision_id)
    level = LogLevel(line["level"])
    return LogLine(*ids, LogKind.DEPLOY, logged_at, position, level, line["message"], line["run_id"] or "")
