"""Runs on a thread (`/threads/{thread_id}/runs`) and runs without one (`/runs`)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from moorage.agents.records.runs import Run, RunBatch, RunCreate, RunCreateStateless, RunsCancel, RunStatus
from moorage.agents.records.words import JsonObject
from moorage.agents.routes.rooms import agents, principal, sent
from moorage.http.answers import empty_answer, json_answer, page_answer
from moorage.http.operations import operation
from moorage.http.requests import UuidText, read_choice, read_flag, read_json, read_number, read_uuid, read_words
from moorage.http.sse import EventStream, JsonWhenReady, with_heartbeats
from moorage.kernel.errors import InvalidRequestError

router = APIRouter(tags=["Runs"])

_NOT_A_UUID = "Invalid thread ID"
_NOT_A_RUN_ID = "Invalid run ID"
_DISCONNECT = {"cancel_on_disconnect": {"type": "boolean"}}
_ON_THREAD: dict[str, Any] = {"body": RunCreate, "errors": (400, 404, 409, 422)}
_STATELESS: dict[str, Any] = {"body": RunCreateStateless, "errors": (400, 404, 422)}


def _locations(run: Run, *, ends_with: str, stateless: bool = False) -> dict[str, str]:
    """Return `Location`, at which a disconnected client resumes, and `Content-Location`, from which the SDK reads the
    ids of run and thread.
    """
    place = f"/runs/{run['run_id']}" if stateless else f"/threads/{run['thread_id']}/runs/{run['run_id']}"
    return {"Location": f"{place}/{ends_with}", "Content-Location": place}


def _ids(thread_id: UuidText, run_id: UuidText) -> tuple[UUID, UUID]:
    return read_uuid(thread_id, _NOT_A_UUID), read_uuid(run_id, _NOT_A_RUN_ID)


# --- on a thread --------------------------------------------------------------------------------------------------


@router.post("/threads/{thread_id}/runs", **operation(gives=Run, **_ON_THREAD))
async def create_run(request: Request, thread_id: UuidText) -> Response:
    """Start a run on a thread and return at once."""
    found = read_uuid(thread_id, _NOT_A_UUID)
    new = await read_json(request, RunCreate)
    run = await agents(request).runs.create(principal(request), found, new, sent(request))
    return json_answer(run, headers=_locations(run, ends_with="stream"))


@router.post("/threads/{thread_id}/runs/stream", **operation(streams=True, **_ON_THREAD))
async def stream_run(request: Request, thread_id: UuidText) -> Response:
    """Start a run on a thread and stream what it emits."""
    found = read_uuid(thread_id, _NOT_A_UUID)
    new = await read_json(request, RunCreate)
    run, frames = await agents(request).runs.create_and_stream(principal(request), found, new, sent(request))
    return EventStream(with_heartbeats(frames), _locations(run, ends_with="stream"))


@router.post("/threads/{thread_id}/runs/wait", **operation(gives=dict[str, Any], **_ON_THREAD))
async def wait_for_run(request: Request, thread_id: UuidText) -> Response:
    """Start a run on a thread, wait for its end and return its output."""
    found = read_uuid(thread_id, _NOT_A_UUID)
    new = await read_json(request, RunCreate)
    run, result = await agents(request).runs.create_and_wait(principal(request), found, new, sent(request))
    return JsonWhenReady(result, _locations(run, ends_with="join"))


@router.get(
    "/threads/{thread_id}/runs",
    **operation(
        gives=list[Run | JsonObject],
        errors=(404, 422),
        query={
            "limit": {"type": "integer", "default": 10, "minimum": 1, "maximum": 1000},
            "offset": {"type": "integer", "default": 0, "minimum": 0, "maximum": 2**31},
            "status": {"type": "string", "enum": [status.value for status in RunStatus]},
            "select": {"type": "array", "items": {"type": "string"}},
        },
    ),
)
async def list_runs(request: Request, thread_id: UuidText) -> Response:
    """List the runs of a thread, the newest first."""
    found = read_uuid(thread_id, _NOT_A_UUID)
    limit = read_number(request, "limit", 10, 1, 1000)
    offset = read_number(request, "offset", 0, 0, 2**31)
    status = read_choice(request, "status", tuple(RunStatus), None)
    select = read_words(request, "select") or None
    if select and (unknown := set(select) - Run.__annotations__.keys()):
        raise InvalidRequestError(f"Invalid select value: a run has no {', '.join(sorted(unknown))}")
    rows = await agents(request).runs.page(
        principal(request), found, status=status, limit=limit, offset=offset, select=select
    )
    return page_answer(rows, limit, offset)


@router.get("/threads/{thread_id}/runs/{run_id}", **operation(gives=Run, errors=(404, 422)))
async def get_run(request: Request, thread_id: UuidText, run_id: UuidText) -> Response:
    """Return a run with its status."""
    return json_answer(await agents(request).runs.get(principal(request), *_ids(thread_id, run_id)))


@router.delete("/threads/{thread_id}/runs/{run_id}", **operation(errors=(404, 422), status=204))
async def delete_run(request: Request, thread_id: UuidText, run_id: UuidText) -> Response:
    """Delete a run. A run that is under way is stopped first. The state that it wrote stays on the thread."""
    await agents(request).runs.delete(principal(request), *_ids(thread_id, run_id))
    return empty_answer()


@router.get(
    "/threads/{thread_id}/runs/{run_id}/join", **operation(gives=dict[str, Any], errors=(422,), query=_DISCONNECT)
)
async def join_run(request: Request, thread_id: UuidText, run_id: UuidText) -> Response:
    """Wait for a run to end and return its output."""
    thread, run = _ids(thread_id, run_id)
    cancels = read_flag(request, "cancel_on_disconnect")
    return JsonWhenReady(await agents(request).runs.join(principal(request), thread, run, cancels=cancels))


@router.get(
    "/threads/{thread_id}/runs/{run_id}/stream",
    **operation(streams=True, errors=(422,), query={**_DISCONNECT, "stream_mode": {"type": "string"}}),
)
async def join_stream(request: Request, thread_id: UuidText, run_id: UuidText) -> Response:
    """Stream the frames of a run that was started elsewhere, from `Last-Event-ID` on."""
    return await _joined(request, *_ids(thread_id, run_id))


async def _joined(request: Request, thread: UUID, run: UUID) -> Response:
    modes = read_words(request, "stream_mode")
    frames = await agents(request).runs.join_stream(
        principal(request),
        thread,
        run,
        last_event_id=request.headers.get("last-event-id"),
        modes=frozenset("messages" if mode == "messages-tuple" else mode for mode in modes) or None,
        cancels=read_flag(request, "cancel_on_disconnect"),
    )
    place = f"/threads/{thread}/runs/{run}"
    return EventStream(with_heartbeats(frames), {"Location": f"{place}/stream", "Content-Location": place})


@router.post(
    "/threads/{thread_id}/runs/{run_id}/cancel",
    **operation(
        errors=(404, 422),
        status=202,
        also={200: JsonObject},
        query={"wait": {"type": "boolean"}, "action": {"type": "string", "enum": ["interrupt", "rollback"]}},
    ),
)
async def cancel_run(request: Request, thread_id: UuidText, run_id: UuidText) -> Response:
    """Cancel a run: interrupt it, or roll back what it has done."""
    thread, run = _ids(thread_id, run_id)
    action = read_choice(request, "action", ("interrupt", "rollback"), "interrupt")
    wait = read_flag(request, "wait")
    await agents(request).runs.cancel(principal(request), thread, run, action, wait=wait)
    if not wait:
        return empty_answer(202)
    return json_answer({}, headers={"Location": f"/threads/{thread}/runs/{run}/join"})


# --- without a thread ---------------------------------------------------------------------------------------------


@router.post("/runs", **operation(gives=Run, **_STATELESS))
async def create_stateless_run(request: Request) -> Response:
    """Start a run on a temporary thread and return at once."""
    new = await read_json(request, RunCreateStateless)
    run = await agents(request).runs.create(principal(request), None, new, sent(request))
    return json_answer(run, headers=_locations(run, ends_with="stream", stateless=True))


@router.post("/runs/batch", **operation(body=RunBatch, gives=list[Run], errors=(400, 404, 422)))
async def create_batch(request: Request) -> Response:
    """Start several runs, each on a temporary thread."""
    batch = await read_json(request, RunBatch)
    return json_answer(await agents(request).runs.create_batch(principal(request), batch, sent(request)))


@router.post(
    "/runs/cancel",
    **operation(
        body=RunsCancel,
        errors=(404, 422),
        status=204,
        query={"action": {"type": "string", "enum": ["interrupt", "rollback"]}},
    ),
)
async def cancel_runs(request: Request) -> Response:
    """Cancel several runs."""
    action = read_choice(request, "action", ("interrupt", "rollback"), "interrupt")
    await agents(request).runs.cancel_many(principal(request), await read_json(request, RunsCancel), action)
    return empty_answer()


@router.post("/runs/stream", **operation(streams=True, **_STATELESS))
async def stream_stateless_run(request: Request) -> Response:
    """Start a run on a temporary thread and stream what it emits."""
    new = await read_json(request, RunCreateStateless)
    run, frames = await agents(request).runs.create_and_stream(principal(request), None, new, sent(request))
    return EventStream(with_heartbeats(frames), _locations(run, ends_with="stream", stateless=True))


@router.post("/runs/wait", **operation(gives=dict[str, Any], **_STATELESS))
async def wait_for_stateless_run(request: Request) -> Response:
    """Start a run on a temporary thread, wait for its end and return its output."""
    new = await read_json(request, RunCreateStateless)
    run, result = await agents(request).runs.create_and_wait(principal(request), None, new, sent(request))
    return JsonWhenReady(result, _locations(run, ends_with="join"))


@router.get("/runs/{run_id}/stream", include_in_schema=False)
async def join_stateless_stream(request: Request, run_id: UuidText) -> Response:
    """Resume the stream of a stateless run. The header `Location` of its first answer names this address."""
    run = read_uuid(run_id, _NOT_A_RUN_ID)
    return await _joined(request, await agents(request).runs.thread_of(run), run)
