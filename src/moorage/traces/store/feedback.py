"""SQL of feedback. It is stored in the trace store beside the runs, since filters and exports join it.

Rows are written whole, and the last modified row of an id wins. So an update reads the row, changes it and writes it
again.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from string import Template
from typing import Any, NamedTuple
from uuid import UUID

from moorage.kernel.clickhouse import ClickHouse, Columns
from moorage.kernel.encoding import decode, encode_for_storage
from moorage.kernel.gathering import Gathering
from moorage.traces.records.feedback import FeedbackLevel, FeedbackRow, FeedbackSearch
from moorage.traces.records.words import FeedbackStat

# The session of feedback whose run has not arrived.
NOWHERE = UUID(int=0)
_TOGETHER_MAX = 5000
_NONE_KEPT_S = 1.0

_COLUMNS = """id, session_id, run_id, trace_id, start_time, key, score, value, comment, correction, source, extra,
    created_at, modified_at"""
_READ = f"SELECT {_COLUMNS} FROM feedback WHERE tenant_id = {{tenant_id:UUID}} AND id IN {{ids:Array(UUID)}}"
_PAGE = f"""
SELECT {_COLUMNS} FROM feedback WHERE tenant_id = {{tenant_id:UUID}} AND {{where}}
ORDER BY created_at DESC, id LIMIT {{limit:UInt32}} OFFSET {{offset:UInt32}}
"""
# Finds the places of runs by their ids alone. A run has one place, so any of its rows will do.
_LOCATE = """
SELECT id, any(session_id), any(trace_id), min(start_time) FROM trace_run_keys
WHERE tenant_id = {tenant_id:UUID} AND id IN {ids:Array(UUID)} GROUP BY id
"""
_DELETED = "SELECT DISTINCT id FROM deleted_runs WHERE tenant_id = {tenant_id:UUID} AND id IN {ids:Array(UUID)}"
# Feedback that arrived before its run. Only recent feedback is read: the runs of older feedback never came.
_HOMELESS = f"""
SELECT tenant_id, {_COLUMNS} FROM feedback
WHERE session_id = {{nowhere:UUID}} AND modified_at > {{since:DateTime64(6, 'UTC')}} AND run_id IN (
    SELECT id FROM trace_run_keys WHERE start_time > {{since:DateTime64(6, 'UTC')}} - INTERVAL 1 DAY)
LIMIT 10000
"""
# Adds up scores, which are numbers, and values, which are texts. Comments are only kept for the key `note`.
_STATS = """
SELECT {by} AS subject, key, count() AS n, avg(score), min(score), max(score), stddevPop(score),
    countIf(JSONExtractBool(ifNull(extra, ''), 'error')) AS errors,
    groupArrayIf(1000)(JSONExtractString(assumeNotNull(value)), startsWith(ifNull(value, ''), '"')) AS texts,
    groupArrayIf(100)(assumeNotNull(comment), key = 'note' AND isNotNull(comment)) AS comments,
    groupUniqArrayIf(10)(assumeNotNull(source), isNotNull(source)) AS sources
