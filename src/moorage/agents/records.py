"""Nouns of the agent server: rows as they are read, requests as they come in, and the ways a status may move.

Rows are plain dictionaries straight from the database, described by TypedDicts; requests are pydantic models that
ignore unknown fields, as the reference server does. Field names are those of the wire.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, Literal, NotRequired
from uuid import UUID, uuid5

from pydantic import BaseModel, ConfigDict, Field, RootModel, model_validator
from typing_extensions import TypedDict

JsonObject = dict[str, Any]

# Built-in assistants have an id that everybody can compute: uuid5 of the graph's name in this namespace.
SYSTEM_NAMESPACE = UUID("6ba7b821-9dad-11d1-80b4-00c04fd430c8")


def system_assistant_id(graph_id: str) -> UUID:
    return uuid5(SYSTEM_NAMESPACE, graph_id)


# --- rows ---------------------------------------------------------------------------------------------------------


class Assistant(TypedDict):
    assistant_id: UUID
    graph_id: str
    config: JsonObject
    context: JsonObject
    metadata: JsonObject
    name: str
    created_at: datetime
    updated_at: datetime
    version: int
    description: str | None


class AssistantVersion(TypedDict):
    assistant_id: UUID
    graph_id: str
    config: JsonObject
    context: JsonObject
    metadata: JsonObject
    name: str
    created_at: datetime
    updated_at: datetime  # as `created_at`: a version never changes
    version: int
    description: str | None


class Interrupt(TypedDict):
    id: NotRequired[str | None]
    value: Any
    response_schema: NotRequired[JsonObject | None]


class RunFailure(TypedDict):
    error: str
    message: str


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
    ttl: NotRequired[None]  # when `include` asks for it; no thread has one yet
    extracted: NotRequired[JsonObject]  # in answers to a search with `extract`


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


class GraphSchemas(TypedDict):
    graph_id: NotRequired[str]
    input_schema: JsonObject | None
    output_schema: JsonObject | None
    state_schema: JsonObject | None
    config_schema: JsonObject | None
    context_schema: JsonObject | None


class GraphDrawing(TypedDict):
    nodes: list[JsonObject]
    edges: list[JsonObject]


class RowsSize(TypedDict):
    count: int
    bytes: int


class ChannelSize(TypedDict):
    versions: int
    bytes: int


class ValuesSize(RowsSize):
    by_channel: dict[str, ChannelSize]


class ThreadStorage(TypedDict):
    """What a thread takes in the database."""

    thread_id: str
    total_bytes: int
    checkpoints: RowsSize
    channel_values: ValuesSize
    pending_writes: RowsSize


class Pruned(TypedDict):
    pruned_count: int


class Health(TypedDict):
    ok: bool
    services: JsonObject


class Info(TypedDict):
    version: str
    langgraph_py_version: str
    moorage_version: str
    flags: dict[str, bool]
    host: JsonObject
    metadata: JsonObject


# --- a run's life -------------------------------------------------------------------------------------------------


class RunStatus(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    SUCCESS = "success"
    ERROR = "error"
    TIMEOUT = "timeout"
    INTERRUPTED = "interrupted"


# A run that is handed back or whose lease ran out goes from running to pending again.
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
    "values", "messages", "messages-tuple", "tasks", "checkpoints", "updates", "events", "debug", "custom"
]
Durability = Literal["sync", "async", "exit"]
ThreadStatus = Literal["idle", "busy", "interrupted", "error"]

# What is left of a run that its user stopped.
CANCELLED: dict[CancelAction, RunFailure] = {
    "interrupt": {"error": "UserInterrupt", "message": "The run was interrupted by its user."},
    "rollback": {"error": "UserRollback", "message": "The run was rolled back by its user."},
}


class DeliveryStatus(StrEnum):
    """Of a webhook. Pending and sending alternate until one of the others ends it."""

    PENDING = "pending"
    SENDING = "sending"
    DELIVERED = "delivered"
    FAILED = "failed"


SortOrder = Literal["asc", "desc"]


# --- requests -----------------------------------------------------------------------------------------------------


class Request(BaseModel):
    """Unknown fields are ignored, as the reference does; known ones are strict."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)
    # Fields of the wire that this version cannot honour yet. They are refused: dropping one in silence would be a lie.
    unserved: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _refuse_unserved(cls, body: Any) -> Any:
        if isinstance(body, dict) and cls.unserved:
            for field in sorted(cls.unserved & body.keys()):
                if body[field] is not None:
                    raise ValueError(f"{field} is not supported by this version of moorage; leave it out")
        return body


class Page(Request):
    limit: int = Field(10, ge=1, le=1000)
    offset: int = Field(0, ge=0)


