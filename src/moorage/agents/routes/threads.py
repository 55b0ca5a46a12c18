"""`/threads`: the threads themselves and their state."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from moorage.agents.frames import encode_output
from moorage.agents.records.states import (
    CheckpointRef,
    StateUpdated,
    ThreadHistory,
    ThreadState,
    ThreadStateAtCheckpoint,
    ThreadStateUpdate,
)
from moorage.agents.records.threads import (
    MINUTES_MAX,
    Expiring,
    Pruned,
    Thread,
    ThreadCount,
    ThreadCreate,
    ThreadPatch,
    ThreadPrune,
    ThreadSearch,
    ThreadStorage,
)
from moorage.agents.records.words import JsonObject
from moorage.agents.routes.rooms import agents, principal
from moorage.agents.state import selected
from moorage.http.answers import empty_answer, json_answer, page_answer
from moorage.http.operations import operation
from moorage.http.requests import UuidText, read_flag, read_json, read_number, read_uuid, read_words
from moorage.kernel.errors import BadRequestError

router = APIRouter(prefix="/threads", tags=["Threads"])

NOT_A_UUID = "Invalid thread ID: must be a UUID"
_SUBGRAPHS = {"subgraphs": {"type": "boolean"}, "select": {"type": "array", "items": {"type": "string"}}}


@router.post("", **operation(body=ThreadCreate, gives=Thread, errors=(409, 422), also={201: JsonObject}))
async def create_thread(request: Request) -> Response:
    """Make a thread."""
    new = await read_json(request, ThreadCreate)
    room = agents(request)
    thread = await room.threads.create(principal(request), new)
    if not new.supersteps:
        return json_answer(thread)
    try:
        await room.states.write_supersteps(principal(request), thread, new.supersteps)
    except BadRequestError as error:
        # The thread was created, but not its history. As in the reference API, clients see this by 201 with `detail`.
        return json_answer({**thread, "detail": str(error)}, 201)
    return json_answer(await room.threads.get(principal(request), thread["thread_id"]))


@router.post("/search", **operation(body=ThreadSearch, gives=list[Thread | JsonObject], errors=(422,)))
async def search_threads(request: Request) -> Response:
    """List the threads that match."""
    search = await read_json(request, ThreadSearch)
    return page_answer(await agents(request).threads.search(principal(request), search), search.limit, search.offset)


@router.post("/count", **operation(body=ThreadCount, gives=int, errors=(422,)))
async def count_threads(request: Request) -> Response:
    """Count the threads that match."""
    search = await read_json(request, ThreadCount)
    return json_answer(await agents(request).threads.count(principal(request), search))


@router.post("/prune", **operation(body=ThreadPrune, gives=Pruned, errors=(422,)))
async def prune_threads(request: Request) -> Response:
    """Delete threads, or all of their checkpoints but the latest; with `dry_run` show what would go."""
    wanted = await read_json(request, ThreadPrune)
    return json_answer(await agents(request).threads.prune(principal(request), wanted))


@router.get(
    "/expiring",
    **operation(
        gives=Expiring,
        errors=(422,),
        query={"within_minutes": {"type": "integer", "default": 0, "minimum": 0, "maximum": MINUTES_MAX}},
    ),
)
async def get_expiring(request: Request) -> Response:
    """Show what the next sweeps would remove, as a dry run."""
    within = read_number(request, "within_minutes", 0, 0, MINUTES_MAX)
    return json_answer(await agents(request).threads.expiring(principal(request), within))


@router.get("/{thread_id}/storage", **operation(gives=ThreadStorage, errors=(404, 422)))
async def get_storage(request: Request, thread_id: UuidText) -> Response:
    """Return how many rows and bytes a thread takes."""
    return json_answer(await agents(request).threads.storage(principal(request), read_uuid(thread_id, NOT_A_UUID)))


@router.get("/{thread_id}", **operation(gives=Thread, errors=(404, 422), query={"include": {"type": "string"}}))
async def get_thread(request: Request, thread_id: UuidText) -> Response:
    """Return a thread with its status and values."""
    thread = await agents(request).threads.get(principal(request), read_uuid(thread_id, NOT_A_UUID))
    if "ttl" in read_words(request, "include"):
        thread["ttl"] = await agents(request).threads.ttl(thread["thread_id"])
    return json_answer(thread)


@router.patch("/{thread_id}", **operation(body=ThreadPatch, gives=Thread, errors=(404, 422), also={204: None}))
async def patch_thread(request: Request, thread_id: UuidText) -> Response:
    """Change metadata and expiry of a thread."""
    found = read_uuid(thread_id, NOT_A_UUID)
    thread = await agents(request).threads.update(principal(request), found, await read_json(request, ThreadPatch))
    if request.headers.get("prefer") == "return=minimal":
        return empty_answer()
    return json_answer(thread)


@router.delete("/{thread_id}", **operation(errors=(404, 422), status=204))
async def delete_thread(request: Request, thread_id: UuidText) -> Response:
    """Delete a thread with its runs and history."""
    await agents(request).threads.delete(principal(request), read_uuid(thread_id, NOT_A_UUID))
    return empty_answer()


@router.post("/{thread_id}/copy", **operation(gives=Thread, errors=(409, 422)))
async def copy_thread(request: Request, thread_id: UuidText) -> Response:
    """Make a thread with the state and history of another."""
    return json_answer(await agents(request).threads.copy(principal(request), read_uuid(thread_id, NOT_A_UUID)))


@router.get("/{thread_id}/state", **operation(gives=ThreadState | JsonObject, errors=(400, 404, 422), query=_SUBGRAPHS))
async def get_state(request: Request, thread_id: UuidText) -> Response:
    """Return the latest state of a thread."""
    return await _state(request, thread_id, None, read_flag(request, "subgraphs"), read_words(request, "select"))


@router.get(
    "/{thread_id}/state/{checkpoint_id}",
    **operation(gives=ThreadState | JsonObject, errors=(400, 404, 422), query=_SUBGRAPHS),
)
async def get_state_at(request: Request, thread_id: UuidText, checkpoint_id: str) -> Response:
    """Return the state of a thread at a checkpoint."""
    checkpoint = CheckpointRef(checkpoint_id=checkpoint_id)
    return await _state(request, thread_id, checkpoint, read_flag(request, "subgraphs"), read_words(request, "select"))


@router.post(
    "/{thread_id}/state/checkpoint",
    **operation(body=ThreadStateAtCheckpoint, gives=ThreadState | JsonObject, errors=(400, 404, 422)),
)
async def get_state_at_checkpoint(request: Request, thread_id: UuidText) -> Response:
    """Return the state of a thread at a checkpoint, which may be a subgraph's."""
    wanted = await read_json(request, ThreadStateAtCheckpoint)
    return await _state(request, thread_id, wanted.checkpoint, wanted.subgraphs, wanted.select)


