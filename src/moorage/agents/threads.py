"""Threads: the memory that runs share. A thread belongs to no assistant; any may run on it in turn."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

from moorage.agents.live import LiveRuns
from moorage.agents.records.threads import (
    Thread,
    ThreadCount,
    ThreadCreate,
    ThreadPatch,
    ThreadPrune,
    ThreadSearch,
    ThreadStorage,
)
from moorage.agents.store.checkpoints import CheckpointStore
from moorage.agents.store.runs import RunStore
from moorage.agents.store.threads import ThreadStore
from moorage.kernel.errors import ConflictError, InvalidRequestError, NotFoundError
from moorage.kernel.ids import uuid7

_EXTRACT = re.compile(r"(values|metadata)((?:\.[A-Za-z_][\w-]*|\[-?\d+\])*)")
_EXTRACT_STEP = re.compile(r"\.([A-Za-z_][\w-]*)|\[(-?\d+)\]")


class Threads:
    def __init__(self, threads: ThreadStore, runs: RunStore, checkpoints: CheckpointStore, live: LiveRuns) -> None:
        self._threads = threads
        self._runs = runs
        self._checkpoints = checkpoints
        self._live = live

    async def create(self, new: ThreadCreate) -> Thread:
        """Raises ConflictError when the id is taken and `if_exists` is raise."""
        thread_id = new.thread_id or uuid7()
        made = await self._threads.insert(thread_id, new.metadata or {})
        if made is None and new.if_exists == "raise":
            raise ConflictError(f"Thread with ID {thread_id} already exists")
        return made or await self.get(thread_id)

    async def get(self, thread_id: UUID) -> Thread:
        thread = await self._threads.read(thread_id)
        if thread is None:
            raise NotFoundError(f"Thread with ID {thread_id} not found")
        return thread

    async def update(self, thread_id: UUID, patch: ThreadPatch) -> Thread:
        thread = await self._threads.merge_metadata(thread_id, patch.metadata or {})
        if thread is None:
            raise NotFoundError("Not Found")
        return thread

    async def delete(self, thread_id: UUID) -> None:
        """The thread with its runs and checkpoints. Runs under way are stopped."""
        active = await self._runs.active(thread_id)
        if not await self._threads.remove(thread_id):
            raise NotFoundError(f"Thread with ID {thread_id} not found")
        await self._live.stop(active)  # or they would write checkpoints after these are gone
        await self._checkpoints.remove_thread(str(thread_id))

    async def copy(self, thread_id: UUID) -> Thread:
        """A new thread with the metadata and the history of this one."""
        target = uuid7()
        copied = await self._threads.copy(thread_id, target)
        if copied is None:
            raise ConflictError("Conflict")  # the reference's answer for a thread that is not there
        await self._checkpoints.copy_thread(str(thread_id), str(target))
        return copied

    async def prune(self, request: ThreadPrune) -> int:
        """Delete the threads, or all of their checkpoints but the latest; how many there were. Unknown ones count 0."""
        pruned = 0
        for thread_id in request.thread_ids:
            if not await self._threads.exists(thread_id):
                continue
            if request.strategy == "delete":
                await self.delete(thread_id)
                pruned += 1
            elif not await self._runs.active(thread_id):  # a run under way needs its checkpoints
                pruned += await self._checkpoints.keep_latest(str(thread_id))
        return pruned

    async def storage(self, thread_id: UUID) -> ThreadStorage:
        await self.get(thread_id)
        return await self._checkpoints.size(str(thread_id))

    async def search(self, search: ThreadSearch) -> list[dict[str, Any]]:
        """One row more than asked for when there are more; with `extract`, each has its `extracted` values."""
        if not search.extract:
            return await self._threads.search(search)
        paths = {alias: _extract_steps(path) for alias, path in search.extract.items()}
        shown = set(search.select or [])
        needed = search.model_copy(update={"select": [*shown, *({"values", "metadata"} - shown)]}) if shown else search
        rows = await self._threads.search(needed)
        return [
            {
                **{name: value for name, value in row.items() if not shown or name in shown},
                "extracted": {alias: _extracted(row, steps) for alias, steps in paths.items()},
            }
            for row in rows
        ]

    async def count(self, search: ThreadCount) -> int:
        return await self._threads.count(search)


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
