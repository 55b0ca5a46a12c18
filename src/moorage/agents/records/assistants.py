"""Assistants, which are graphs with a configuration, and descriptions of their graphs."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, NotRequired
from uuid import UUID, uuid5

from typing_extensions import TypedDict

from moorage.agents.records.words import JsonObject, Page, Request, RowField, SortOrder

# The id of a system assistant is the UUIDv5 of its graph's name in this namespace, so clients can compute it.
SYSTEM_NAMESPACE = UUID("6ba7b821-9dad-11d1-80b4-00c04fd430c8")


def system_assistant_id(graph_id: str) -> UUID:
    return uuid5(SYSTEM_NAMESPACE, graph_id)


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
    updated_at: datetime  # equals `created_at`: a version never changes
    version: int
    description: str | None


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


AssistantField = Literal["assistant_id", "graph_id", "name", "description", "config", "context", "version", RowField]


class AssistantCount(Request):
    metadata: JsonObject | None = None
    graph_id: str | None = None
    name: str | None = None


class AssistantSearch(AssistantCount, Page):
    sort_by: Literal["assistant_id", "created_at", "updated_at", "name", "graph_id"] | None = None
    sort_order: SortOrder | None = None
    select: list[AssistantField] | None = None


class AssistantVersionsSearch(Page):
    metadata: JsonObject | None = None


class AssistantVersionChange(Request):
    version: int
