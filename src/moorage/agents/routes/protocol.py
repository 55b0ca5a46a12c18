"""The thread-centric protocol (version 2): commands to a thread, and its events."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, WebSocket
from starlette.requests import Request
from starlette.responses import Response

from moorage.agents.records.protocol import EventStreamRequest, ProtocolCommand, ProtocolFailure, Success
from moorage.agents.routes.rooms import agents, check_origin, principal, sent
from moorage.agents.thread_connection import ThreadConnection
from moorage.http.answers import json_answer
from moorage.http.operations import operation
from moorage.http.requests import UuidText, read_json, read_uuid, read_words
from moorage.http.sse import EventStream, with_heartbeats
from moorage.kernel.errors import InvalidRequestError, MoorageError
from moorage.kernel.request_cost import RequestCost

router = APIRouter(prefix="/threads", tags=["Streaming"])

_POLICY_VIOLATION, _TRY_AGAIN_LATER = 1008, 1013
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
    # The Python client sends `stream_mode`.
    modes = read_words(request, "stream_modes") or read_words(request, "stream_mode") or ["run_modes"]
    if unknown := sorted(set(modes) - {*_STREAM_MODES}):
        raise InvalidRequestError(
            f"Invalid stream_modes value {unknown[0]!r}: expected {', '.join(_STREAM_MODES)}", "query", "stream_modes"
        )
    last_event_id = request.headers.get("last-event-id")
    frames = await agents(request).thread_streams.join(principal(request), found, last_event_id, frozenset(modes))
    return EventStream(with_heartbeats(frames))


@router.post("/{thread_id}/stream/events", **operation(body=EventStreamRequest, streams=True, errors=(404, 422)))
async def stream_events(request: Request, thread_id: UuidText) -> Response:
    """Stream the events of a thread, from one run to the next. It stays open until the client leaves."""
    found = read_uuid(thread_id, _NOT_A_UUID)
    wanted = await read_json(request, EventStreamRequest)
    return EventStream(with_heartbeats(await agents(request).thread_streams.events(principal(request), found, wanted)))


@router.websocket("/{thread_id}/stream/events")
async def connect(websocket: WebSocket, thread_id: str) -> None:
    """Commands and subscriptions of a thread over one connection. Each message is a JSON text."""
    try:
        found, who = read_uuid(thread_id, _NOT_A_UUID), principal(websocket)
        check_origin(websocket)
        await agents(websocket).thread_streams.check(who, found)
    except MoorageError as error:
        await websocket.close(_POLICY_VIOLATION, str(error))  # not accepted yet, so its client gets a 403
        return
    await websocket.accept()
    cut_off = asyncio.Event()

    async def send(text: bytes) -> None:
        await websocket.send({"type": "websocket.send", "text": text.decode()})

    room = agents(websocket)
    connection = ThreadConnection(
        room.commands,
        room.thread_streams,
        who=who,
        thread_id=found,
        sent=sent(websocket),
        send=send,
        cut_off=cut_off.set,
    )
    tasks = [asyncio.create_task(_take_all(websocket, connection)), asyncio.create_task(cut_off.wait())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await connection.close()
    if cut_off.is_set():
        await websocket.close(_TRY_AGAIN_LATER)


async def _take_all(websocket: WebSocket, connection: ThreadConnection) -> None:
    """Take the messages of the client one after the other, until it disconnects."""
    state = websocket.app.state
    while (message := await websocket.receive())["type"] == "websocket.receive":
        text = message.get("bytes") or (message.get("text") or "").encode()
        cost = RequestCost(state.budget, state.limits.json_values_max)
        try:
            cost.take(len(text))
            await cost.take_json(text)
        except MoorageError as error:
            await connection.refuse(str(error))
            continue
        finally:
            cost.give_back()
        await connection.take(text)
