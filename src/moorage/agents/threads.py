"""Threads: state shared by successive runs. A thread belongs to no assistant, so runs of any assistant may follow."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from moorage.agents.live import LiveRuns
from moorage.agents.principals import Principal
from moorage.agents.records.threads import (
    Expiring,
    Pruned,
    Thread,
    ThreadCount,
    ThreadCreate,
    ThreadPatch,
    ThreadPrune,
    ThreadSearch,
    ThreadStorage,
    TtlInfo,
)
from moorage.agents.records.words import JsonObject
from moorage.agents.store.checkpoints import CheckpointStore
from moorage.agents.store.pruning import PruningStore
from moorage.agents.store.runs import RunStore
from moorage.agents.store.threads import ThreadStore
from moorage.kernel.errors import ConflictError, InvalidRequestError, NotFoundError
from moorage.kernel.ids import uuid7

_EXTRACT = re.compile(r"(values|metadata)((?:\.[A-Za-z_][\w-]*|\[-?\d+\])*)")
_EXTRACT_STEP = re.compile(r"\.([A-Za-z_][\w-]*)|\[(-?\d+)\]")


class Threads:
    def __init__(
        self, threads: ThreadStore, runs: RunStore, checkpoints: CheckpointStore, pruning: PruningStore, live: LiveRuns
    ) -> None:
        self._threads = threads
        self._pruning = pruning
        self._runs = runs
        self._checkpoints = checkpoints
        self._live = live

    async def create(self, who: Principal, new: ThreadCreate) -> Thread:
        """Create a thread. Raises ConflictError when the id is taken and `if_exists` is raise, or it is somebody
        else's.
        """
        thread_id = new.thread_id or uuid7()
        value: JsonObject = {"thread_id": thread_id, "metadata": new.metadata or {}, "if_exists": new.if_exists}
        seen = await who.may("threads", "create", value)
        thread = await self._threads.insert(thread_id, value["metadata"], who.identity, new.ttl)
        if thread is None and new.if_exists == "do_nothing":
            thread = await self._threads.read(thread_id, seen)
        if thread is None:
            raise ConflictError(f"Thread with ID {thread_id} already exists")
        return thread

    async def get(self, who: Principal, thread_id: UUID) -> Thread:
        thread = await self._threads.read(thread_id, await who.may("threads", "read", {"thread_id": thread_id}))
        if thread is None:
            raise NotFoundError(f"Thread with ID {thread_id} not found")
        return thread

    async def ttl(self, thread_id: UUID) -> TtlInfo | None:
        """Return when a thread that the caller may see expires."""
        return await self._threads.read_ttl(thread_id)

    async def update(self, who: Principal, thread_id: UUID, patch: ThreadPatch) -> Thread:
        value: JsonObject = {"thread_id": thread_id, "metadata": patch.metadata or {}}
        seen = await who.may("threads", "update", value)
        thread = await self._threads.merge_metadata(thread_id, value["metadata"], seen, patch.ttl)
        if thread is None:
            raise NotFoundError("Not Found")
        return thread

    async def delete(self, who: Principal, thread_id: UUID) -> None:
        """Delete the thread with its runs and checkpoints. Runs under way are stopped."""
        seen = await who.may("threads", "delete", {"thread_id": thread_id})
        active = await self._runs.active(thread_id)
        if not await self._threads.remove(thread_id, seen):
            raise NotFoundError(f"Thread with ID {thread_id} not found")
        await self._live.stop(active)  # otherwise they would write checkpoints after the deletion
        await self._checkpoints.remove_thread(str(thread_id))

    async def copy(self, who: Principal, thread_id: UUID) -> Thread:
        """Copy the thread's metadata and history to a new thread. The user needs the rights to read and to create."""
        target = uuid7()
        seen = await who.may("threads", "read", {"thread_id": thread_id})
        value: JsonObject = {"thread_id": target, "metadata": {}}
        await who.may("threads", "create", value)
        copied = await self._threads.copy(thread_id, target, value["metadata"], seen, who.identity)
        if copied is None:
            raise ConflictError("Conflict")  # the reference API's answer for a missing thread
        await self._checkpoints.copy_thread(str(thread_id), str(target))
        return copied

    async def prune(self, who: Principal, request: ThreadPrune) -> Pruned:
        """Delete the threads, or all of their checkpoints but the latest. Unknown threads are not counted.

        A dry run removes nothing, and returns how many rows and bytes would be freed.
        """
        pruned, thread_ids = 0, await self._deletable(who, request.thread_ids)
        if request.dry_run:
            freed = await self._pruning.named(thread_ids, request.strategy)
            return {"pruned_count": freed["threads"], "rows": freed["rows"], "bytes": freed["bytes"]}
        for thread_id in thread_ids:
            if request.strategy == "delete":
                await self.delete(who, thread_id)
                pruned += 1
            elif not await self._runs.active(thread_id):  # a run under way needs its checkpoints
                pruned += await self._checkpoints.keep_latest(str(thread_id))
        return {"pruned_count": pruned}

    async def _deletable(self, who: Principal, thread_ids: Sequence[UUID]) -> list[UUID]:
        """Return the existing threads that the caller may delete, each once."""
        found = list[UUID]()
        for thread_id in dict.fromkeys(thread_ids):
            seen = await who.may("threads", "delete", {"thread_id": thread_id})
            if await self._threads.exists(thread_id, seen):
                found.append(thread_id)
        return found

    async def expiring(self, who: Principal, within_minutes: float) -> Expiring:
        """Return the extent of the caller's threads that sweeps will remove within that time, unless runs begin or end
        before.
        """
        asked, seen = await who.may_ask("threads", "search", ThreadCount())
        return {
            "delete": await self._pruning.expiring(within_minutes, "delete", asked, seen),
            "keep_latest": await self._pruning.expiring(within_minutes, "keep_latest", asked, seen),
        }

    async def storage(self, who: Principal, thread_id: UUID) -> ThreadStorage:
        await self.get(who, thread_id)
        return await self._checkpoints.size(str(thread_id))

    async def search(self, who: Principal, search: ThreadSearch) -> list[dict[str, Any]]:
        """Return one row more than requested if there are more; with `extract`, each row has its `extracted` values."""
        search, seen = await who.may_ask("threads", "search", search)
        if not search.extract:
            return await self._threads.search(search, seen)
        paths = {alias: _extract_steps(path) for alias, path in search.extract.items()}
        shown = set(search.select or [])
        needed = search.model_copy(update={"select": [*shown, *({"values", "metadata"} - shown)]}) if shown else search
        rows = await self._threads.search(needed, seen)
        return [
            {
                **{name: value for name, value in row.items() if not shown or name in shown},
                "extracted": {alias: _extracted(row, steps) for alias, steps in paths.items()},
            }
            for row in rows
        ]

    async def count(self, who: Principal, search: ThreadCount) -> int:
        search, seen = await who.may_ask("threads", "search", search)
        return await self._threads.count(search, seen)


def _extract_steps(path: str) -> list[str | int]:
    match = _EXTRACT.fullmatch(path)
    if match is None:
        raise InvalidRequestError(f"Invalid extract path '{path}': expected the form values.key[0].key")
    steps = [name or int(index) for name, index in _EXTRACT_STEP.findall(match[2])]
    return [match[1], *steps]


def _extracted(value: Any, steps: list[str | int]) -> Any:
    for step in steps:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return None
    return value
