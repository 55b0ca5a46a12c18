"""Threads of traces: conversations, which root runs name in their metadata. Only runs are stored, not threads."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import UUID

from moorage.kernel.clickhouse import ClickHouse
from moorage.kernel.errors import BadRequestError, NotFoundError
from moorage.traces.filter_language.text import render
from moorage.traces.filter_language.tree import FIELDS, Compare
from moorage.traces.paging import Paging, decode_cursor, encode_cursor
from moorage.traces.records.run_texts import followed_by, messages, payload, preview, thread_previews
from moorage.traces.records.runs import RunGroupQuery, RunsFilter
from moorage.traces.records.words import JsonObject
from moorage.traces.searches import selection_of
from moorage.traces.store.feedback import FeedbackStore
from moorage.traces.store.run_reads import PageRequest, Row, RunKey, RunReads
from moorage.traces.store.run_statistics import RunStatistics
from moorage.traces.store.selections import Selection

# A preview shows the last turns of a thread, at most this number.
_TURNS_MAX = 100
_COUNTED_TURNS_MAX = 10_000
_BY_THREAD = "arrayFirstIndex(ids -> has(ids, assumeNotNull(run_id)), {threads:Array(Array(UUID))})"
_RUNS_OF_THREADS = "SELECT arrayJoin(arrayFlatten({threads:Array(Array(UUID))}))"


def roots_of_threads(search: RunGroupQuery) -> RunsFilter:
    """Write the search for root runs that belong to some thread."""
    return RunsFilter(
        session=[search.session_id],
        is_root=True,
        filter=search.filter,
        start_time=search.start_time,
        end_time=search.end_time,
        search_filter="exists(thread_id)",
    )


def roots_of_thread(session_id: UUID, thread_id: str, text: str | None = None) -> RunsFilter:
    """Write the search for the root runs of one thread that the filter selects."""
    named = render(Compare("eq", FIELDS["thread_id"], thread_id))
    return RunsFilter(session=[session_id], is_root=True, filter=text, search_filter=named)


class TraceThreads:
    def __init__(self, clickhouse: ClickHouse, feedback: FeedbackStore) -> None:
        self._paging = Paging(clickhouse)
        self._runs = RunReads(clickhouse)
        self._statistics = RunStatistics(clickhouse)
        self._feedback = feedback

    async def list(self, workspace_id: UUID, search: RunGroupQuery) -> JsonObject:
        """Return the `groups` of a page by offset, and the `total` of threads. Raises InvalidFiltersError (422)."""
        selection = selection_of(workspace_id, roots_of_threads(search))
        rows, counted = await asyncio.gather(
            self._statistics.threads(selection, limit=search.limit, offset=search.offset),
            self._statistics.of_groups(selection, ["group_count"], of_traces=False),
        )
        groups = [
            {
                "group_key": thread["thread_id"],
                "filter": render(Compare("eq", FIELDS["thread_id"], thread["thread_id"])),
                **thread,
            }
            for thread in await self._shown(selection, rows)
        ]
        return {"groups": groups, "total": counted[""]["group_count"] if counted else 0}

    async def page(
        self, workspace_id: UUID, search: RunsFilter, *, limit: int, cursor: str | None
    ) -> tuple[Sequence[JsonObject], str | None]:
        """Return threads of the selected root runs, most recently active first, and the next cursor."""
        selection = selection_of(workspace_id, search)
        rows = await self._statistics.threads(selection, limit=limit + 1, after=_position(cursor))
        more, rows = len(rows) > limit, rows[:limit]
        following = encode_cursor([rows[-1]["max_start_time"].isoformat(), rows[-1]["thread_id"]]) if more else None
        return await self._shown(selection, rows), following

    async def turns(self, workspace_id: UUID, session_id: UUID, thread_id: str) -> dict[UUID, int]:
        """Number the traces of the whole thread, from 1 on."""
        selection = selection_of(workspace_id, roots_of_thread(session_id, thread_id))
        page = await self._paging.page(selection, PageRequest(_COUNTED_TURNS_MAX, newest_first=False))
        return {run.key.id: number for number, run in enumerate(page, 1)}

    async def preview(self, workspace_id: UUID, session_id: UUID, thread_id: str) -> dict[str, str]:
        """Return the conversation as texts. Raises NotFoundError for a thread without runs."""
        selection = selection_of(workspace_id, roots_of_thread(session_id, thread_id))
        page = await self._paging.page(selection, PageRequest(_TURNS_MAX))
        keys = [run.key for run in page]
        if not keys:
            raise NotFoundError("Thread not found")
        rows = await self._runs.rows(workspace_id, keys, ("inputs", "outputs"))
        conversation: list[JsonObject] = []
        for key in reversed(keys):
            if row := rows.get(key.place):
                inputs, outputs = (payload(row[name]) for name in ("inputs", "outputs"))
                conversation = followed_by(conversation, messages(inputs, outputs))
        return thread_previews(conversation)

    async def _shown(self, selection: Selection, rows: Sequence[Row]) -> Sequence[JsonObject]:
        if not rows:
            return []
        firsts, lasts = (
            [RunKey(row["session_id"], row[at], row[id_], row[id_]) for row in rows]
            for at, id_ in (("min_start_time", "first_trace_id"), ("max_start_time", "last_trace_id"))
        )
        runs = {"threads": [row["ids"] for row in rows]}
        inputs, outputs, feedback = await asyncio.gather(
            self._runs.rows(selection.workspace_id, firsts, ("inputs_head",)),
            self._runs.rows(selection.workspace_id, lasts, ("outputs_head",)),
            self._feedback.stats_of_runs(selection.workspace_id, _RUNS_OF_THREADS, runs, by=_BY_THREAD),
        )
        return [
            {
                **{name: value for name, value in row.items() if name not in {"session_id", "ids"}},
                "start_time": row["min_start_time"],
                "trace_id": row["last_trace_id"],
                "first_inputs": preview(inputs.get(first.place, {}).get("inputs_head")),
                "last_outputs": preview(outputs.get(last.place, {}).get("outputs_head"), last=True),
                "feedback_stats": feedback.get(number, {}),
            }
            for number, (row, first, last) in enumerate(zip(rows, firsts, lasts, strict=True), 1)
        ]


def _position(cursor: str | None) -> tuple[datetime, str] | None:
    """Read a cursor: when the thread before the page was last active, and its id. Raises BadRequestError."""
    if not cursor:
        return None
    try:
        active_at, thread_id = decode_cursor(cursor)
        return datetime.fromisoformat(active_at).astimezone(UTC), str(thread_id)
    except (ValueError, TypeError, OverflowError):
        raise BadRequestError("Invalid cursor: give one from an earlier page of the same search") from None
