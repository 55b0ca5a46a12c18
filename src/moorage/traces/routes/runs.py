"""`/runs`, reading: queries, single runs, statistics, threads, and the live tail of a search."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Query
from starlette.requests import Request
from starlette.responses import Response

from moorage.http.access import admitted, needs
from moorage.http.operations import operation
from moorage.http.requests import read_json
from moorage.http.sse import EventStream, Frames, frame, with_heartbeats
from moorage.http.validation import InvalidFieldsError
from moorage.kernel.access import Caller, Scope
from moorage.kernel.encoding import encode_with_z
from moorage.kernel.errors import BadRequestError, ForbiddenError, UnauthenticatedError
from moorage.traces.records.run_fields import DEFAULT_SELECT, Row, RunSelect, TraceRun, form_v1
from moorage.traces.records.runs import (
    QueryValidation,
    RunGroupQuery,
    RunsPage,
    RunsQuery,
    RunsTailQuery,
    ThreadPreview,
)
from moorage.traces.records.statistics import RunGroupStats, RunSeries, RunSeriesQuery, RunStats, RunStatsQuery
from moorage.traces.records.words import At, time_of, us_of
from moorage.traces.routes.answers import json_answer
from moorage.traces.routes.rooms import traces
from moorage.traces.searches import InvalidFiltersError, faults_of
from moorage.traces.tailing import TailedRuns
from moorage.traces.threads import roots_of_threads

_REFUSED = (401, 403)
_LIMIT_MAX = 100
# Fields that a request may exclude, since they may be large.
_STORED_APART: frozenset[RunSelect] = frozenset({"inputs", "outputs", "events", "serialized"})
_ASK_AGAIN_S = 5.0
_ONE_RUN: tuple[RunSelect, ...] = (*DEFAULT_SELECT, "s3_urls", "child_run_ids")


async def _filters_in_body() -> AsyncIterator[None]:
    """Answer a filter that cannot be read with 422, as a wrong field of the body."""
    try:
        yield
    except InvalidFiltersError as error:
        items = [
            {"loc": ["body", fault["field"]], "msg": fault["message"], "type": error.code} for fault in error.faults
        ]
        raise InvalidFieldsError(str(error), items) from error  # type: ignore[arg-type]


router = APIRouter(prefix="/runs", tags=["run"], dependencies=[Depends(_filters_in_body)])


@router.post("/query", **operation(body=RunsQuery, gives=RunsPage, errors=(*_REFUSED, 400, 422)))
async def query_runs(request: Request, caller: Caller = needs(Scope.RUNS_READ)) -> Response:
    """List runs that match, a page at a time."""
    search = await read_json(request, RunsQuery)
    if search.limit > _LIMIT_MAX:
        raise BadRequestError(f"Limit exceeds maximum allowed value of {_LIMIT_MAX}")
    form, room = form_v1(search.select), traces(request)
    found = await room.reading.query(
        caller.workspace_id,
        search,
        fields=form.needs,
        order=search.order,
        limit=search.limit,
        cursor=search.cursor,
    )
    return json_answer(
        {
            "runs": [form.body(row, caller.workspace_id, room.attachments.url) for row in found.runs],
            "cursors": {"next": None, "prev": None}
            if search.skip_pagination
            else {"next": found.next, "prev": None if search.skip_prev_cursor else found.previous},
            "search_cursors": None,
            "parsed_query": None,
        }
    )


@router.post("/query/validate", **operation(body=RunsQuery, gives=QueryValidation, errors=(*_REFUSED, 422)))
async def validate_query(request: Request, caller: Caller = needs(Scope.RUNS_READ)) -> Response:
    """Say whether a query of runs is valid, and what is wrong with it."""
    faults = faults_of(await read_json(request, RunsQuery))
    return json_answer({"valid": not faults, "errors": faults})


@router.post(
    "/stats", **operation(body=RunStatsQuery, gives=RunStats | dict[str, RunStats], errors=(*_REFUSED, 400, 422))
)
async def get_stats(request: Request, caller: Caller = needs(Scope.RUNS_READ)) -> Response:
    """Return statistics of the runs that match, in total or by group."""
    search = await read_json(request, RunStatsQuery)
    return json_answer(await traces(request).statistics.of_runs(caller.workspace_id, search))


@router.post("/stats/series", **operation(body=RunSeriesQuery, gives=RunSeries, errors=(*_REFUSED, 400, 422)))
async def get_series(request: Request, caller: Caller = needs(Scope.RUNS_READ)) -> Response:
    """Return statistics of the runs that match over time, in intervals of equal length."""
    search = await read_json(request, RunSeriesQuery)
    return json_answer(await traces(request).statistics.over_time(caller.workspace_id, search))


@router.post("/group", **operation(body=RunGroupQuery, gives=dict[str, Any], errors=(*_REFUSED, 422)))
async def group_runs(request: Request, caller: Caller = needs(Scope.RUNS_READ)) -> Response:
    """List the threads of a project with statistics of each."""
    search = await read_json(request, RunGroupQuery)
    return json_answer(await traces(request).threads.list(caller.workspace_id, search))


@router.post("/group/stats", **operation(body=RunGroupQuery, gives=RunGroupStats, errors=(*_REFUSED, 422)))
async def get_group_stats(request: Request, caller: Caller = needs(Scope.RUNS_READ)) -> Response:
    """Return statistics of the threads that match."""
    search = await read_json(request, RunGroupQuery)
    found = await traces(request).statistics.of_threads(caller.workspace_id, roots_of_threads(search))
    return json_answer(found)


@router.get("/threads/{thread_id:path}", **operation(gives=ThreadPreview, errors=(*_REFUSED, 404, 422)))
async def preview_thread(
    request: Request,
    thread_id: str,
    session_id: UUID,
    select: Annotated[list[Literal["all_messages", "human_ai_pairs", "first_human_last_ai"]] | None, Query()] = None,
    variables: Annotated[list[str] | None, Query()] = None,
    caller: Caller = needs(Scope.RUNS_READ),
) -> Response:
    """Return the conversation of a thread as texts."""
    previews = await traces(request).threads.preview(caller.workspace_id, session_id, thread_id)
    return json_answer(
        {
            "thread_id": thread_id,
            "previews": {name: text for name, text in previews.items() if not select or name in select},
        }
    )


@router.get("/{run_id}", **operation(gives=TraceRun, errors=(*_REFUSED, 404, 422)))
async def get_run(
    request: Request,
    run_id: UUID,
    session_id: UUID | None = None,
    start_time: At | None = None,
    exclude_s3_stored_attributes: bool = False,
    exclude_serialized: bool = False,
    include_messages: bool = False,
    caller: Caller = needs(Scope.RUNS_READ),
) -> Response:
    """Return a run. `start_time` is a hint that makes the search faster; it is not needed."""
    left_out = (
        _STORED_APART if exclude_s3_stored_attributes else frozenset({"serialized"} if exclude_serialized else ())
    )
    select = [name for name in _ONE_RUN if name not in left_out] + (["messages"] if include_messages else [])
    form, room = form_v1(select), traces(request)
    row = await room.reading.get(caller.workspace_id, run_id, fields=form.needs, session_id=session_id)
    return json_answer(form.body(row, caller.workspace_id, room.attachments.url))


@router.post("/tail", **operation(body=RunsTailQuery, errors=(400, 401, 403, 422, 429), streams=True))
async def tail_runs(request: Request, caller: Caller = needs(Scope.RUNS_READ)) -> Response:
    """Follow the runs that match: an event `run` for each that is new or has changed.

    The stream goes on until the client leaves, or until an event `error` says that its credentials no longer hold. Who was
    cut off sends the id of the last event as `Last-Event-ID`; runs of the last seconds may come again. Runs that began more
    than a day ago are left out.
    """
    search = await read_json(request, RunsTailQuery)
    form, room = form_v1(search.select), traces(request)
    runs = room.tailing.follow(caller.workspace_id, search, fields=form.needs, since=_last_event(request))

    def write(row: Row) -> Any:
        return form.body(row, caller.workspace_id, room.attachments.url)

    return EventStream(with_heartbeats(_frames(request, runs, write)))


def _last_event(request: Request) -> datetime | None:
    """Read the id of the last event. Raises BadRequestError for an id that no event has had."""
    text = request.headers.get("last-event-id")
    if not text:
        return None
    try:
        return time_of(int(text))
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
    return frame("run", encode_with_z(body), str(us_of(at)))
