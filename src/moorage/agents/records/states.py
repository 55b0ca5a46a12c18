"""States of a thread at a checkpoint, and requests to read or change them."""

from __future__ import annotations

from typing import Any, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from moorage.agents.records.words import JsonObject, Request


class Interrupt(TypedDict):
    id: NotRequired[str | None]
    value: Any
    response_schema: NotRequired[JsonObject | None]


class Checkpoint(TypedDict, total=False):
    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str
    checkpoint_map: JsonObject | None


class ThreadTask(TypedDict):
    id: str
    name: str
    path: list[Any]
    error: str | None
    interrupts: list[Interrupt]
    checkpoint: Checkpoint | None
    state: ThreadState | None
    result: Any


class ThreadState(TypedDict):
    values: Any
    next: list[str]
    tasks: list[ThreadTask]
    metadata: JsonObject | None
    created_at: str | None
    checkpoint: Checkpoint | None
    parent_checkpoint: Checkpoint | None
    interrupts: list[Interrupt] | None
    checkpoint_id: str | None
    parent_checkpoint_id: str | None


class StateUpdated(TypedDict):
    checkpoint: Checkpoint
    configurable: Checkpoint
    checkpoint_id: str


class CheckpointRef(Request):
    thread_id: str | None = None
    checkpoint_ns: str | None = None
    checkpoint_id: str | None = None
    checkpoint_map: JsonObject | None = None


class ThreadStateUpdate(Request):
    values: Any = None
    as_node: str | None = None
    checkpoint: CheckpointRef | None = None
    checkpoint_id: str | None = None


class ThreadStateAtCheckpoint(Request):
    checkpoint: CheckpointRef
    subgraphs: bool = False
    select: list[str] | None = None


class ThreadHistory(Request):
    limit: int = Field(1, ge=0, le=1000)
    before: str | JsonObject | None = None
    metadata: JsonObject | None = None
    checkpoint: CheckpointRef | None = None
    select: list[str] | None = None