FROM {given} GROUP BY subject, key ORDER BY key
"""
_ANY = "SELECT count() > 0 FROM feedback_rows"
_OF_WORKSPACE = "feedback WHERE tenant_id = {tenant_id:UUID}"
# A run may belong to several groups.
_GROUP_STATS = Template(
    _STATS.format(
        by="grp",
        given=f"($groups) AS grouped INNER JOIN (SELECT * EXCEPT (id) FROM {_OF_WORKSPACE} AND isNotNull(run_id)) AS given"
        " ON grouped.id = given.run_id",
    )
)
_RUN_STATS = _STATS.format(by="run_id", given=f"{_OF_WORKSPACE} AND run_id IN {{ids:Array(UUID)}}")
_SESSION_RUN_STATS = _STATS.format(
    by="session_id", given=f"{_OF_WORKSPACE} AND session_id IN {{ids:Array(UUID)}} AND isNotNull(run_id)"
)
_SESSION_STATS = _STATS.format(
    by="session_id", given=f"{_OF_WORKSPACE} AND session_id IN {{ids:Array(UUID)}} AND isNull(run_id)"
)


class FeedbackTarget(NamedTuple):
    session_id: UUID
    trace_id: UUID | None
    start_time: datetime


class FeedbackStore:
    def __init__(self, clickhouse: ClickHouse) -> None:
        self._clickhouse = clickhouse
        # Each insert costs some 15 ms, however small, and leaves a file. So inserts are grouped.
        self._inserts = Gathering[Sequence[Mapping[str, Any]]](self._insert, (len, _TOGETHER_MAX))
        self._none_until = 0.0

    async def insert(self, workspace_id: UUID, rows: Sequence[FeedbackRow], *, deleted: bool = False) -> None:
        """Write rows durably. The row with the latest `modified_at` wins; `deleted` removes the feedback."""
        if rows:
            marks = {"tenant_id": workspace_id, "is_deleted": int(deleted)}
            await self._inserts.add([{**_written(row), **marks} for row in rows])

    async def _insert(self, members: Sequence[Sequence[Mapping[str, Any]]]) -> None:
        def column(name: str) -> list[Any]:
            return [row[name] for rows in members for row in rows]

        columns: Columns = {
            "tenant_id": ("UUID", column("tenant_id")),
            "id": ("UUID", column("id")),
            "session_id": ("UUID", column("session_id")),
            "run_id": ("Nullable(UUID)", column("run_id")),
            "trace_id": ("Nullable(UUID)", column("trace_id")),
            "start_time": ("DateTime64(6, 'UTC')", column("start_time")),
            "key": ("LowCardinality(String)", column("key")),
            "score": ("Nullable(Float64)", column("score")),
            "value": ("Nullable(String)", column("value")),
            "comment": ("Nullable(String)", column("comment")),
            "correction": ("Nullable(String)", column("correction")),
            "source_type": ("LowCardinality(Nullable(String))", column("source_type")),
            "source": ("Nullable(String)", column("source")),
            "extra": ("Nullable(String)", column("extra")),
            "created_at": ("DateTime64(6, 'UTC')", column("created_at")),
            "modified_at": ("DateTime64(6, 'UTC')", column("modified_at")),
            "is_deleted": ("UInt8", column("is_deleted")),
        }
        await self._clickhouse.insert("feedback_rows", columns)
        self._none_until = 0.0

    async def read(self, workspace_id: UUID, feedback_id: UUID) -> FeedbackRow | None:
        found = await self.read_all(workspace_id, [feedback_id])
        return found.get(feedback_id)

    async def read_all(self, workspace_id: UUID, ids: Sequence[UUID]) -> dict[UUID, FeedbackRow]:
        rows = await self._clickhouse.dicts(_READ, {"tenant_id": workspace_id, "ids": list(ids)})
        return {row["id"]: _read(row) for row in rows}

    async def page(self, workspace_id: UUID, search: FeedbackSearch) -> list[FeedbackRow]:
        """Newest first; one row more than asked for when there are more."""
        where, values = _conditions(search)
        values |= {"tenant_id": workspace_id, "limit": search.limit + 1, "offset": search.offset}
        rows = await self._clickhouse.dicts(_PAGE.replace("{where}", where), values)
        return [_read(row) for row in rows]

    async def locate(self, workspace_id: UUID, run_ids: Collection[UUID]) -> dict[UUID, FeedbackTarget]:
        """Find the places of runs; runs that have not arrived are left out."""
        if not run_ids:
            return {}
        rows = await self._clickhouse.rows(_LOCATE, {"tenant_id": workspace_id, "ids": list(run_ids)})
        return {row[0]: FeedbackTarget(*row[1:]) for row in rows}

    async def deleted(self, workspace_id: UUID, ids: Collection[UUID]) -> set[UUID]:
        """Find the runs, traces and projects that were deleted."""
        if not ids:
            return set()
        rows = await self._clickhouse.rows(_DELETED, {"tenant_id": workspace_id, "ids": list(ids)})
        return {row[0] for row in rows}

    async def homeless(self, since: datetime) -> dict[UUID, list[FeedbackRow]]:
        """Find feedback of all workspaces that arrived before its run, and whose run has arrived since."""
        found: dict[UUID, list[FeedbackRow]] = {}
        for row in await self._clickhouse.dicts(_HOMELESS, {"nowhere": NOWHERE, "since": since}):
            found.setdefault(row.pop("tenant_id"), []).append(_read(row))
        return found

    async def stats_by_run(self, workspace_id: UUID, run_ids: Collection[UUID]) -> dict[UUID, dict[str, FeedbackStat]]:
        """Add up feedback by run and key; runs without feedback are left out."""
        return await self._stats_of_ids(_RUN_STATS, workspace_id, run_ids)

    async def stats_of_runs(
        self, workspace_id: UUID, runs: str, values: Mapping[str, Any], by: str = "''"
    ) -> dict[Any, dict[str, FeedbackStat]]:
        """Add up feedback on the runs that the subselect `runs` (with its `values`) names, grouped by the SQL `by`."""
        sql = _STATS.format(by=by, given=f"{_OF_WORKSPACE} AND run_id IN ({runs})")
        return await self._stats(sql, {**values, "tenant_id": workspace_id})

    async def stats_by_group(
        self, workspace_id: UUID, groups: str, values: Mapping[str, Any]
    ) -> dict[str, dict[str, FeedbackStat]]:
        """Add up feedback by group. `groups`: SQL of a subselect of run ids, each with its `grp`, with its `values`."""
        return await self._stats(_GROUP_STATS.substitute(groups=groups), {**values, "tenant_id": workspace_id})

    async def stats_by_session(
        self, workspace_id: UUID, session_ids: Collection[UUID]
    ) -> dict[UUID, dict[str, FeedbackStat]]:
        """Add up the feedback on the runs of each project."""
        return await self._stats_of_ids(_SESSION_RUN_STATS, workspace_id, session_ids)

    async def stats_of_sessions(
        self, workspace_id: UUID, session_ids: Collection[UUID]
    ) -> dict[UUID, dict[str, FeedbackStat]]:
        """Add up the feedback on each project itself."""
        return await self._stats_of_ids(_SESSION_STATS, workspace_id, session_ids)

    async def _stats_of_ids(
        self, sql: str, workspace_id: UUID, ids: Collection[UUID]
    ) -> dict[UUID, dict[str, FeedbackStat]]:
        return await self._stats(sql, {"tenant_id": workspace_id, "ids": list(ids)}) if ids else {}

    async def _is_empty(self) -> bool:
        """Tell whether there is no feedback at all, which is common. Adding up nothing would cost as much as a read."""
        if self._none_until < time.monotonic():
            if await self._clickhouse.value(_ANY):
                return False
            self._none_until = time.monotonic() + _NONE_KEPT_S
        return True

    async def _stats(self, sql: str, values: Mapping[str, Any]) -> dict[Any, dict[str, FeedbackStat]]:
        found: dict[Any, dict[str, FeedbackStat]] = {}
        if await self._is_empty():
            return found
        rows = await self._clickhouse.rows(sql, values)
        for subject, key, n, avg, least, most, stdev, errors, texts, comments, sources in rows:
            found.setdefault(subject, {})[key] = {
                "n": n,
                "avg": avg,
                "min": least,
                "max": most,
                "stdev": stdev,
                "errors": errors,
                "values": _counted(texts),
                "comments": comments,
                "sources": [decode(source) for source in sources],
                "contains_thread_feedback": False,
            }
        return found


# Conditions of a search's fields: {name} stands for the value; flags have one condition for true and one for false.
_CONDITIONS: Mapping[str, str | tuple[str, str]] = {
    "run": "run_id IN {run:Array(UUID)}",
    "key": "key IN {key:Array(String)}",
    "session": "session_id IN {session:Array(UUID)}",
    "source": "source_type IN {source:Array(String)}",
    "user": "JSONExtractString(ifNull(source, ''), 'user_id') IN {user:Array(String)}",
    "has_comment": ("notEmpty(ifNull(comment, ''))", "empty(ifNull(comment, ''))"),
    "has_score": ("isNotNull(score)", "isNull(score)"),
    "min_created_at": "created_at >= {min_created_at:DateTime64(6, 'UTC')}",
    "max_created_at": "created_at <= {max_created_at:DateTime64(6, 'UTC')}",
    "comparative_experiment_id": (
        "JSONExtractString(ifNull(extra, ''), 'comparative_experiment_id') = {comparative_experiment_id:String}"
    ),
}


def _conditions(search: FeedbackSearch) -> tuple[str, dict[str, Any]]:
    clauses, values = ["1"], dict[str, Any]()
    for name, condition in _CONDITIONS.items():
        value = getattr(search, name)
        if value is None:
            continue
        if isinstance(condition, tuple):
            clauses.append(condition[0] if value else condition[1])
        else:
            clauses.append(condition)
            values[name] = value
    if search.level is not None:
        clauses.append("isNotNull(run_id)" if search.level == FeedbackLevel.RUN else "isNull(run_id)")
    return " AND ".join(clauses), values


# Fields without a column, since they are rarely or never filtered by.
_RARE = ("feedback_group_id", "comparative_experiment_id", "feedback_thread_id", "error", "extra")


def _written(row: FeedbackRow) -> dict[str, Any]:
    source = row["feedback_source"]
    rare = {name: row[name] for name in _RARE if row[name] is not None}  # type: ignore[literal-required]
    return {
        **row,
        "session_id": row["session_id"] or NOWHERE,
        "start_time": row["start_time"] or row["created_at"],
        "value": _json(row["value"]),
        "correction": _json(row["correction"]),
        "source_type": source and source.get("type"),
        "source": _json(source),
        "extra": _json(rare or None),
    }


def _read(row: Mapping[str, Any]) -> FeedbackRow:
    rare = _decoded(row["extra"]) or {}
    homed = row["session_id"] != NOWHERE
    return {
        "id": row["id"],
        "key": row["key"],
        "score": row["score"],
        "value": _decoded(row["value"]),
        "comment": row["comment"],
        "correction": _decoded(row["correction"]),
        "run_id": row["run_id"],
        "trace_id": row["trace_id"],
        "session_id": row["session_id"] if homed else None,
        "start_time": row["start_time"] if homed and row["run_id"] else None,
        "is_root": row["run_id"] is not None and row["run_id"] == row["trace_id"],
        "feedback_source": _decoded(row["source"]),
        "feedback_group_id": rare.get("feedback_group_id"),
        "comparative_experiment_id": rare.get("comparative_experiment_id"),
        "feedback_thread_id": rare.get("feedback_thread_id"),
        "extra": rare.get("extra"),
        "error": rare.get("error"),
        "created_at": row["created_at"],
        "modified_at": row["modified_at"],
    }


def _json(value: Any) -> str | None:
    return None if value is None else encode_for_storage(value).decode()


def _decoded(text: str | None) -> Any:
    return None if text is None else decode(text)


def _counted(texts: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for text in texts:
        counts[text] = counts.get(text, 0) + 1
    return counts