@router.post("/{thread_id}/state", **operation(body=ThreadStateUpdate, gives=StateUpdated, errors=(400, 404, 409, 422)))
async def update_state(request: Request, thread_id: UuidText) -> Response:
    """Change the state of a thread as a node would, which makes a checkpoint."""
    found = read_uuid(thread_id, NOT_A_UUID)
    update = await read_json(request, ThreadStateUpdate)
    return json_answer(await agents(request).states.update(principal(request), found, update))


@router.get(
    "/{thread_id}/history",
    **operation(
        gives=list[ThreadState | JsonObject],
        errors=(400, 404, 422),
        query={
            "limit": {"type": "integer", "default": 1, "minimum": 0, "maximum": 1000},
            "before": {"type": "string"},
            "select": {"type": "array", "items": {"type": "string"}},
        },
    ),
)
async def get_history(request: Request, thread_id: UuidText) -> Response:
    """List the states of a thread, the newest first."""
    limit = read_number(request, "limit", 1, 0, 1000)
    before, select = request.query_params.get("before"), read_words(request, "select")
    return await _history(request, thread_id, ThreadHistory(limit=limit, before=before, select=select))


@router.post(
    "/{thread_id}/history",
    **operation(body=ThreadHistory, gives=list[ThreadState | JsonObject], errors=(400, 404, 422)),
)
async def search_history(request: Request, thread_id: UuidText) -> Response:
    """List the states of a thread that match, the newest first."""
    return await _history(request, thread_id, await read_json(request, ThreadHistory))


async def _history(request: Request, thread_id: UuidText, search: ThreadHistory) -> Response:
    found = read_uuid(thread_id, NOT_A_UUID)
    states = await agents(request).states.history(principal(request), found, search)
    shown = [selected(state, search.select) for state in states]
    return Response(encode_output(shown), media_type="application/json")


async def _state(
    request: Request, thread_id: UuidText, checkpoint: CheckpointRef | None, subgraphs: bool, select: list[str] | None
) -> Response:
    found = read_uuid(thread_id, NOT_A_UUID)
    state = await agents(request).states.get(principal(request), found, checkpoint, subgraphs=subgraphs)
    return Response(encode_output(selected(state, select)), media_type="application/json")
