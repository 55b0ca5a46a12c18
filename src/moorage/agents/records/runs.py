"""Runs: their statuses, and the requests that create and cancel them."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, Literal, NotRequired
from uuid import UUID

from pydantic import ConfigDict, Field, RootModel, model_validator
from typing_extensions import TypedDict

from moorage.agents.records.commands import Command
from moorage.agents.records.states import CheckpointRef
from moorage.agents.records.words import JsonObject, Request


class RunFailure(TypedDict):
    error: str
    message: str


class RunStatus(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    SUCCESS = "success"
    ERROR = "error"
    TIMEOUT = "timeout"
    INTERRUPTED = "interrupted"


# A running run becomes pending again when it is handed back or its lease runs out.
RUN_TRANSITIONS: dict[RunStatus, frozenset[RunStatus]] = {
    RunStatus.PENDING: frozenset({RunStatus.RUNNING, RunStatus.INTERRUPTED}),
    RunStatus.RUNNING: frozenset(
        {RunStatus.PENDING, RunStatus.SUCCESS, RunStatus.ERROR, RunStatus.TIMEOUT, RunStatus.INTERRUPTED}
    ),
    RunStatus.SUCCESS: frozenset(),
    RunStatus.ERROR: frozenset(),
    RunStatus.TIMEOUT: frozenset(),
    RunStatus.INTERRUPTED: frozenset(),
}


ENDED = frozenset(status for status, onward in RUN_TRANSITIONS.items() if not onward)


MultitaskStrategy = Literal["reject", "rollback", "interrupt", "enqueue"]


CancelAction = Literal["interrupt", "rollback"]


StreamMode = Literal[
    "values", "messages", "messages-tuple", "tasks", "checkpoints", "updates", "events", "debug", "custom", "tools"
]


Durability = Literal["sync", "async", "exit"]


# The error of a run that its user stopped.
CANCELLED: dict[CancelAction, RunFailure] = {
    "interrupt": {"error": "UserInterrupt", "message": "The run was interrupted by its user."},
    "rollback": {"error": "UserRollback", "message": "The run was rolled back by its user."},
}


class Run(TypedDict):
    run_id: UUID
    thread_id: UUID
    assistant_id: UUID
    created_at: datetime
    updated_at: datetime
    status: RunStatus
    metadata: JsonObject
    kwargs: JsonObject
    multitask_strategy: MultitaskStrategy
    langsmith_session_name: NotRequired[str | None]


class RunConfig(Request):
    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    tags: list[str] | None = None
    metadata: JsonObject | None = None
    recursion_limit: int | None = Field(None, ge=1)
    max_concurrency: int | None = Field(None, ge=1)
    run_name: str | None = None
    configurable: JsonObject | None = None


class RunCreateStateless(Request):
    """Request for a run on a temporary thread, which is deleted after the run unless `on_completion` is `keep`."""

    unserved = frozenset({"strict_resume", "langsmith_tracer"})

    assistant_id: str
    input: Any = None
    command: Command | None = None
    metadata: JsonObject | None = None
    config: RunConfig | None = None
    context: JsonObject | None = None
    interrupt_before: Literal["*"] | list[str] | None = None
    interrupt_after: Literal["*"] | list[str] | None = None
    stream_mode: StreamMode | list[StreamMode] | None = None
    stream_subgraphs: bool = False
    stream_resumable: bool = False
    webhook: str | None = Field(None, min_length=1, max_length=65536)
    feedback_keys: list[str] | None = Field(None, max_length=100)
    on_disconnect: Literal["cancel", "continue"] = "continue"
    on_completion: Literal["delete", "keep"] = "delete"
    after_seconds: float | None = Field(None, ge=0)
    checkpoint_during: bool | None = None
    durability: Durability | None = None
    multitask_strategy: MultitaskStrategy = "enqueue"  # a stateless run is alone on its thread

    @property
    def stream_modes(self) -> list[StreamMode]:
        if self.stream_mode is None:
            return ["values"]
        return self.stream_mode if isinstance(self.stream_mode, list) else [self.stream_mode]


class RunCreate(RunCreateStateless):
    """Request for a run on a thread."""

    checkpoint: CheckpointRef | None = None
    checkpoint_id: str | None = None
    if_not_exists: Literal["create", "reject"] = "reject"


class RunBatch(RootModel[list[RunCreateStateless]]):
    """Request for several stateless runs. Either all are accepted or none."""

    root: list[RunCreateStateless] = Field(min_length=1)


class RunsCancel(Request):
    """Request to cancel either all runs of a status, or named runs of a thread."""

    status: Literal["pending", "running", "all"] | None = None
    thread_id: UUID | None = None
    run_ids: list[UUID] | None = None

    @model_validator(mode="after")
    def _one_way(self) -> RunsCancel:
        named = self.thread_id is not None and self.run_ids is not None
        if named == (self.status is not None):
            raise ValueError("Give either status, or thread_id and run_ids")
        return self
