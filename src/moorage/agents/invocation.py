"""Invocations of graphs: input, config and context, combined from assistant, thread and run."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any
from uuid import UUID

from langchain_core.runnables import RunnableConfig
from langgraph.types import Command, Send

from moorage.agents.graphs import Graph, identity
from moorage.agents.records.assistants import Assistant
from moorage.agents.records.runs import Durability
from moorage.agents.records.threads import Thread
from moorage.agents.records.users import User
from moorage.agents.records.words import JsonObject
from moorage.agents.store.runs import LeasedRun

_LANGGRAPH_VERSION = version("langgraph")
_MOORAGE_VERSION = version("moorage")
_CHECKPOINT_KEYS = ("checkpoint_id", "checkpoint_ns", "checkpoint_map")
# Context fields that identify the user. They are filled in if the graph's schema has them.
_WHOSE = frozenset(identity(None)) - {"user_id"}


@dataclass(frozen=True)
class Invocation:
    input: Any
    config: RunnableConfig
    context: JsonObject | None
    mirrored: frozenset[str]  # names in the context that come from `configurable`
    durability: Durability
    user: User | None

    def context_for(self, graph: Graph) -> Any:
        """Return the context in the form that the graph's nodes expect: an instance of the context schema, if that is a
        class.

        Values mirrored from `configurable` are kept only if the schema has them. Raises TypeError or ValueError for a
        context that does not fit.
        """
        schema = getattr(graph, "context_schema", None)
        if schema is None:
            return self.context
        names = _field_names(schema)
        context = {**(self.context or {}), **{name: self.config["configurable"][name] for name in names & _WHOSE}}
        if not context:
            return self.context
        context = {name: value for name, value in context.items() if name in names or name not in self.mirrored}
        # Newer versions of LangGraph do this themselves; the oldest supported one does not.
        return schema(**context) if dataclasses.is_dataclass(schema) or hasattr(schema, "model_fields") else context


def invocation_of(row: LeasedRun) -> Invocation:
    """Build the invocation of a run. The run's own values win over its assistant's."""
    kwargs = row.run["kwargs"]
    config = kwargs.get("config") or {}
    of_run, run_context = config.get("configurable") or {}, kwargs.get("context") or {}
    of_assistant = row.assistant_config.get("configurable") or {}
    # Whichever of `configurable` and `context` is missing is filled from the other; both mean the same.
    given = {**(of_assistant or row.assistant_context), **(of_run or run_context)}
    context = _unforged({**(row.assistant_context or of_assistant), **(run_context or of_run)})
    user = User(row.auth_user) if row.auth_user is not None else None
    configurable = {**_own(given), **_injected(row, user)}
    checkpoint = kwargs.get("checkpoint") or {}
    configurable |= {key: checkpoint[key] for key in _CHECKPOINT_KEYS if checkpoint.get(key) is not None}
    full: dict[str, Any] = {
        "configurable": configurable,
        "metadata": _metadata(row, config),
        "tags": [*(row.assistant_config.get("tags") or []), *(config.get("tags") or [])],
        "run_id": row.lease.key,
        "run_name": row.graph_id,
    }
    for name in ("run_name", "recursion_limit", "max_concurrency"):
        if value := config.get(name) or row.assistant_config.get(name):
            full[name] = value
    return Invocation(
        input=_input(kwargs),
        config=RunnableConfig(**full),  # type: ignore[typeddict-item]
        context=context or None,
        mirrored=frozenset(context) - row.assistant_context.keys() - run_context.keys(),
        user=user,
        durability=kwargs["durability"],
    )


def opening_config(invocation: Invocation) -> RunnableConfig:
    """Return the config for opening a run's graph to read the state that the run left."""
    configurable = invocation.config["configurable"]
    return {**invocation.config, "configurable": {**configurable, "__is_for_execution__": False}}


