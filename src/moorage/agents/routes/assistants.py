"""`/assistants`. Wire behaviour: contract of the agent server, with the codes that its real clients meet."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from moorage.agents.records.assistants import (
    Assistant,
    AssistantCount,
    AssistantCreate,
    AssistantPatch,
    AssistantSearch,
    AssistantVersion,
    AssistantVersionChange,
    AssistantVersionsSearch,
    GraphDrawing,
    GraphSchemas,
    system_assistant_id,
)
from moorage.agents.records.words import JsonObject
from moorage.agents.routes.rooms import agents, principal
from moorage.http.answers import empty_answer, json_answer, page_answer
from moorage.http.operations import operation
from moorage.http.requests import UuidText, read_flag, read_json, read_uuid
from moorage.kernel.errors import InvalidRequestError

router = APIRouter(prefix="/assistants", tags=["Assistants"])

_NOT_A_UUID = "Invalid assistant ID: must be a UUID"
_XRAY = {"anyOf": [{"type": "boolean"}, {"type": "integer", "minimum": 1}]}


@router.post("", **operation(body=AssistantCreate, gives=Assistant, errors=(400, 404, 409, 422)))
async def create_assistant(request: Request) -> Response:
    """Make an assistant: a graph with a configuration of its own."""
    new = await read_json(request, AssistantCreate)
    return json_answer(await agents(request).assistants.create(principal(request), new))


@router.post("/search", **operation(body=AssistantSearch, gives=list[Assistant | JsonObject], errors=(404, 422)))
async def search_assistants(request: Request) -> Response:
    """List the assistants that match."""
    search = await read_json(request, AssistantSearch)
    return page_answer(await agents(request).assistants.search(principal(request), search), search.limit, search.offset)


@router.post("/count", **operation(body=AssistantCount, gives=int, errors=(422,)))
async def count_assistants(request: Request) -> Response:
    """Count the assistants that match."""
    search = await read_json(request, AssistantCount)
    return json_answer(await agents(request).assistants.count(principal(request), search))


@router.get("/{assistant_id}", **operation(gives=Assistant, errors=(404, 422)))
async def get_assistant(request: Request, assistant_id: UuidText) -> Response:
    """Return an assistant in its latest version."""
    return json_answer(await agents(request).assistants.get(principal(request), read_uuid(assistant_id, _NOT_A_UUID)))


@router.patch("/{assistant_id}", **operation(body=AssistantPatch, gives=Assistant, errors=(400, 404, 422)))
async def patch_assistant(request: Request, assistant_id: UuidText) -> Response:
    """Change an assistant, which makes a version of it."""
    found = read_uuid(assistant_id, _NOT_A_UUID)
    patch = await read_json(request, AssistantPatch)
    return json_answer(await agents(request).assistants.update(principal(request), found, patch))


@router.delete(
    "/{assistant_id}", **operation(errors=(404, 422), status=204, query={"delete_threads": {"type": "boolean"}})
)
async def delete_assistant(request: Request, assistant_id: UuidText) -> Response:
    """Delete an assistant with all its versions."""
    found = read_uuid(assistant_id, _NOT_A_UUID)
    await agents(request).assistants.delete(
        principal(request), found, delete_threads=read_flag(request, "delete_threads")
    )
    return empty_answer()


@router.post(
    "/{assistant_id}/versions",
    **operation(body=AssistantVersionsSearch, gives=list[AssistantVersion], errors=(404, 422)),
)
async def list_versions(request: Request, assistant_id: UuidText) -> Response:
    """List the versions of an assistant, the newest first."""
    found = read_uuid(assistant_id, _NOT_A_UUID)
    search = await read_json(request, AssistantVersionsSearch)
    return json_answer(await agents(request).assistants.versions(principal(request), found, search))


@router.post("/{assistant_id}/latest", **operation(body=AssistantVersionChange, gives=Assistant, errors=(404, 422)))
async def set_latest_version(request: Request, assistant_id: UuidText) -> Response:
    """Make a version of an assistant the one that runs use."""
    found = read_uuid(assistant_id, _NOT_A_UUID)
    change = await read_json(request, AssistantVersionChange)
    return json_answer(await agents(request).assistants.set_latest(principal(request), found, change.version))


@router.get("/{assistant_id}/graph", **operation(gives=GraphDrawing, errors=(404, 422), query={"xray": _XRAY}))
async def draw_graph(request: Request, assistant_id: str) -> Response:
    """Return nodes and edges of the assistant's graph."""
    room = agents(request)
    # Unlike the other operations, this one also accepts a graph's name, which RemoteGraph sends.
    named = assistant_id in room.graphs
    found = system_assistant_id(assistant_id) if named else read_uuid(assistant_id, _NOT_A_UUID)
    return json_answer(await room.assistants.draw(principal(request), found, xray=_read_xray(request)))


@router.get("/{assistant_id}/schemas", **operation(gives=GraphSchemas, errors=(404, 422)))
async def get_schemas(request: Request, assistant_id: UuidText) -> Response:
    """Return the JSON schemas of input, output, state, configuration and context of the graph."""
    return json_answer(
        await agents(request).assistants.schemas(principal(request), read_uuid(assistant_id, _NOT_A_UUID))
    )


_SUBGRAPHS = operation(gives=dict[str, GraphSchemas], errors=(404, 422), query={"recurse": {"type": "boolean"}})


@router.get("/{assistant_id}/subgraphs", **_SUBGRAPHS)
async def get_subgraphs(request: Request, assistant_id: UuidText) -> Response:
    """Return the JSON schemas of the subgraphs."""
    return await _subgraphs(request, assistant_id, None)


@router.get("/{assistant_id}/subgraphs/{namespace}", **_SUBGRAPHS)
async def get_subgraph(request: Request, assistant_id: UuidText, namespace: str) -> Response:
    """Return the JSON schemas of one subgraph."""
    return await _subgraphs(request, assistant_id, namespace)


async def _subgraphs(request: Request, assistant_id: str, namespace: str | None) -> Response:
    found = read_uuid(assistant_id, _NOT_A_UUID)
    recurse = read_flag(request, "recurse")
    return json_answer(
        await agents(request).assistants.subgraphs(principal(request), found, namespace, recurse=recurse)
    )


def _read_xray(request: Request) -> bool | int:
    value = request.query_params.get("xray", "false").lower()
    if value in ("true", "false"):
        return value == "true"
    if value.isascii() and value.isdigit() and int(value) >= 1:
        return int(value)
    raise InvalidRequestError("Invalid xray value: expected true, false or an integer of at least 1")
