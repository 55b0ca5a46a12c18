"""Routes of `/v2/listeners`: machines that run agents for the workspace, and the tunnels that they open."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from uuid import UUID

from fastapi import APIRouter, WebSocket
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocketDisconnect

from moorage.control.records.listeners import Listener, ListenerCreate, ListenerHello, ListenerPatch, ListenersList
from moorage.control.routes.deployments import Limit, Offset
from moorage.control.routes.rooms import REFUSED, control
from moorage.control.tunnels import Tunnel
from moorage.http.access import admitted, needs
from moorage.http.answers import json_answer
from moorage.http.operations import operation
from moorage.http.requests import read_json
from moorage.kernel.access import Caller, Scope
from moorage.kernel.errors import BadRequestError, MoorageError, UnavailableError

router = APIRouter(prefix="/listeners", tags=["Listeners (v2)"])

_READ = Scope.DEPLOYMENTS_READ
_WRITE = Scope.DEPLOYMENTS_WRITE
# The reason of a refusal is sent in the close frame, which has room for this many bytes.
_REASON_BYTES_MAX = 120
_REFUSED, _ENDED = 4400, 1000  # the first is from the range that applications may define
_HELLO_S = 10.0
_CHECK_S = 2.0  # a tunnel ends within this time after its key is revoked


@router.get("", **operation(gives=ListenersList, errors=(*REFUSED, 422)))
async def list_listeners(
    request: Request, limit: Limit = 20, offset: Offset = 0, caller: Caller = needs(_READ)
) -> Response:
    """List the listeners of the workspace, newest first."""
    return json_answer(await control(request).listeners.list(caller, limit, offset))


@router.post("", **operation(body=ListenerCreate, gives=Listener, errors=(*REFUSED, 409, 422), status=201))
async def create_listener(request: Request, caller: Caller = needs(_WRITE)) -> Response:
    """Make a listener for a machine that will run agents."""
    new = await read_json(request, ListenerCreate)
    return json_answer(await control(request).listeners.create(caller, new), status=201)


@router.get("/{listener_id}", **operation(gives=Listener, errors=(*REFUSED, 404, 422)))
async def get_listener(request: Request, listener_id: UUID, caller: Caller = needs(_READ)) -> Response:
    """Read a listener, and whether it is connected."""
    return json_answer(await control(request).listeners.get(caller, listener_id))


@router.patch("/{listener_id}", **operation(body=ListenerPatch, gives=Listener, errors=(*REFUSED, 400, 404, 422)))
async def patch_listener(request: Request, listener_id: UUID, caller: Caller = needs(_WRITE)) -> Response:
    """Change the version or the namespaces of a listener."""
    patch = await read_json(request, ListenerPatch)
    return json_answer(await control(request).listeners.update(caller, listener_id, patch))


@router.delete("/{listener_id}", **operation(errors=(*REFUSED, 404, 409, 422), status=204))
async def delete_listener(request: Request, listener_id: UUID, caller: Caller = needs(_WRITE)) -> Response:
    """Delete a listener that no deployment names."""
    await control(request).listeners.delete(caller, listener_id)
    return Response(status_code=204)


@router.websocket("/{listener_id}/tunnels")
async def open_tunnel(websocket: WebSocket, listener_id: UUID) -> None:
    """Open a tunnel of a listener. Secrets of deployments go through it. A key that may write deployments could read them
    anyway, by code that it deploys.
    """
    await websocket.accept()  # an earlier refusal could not send a reason
    try:
        caller = await admitted(websocket, _WRITE)
        tunnel, hello = Tunnel(_sender(websocket)), await _read_hello(websocket)
        await _carry(websocket, caller, listener_id, hello, tunnel)
    except MoorageError as error:
        code, reason = _REFUSED + error.status - 400, str(error).encode()[:_REASON_BYTES_MAX].decode(errors="ignore")
    else:
        code, reason = _ENDED, ""
    with suppress(RuntimeError, WebSocketDisconnect):  # the other end may have closed it
        await websocket.close(code, reason)


def _sender(websocket: WebSocket) -> Callable[[bytes], Awaitable[None]]:
    async def send(message: bytes) -> None:
        try:
            await websocket.send_bytes(message)
        except (RuntimeError, WebSocketDisconnect) as error:
            raise ConnectionError from error

    return send


async def _read_hello(websocket: WebSocket) -> ListenerHello:
    """Read the first message. Raises BadRequestError when it does not come in time or is invalid."""
    try:
        async with asyncio.timeout(_HELLO_S):
            return ListenerHello.model_validate_json(await websocket.receive_text())
    except (TimeoutError, ValidationError, KeyError, WebSocketDisconnect):
        raise BadRequestError("The first message says nothing of the listener") from None


async def _carry(websocket: WebSocket, caller: Caller, listener_id: UUID, hello: ListenerHello, tunnel: Tunnel) -> None:
    """Carry messages until the tunnel ends. Raises UnauthenticatedError or ForbiddenError when the key is revoked
    meanwhile.
    """
    feeding = asyncio.create_task(_feed(websocket, tunnel))
    checking = asyncio.create_task(_check_key(websocket, tunnel))
    try:
        await control(websocket).listeners.connect(caller, listener_id, hello, tunnel)
        if checking.done():
            checking.result()
    finally:
        for task in (feeding, checking):
            task.cancel()
        await asyncio.gather(feeding, checking, return_exceptions=True)


async def _check_key(websocket: WebSocket, tunnel: Tunnel) -> None:
    try:
        while True:
            await asyncio.sleep(_CHECK_S)
            with suppress(UnavailableError):
                await admitted(websocket, _WRITE)
    finally:
        tunnel.end()


async def _feed(websocket: WebSocket, tunnel: Tunnel) -> None:
    try:
        while (message := await websocket.receive())["type"] == "websocket.receive":
            await tunnel.feed(message.get("bytes") or b"")
        await tunnel.feed(None)
    finally:
        tunnel.end()
