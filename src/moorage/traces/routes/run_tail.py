"""`/runs/tail`: the live tail of a search, as server-sent events."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from moorage.http.access import admitted, needs
from moorage.http.operations import operation
from moorage.http.requests import read_json
from moorage.http.sse import EventStream, Frames, frame, with_heartbeats
from moorage.kernel.access import Caller, Scope
from moorage.kernel.encoding import encode_with_z
from moorage.kernel.errors import BadRequestError, ForbiddenError, UnauthenticatedError
from moorage.traces.records.runs import RunsTailQuery
from moorage.traces.routes.rooms import traces
from moorage.traces.routes.run_bodies import Form, Row
from moorage.traces.routes.runs import filters_in_body
from moorage.traces.tailing import TailedRuns

router = APIRouter(prefix="/runs", tags=["run"])

_EPOCH, _TICK = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
_ASK_AGAIN_S = 5.0


@router.post("/tail", **operation(body=RunsTailQuery, errors=(400, 401, 403, 422, 429), streams=True))
async def tail_runs(request: Request, caller: Caller = needs(Scope.RUNS_READ)) -> Response:
    """Follow the runs that match: an event `run` for each that is new or has changed.

    The stream goes on until the client leaves, or until an event `error` says that its credentials no longer hold. Who was
    cut off sends the id of the last event as `Last-Event-ID`; runs of the last seconds may come again. Runs that began more
    than a day ago are left out.
    """
    search = await read_json(request, RunsTailQuery)
    form, room = Form(search.select), traces(request)
    with filters_in_body():
        runs = room.tailing.follow(caller.workspace_id, search, fields=form.needs, since=_last_event(request))

    def write(row: Row) -> Any:
        return form.body(row, caller.workspace_id, room.attachments.url)

    return EventStream(with_heartbeats(_frames(request, runs, write)))


def _last_event(request: Request) -> datetime | None:
    """Raises BadRequestError for an id that no event has had."""
    text = request.headers.get("last-event-id")
    if not text:
        return None
    try:
        return _EPOCH + int(text) * _TICK
    except (ValueError, OverflowError):
        raise BadRequestError("Last-Event-ID is not the id of an event of this stream") from None


async def _frames(request: Request, runs: TailedRuns, write: Callable[[Row], Any]) -> Frames:
    admitted_at = time.monotonic()
    async with aclosing(runs):
        async for some in runs:
            if time.monotonic() - admitted_at >= _ASK_AGAIN_S:
                try:
                    await admitted(request, Scope.RUNS_READ)
                except (UnauthenticatedError, ForbiddenError) as error:
                    yield [frame("error", encode_with_z({"detail": str(error)}))]
                    return
                admitted_at = time.monotonic()
            yield [_frame(at, write(row)) for at, row in some]


def _frame(at: datetime, body: Any) -> bytes:
    return frame("run", encode_with_z(body), str((at - _EPOCH) // _TICK))
