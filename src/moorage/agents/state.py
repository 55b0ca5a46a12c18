"""Thread state: read, update and list it through the thread's graph."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal
from uuid import UUID

from langchain_core.runnables import RunnableConfig
from langgraph.errors import InvalidUpdateError
from langgraph.types import PregelTask, StateSnapshot, StateUpdate

from moorage.agents.checkpoints import PostgresSaver
from moorage.agents.frames import checkpoint_of, encode_output
from moorage.agents.graphs import Access, Graph, Graphs
from moorage.agents.invocation import command_of, read_config, thread_config
from moorage.agents.principals import Principal
from moorage.agents.records.assistants import Assistant, system_assistant_id
from moorage.agents.records.filters import EVERYTHING, Filter
from moorage.agents.records.states import (
    Checkpoint,
    CheckpointRef,
    StateUpdated,
    ThreadHistory,
    ThreadState,
    ThreadStateUpdate,
    ThreadTask,
)
from moorage.agents.records.threads import Superstep, Thread
from moorage.agents.records.words import JsonObject
from moorage.agents.store.assistants import AssistantStore
from moorage.agents.store.runs import RunStore
from moorage.agents.store.threads import ThreadStore
from moorage.kernel.encoding import encode_for_storage
from moorage.kernel.errors import BadRequestError, ConflictError, InvalidRequestError, NotFoundError

_EMPTY: ThreadState = {
    "values": {},
    "next": [],
    "tasks": [],
    "metadata": None,
    "created_at": None,
    "checkpoint": None,
    "parent_checkpoint": None,
    "interrupts": None,
    "checkpoint_id": None,
    "parent_checkpoint_id": None,
}


def interrupts_of(snapshot: StateSnapshot) -> dict[str, list[Any]]:
    """Return the interrupts that wait for an answer, by task."""
    return {task.id: list(task.interrupts) for task in snapshot.tasks if task.interrupts}


def thread_state(snapshot: StateSnapshot) -> ThreadState:
    """Convert a snapshot to its form on the wire."""
    checkpoint, parent = checkpoint_of(snapshot.config), checkpoint_of(snapshot.parent_config)
    if checkpoint is None:
        return _EMPTY
    tasks = [_task(task) for task in snapshot.tasks]
    return {
        "values": snapshot.values,
        "next": list(snapshot.next),
        "tasks": tasks,
        "metadata": {**_public_metadata(snapshot.metadata), "thread_id": checkpoint["thread_id"]},
        "created_at": snapshot.created_at,
        "checkpoint": checkpoint,  # type: ignore[typeddict-item]
        "parent_checkpoint": parent,  # type: ignore[typeddict-item]
        "interrupts": [interrupt for task in tasks for interrupt in task["interrupts"]],
        "checkpoint_id": checkpoint["checkpoint_id"],
        "parent_checkpoint_id": parent["checkpoint_id"] if parent else None,
    }


def selected(state: ThreadState, fields: list[str] | None) -> JsonObject:
    """Return the named fields only; `values.<key>` names one key of the values. Without names, returns all fields."""
    if not fields:
        return {**state}
    shown = {name: value for name, value in state.items() if name in fields}
    keys = [field.removeprefix("values.") for field in fields if field.startswith("values.")]
    if keys and "values" not in shown and isinstance(values := state["values"], dict):
        shown["values"] = {key: values[key] for key in keys if key in values}
    return shown


def _public_metadata(metadata: Any) -> JsonObject:
    return {key: value for key, value in (metadata or {}).items() if not key.startswith("__")}


def _error_text(error: Any) -> str | None:
    """Return the error's text. The saver already stores an exception as its repr."""
    return error if error is None or isinstance(error, str) else repr(error)


def _task(task: PregelTask) -> ThreadTask:
    nested = task.state
    return {
        "id": task.id,
        "name": task.name,
        "path": list(task.path),
        "error": _error_text(task.error),
        "interrupts": list(task.interrupts),  # type: ignore[arg-type]
        "checkpoint": _place(nested.config if isinstance(nested, StateSnapshot) else nested) if nested else None,
        "state": thread_state(nested) if isinstance(nested, StateSnapshot) and checkpoint_of(nested.config) else None,
        "result": getattr(task, "result", None),
    }


