"""Crons: create, change and find them. The job in `spawn.py` fires them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, TypeVar, cast
from uuid import UUID

from moorage.agents.principals import Principal, Sent
from moorage.agents.records.crons import (
    Cron,
    CronCount,
    CronCreate,
    CronPatch,
    CronSearch,
    ThreadCronCreate,
    next_run_date,
    run_request,
)
from moorage.agents.records.filters import Filter
from moorage.agents.records.words import JsonObject
from moorage.agents.runs import Runs
from moorage.agents.store.assistants import AssistantStore
from moorage.agents.store.crons import CronStore
from moorage.agents.store.threads import ThreadStore
from moorage.kernel.encoding import encode_for_storage
from moorage.kernel.errors import InvalidRequestError, NotFoundError
from moorage.kernel.ids import uuid7

# Fields of a request that are columns of the cron. All other fields describe its runs: the payload.
_COLUMNS = frozenset({"schedule", "timezone", "end_time", "enabled", "metadata", "on_run_completed"})


Search = TypeVar("Search", bound=CronCount)


class Crons:
    def __init__(self, crons: CronStore, threads: ThreadStore, assistants: AssistantStore, runs: Runs) -> None:
        self._crons = crons
        self._threads = threads
        self._assistants = assistants
        self._runs = runs

    async def create(self, who: Principal, thread_id: UUID | None, new: CronCreate | ThreadCronCreate) -> Cron:
        """Create a cron. The caller must be allowed to start its runs.

        Raises NotFoundError for an unknown assistant or thread, and every error that creating such a run would raise.
        """
        assistant_id = self._assistant_id(new.assistant_id)
        await self._runs.check(new)
        cron_id, now = uuid7(), datetime.now(UTC)
        cron: Cron = {
            "cron_id": cron_id,
            "assistant_id": assistant_id,
            "thread_id": thread_id,
            "user_id": who.identity,
            "schedule": new.schedule,
            "timezone": new.timezone,
            "end_time": new.end_time,
            "enabled": new.enabled,
            "on_run_completed": new.on_run_completed if thread_id is None else None,
            "payload": _payload(cron_id, {}, new),
            "metadata": new.metadata or {},
            "next_run_date": None,
            "created_at": now,
            "updated_at": now,
        }
        value: JsonObject = {**cron}
        await who.may("crons", "create", value)
        cron["metadata"] = value["metadata"]
        run = await self._runs.allow(who, thread_id, run_request(cron), sent_by(cron))
        if await self._assistants.read(assistant_id, run.assistants_seen) is None:
            raise NotFoundError(f"Assistant '{new.assistant_id}' not found")
        if thread_id is not None and not await self._threads.exists(thread_id, run.seen):
            raise NotFoundError(f"Thread with ID {thread_id} not found")
        made = await self._crons.insert(_scheduled(cron), encode_for_storage(cron["payload"]), run.auth_user)
        if made is None:
            raise NotFoundError(f"Thread with ID {thread_id} not found")
        return made

    async def get(self, who: Principal, cron_id: UUID) -> Cron:
        return await self._read(cron_id, await who.may("crons", "read", {"cron_id": cron_id}))

    async def _read(self, cron_id: UUID, seen: Filter) -> Cron:
        cron = await self._crons.read(cron_id, seen)
        if cron is None:
            raise NotFoundError(f"Cron with ID {cron_id} not found")
        return cron

    async def update(self, who: Principal, cron_id: UUID, patch: CronPatch) -> Cron:
        """Change the fields in the patch. Raises NotFoundError, and InvalidRequestError for an invalid field."""
        await self._runs.check(patch)
        value = {"metadata": {}, **patch.model_dump(exclude_unset=True), "cron_id": cron_id}
        seen = await who.may("crons", "update", value)
        if value["metadata"]:
            patch = patch.model_copy(update={"metadata": value["metadata"]})
        while True:
            cron = await self._read(cron_id, seen)
            changed: Cron = {**_scheduled(_patched(cron, patch)), "user_id": who.identity}
            # The cron now runs on behalf of the user who changed it, so that nobody can start runs in another user's name.
            run = await self._runs.allow(who, cron["thread_id"], run_request(changed), sent_by(changed))
            if stored := await self._crons.replace(changed, encode_for_storage(changed["payload"]), run.auth_user):
                return stored

    async def delete(self, who: Principal, cron_id: UUID) -> None:
        seen = await who.may("crons", "delete", {"cron_id": cron_id})
        if not await self._crons.remove(cron_id, seen):
            raise NotFoundError(f"Cron with ID {cron_id} not found")

    async def search(self, who: Principal, search: CronSearch) -> list[dict[str, Any]]:
        """Return one row more than asked for when there are more."""
        search, seen = await who.may_ask("crons", "search", self._with_id(search))
        return await self._crons.search(search, seen)

    async def count(self, who: Principal, search: CronCount) -> int:
        search, seen = await who.may_ask("crons", "search", self._with_id(search))
        return await self._crons.count(search, seen)

    def _with_id(self, search: Search) -> Search:
        """Return the search with the id of an assistant that it may name by its graph."""
        if search.assistant_id is None:
            return search
        return search.model_copy(update={"assistant_id": str(self._runs.assistant_id(search.assistant_id))})

    def _assistant_id(self, name: str) -> UUID:
        """Return the assistant's id. A cron answers 404 for an unknown assistant, unlike a run."""
        try:
            return self._runs.assistant_id(name)
        except InvalidRequestError:
            raise NotFoundError(f"Assistant '{name}' not found") from None