class AssistantCreate(Request):
    graph_id: str
    assistant_id: UUID | None = None
    config: JsonObject | None = None
    context: JsonObject | None = None
    metadata: JsonObject | None = None
    if_exists: Literal["raise", "do_nothing"] = "raise"
    name: str | None = None
    description: str | None = None


class AssistantPatch(Request):
    graph_id: str | None = None
    config: JsonObject | None = None
    context: JsonObject | None = None
    metadata: JsonObject | None = None
    name: str | None = None
    description: str | None = None


class AssistantCount(Request):
    metadata: JsonObject | None = None
    graph_id: str | None = None
    name: str | None = None


class AssistantSearch(AssistantCount, Page):
    sort_by: Literal["assistant_id", "created_at", "updated_at", "name", "graph_id"] | None = None
    sort_order: SortOrder | None = None
    select: (
        list[
            Literal[
                "assistant_id",
                "graph_id",
                "name",
                "description",
                "config",
                "context",
                "created_at",
                "updated_at",
                "metadata",
                "version",
            ]
        ]
        | None
    ) = None


class AssistantVersionsSearch(Page):
    metadata: JsonObject | None = None


class AssistantVersionChange(Request):
    version: int


class Send(Request):
    node: str
    input: Any = None


class Command(Request):
    update: JsonObject | list[tuple[str, Any]] | None = None
    resume: Any = None
    goto: str | Send | list[str | Send] | None = None


class CheckpointRef(Request):
    thread_id: str | None = None
    checkpoint_ns: str | None = None
    checkpoint_id: str | None = None
    checkpoint_map: JsonObject | None = None


class Superstep(Request):
    class Update(Request):
        values: Any = None
        command: Command | None = None
        as_node: str

    updates: list[Update]


class ThreadTtl(Request):
    """How long a thread is kept. Known, so that clients which name it are understood, and not served yet."""

    unserved = frozenset({"ttl"})

    ttl: None = Field(None, description="Not supported by this version: threads are kept until they are deleted.")


class ThreadCreate(ThreadTtl):
    thread_id: UUID | None = None
    metadata: JsonObject | None = None
    if_exists: Literal["raise", "do_nothing"] = "raise"
    supersteps: list[Superstep] | None = None


class ThreadPatch(ThreadTtl):
    metadata: JsonObject | None = None


class ThreadCount(Request):
    metadata: JsonObject | None = None
    values: JsonObject | None = None
    status: ThreadStatus | None = None


class ThreadSearch(ThreadCount, Page):
    ids: list[UUID] | None = None
    sort_by: Literal["thread_id", "status", "created_at", "updated_at", "state_updated_at"] | None = None
    sort_order: SortOrder | None = None
    select: (
        list[
            Literal[
                "thread_id",
                "created_at",
                "updated_at",
                "state_updated_at",
                "metadata",
                "config",
                "status",
                "values",
                "interrupts",
                "error",
            ]
        ]
        | None
    ) = None
    extract: dict[str, str] | None = Field(None, max_length=10)


class ThreadPrune(Request):
    thread_ids: list[UUID]
    strategy: Literal["delete", "keep_latest"] = "delete"


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


class RunConfig(Request):
    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    tags: list[str] | None = None
    metadata: JsonObject | None = None
    recursion_limit: int | None = Field(None, ge=1)
    configurable: JsonObject | None = None


class RunCreateStateless(Request):
    """A run without a thread of its own: its thread lives as long as the run, unless `on_completion` is keep."""

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

    @property
    def stream_modes(self) -> list[StreamMode]:
        if self.stream_mode is None:
            return ["values"]
        return self.stream_mode if isinstance(self.stream_mode, list) else [self.stream_mode]


class RunCreate(RunCreateStateless):
    """A run on a thread."""

    checkpoint: CheckpointRef | None = None
    checkpoint_id: str | None = None
    multitask_strategy: MultitaskStrategy = "enqueue"
    if_not_exists: Literal["create", "reject"] = "reject"


class RunBatch(RootModel[list[RunCreateStateless]]):
    """Several stateless runs, accepted together."""

    root: list[RunCreateStateless] = Field(min_length=1)


class RunsCancel(Request):
    """Either all runs of a status, or named runs of a thread."""

    status: Literal["pending", "running", "all"] | None = None
    thread_id: UUID | None = None
    run_ids: list[UUID] | None = None

    @model_validator(mode="after")
    def _one_way(self) -> RunsCancel:
        named = self.thread_id is not None and self.run_ids is not None
        if named == (self.status is not None):
            raise ValueError("Give either status, or thread_id and run_ids")
        return self