def _place(config: RunnableConfig) -> Checkpoint:
    """Return the namespace of a task's subgraph, and its checkpoint if the config names one."""
    configurable = config["configurable"]
    return {key: configurable[key] for key in Checkpoint.__annotations__ if key in configurable}  # type: ignore[return-value]


class States:
    def __init__(
        self, threads: ThreadStore, runs: RunStore, assistants: AssistantStore, graphs: Graphs, saver: PostgresSaver
    ) -> None:
        self._threads = threads
        self._runs = runs
        self._assistants = assistants
        self._graphs = graphs
        self._saver = saver

    async def get(
        self, who: Principal, thread_id: UUID, checkpoint: CheckpointRef | None, *, subgraphs: bool
    ) -> ThreadState:
        """Return the state at a checkpoint, or the latest. Empty for a thread without runs and for an unknown
        checkpoint.
        """
        thread = await self._thread(who, thread_id, "read")
        if not self._graph_of(thread):
            return _EMPTY
        config = read_config(thread_id, checkpoint.model_dump(exclude={"thread_id"}) if checkpoint else None)
        async with self._open(who, thread, "threads.read", config) as (graph, _):
            return thread_state(await graph.aget_state(config, subgraphs=subgraphs))

    async def history(self, who: Principal, thread_id: UUID, search: ThreadHistory) -> list[ThreadState]:
        """Return the states, newest first."""
        thread = await self._thread(who, thread_id, "read")
        if not self._graph_of(thread) or search.limit == 0:
            return []
        chosen = search.checkpoint.model_dump(exclude={"thread_id"}) if search.checkpoint else None
        config = read_config(thread_id, chosen)
        wanted = dict(search.metadata or {})
        if wanted.pop("thread_id", str(thread_id)) != str(
            thread_id
        ):  # the thread's id is metadata of every state, but no checkpoint stores it
            return []
        async with self._open(who, thread, "threads.read", config) as (graph, _):
            found = graph.aget_state_history(
                config, filter=wanted, before=_before(thread_id, search.before), limit=search.limit
            )
            return [thread_state(snapshot) async for snapshot in found]

    async def update(self, who: Principal, thread_id: UUID, update: ThreadStateUpdate) -> StateUpdated:
        """Write values as if a node had returned them. Raises ConflictError while a run is under way."""
        thread = await self._thread(who, thread_id, "update")
        if not self._graph_of(thread):
            raise BadRequestError(
                f"Thread '{thread_id}' has no assigned graph ID. This usually occurs when no runs have been made on "
                "this particular thread. This operation requires a graph ID. Please ensure a run has been made for "
                "the thread or manually update the thread metadata (by setting the 'graph_id' field)."
            )
        if active := await self._runs.active(thread_id):
            names = ", ".join(str(run_id) for run_id in active)
            raise ConflictError(f"Thread {thread_id} has in-flight runs: [{names}]")
        chosen = update.checkpoint.model_dump(exclude={"thread_id"}) if update.checkpoint else {}
        if update.checkpoint_id:
            chosen["checkpoint_id"] = update.checkpoint_id
        config = read_config(thread_id, chosen)
        async with self._open(who, thread, "threads.update", config) as (graph, full):
            encode_for_storage(update.values)
            try:
                written = await graph.aupdate_state(full, update.values, update.as_node)
            except (InvalidUpdateError, TypeError, ValueError) as error:  # the last two: of reducers and models
                raise BadRequestError(str(error)) from error
            await self._show(thread_id, graph)
        checkpoint = checkpoint_of(written) or {}
        return {"checkpoint": checkpoint, "configurable": checkpoint, "checkpoint_id": checkpoint["checkpoint_id"]}  # type: ignore[typeddict-item]

    async def write_supersteps(self, who: Principal, thread: Thread, supersteps: list[Superstep]) -> None:
        """Build a history without running the graph. Raises BadRequestError, and leaves the thread as it was."""
        if not self._graph_of(thread):
            raise BadRequestError(
                f"Thread '{thread['thread_id']}' has no assigned graph ID: set metadata.graph_id to write supersteps."
            )
        config = read_config(thread["thread_id"])
        steps = [[_state_update(update) for update in step.updates] for step in supersteps]
        async with self._open(who, thread, "threads.update", config) as (graph, full):
            try:
                await graph.abulk_update_state(full, steps)
            except InvalidUpdateError as error:
                raise BadRequestError(str(error)) from error
            await self._show(thread["thread_id"], graph)

    async def _show(self, thread_id: UUID, graph: Graph) -> None:
        """Copy the latest state to the thread's row, where searches read it."""
        snapshot = await graph.aget_state(read_config(thread_id))
        await self._threads.set_state(
            thread_id,
            values=encode_output(snapshot.values),
            interrupts=encode_output(interrupts_of(snapshot)),
            status="interrupted" if snapshot.next else "idle",
            error=None,
        )

    async def _thread(self, who: Principal, thread_id: UUID, action: Literal["read", "update"]) -> Thread:
        thread = await self._threads.read(thread_id, await who.may("threads", action, {"thread_id": thread_id}))
        if thread is None:
            raise NotFoundError(f"Thread with ID {thread_id} not found")
        return thread

    def _graph_of(self, thread: Thread) -> str | None:
        graph_id = thread["metadata"].get("graph_id")
        return graph_id if isinstance(graph_id, str) else None

    @asynccontextmanager
    async def _open(
        self, who: Principal, thread: Thread, access: Access, config: RunnableConfig
    ) -> AsyncIterator[tuple[Graph, RunnableConfig]]:
        """Open the thread's graph with the config of its assistant and its last run. Yields both.

        For reading the state of a graph that is no factory, `config` is enough, and saves reading the assistant.
        """
        graph_id = self._graph_of(thread) or ""
        if graph_id not in self._graphs:
            raise BadRequestError(f"Graph '{graph_id}' of this thread is not served here")
        if access != "threads.read" or self._graphs.is_factory(graph_id):
            config = thread_config(
                thread, await self._assistant_of(who, thread), who.user, dict(config["configurable"])
            )
        async with self._graphs.open(graph_id, access, config=config, saver=self._saver, user=who.user) as graph:
            yield graph, config

    async def _assistant_of(self, who: Principal, thread: Thread) -> Assistant | None:
        """Return the assistant that the thread's metadata names: the last run's, unless a caller has changed the metadata.

        Returns None if it is gone or the caller may not read it, since its configuration would show in the graph that
        is made from it.
        """
        try:
            assistant_id = UUID(str(thread["metadata"].get("assistant_id")))
        except ValueError:
            return None
        return await self._assistants.read(assistant_id, await self._assistants_seen(who, assistant_id))

    async def _assistants_seen(self, who: Principal, assistant_id: UUID) -> Filter:
        """Return the filter of assistants that the caller may see. Everybody may see system assistants."""
        if assistant_id in map(system_assistant_id, self._graphs.ids):
            return EVERYTHING
        return await who.may("assistants", "read", {"assistant_id": assistant_id, "metadata": {}})


def _state_update(update: Superstep.Update) -> StateUpdate:
    values = command_of(update.command.model_dump()) if update.command else update.values
    return StateUpdate(values, update.as_node)  # type: ignore[arg-type]


def _before(thread_id: UUID, before: str | JsonObject | None) -> RunnableConfig | None:
    """Return the config for `before`, which is an id, a checkpoint or a config."""
    if not before:
        return None
    if isinstance(before, str):
        return read_config(thread_id, {"checkpoint_id": before})
    chosen = before.get("configurable", before)
    if not isinstance(chosen, dict) or not isinstance(chosen.get("checkpoint_id", ""), str):
        raise InvalidRequestError("Invalid before: expected an id, a checkpoint or {configurable: checkpoint}")
    return read_config(thread_id, chosen)
