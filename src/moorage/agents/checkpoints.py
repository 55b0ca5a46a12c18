"""The checkpoint saver: LangGraph's `BaseCheckpointSaver` on PostgreSQL with group commit.

The stock saver holds one lock around all checkpoint I/O of a process. This one writes the rows of all runs together,
one statement at a time (`GroupCommit`). `aput` returns after the commit, so LangGraph never takes a checkpoint for
saved that is not durable. Values are serialised before they are queued: a value that cannot be serialised fails only
its own run.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from typing import Any, TypeVar, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_id,
    get_checkpoint_metadata,
)

from moorage.agents.store import checkpoints as sql
from moorage.agents.store.checkpoints import CheckpointStore
from moorage.kernel.encoding import decode, encode, encode_for_storage, without_nul
from moorage.kernel.group_commit import GroupCommit, Write

T = TypeVar("T")

# Longer texts and lists go to blobs, so that an unchanged value is not written again with each checkpoint.
INLINE_CHARS_MAX = 1024
INLINE_ITEMS_MAX = 16
_ITEM_CHARS_MAX = 64


def _is_inline(value: object) -> bool:
    """Return True if the value is short and survives jsonb unchanged."""
    if type(value) is list:
        return len(value) <= INLINE_ITEMS_MAX and all(_is_inline_scalar(item, _ITEM_CHARS_MAX) for item in value)
    return _is_inline_scalar(value, INLINE_CHARS_MAX)


def _is_inline_scalar(value: object, chars_max: int) -> bool:
    """Return True if jsonb keeps the value: no NUL in text, no NaN, no float that jsonb turns into an integer, and only
    exact types, no subclasses.
    """
    kind = type(value)
    if kind is str:
        text = cast(str, value)
        return len(text) <= chars_max and "\0" not in text and _is_unicode(text)
    if kind is int:
        return abs(cast(int, value)) < 2**63
    if kind is float:
        return math.isfinite(cast(float, value)) and not cast(float, value).is_integer()
    return value is None or kind is bool


def _is_unicode(text: str) -> bool:
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def _address(config: RunnableConfig) -> tuple[str, str]:
    configurable = config["configurable"]
    return str(configurable["thread_id"]), configurable.get("checkpoint_ns", "")


def _config(thread_id: str, checkpoint_ns: str, checkpoint_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": checkpoint_ns, "checkpoint_id": checkpoint_id}}


def _run_id(config: RunnableConfig) -> str | None:
    found = config["configurable"].get("run_id") or config.get("metadata", {}).get("run_id")
    return str(found) if found else None


class PostgresSaver(BaseCheckpointSaver[str]):
    """Checkpoints of all threads. One object serves all concurrent runs of a process."""

    def __init__(self, store: CheckpointStore, commits: GroupCommit) -> None:
        super().__init__()
        self._store = store
        self._commits = commits
        self._loop = asyncio.get_running_loop()

    def get_next_version(self, current: str | None, channel: None) -> str:
        """Return a version that grows with time and is unique across branches of a thread, since it is part of the
        blobs' key.
        """
        number = int(str(current).split(".", 1)[0]) if current is not None else 0
        return f"{number + 1:032}.{random.random():016}"  # noqa: S311 - distinct, not secret

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        row = await self._store.read(*_address(config), get_checkpoint_id(config))
        return self._tuple(row) if row else None

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - the name in the base class
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        conditions: list[tuple[str, Any]] = []
        if config is not None:
            configurable = config["configurable"]
            conditions.append(("thread_id = %s", str(configurable["thread_id"])))
            if (checkpoint_ns := configurable.get("checkpoint_ns")) is not None:
                conditions.append(("checkpoint_ns = %s", checkpoint_ns))
            if checkpoint_id := get_checkpoint_id(config):
                conditions.append(("checkpoint_id = %s", checkpoint_id))
        if filter:
            conditions.append(("metadata @> %s::jsonb", encode_for_storage(filter).decode()))
        newest = get_checkpoint_id(before) if before else None
        for row in await self._store.page(conditions, newest, limit):
            yield self._tuple(row)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        thread_id, checkpoint_ns = _address(config)
        values = checkpoint["channel_values"]
        inline = {channel: value for channel, value in values.items() if _is_inline(value)}
        blobs = [
            (thread_id, checkpoint_ns, channel, str(version), *self.serde.dumps_typed(values[channel]))
            for channel, version in new_versions.items()
            if channel in values and channel not in inline
        ]
        row = (
            thread_id,
            checkpoint_ns,
            checkpoint["id"],
            get_checkpoint_id(config),
            _run_id(config),
            encode({**checkpoint, "channel_values": inline}),
            without_nul(encode(get_checkpoint_metadata(config, metadata))),
        )
        self._store.bytes_written += len(row[5]) + len(row[6]) + sum(len(blob[5]) for blob in blobs)
        writes: list[Write] = [(sql.PUT_BLOB, blobs)] if blobs else []
        await self._commits.write([*writes, (sql.PUT_CHECKPOINT, [row])])
        return _config(thread_id, checkpoint_ns, checkpoint["id"])

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        checkpoint_id, run_id = config["configurable"]["checkpoint_id"], _run_id(config)
        statement = sql.PUT_SPECIAL_WRITE if all(channel in WRITES_IDX_MAP for channel, _ in writes) else sql.PUT_WRITE
        rows = [
            (
                *_address(config),
                checkpoint_id,
                task_id,
                task_path,
                WRITES_IDX_MAP.get(channel, index),
                run_id,
                channel,
                *self.serde.dumps_typed(value),
            )
            for index, (channel, value) in enumerate(writes)
        ]
        await self._commits.write([(statement, rows)])

    async def adelete_thread(self, thread_id: str) -> None:
        await self._store.remove_thread(str(thread_id))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await self._store.copy_thread(str(source_thread_id), str(target_thread_id))

    def _tuple(self, row: dict[str, Any]) -> CheckpointTuple:
        thread_id, checkpoint_ns = row["thread_id"], row["checkpoint_ns"]
        blobs = {
            channel.decode(): self.serde.loads_typed((kind.decode(), blob))
            for channel, kind, blob in row["blobs"] or ()
        }
        checkpoint = row["checkpoint"]
        checkpoint["channel_values"] = {**checkpoint["channel_values"], **blobs}
        parent_id = row["parent_checkpoint_id"]
        return CheckpointTuple(
            config=_config(thread_id, checkpoint_ns, row["checkpoint_id"]),
            checkpoint=checkpoint,
            metadata=row["metadata"],
            parent_config=_config(thread_id, checkpoint_ns, parent_id) if parent_id else None,
            pending_writes=[
                (task_id.decode(), channel.decode(), self.serde.loads_typed((kind.decode(), blob)))
                for task_id, channel, kind, blob in row["writes"] or ()
            ],
        )

    # Synchronous user code, such as a node that calls a subgraph with `invoke`, runs in a thread and uses these
    # methods.

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self._wait(self.aget_tuple(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - the name in the base class
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        async def gather() -> Sequence[CheckpointTuple]:
            return [found async for found in self.alist(config, filter=filter, before=before, limit=limit)]

        yield from self._wait(gather())

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return self._wait(self.aput(config, checkpoint, metadata, new_versions))

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        self._wait(self.aput_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        self._wait(self.adelete_thread(thread_id))


class RunSaver(PostgresSaver):
    """The saver of one run. It keeps the run's last root checkpoint, so that ending the run needs no read."""

    def __init__(self, store: CheckpointStore, commits: GroupCommit) -> None:
        super().__init__(store, commits)
        self._latest: tuple[RunnableConfig, Checkpoint, CheckpointMetadata, RunnableConfig] | None = None
        self._written: set[str] = set()  # checkpoints with writes on top (an interrupt, an error): read back whole

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        saved = await super().aput(config, checkpoint, metadata, new_versions)
        if saved["configurable"]["checkpoint_ns"] == "" and checkpoint["id"] not in self._written:
            self._latest = (saved, checkpoint, metadata, config)
        return saved

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        # Recorded before the write: LangGraph may save a checkpoint after the writes that belong on top of it.
        checkpoint_id = config["configurable"]["checkpoint_id"]
        self._written.add(checkpoint_id)
        if self._latest and self._latest[1]["id"] == checkpoint_id:
            self._latest = None
        await super().aput_writes(config, writes, task_id, task_path)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        if self._latest is not None and config["configurable"].get("checkpoint_ns", "") == "":
            saved, checkpoint, metadata, put_with = self._latest
            wanted, parent_id = get_checkpoint_id(config), get_checkpoint_id(put_with)
            if wanted is None or wanted == checkpoint["id"]:
                parent = _config(*_address(put_with), parent_id) if parent_id else None
                full_metadata = decode(encode(get_checkpoint_metadata(put_with, metadata)))
                return CheckpointTuple(saved, checkpoint, full_metadata, parent, [])
        return await super().aget_tuple(config)
