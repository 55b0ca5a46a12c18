"""v2 of the wire, as far as its clients read runs, traces and threads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
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
from moorage.traces.records.runs import RunsFilter
from moorage.traces.records.runs_v2 import (
    RunSelectV2,
    RunsPageV2,
    RunsQueryV2,
    RunUrl,
    RunV2,
    ThreadsPage,
    ThreadsQuery,
    ThreadsStats,
    ThreadsStatsQuery,
    ThreadStatsSelect,
    ThreadStatsV2,
    ThreadTraceSelect,
    ThreadTracesPage,
    TraceRunsV2,
    TracesPage,
    TracesQuery,
)
from moorage.traces.records.words import At, JsonObject, RunType
from moorage.traces.routes.answers import json_answer
from moorage.traces.routes.problems import ProblemRoute
from moorage.traces.routes.rooms import traces
from moorage.traces.routes.run_bodies_v2 import AGGREGATES, RUN_PARTS, THREAD_TRACE_PARTS, FormV2, dollars
from moorage.traces.threads import roots_of_thread

router = APIRouter(tags=["v2"], route_class=ProblemRoute)

_ERRORS = (400, 401, 403, 404, 422, 503)
_DAY = timedelta(days=1)
_TRACE_RUNS_MAX = 25_000
_STREAMED_AT_ONCE = 100


@router.post("/runs/query", **operation(body=RunsQueryV2, gives=RunsPageV2, errors=_ERRORS))
async def query_runs(request: Request, caller: Caller = needs(Scope.RUNS_READ)) -> Response:
    """List runs that match, a page at a time."""
    asked = await read_json(request, RunsQueryV2)
    _refuse_ai(asked.ai_query, asked.ai_search)
    if (asked.project_ids is None) is (asked.reference_dataset_id is None):
        raise InvalidRequestError("Give exactly one of project_ids and reference_dataset_id")
    if asked.project_ids is None:
        raise NotFoundError(f"Dataset {asked.reference_dataset_id} not found")
    form = FormV2(asked.selects or ["ID"])
    search = RunsFilter(
        session=asked.project_ids,
        reference_example=asked.reference_examples,
        trace=asked.trace_id,
        run_type=RunType(asked.run_type.lower()) if asked.run_type else None,
        is_root=asked.is_root,
        error=asked.has_error,
        filter=asked.filter,
        trace_filter=asked.trace_filter,
        tree_filter=asked.tree_filter,
        search_filter=_any_of("id", asked.ids),
        start_time=_since(asked.min_start_time),
        end_time=asked.max_start_time,
        min_feedback_modified_at=asked.min_feedback_modified_at,
        max_feedback_modified_at=asked.max_feedback_modified_at,
    )
    room = traces(request)
    found = await room.reading.query(
        caller.workspace_id,
        search,
        fields=form.needs,
        order="asc" if asked.sort_order == "ASC" else "desc",
        limit=asked.page_size,
        cursor=asked.cursor,
    )
    items = [form.body(row, caller.workspace_id, room.attachments.url) for row in found.runs]
    return _page(request, items, found.next)


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
    form, room = FormV2(selects or ["ID"]), traces(request)
    row = await room.reading.get(caller.workspace_id, run_id, fields=form.needs, session_id=project_id)
    return json_answer(form.body(row, caller.workspace_id, room.attachments.url))


@router.get("/runs/{run_id}/url", **operation(gives=RunUrl, errors=_ERRORS))
async def get_run_url(
    request: Request, run_id: UUID, project_id: UUID, trace_id: UUID, caller: Caller = needs(Scope.RUNS_READ)
) -> Response:
    """Return the address of a run in the console."""
    origin = str(request.base_url).rstrip("/")
    place = f"/o/{caller.workspace_id}/projects/p/{project_id}/r/{run_id}"
    return json_answer({"url": f"{origin}{place}?trace_id={trace_id}&poll=true"})


@router.post("/traces/query", **operation(body=TracesQuery, gives=TracesPage, errors=_ERRORS))
async def query_traces(request: Request, caller: Caller = needs(Scope.RUNS_READ)) -> Response:
    """List traces that match, a page at a time."""
    asked = await read_json(request, TracesQuery)
    _refuse_ai(asked.ai_query, asked.ai_search)
    selects = asked.selects or ["ID"]
    root = FormV2([name for name in selects if name not in AGGREGATES] or ["ID"])
    whole = FormV2([name for name in selects if name in AGGREGATES], AGGREGATES)
    search = RunsFilter(
        session=[asked.project_id],
        is_root=True,
        filter=asked.trace_filter,
        tree_filter=asked.tree_filter,
        search_filter=_any_of("trace_id", asked.trace_ids),
        start_time=_since(asked.min_start_time),
        end_time=_before(asked.max_start_time),
        min_feedback_modified_at=asked.min_feedback_modified_at,
        max_feedback_modified_at=asked.max_feedback_modified_at,
    )
    room = traces(request)
    found = await room.reading.query(
        caller.workspace_id, search, fields={*root.needs, *whole.needs}, limit=asked.page_size, cursor=asked.cursor
    )
    items = [
        {"root_run": root.body(row, caller.workspace_id, room.attachments.url)}
        | ({"trace_aggregates": whole.body(row, caller.workspace_id, room.attachments.url)} if whole.needs else {})
        for row in found.runs
    ]
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
    form, room = FormV2(selects or ["ID"]), traces(request)
    search = RunsFilter(
        session=[project_id], trace=trace_id, filter=filter, start_time=min_start_time, end_time=max_start_time
    )
    found = await room.reading.query(caller.workspace_id, search, fields=form.needs, order="asc", limit=_TRACE_RUNS_MAX)
    return json_answer({"items": [form.body(row, caller.workspace_id, room.attachments.url) for row in found.runs]})


@router.post("/threads/query", **operation(body=ThreadsQuery, gives=ThreadsPage, errors=_ERRORS))
async def query_threads(request: Request, caller: Caller = needs(Scope.RUNS_READ)) -> Response:
    """List threads that match, a page at a time."""
    asked = await read_json(request, ThreadsQuery)
    search = _roots_of_threads(asked)
    items, following = await traces(request).threads.page(
        caller.workspace_id, search, limit=asked.page_size, cursor=asked.cursor
    )
    return _page(request, [_known(item) for item in items], following)


@router.post("/threads/stats", **operation(body=ThreadsStatsQuery, gives=ThreadsStats, errors=_ERRORS))
async def get_threads_stats(request: Request, caller: Caller = needs(Scope.RUNS_READ)) -> Response:
    """Return statistics of the threads that match."""
    asked = await read_json(request, ThreadsStatsQuery)
    made = {_THREADS_STATS.get(name, name.lower()): name for name in asked.select}
    found = await traces(request).statistics.of_threads(caller.workspace_id, _roots_of_threads(asked), list(made))
    named: dict[str, Any] = {made[total]: value for total, value in found.items()}
    return json_answer(_known({_seconds(name.lower()): value for name, value in named.items()}))


def _roots_of_threads(asked: ThreadsQuery | ThreadsStatsQuery) -> RunsFilter:
    _refuse_ai(asked.ai_query, asked.ai_search)
    if asked.thread_filter:
        raise BadRequestError("thread_filter is not served; use filter, trace_filter or tree_filter")
    return RunsFilter(
        session=[asked.project_id],
        is_root=True,
        filter=asked.filter,
        trace_filter=asked.trace_filter,
        tree_filter=asked.tree_filter,
        search_filter="exists(thread_id)",
        start_time=_since(asked.min_start_time),
        end_time=asked.max_start_time,
    )


# Statistics of threads that have another name among those of runs.
_THREADS_STATS = {"THREAD_COUNT": "group_count", "TRACE_COUNT": "run_count", "THREAD_FEEDBACK_STATS": "feedback_stats"}


def _seconds(name: str) -> str:
    return f"{name}_seconds" if name.startswith(("latency_", "first_token_")) else name


@router.get("/threads/{thread_id:path}/traces", **operation(gives=ThreadTracesPage, errors=_ERRORS))
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
    form, room = FormV2(["TRACE_ID", *(selects or [])], THREAD_TRACE_PARTS), traces(request)
    search = roots_of_thread(project_id, thread_id, filter).model_copy(
        update={"trace_filter": trace_filter, "tree_filter": tree_filter}
    )
    found = await room.reading.query(caller.workspace_id, search, fields=form.needs, limit=page_size, cursor=cursor)
    if "TURN_NUMBER" in (selects or []):
        turns = await room.threads.turns(caller.workspace_id, project_id, thread_id)
        for row in found.runs:
            row["turn_number"] = turns.get(row["id"])
    items = [form.body(row, caller.workspace_id, room.attachments.url) for row in found.runs]
    return _page(request, items, found.next)


# The totals that a thread's statistics are made of, by the names under which they are selected and shown.
_THREAD_STATS: dict[str, tuple[str, str]] = {
    "TURNS": ("run_count", "turns"),
    "FIRST_START_TIME": ("first_run_start_time", "first_start_time"),
    "LAST_START_TIME": ("last_run_start_time", "last_start_time"),
    "LAST_END_TIME": ("last_run_end_time", "last_end_time"),
    "LATENCY_P50": ("latency", "latency_p50_seconds"),
    "LATENCY_P99": ("latency", "latency_p99_seconds"),
    **{name: (name.lower(), name.lower()) for name in RUN_PARTS if name.endswith(("TOKENS", "COST", "_DETAILS"))},
}


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
    search, threads = roots_of_thread(session_id, thread_id, filter), traces(request).threads
    made = [name for name in selects if name in _THREAD_STATS]
    totals = await threads.stats(caller.workspace_id, search, [_THREAD_STATS[name][0] for name in made])
    stats = {_THREAD_STATS[name][1]: _shown_total(name, totals[_THREAD_STATS[name][0]]) for name in made}
    if "FEEDBACK_STATS" in selects:
        stats["feedback_stats"] = await threads.feedback_stats(caller.workspace_id, search)
    return json_answer(_known(stats))


def _shown_total(name: str, total: Any) -> Any:
    if name.startswith("LATENCY"):
        return total[0 if name.endswith("P50") else 1]
    if name.endswith("TOKEN_DETAILS"):
        return {"raw": {kind: round(count) for kind, count in total.items()}}
    if name.endswith("COST_DETAILS"):
        return {"raw": total}
    return dollars(total) if name.endswith("COST") else total


def _known(item: JsonObject) -> JsonObject:
    return {name: value for name, value in item.items() if value is not None}


def _since(given: datetime | None) -> datetime:
    return given or datetime.now(UTC) - _DAY


def _before(given: datetime | None) -> datetime | None:
    """An exclusive bound as an inclusive one."""
    return None if given is None else max(given, datetime.min.replace(tzinfo=UTC) + _DAY) - timedelta(microseconds=1)


def _any_of(field: str, ids: Sequence[UUID] | None) -> str | None:
    if not ids:
        return None
    quoted = ", ".join(f'"{each}"' for each in ids)
    return f"in({field}, [{quoted}])"


def _refuse_ai(*asked: str | None) -> None:
    if any(asked):
        raise BadRequestError("Search in plain language is not served; use filter, trace_filter or tree_filter")


def _page(request: Request, items: Sequence[JsonObject], following: str | None) -> Response:
    """A page as JSON; or, for who accepts a stream of events, as patches of a JSON document that grows."""
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
