"""Threads: rows, requests, and the space that they take in the database."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, NotRequired
from uuid import UUID

from pydantic import Field
from typing_extensions import TypedDict

from moorage.agents.records.commands import Command
from moorage.agents.records.runs import RunFailure
from moorage.agents.records.states import Interrupt
from moorage.agents.records.words import JsonObject, Page, Request, RowField, SortOrder

ThreadStatus = Literal["idle", "busy", "interrupted", "error"]
Strategy = Literal["delete", "keep_latest"]


MINUTES_MAX = 100 * 365 * 24 * 60


class TtlInfo(TypedDict):
    strategy: Strategy
    ttl_minutes: float
    expires_at: datetime


class Thread(TypedDict):
    thread_id: UUID
    created_at: datetime
    updated_at: datetime
    state_updated_at: datetime
    metadata: JsonObject
    config: JsonObject
    status: Literal["idle", "busy", "interrupted", "error"]
    values: Any
    interrupts: dict[str, list[Interrupt]]
    error: RunFailure | None
    ttl: NotRequired[TtlInfo | None]  # only if `include` requests it; None for a thread that never expires
    extracted: NotRequired[JsonObject]  # only in results of a search with `extract`


class RowsSize(TypedDict):
    count: int
    bytes: int


class ChannelSize(TypedDict):
    versions: int
    bytes: int


class ValuesSize(RowsSize):
    by_channel: dict[str, ChannelSize]


class ThreadStorage(TypedDict):
    """Database space of a thread."""

    thread_id: str
    total_bytes: int
    checkpoints: RowsSize
    channel_values: ValuesSize
    pending_writes: RowsSize


class ThreadsExtent(TypedDict):
    """Numbers of threads, and of the rows and bytes that would be deleted with them."""

    threads: int
    rows: int
    bytes: int


class Expiring(TypedDict):
    """Number and space of threads that sweeps will free, by strategy."""

    delete: ThreadsExtent
    keep_latest: ThreadsExtent


class Pruned(TypedDict):
    pruned_count: int
    rows: NotRequired[int]  # only after a dry run, like `bytes`
    bytes: NotRequired[int]


class Superstep(Request):
    class Update(Request):
        values: Any = None
        command: Command | None = None
        as_node: str

    updates: list[Update]


class Ttl(Request):
    """Expiry of a thread after `ttl` minutes: delete it, or delete all of its checkpoints but the latest."""

    ttl: float = Field(gt=0, le=MINUTES_MAX)
    strategy: Strategy = "delete"


class ThreadTtl(Request):
    ttl: Ttl | None = None


class ThreadCreate(ThreadTtl):
    thread_id: UUID | None = None
    metadata: JsonObject | None = None
    if_exists: Literal["raise", "do_nothing"] = "raise"
    supersteps: list[Superstep] | None = None


class ThreadPatch(ThreadTtl):
    metadata: JsonObject | None = None


ThreadField = Literal["thread_id", "state_updated_at", "config", "status", "values", "interrupts", "error", RowField]


class ThreadCount(Request):
    metadata: JsonObject | None = None
    values: JsonObject | None = None
    status: ThreadStatus | None = None


class ThreadSearch(ThreadCount, Page):
    ids: list[UUID] | None = None
    sort_by: Literal["thread_id", "status", "created_at", "updated_at", "state_updated_at"] | None = None
    sort_order: SortOrder | None = None
    select: list[ThreadField] | None = None
    extract: dict[str, str] | None = Field(None, max_length=10)


class ThreadPrune(Request):
    """Request to prune threads. `dry_run` is an addition to the reference API: nothing is removed, and the answer shows
    what would be.
    """

    thread_ids: list[UUID]
    strategy: Strategy = "delete"
    dry_run: bool = False
