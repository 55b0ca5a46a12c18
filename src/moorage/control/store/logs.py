"""SQL of deployments' logs: rows of the trace store, which are only inserted and expire."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from moorage.control.records.logs import LogCursor, LogKind, LogLine, LogQuery, level_of
from moorage.kernel.clickhouse import ClickHouse

_TABLE = "deployment_logs"
_MICROS = "toUnixTimestamp64Micro(logged_at)"
# In the order of the table's key, forward or backward. FINAL removes lines that were inserted twice.
_PAGE = """
SELECT revision_id, logged_at, position, severity, message, run_id FROM deployment_logs FINAL
WHERE tenant_id = {tenant_id:UUID} AND deployment_id = {deployment_id:UUID} AND kind = {kind:String} AND %s
ORDER BY logged_at %s, revision_id %s, position %s LIMIT {limit:UInt32}
"""
_AFTER = f"({_MICROS}, revision_id, position) > ({{micros:Int64}}, {{after:UUID}}, {{position:UInt64}})"
_BEFORE = _AFTER.replace(" > ", " < ")
# The condition on logged_at alone can use the key's order; the comparison of all three columns cannot.
_SINCE = "logged_at >= {since:DateTime64(6, 'UTC')}"
_UNTIL = "logged_at <= {until:DateTime64(6, 'UTC')}"
# The range of the column; callers may send any time.
_FIRST, _LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_REMOVE = """
DELETE FROM deployment_logs WHERE tenant_id = {tenant_id:UUID} AND deployment_id = {deployment_id:UUID}
"""


class LogStore:
    def __init__(self, clickhouse: ClickHouse) -> None:
        self._clickhouse = clickhouse

    async def insert(self, lines: Sequence[LogLine]) -> None:
        """Insert the lines durably. Inserting a line again does not duplicate it. A batch costs as much as one line."""
        if lines:
            await self._clickhouse.insert(
                _TABLE,
                {
                    "tenant_id": ("UUID", [line.workspace_id for line in lines]),
                    "deployment_id": ("UUID", [line.deployment_id for line in lines]),
                    "kind": ("LowCardinality(String)", [line.kind.value for line in lines]),
                    "logged_at": ("DateTime64(6, 'UTC')", [line.logged_at for line in lines]),
                    "revision_id": ("UUID", [line.revision_id for line in lines]),
                    "position": ("UInt64", [line.position for line in lines]),
                    "severity": ("UInt8", [line.level.severity for line in lines]),
                    "message": ("String", [line.message for line in lines]),
                    "run_id": ("LowCardinality(String)", [line.run_id for line in lines]),
                },
            )

    async def page(
        self, workspace_id: UUID, deployment_id: UUID, revision_id: UUID | None, kind: LogKind, wanted: LogQuery
    ) -> list[LogLine]:
        """Return a page of log lines. Raises InvalidRequestError for an invalid offset."""
        values: dict[str, Any] = {
            "tenant_id": workspace_id,
            "deployment_id": deployment_id,
            "kind": kind.value,
            "limit": wanted.limit,
        }
        conditions = [_within(wanted, values), _matching(revision_id, wanted, values)]
        way = "ASC" if wanted.order == "asc" else "DESC"
        sql = _PAGE % (" AND ".join(filter(None, conditions)) or "1", way, way, way)
        rows = await self._clickhouse.dicts(sql, values)
        return [
            LogLine(
                workspace_id,
                deployment_id,
                row["revision_id"],
                kind,
                row["logged_at"],
                row["position"],
                level_of(row["severity"]),
                row["message"],
                row["run_id"],
            )
            for row in rows
        ]

    async def remove(self, workspace_id: UUID, deployment_id: UUID) -> None:
        """Remove all lines of a deployment."""
        await self._clickhouse.command(_REMOVE, {"tenant_id": workspace_id, "deployment_id": deployment_id})


def _within(wanted: LogQuery, values: dict[str, Any]) -> str:
    since, until = wanted.start_time, wanted.end_time
    conditions = []
    if wanted.offset:
        cursor = LogCursor.decoded(wanted.offset)
        ascending = wanted.order == "asc"
        since = _later(since, cursor.logged_at) if ascending else since
        until = until if ascending else _earlier(until, cursor.logged_at)
        values |= {"micros": _micros(cursor.logged_at), "after": cursor.revision_id, "position": cursor.position}
        conditions.append(_AFTER if ascending else _BEFORE)
    if since is not None:
        values["since"] = min(max(since, _FIRST), _LAST)
        conditions.append(_SINCE)
    if until is not None:
        values["until"] = min(max(until, _FIRST), _LAST)
        conditions.append(_UNTIL)
    return " AND ".join(conditions)


def _matching(revision_id: UUID | None, wanted: LogQuery, values: dict[str, Any]) -> str:
    conditions = []
    if revision_id is not None:
        values["revision_id"] = revision_id
        conditions.append("revision_id = {revision_id:UUID}")
    if wanted.level is not None:
        values["severity"] = wanted.level.severity
        conditions.append("severity >= {severity:UInt8}")
    if wanted.query:
        values["query"] = wanted.query
        conditions.append("positionCaseInsensitiveUTF8(message, {query:String}) > 0")
    if wanted.run_id:
        values["run_id"] = wanted.run_id
        conditions.append("run_id = {run_id:String}")
    return " AND ".join(conditions)


def _later(one: datetime | None, other: datetime) -> datetime:
    return other if one is None else max(one, other)


def _earlier(one: datetime | None, other: datetime) -> datetime:
    return other if one is None else min(one, other)


def _micros(moment: datetime) -> int:
    return (moment - _FIRST) // _MICROSECOND
