"""v2 of the wire, as far as its clients read runs, traces and threads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from moorage.http.access import needs
from moorage.http.operations import operation
from moorage.http.requests import read_json
from moorage.http.sse import EventStream, frame
from moorage.kernel.access import Caller, Scope
from moorage.kernel.encoding import encode_with_z
from moorage.kernel.errors import BadRequestError, InvalidRequestError, NotFoundError
from moorage.traces.records.run_fields import (
    AGGREGATES,
    THREAD_TRACE,
    Form,
    Row,
    RunSelectV2,
    RunV2,
    ThreadTrace,
    ThreadTraceSelect,
    form_v2,
)
from moorage.traces.records.runs import RunsFilter
from moorage.traces.records.runs_v2 import (
    RunsQueryV2,
    RunUrl,
    ThreadItem,
    ThreadsFilter,
    ThreadsQuery,
    TraceRunsV2,
    TracesQuery,
    TraceV2,
    page_v2,
)
from moorage.traces.records.statistics import (
    OF_THREAD,
    OF_THREADS,
    ThreadsStats,
    ThreadsStatsQuery,
    ThreadStatsSelect,
    ThreadStatsV2,
)
from moorage.traces.records.words import At, JsonObject, RunType
from moorage.traces.routes.answers import json_answer
from moorage.traces.routes.problems import ProblemRoute
from moorage.traces.routes.rooms import traces
from moorage.traces.threads import roots_of_thread

router = APIRouter(tags=["v2"], route_class=ProblemRoute)

_ERRORS = (400, 401, 403, 404, 422, 503)
_DAY = timedelta(days=1)
_TRACE_RUNS_MAX = 25_000
_STREAMED_AT_ONCE = 100


@router.post("/runs/query", **operation(body=RunsQueryV2, gives=page_v2("RunsPageV2", list[RunV2]), errors=_ERRORS))
async def query_runs(request: Request, caller: Caller = needs(Scope.RUNS_READ)) -> Response:
    """List runs that match, a page at a time."""
    asked = await read_json(request, RunsQueryV2)
    if (asked.project_ids is None) is (asked.reference_dataset_id is None):
        raise InvalidRequestError("Give exactly one of project_ids and reference_dataset_id")
    if asked.project_ids is None:
        raise NotFoundError(f"Dataset {asked.reference_dataset_id} not found")
    form = form_v2(asked.selects or ["ID"])
    search = _search(
        asked,
        session=asked.project_ids,
        reference_example=asked.reference_examples,
        trace=asked.trace_id,
        run_type=RunType(asked.run_type.lower()) if asked.run_type else None,
        is_root=asked.is_root,
        error=asked.has_error,
        filter=asked.filter,
        trace_filter=asked.trace_filter,
        search_filter=_any_of("id", asked.ids),
    )
    found = await traces(request).reading.query(
        caller.workspace_id,
        search,
        fields=form.needs,
        order="asc" if asked.sort_order == "ASC" else "desc",
        limit=asked.page_size,
        cursor=asked.cursor,
    )
    return _page(request, _bodies(request, caller, form, found.runs), found.next)


@router.get("/runs/{run_id}", **operation(gives=RunV2, errors=_ERRORS))
async def get_run(
    request: Request,
    run_id: UUID,
    project_id: UUID,
    selects: Annotated[list[RunSelectV2] | None, Query()] = None,
    start_time: At | None = None,
    caller: Caller = needs(Scope.RUNS_READ),
) -> Response:
    """Return a run. `start_time` is a hint that makes the search faster; it is not needed."""
    form = form_v2(selects or ["ID"])
    row = await traces(request).reading.get(caller.workspace_id, run_id, fields=form.needs, session_id=project_id)
    return json_answer(_bodies(request, caller, form, [row])[0])


@router.get("/runs/{run_id}/url", **operation(gives=RunUrl, errors=_ERRORS))
async def get_run_url(
    request: Request, run_id: UUID, project_id: UUID, trace_id: UUID, caller: Caller = needs(Scope.RUNS_READ)
) -> Response:
    """Return the address of a run in the console."""
    origin = str(request.base_url).rstrip("/")
    place = f"/o/{caller.workspace_id}/projects/p/{project_id}/r/{run_id}"
    return json_answer({"url": f"{origin}{place}?trace_id={trace_id}&poll=true"})


@router.post("/traces/query", **operation(body=TracesQuery, gives=page_v2("TracesPage", list[TraceV2]), errors=_ERRORS))
async def query_traces(request: Request, caller: Caller = needs(Scope.RUNS_READ)) -> Response:
    """List traces that match, a page at a time."""
    asked = await read_json(request, TracesQuery)
    of_whole = [name for name in asked.selects or () if name.lower() in AGGREGATES]
    of_root = [name for name in asked.selects or () if name not in of_whole]
    root, whole = form_v2(of_root or ["ID"]), form_v2(of_whole, AGGREGATES)
    search = _search(
        asked,
        session=[asked.project_id],
        is_root=True,
        filter=asked.trace_filter,
        search_filter=_any_of("trace_id", asked.trace_ids),
        end_time=_before(asked.max_start_time),
    )
    found = await traces(request).reading.query(
        caller.workspace_id, search, fields={*root.needs, *whole.needs}, limit=asked.page_size, cursor=asked.cursor
    )
    items: list[JsonObject] = [{"root_run": body} for body in _bodies(request, caller, root, found.runs)]
    if of_whole:
        for item, body in zip(items, _bodies(request, caller, whole, found.runs), strict=True):
            item["trace_aggregates"] = body
    return _page(request, items, found.next)


@router.get("/traces/{trace_id}/runs", **operation(gives=TraceRunsV2, errors=_ERRORS))
async def list_trace_runs(
    request: Request,
    trace_id: UUID,
    project_id: UUID,
    min_start_time: At | None = None,
    max_start_time: At | None = None,
    filter: str | None = None,  # noqa: A002 - the wire calls it so
    selects: Annotated[list[RunSelectV2] | None, Query()] = None,
    caller: Caller = needs(Scope.RUNS_READ),
) -> Response:
    """List the runs of a trace."""
    form = form_v2(selects or ["ID"])
    search = RunsFilter(
        session=[project_id], trace=trace_id, filter=filter, start_time=min_start_time, end_time=max_start_time
    )
    found = await traces(request).reading.query(
        caller.workspace_id, search, fields=form.needs, order="asc", limit=_TRACE_RUNS_MAX
    )
    return json_answer({"items": _bodies(request, caller, form, found.runs)})


@router.post(
    "/threads/query", **operation(body=ThreadsQuery, gives=page_v2("ThreadsPage", list[ThreadItem]), errors=_ERRORS)
)
async def query_threads(request: Request, caller: Caller = needs(Scope.RUNS_READ)) -> Response:
    """List threads that match, a page at a time."""
    asked = await read_json(request, ThreadsQuery)
    items, following = await traces(request).threads.page(
        caller.workspace_id, _roots_of_threads(asked), limit=asked.page_size, cursor=asked.cursor
    )
    return _page(request, [_known(item) for item in items], following)


@router.post("/threads/stats", **operation(body=ThreadsStatsQuery, gives=ThreadsStats, errors=_ERRORS))
async def get_threads_stats(request: Request, caller: Caller = needs(Scope.RUNS_READ)) -> Response:
    """Return statistics of the threads that match."""
    asked = await read_json(request, ThreadsStatsQuery)
    wanted = dict(OF_THREADS[name] for name in asked.select)
    found = await traces(request).statistics.of_threads(caller.workspace_id, _roots_of_threads(asked), wanted.values())
    return json_answer(_known({shown: found[name] for shown, name in wanted.items()}))


@router.get(
    "/threads/{thread_id:path}/traces",
    **operation(gives=page_v2("ThreadTracesPage", list[ThreadTrace]), errors=_ERRORS),
)
async def list_thread_traces(
    request: Request,
    thread_id: str,
    project_id: UUID,
    selects: Annotated[list[ThreadTraceSelect] | None, Query()] = None,
    filter: str | None = None,  # noqa: A002 - the wire calls it so
    trace_filter: str | None = None,
    tree_filter: str | None = None,
    page_size: Annotated[int, Query(ge=1, le=100)] = 20,
    cursor: str | None = None,
    caller: Caller = needs(Scope.RUNS_READ),
) -> Response:
    """List the traces of a thread, newest first."""
    form, room = form_v2(["TRACE_ID", *(selects or [])], THREAD_TRACE), traces(request)
    search = roots_of_thread(project_id, thread_id, filter).model_copy(
        update={"trace_filter": trace_filter, "tree_filter": tree_filter}
    )
    found = await room.reading.query(caller.workspace_id, search, fields=form.needs, limit=page_size, cursor=cursor)
    if "turn_number" in form.fields:
        turns = await room.threads.turns(caller.workspace_id, project_id, thread_id)
        for row in found.runs:
            row["turn_number"] = turns.get(row["id"])
    return _page(request, _bodies(request, caller, form, found.runs), found.next)


@router.get("/threads/{thread_id:path}/stats", **operation(gives=ThreadStatsV2, errors=_ERRORS))
async def get_thread_stats(
    request: Request,
    thread_id: str,
    session_id: UUID,
    selects: Annotated[list[ThreadStatsSelect], Query(min_length=1)],
    filter: str | None = None,  # noqa: A002 - the wire calls it so
    caller: Caller = needs(Scope.RUNS_READ),
) -> Response:
    """Return statistics of a thread."""
    wanted = dict(OF_THREAD[name] for name in selects)
    found = await traces(request).statistics.of_thread(
        caller.workspace_id, roots_of_thread(session_id, thread_id, filter), wanted.values()
    )
    stats = _known({shown: found[name] for shown, name in wanted.items()})
    return json_answer({name: {"raw": value} if name.endswith("_details") else value for name, value in stats.items()})


def _roots_of_threads(asked: ThreadsFilter) -> RunsFilter:
    if asked.thread_filter:
        raise BadRequestError("thread_filter is not served; use filter, trace_filter or tree_filter")
    return _search(
        asked,
        session=[asked.project_id],
        is_root=True,
        filter=asked.filter,
        trace_filter=asked.trace_filter,
        search_filter="exists(thread_id)",
    )


def _search(asked: RunsQueryV2 | TracesQuery | ThreadsFilter, **conditions: Any) -> RunsFilter:
    """Write a search with these conditions, in the time window that is asked for or the last day."""
    if asked.ai_query or asked.ai_search:
        raise BadRequestError("Search in plain language is not served; use filter, trace_filter or tree_filter")
    window = {
        "tree_filter": asked.tree_filter,
        "start_time": asked.min_start_time or datetime.now(UTC) - _DAY,
        "end_time": asked.max_start_time,
        "min_feedback_modified_at": asked.min_feedback_modified_at,
        "max_feedback_modified_at": asked.max_feedback_modified_at,
    }
    return RunsFilter(**(window | conditions))


def _bodies(request: Request, caller: Caller, form: Form, rows: Iterable[Row]) -> list[JsonObject]:
    url = traces(request).attachments.url
    return [form.body(row, caller.workspace_id, url) for row in rows]


def _known(item: JsonObject) -> JsonObject:
    return {name: value for name, value in item.items() if value is not None}


def _before(given: datetime | None) -> datetime | None:
    """Convert an exclusive bound to an inclusive one."""
    return None if given is None else max(given, datetime.min.replace(tzinfo=UTC) + _DAY) - timedelta(microseconds=1)


def _any_of(field: str, ids: Sequence[UUID] | None) -> str | None:
    if not ids:
        return None
    quoted = ", ".join(f'"{each}"' for each in ids)
    return f"in({field}, [{quoted}])"


def _page(request: Request, items: Sequence[JsonObject], following: str | None) -> Response:
    """Answer with a page as JSON, or, to clients that accept an event stream, as patches of a growing JSON document."""
    if "text/event-stream" in request.headers.get("accept", ""):
        return EventStream(_patches(items, following))
    return json_answer({"items": items, "next_cursor": following, "has_more": following is not None})


async def _patches(items: Sequence[JsonObject], following: str | None) -> AsyncIterator[bytes]:
    yield _patch([{"op": "add", "path": "", "value": {"items": [], "next_cursor": None}}])
    for at in range(0, len(items), _STREAMED_AT_ONCE):
        some = items[at : at + _STREAMED_AT_ONCE]
        yield _patch([{"op": "add", "path": "/items/-", "value": item} for item in some])
    yield _patch([{"op": "replace", "path": "/next_cursor", "value": following}])


def _patch(operations: list[JsonObject]) -> bytes:
    return frame("data", encode_with_z(operations))
