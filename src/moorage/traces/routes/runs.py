"""`/runs`, reading: queries, single runs, statistics, threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from moorage.http.access import needs
from moorage.http.operations import operation
from moorage.http.requests import read_json
from moorage.http.validation import InvalidFieldsError
from moorage.kernel.access import Caller, Scope
from moorage.kernel.errors import BadRequestError
from moorage.traces.records.runs import (
    DEFAULT_SELECT,
    QueryValidation,
    RunGroupQuery,
    RunGroupStats,
    RunSelect,
    RunSeries,
    RunSeriesQuery,
    RunsPage,
    RunsQuery,
    RunStats,
    RunStatsQuery,
    ThreadPreview,
    TraceRun,
)
from moorage.traces.records.words import At
from moorage.traces.routes.answers import json_answer
from moorage.traces.routes.rooms import traces
from moorage.traces.routes.run_bodies import Form
from moorage.traces.searches import InvalidFiltersError, faults_of
from moorage.traces.threads import roots_of_threads

router = APIRouter(prefix="/runs", tags=["run"])

_REFUSED = (401, 403)
_LIMIT_MAX = 100
# What is left out of a run on request: it may be large.
_STORED_APART: frozenset[RunSelect] = frozenset({"inputs", "outputs", "events", "serialized"})
_ONE_RUN: tuple[RunSelect, ...] = (*DEFAULT_SELECT, "s3_urls", "child_run_ids")


@contextmanager
def filters_in_body() -> Iterator[None]:
    """A filter that cannot be read is a wrong field of the body: 422 that says which one."""
    try:
        yield
    except InvalidFiltersError as error:
        items = [
            {"loc": ["body", fault["field"]], "msg": fault["message"], "type": error.code} for fault in error.faults
        ]
        raise InvalidFieldsError(str(error), items) from error  # type: ignore[arg-type]


@router.post("/query", **operation(body=RunsQuery, gives=RunsPage, errors=(*_REFUSED, 400, 422)))
async def query_runs(request: Request, caller: Caller = needs(Scope.RUNS_READ)) -> Response:
    """List runs that match, a page at a time."""
    search = await read_json(request, RunsQuery)
    if search.limit > _LIMIT_MAX:
        raise BadRequestError(f"Limit exceeds maximum allowed value of {_LIMIT_MAX}")
    form, room = Form(search.select), traces(request)
    with filters_in_body():
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
    with filters_in_body():
        found = await traces(request).statistics.of_runs(caller.workspace_id, search)
    return json_answer(found)


@router.post("/stats/series", **operation(body=RunSeriesQuery, gives=RunSeries, errors=(*_REFUSED, 400, 422)))
async def get_series(request: Request, caller: Caller = needs(Scope.RUNS_READ)) -> Response:
    """Return statistics of the runs that match over time, in intervals of equal length."""
    search = await read_json(request, RunSeriesQuery)
    with filters_in_body():
        found = await traces(request).statistics.over_time(caller.workspace_id, search)
    return json_answer(found)


@router.post("/group", **operation(body=RunGroupQuery, gives=dict[str, Any], errors=(*_REFUSED, 422)))
async def group_runs(request: Request, caller: Caller = needs(Scope.RUNS_READ)) -> Response:
    """List the threads of a project with statistics of each."""
    search = await read_json(request, RunGroupQuery)
    with filters_in_body():
        found = await traces(request).threads.list(caller.workspace_id, search)
    return json_answer(found)


@router.post("/group/stats", **operation(body=RunGroupQuery, gives=RunGroupStats, errors=(*_REFUSED, 422)))
async def get_group_stats(request: Request, caller: Caller = needs(Scope.RUNS_READ)) -> Response:
    """Return statistics of the threads that match."""
    search = await read_json(request, RunGroupQuery)
    with filters_in_body():
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
    form, room = Form(select), traces(request)
    row = await room.reading.get(caller.workspace_id, run_id, fields=form.needs, session_id=session_id)
    return json_answer(form.body(row, caller.workspace_id, room.attachments.url))
