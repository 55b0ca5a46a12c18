"""SQL that finds runs of which rows arrived since a time."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from string import Template
from typing import NamedTuple

from moorage.kernel.clickhouse import ClickHouse
from moorage.traces.store.conditions import time_text
from moorage.traces.store.run_reads import RunKey
from moorage.traces.store.selections import TIME, Selection, bound

_ARRIVALS = Template(f"""
SELECT session_id, start_time, id, ifNull(any(trace_id), id), max(ingested_at) AS arrived_at
FROM trace_run_rows WHERE $where$roots AND ingested_at >= {{arrived_since:{TIME}}}
GROUP BY session_id, start_time, id ORDER BY arrived_at, id LIMIT {{limit:UInt32}}
""")


class Arrival(NamedTuple):
    """A run, and the arrival time of its last row."""

    key: RunKey
    at: datetime


class Arrivals:
    def __init__(self, clickhouse: ClickHouse) -> None:
        self._clickhouse = clickhouse

    async def since(self, selection: Selection, at: datetime, limit: int) -> list[Arrival]:
        """Find the first arrivals in the projects and the time of the selection. Its condition is not applied, since it
        needs whole runs.
        """
        where, values = bound(replace(selection, condition=None))
        # Some rows of roots lack is_root.
        roots = " AND ifNull(is_root, true)" if selection.of_roots else ""
        rows = await self._clickhouse.rows(
            _ARRIVALS.substitute(where=where, roots=roots), values | {"arrived_since": time_text(at), "limit": limit}
        )
        return [Arrival(RunKey(*row[:4]), row[4]) for row in rows]
