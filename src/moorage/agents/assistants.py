"""Assistants: graphs with a configuration. Each graph has one system assistant, which always exists."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

from langchain_core.runnables import RunnableConfig
from langgraph.pregel import Pregel
from pydantic import TypeAdapter

from moorage.agents.graphs import Graph, Graphs
from moorage.agents.langgraph_json import AssistantDefaults
from moorage.agents.principals import Principal
from moorage.agents.records.assistants import (
    Assistant,
    AssistantCount,
    AssistantCreate,
    AssistantPatch,
    AssistantSearch,
    AssistantVersion,
    AssistantVersionsSearch,
    GraphDrawing,
    GraphSchemas,
    system_assistant_id,
)
from moorage.agents.records.threads import ThreadPrune
from moorage.agents.records.words import JsonObject
from moorage.agents.store.assistants import AssistantStore
from moorage.agents.threads import Threads
from moorage.kernel.errors import BadRequestError, ConflictError, InvalidRequestError, NotFoundError, existing

BOTH_CONTEXTS = (
    "Cannot specify both configurable and context. Prefer setting context alone. Context was introduced in LangGraph "
    "0.6.0 and is the long term planned replacement for configurable."
)


class Assistants:
    def __init__(
        self, store: AssistantStore, graphs: Graphs, threads: Threads, defaults: Mapping[str, AssistantDefaults]
    ) -> None:
        """Make the verbs. `defaults` configure system assistants, by graph."""
        self._store = store
        self._defaults = {graph_id: mirrored(given.config, given.context) for graph_id, given in defaults.items()}
        self._graphs = graphs
        self._threads = threads

    async def ensure_system(self) -> None:
        """Create missing system assistants. Existing ones that nobody has changed get the defaults."""
        for graph_id, spec in self._graphs.specs.items():
            assistant_id = system_assistant_id(graph_id)
            config, context = self._defaults.get(graph_id, ({}, {}))
            made = await self._store.insert(
                assistant_id,
                graph_id,
                config=config or {},
                context=context or {},
                metadata={"created_by": "system"},
                name=graph_id,
                description=spec.description,
            )
            if made is None:
                await self._store.set_defaults(assistant_id, config=config or {}, context=context or {})

    async def create(self, who: Principal, new: AssistantCreate) -> Assistant:
        """Create an assistant.

        Raises NotFoundError for an unknown graph. Raises ConflictError when the id is taken and `if_exists` is raise,
        or when the assistant belongs to somebody else.
        """
        new = new.model_copy(update={"assistant_id": new.assistant_id or uuid4()})
        new, seen = await who.may_ask("assistants", "create", new)
        self._require_graph(new.graph_id)
        config, context = mirrored(new.config, new.context)
        assistant_id = new.assistant_id or uuid4()
        assistant = await self._store.insert(
            assistant_id,
            new.graph_id,
            config=config or {},
            context=context or {},
            metadata=new.metadata or {},
            name=new.name or "Untitled",
            description=new.description,
            actor=who.identity,
        )
        if assistant is None and new.if_exists == "do_nothing":
            assistant = await self._store.read(assistant_id, seen)
        if assistant is None:
            raise ConflictError(f"Assistant {assistant_id} already exists")
        return assistant

    async def get(self, who: Principal, assistant_id: UUID) -> Assistant:
        value: JsonObject = {"assistant_id": assistant_id, "metadata": {}}
        seen = await who.may("assistants", "read", value)
        return existing(await self._store.read(assistant_id, seen), "Not Found")

    async def update(self, who: Principal, assistant_id: UUID, patch: AssistantPatch) -> Assistant:
        """Create a new version: metadata is merged, other fields are replaced."""
        patch, seen = await who.may_ask("assistants", "update", patch, assistant_id=assistant_id)
        if patch.graph_id is not None:
            self._require_graph(patch.graph_id)
        config, context = mirrored(patch.config, patch.context)
        changed = await self._store.update(
            assistant_id,
            seen,
            graph_id=patch.graph_id,
            config=config,
            context=context,
            metadata=patch.metadata,
            name=patch.name,
            description=patch.description,
        )
        return existing(changed, f"Assistant {assistant_id} not found")

    async def delete(self, who: Principal, assistant_id: UUID, *, delete_threads: bool) -> None:
        """Delete the assistant. A system assistant is created again at once, with its defaults. `delete_threads`
        deletes the threads that the user may delete.
        """
        seen = await who.may("assistants", "delete", {"assistant_id": assistant_id})
        if not await self._store.remove(assistant_id, seen):
            raise NotFoundError(f"Assistant with ID {assistant_id} not found")
        await self.ensure_system()
        if delete_threads:
            thread_ids = await self._store.threads_of(assistant_id)
            await self._threads.prune(who, ThreadPrune(thread_ids=thread_ids, strategy="delete"))

    async def search(self, who: Principal, search: AssistantSearch) -> list[Assistant]:
        search, seen = await who.may_ask("assistants", "search", search)
        if search.graph_id is not None:
            self._require_graph(search.graph_id)
        return await self._store.search(search, seen)

    async def count(self, who: Principal, search: AssistantCount) -> int:
        search, seen = await who.may_ask("assistants", "search", search)
        return await self._store.count(search, seen)

    async def versions(
        self, who: Principal, assistant_id: UUID, search: AssistantVersionsSearch
    ) -> list[AssistantVersion]:
        await self.get(who, assistant_id)
        return await self._store.versions(assistant_id, search)

    async def set_latest(self, who: Principal, assistant_id: UUID, version: int) -> Assistant:
        seen = await who.may("assistants", "update", {"assistant_id": assistant_id, "version": version})
        existing(await self._store.read(assistant_id, seen), "Not Found")
        return existing(
            await self._store.set_version(assistant_id, version, seen),
            f"Version {version} of assistant {assistant_id} not found",
        )

    # --- drawings and schemas of graphs ---------------------------------------------------------------------------

    async def draw(self, who: Principal, assistant_id: UUID, *, xray: bool | int) -> GraphDrawing:
        """Return nodes and edges. `xray` opens subgraphs; a number limits the depth."""
        assistant = await self.get(who, assistant_id)
        async with self._open(who, assistant) as (graph, config):
            try:
                drawing = (await graph.aget_graph(config, xray=xray)).to_json()
            except NotImplementedError as error:
                raise InvalidRequestError("The graph does not support visualization") from error
        for node in drawing["nodes"]:
            if isinstance(data := node.get("data"), dict):
                data.pop("id", None)
        return {"nodes": drawing["nodes"], "edges": drawing["edges"]}

    async def schemas(self, who: Principal, assistant_id: UUID) -> GraphSchemas:
        assistant = await self.get(who, assistant_id)
        async with self._open(who, assistant) as (graph, _):
            return {"graph_id": assistant["graph_id"], **_schemas_of(graph)}

    async def subgraphs(
        self, who: Principal, assistant_id: UUID, namespace: str | None, *, recurse: bool
    ) -> dict[str, GraphSchemas]:
        """Return the schemas by namespace; an empty result for an unknown namespace."""
        assistant = await self.get(who, assistant_id)
        async with self._open(who, assistant) as (graph, _):
            found = graph.aget_subgraphs(namespace=namespace, recurse=recurse)
            return {name: _schemas_of(subgraph) async for name, subgraph in found if isinstance(subgraph, Pregel)}

    @asynccontextmanager
    async def _open(self, who: Principal, assistant: Assistant) -> AsyncIterator[tuple[Graph, RunnableConfig]]:
        """Open the assistant's graph. Yields it with the config for reading it."""
        config = RunnableConfig(configurable=dict(assistant["config"].get("configurable") or {}))
        context = assistant["context"]
        async with self._graphs.open(
            assistant["graph_id"], "assistants.read", config=config, context=context, user=who.user
        ) as graph:
            yield graph, config

    def _require_graph(self, graph_id: str) -> None:
        if graph_id not in self._graphs:
            raise NotFoundError(f"Graph '{graph_id}' not found. Expected one of: {sorted(self._graphs.ids)}")


