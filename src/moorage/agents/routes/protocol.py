"""The thread-centric protocol (version 2): commands to a thread, and its events."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from moorage.agents.records.protocol import EventStreamRequest, ProtocolCommand, ProtocolFailure, Success
from moorage.agents.routes.access import agents, principal, sent
from moorage.http.answers import json_answer
from moorage.http.operations import operation
from moorage.http.requests import UuidText, read_json, read_uuid, read_words
from moorage.http.sse import EventStream
from moorage.kernel.errors import InvalidRequestError

router = APIRouter(prefix="/threads", tags=["Streaming"])

_NOT_A_UUID = "Invalid thread ID: must be a UUID"


@router.post(
    "/{thread_id}/commands",
    **operation(body=ProtocolCommand, gives=Success | ProtocolFailure, errors=(422,), also={400: ProtocolFailure}),
)
async def send_command(request: Request, thread_id: UuidText) -> Response:
    """Carry out a command. A command that fails is answered 200 with the protocol's error; a broken envelope 400."""
    found = read_uuid(thread_id, _NOT_A_UUID)
    try:
        command = await read_json(request, ProtocolCommand)
    except InvalidRequestError as error:
        return json_answer({"type": "error", "id": None, "error": "invalid_argument", "message": str(error)}, 400)
    return json_answer(await agents(request).commands.carry_out(principal(request), found, command, sent(request)))


_STREAM_MODES = ("run_modes", "lifecycle", "state_update")


@router.get(
    "/{thread_id}/stream",
    **operation(
        streams=True,
        errors=(404, 422),
        query={"stream_modes": {"type": "array", "items": {"type": "string", "enum": list(_STREAM_MODES)}}},
    ),
)
async def join_thread_stream(request: Request, thread_id: UuidText) -> Response:
    """Stream the frames of all runs of a thread, one run after the other. It stays open until the client leaves.

    `stream_modes`: `run_modes` (default) for all frames, `lifecycle` for the beginning and the end of runs, `state_update` for
    values and updates. `Last-Event-ID` is the last frame that the client has seen, `-` everything that is kept.
    """
    found = read_uuid(thread_id, _NOT_A_UUID)
    # The Python client says `stream_mode`.
    modes = read_words(request, "stream_modes") or read_words(request, "stream_mode") or ["run_modes"]
    if unknown := sorted(set(modes) - {*_STREAM_MODES}):
        raise InvalidRequestError(
            f"Invalid stream_modes value {unknown[0]!r}: expected {', '.join(_STREAM_MODES)}", "query", "stream_modes"
        )
    last_event_id = request.headers.get("last-event-id")
    chunks = await agents(request).thread_streams.join(principal(request), found, last_event_id, frozenset(modes))
    return EventStream(chunks)


@router.post("/{thread_id}/stream/events", **operation(body=EventStreamRequest, streams=True, errors=(404, 422)))
async def stream_events(request: Request, thread_id: UuidText) -> Response:
    """Stream the events of a thread, from one run to the next. It stays open until the client leaves."""
    found = read_uuid(thread_id, _NOT_A_UUID)
    wanted = await read_json(request, EventStreamRequest)
    return EventStream(await agents(request).thread_streams.events(principal(request), found, wanted))