def thread_config(
    thread: Thread, assistant: Assistant | None, user: User | None, checkpoint: JsonObject | None = None
) -> RunnableConfig:
    """Return the config for opening a thread's graph between runs: the last run's config, kept in the thread's row."""
    of_assistant, of_run = assistant["config"] if assistant else {}, thread["config"]
    given = {**(of_assistant.get("configurable") or {}), **(of_run.get("configurable") or {})}
    own = {key: value for key, value in _own(given).items() if key not in {*_CHECKPOINT_KEYS, "run_id"}}
    graph_id = thread["metadata"].get("graph_id")
    assistant_id = str(assistant["assistant_id"]) if assistant else None
    configurable = {
        **own,
        **_identity(thread["thread_id"], graph_id, assistant_id, user),
        **read_config(thread["thread_id"], checkpoint)["configurable"],
    }
    metadata = {
        **thread["metadata"],
        **(of_assistant.get("metadata") or {}),
        **(of_run.get("metadata") or {}),
        "graph_id": graph_id,
        "assistant_id": assistant_id,
        "thread_id": str(thread["thread_id"]),
    }
    tags = [*(of_assistant.get("tags") or []), *(of_run.get("tags") or [])]
    return {"configurable": configurable, "metadata": metadata, "tags": tags}


def read_config(thread_id: UUID, checkpoint: JsonObject | None = None) -> RunnableConfig:
    """Return the config for reading a thread's state, at a checkpoint or at its latest."""
    chosen = {key: value for key, value in (checkpoint or {}).items() if value is not None}
    return {"configurable": {"checkpoint_ns": "", **chosen, "thread_id": str(thread_id)}}


def _own(given: JsonObject) -> JsonObject:
    """Return the entries that callers may set. Names that begin with two underscores belong to LangGraph, and are
    removed.
    """
    return {key: value for key, value in given.items() if not key.startswith("__")}


def _unforged(context: JsonObject) -> JsonObject:
    return {name: value for name, value in context.items() if name not in _WHOSE}


def _identity(thread_id: UUID, graph_id: str | None, assistant_id: str | None, user: User | None) -> JsonObject:
    return {
        "thread_id": str(thread_id),
        "graph_id": graph_id,
        "assistant_id": assistant_id,
        **identity(user),
    }


def _injected(row: LeasedRun, user: User | None) -> JsonObject:
    return {
        "thread_id": str(row.run["thread_id"]),  # these two come first: streams show the entries in this order
        "run_id": str(row.lease.key),
        **_identity(row.run["thread_id"], row.graph_id, str(row.run["assistant_id"]), user),
        "langgraph_request_id": row.run["kwargs"].get("request_id") or str(row.lease.key),
        "__is_for_execution__": True,
    }


def _metadata(row: LeasedRun, config: JsonObject) -> JsonObject:
    return {
        **row.thread_metadata,
        **row.run["metadata"],
        **(row.assistant_config.get("metadata") or {}),
        **(config.get("metadata") or {}),
        "created_by": row.assistant_metadata.get("created_by", "user"),
        "graph_id": row.graph_id,
        "assistant_id": str(row.run["assistant_id"]),
        "run_id": str(row.lease.key),
        "thread_id": str(row.run["thread_id"]),
        "run_attempt": row.lease.attempt,
        "langgraph_version": _LANGGRAPH_VERSION,
        "langgraph_api_version": _MOORAGE_VERSION,
        "langgraph_plan": "self-hosted",
        "langgraph_host": "self-hosted",
    }


def _input(kwargs: JsonObject) -> Any:
    command = kwargs.get("command")
    return kwargs.get("input") if command is None else command_of(command)


def command_of(command: JsonObject) -> Command[Any]:
    """Convert a command of the wire to LangGraph's. `goto` may hold names and sends; `update` may be pairs in a list."""
    update = command.get("update")
    goto = command.get("goto")
    targets = goto if isinstance(goto, list) else [goto] if goto is not None else []
    return Command(
        update=[tuple(pair) for pair in update] if isinstance(update, list) else update,
        resume=command.get("resume"),
        goto=[Send(target["node"], target.get("input")) if isinstance(target, dict) else target for target in targets],
    )


def _field_names(schema: Any) -> set[str]:
    if dataclasses.is_dataclass(schema):
        return {field.name for field in dataclasses.fields(schema)}
    if hasattr(schema, "model_fields"):
        return set(schema.model_fields)
    return set(getattr(schema, "__annotations__", {}))