def mirrored(config: JsonObject | None, context: JsonObject | None) -> tuple[JsonObject | None, JsonObject | None]:
    """Fill whichever of `config.configurable` and `context` is missing from the other; both mean the same.

    Raises BadRequestError when both are given.
    """
    configurable = (config or {}).get("configurable")
    if configurable and context:
        raise BadRequestError(BOTH_CONTEXTS)
    if context:
        return {**(config or {}), "configurable": context}, context
    if configurable:
        return config, configurable
    return config, context


def _schemas_of(graph: Graph) -> GraphSchemas:
    """Return the JSON Schemas of the graph; null where its types have none."""
    return {
        "input_schema": _attempt(graph.get_input_jsonschema),
        "output_schema": _attempt(graph.get_output_jsonschema),
        "state_schema": _attempt(lambda: _state_schema(graph)),
        "config_schema": _attempt(lambda: _config_schema(graph)) or {},
        "context_schema": _attempt(graph.get_context_jsonschema),
    }


def _state_schema(graph: Graph) -> JsonObject:
    """Return the schema of all state channels; the output schema may have fewer."""
    schema = getattr(getattr(graph, "builder", None), "state_schema", None)
    if schema is None:
        return graph.get_output_jsonschema()
    described: JsonObject = TypeAdapter(schema).json_schema()
    channels = graph.stream_channels_list
    described["properties"] = {k: v for k, v in described.get("properties", {}).items() if k in channels}
    return described


def _config_schema(graph: Graph) -> JsonObject:
    """Return the schema of `configurable`. Its definition is named `Configurable`, or after the class that the graph
    gave.
    """
    described = graph.get_config_jsonschema()
    definitions = described.get("$defs", {})
    reference = described.get("properties", {}).get("configurable", {}).get("$ref", "#/$defs/Configurable")
    name = reference.rpartition("/")[2]
    others = {other: schema for other, schema in definitions.items() if other != name}
    own: JsonObject = definitions.get(name, {})
    return {**own, "$defs": others} if own and others else own


def _attempt(describe: Any) -> JsonObject | None:
    try:
        return describe()  # type: ignore[no-any-return]
    except Exception:  # pydantic raises many kinds of errors for types without a JSON Schema
        return None