def sent_by(cron: Cron) -> Sent:
    """Return the parts of a cron's run that no request has sent."""
    return Sent(configurable={"cron_id": str(cron["cron_id"])})


def _payload(cron_id: UUID, before: JsonObject, given: CronCreate | ThreadCronCreate | CronPatch) -> JsonObject:
    """Return the arguments of the cron's runs: the fields as sent, with the cron's id in the configuration."""
    named = given.model_dump(exclude_unset=True, exclude=set(_COLUMNS))
    if named.get("context"):  # it replaces a `configurable` from before, and the other way round
        before = {**before, "config": {**(before.get("config") or {}), "configurable": {}}}
    elif (named.get("config") or {}).get("configurable"):
        before = {name: value for name, value in before.items() if name != "context"}
    payload = before | named
    config = payload.get("config") or {}
    configurable = {**(config.get("configurable") or {}), "cron_id": str(cron_id)}
    return {**payload, "config": {**config, "configurable": configurable}}


def _patched(cron: Cron, patch: CronPatch) -> Cron:
    named = patch.model_fields_set
    if "on_run_completed" in named and cron["thread_id"] is not None:
        raise InvalidRequestError("on_run_completed does not apply to a cron of a thread, which outlives its runs")
    if "assistant_id" in named:
        raise InvalidRequestError("assistant_id of a cron cannot be changed: make a new one")
    for name in ("schedule", "enabled"):
        if name in named and getattr(patch, name) is None:
            raise InvalidRequestError(f"{name} cannot be null")
    columns = {name: getattr(patch, name) for name in named & (_COLUMNS - {"metadata"})}
    metadata = {**cron["metadata"], **(patch.metadata or {})}
    payload = _payload(cron["cron_id"], cron["payload"], patch)
    return cast(Cron, {**cron, **columns, "metadata": metadata, "payload": payload})


def _scheduled(cron: Cron) -> Cron:
    try:
        next_at = next_run_date(
            cron["schedule"], cron["timezone"], cron["end_time"], enabled=cron["enabled"], after=datetime.now(UTC)
        )
    except ValueError as error:
        raise InvalidRequestError(str(error)) from None
    return {**cron, "next_run_date": next_at}
