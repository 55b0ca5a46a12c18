"""SQL that completes inserts in whose middle the engine died.

An insert writes `trace_run_rows`, and views fill the tables of keys from it; it is one statement, and no transaction. What
was cut off was never acknowledged, and mostly its client sends it again. Where none does, runs may be left that lists
show and that nobody finds by their id, or that those above them do not count.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta

from moorage.kernel.clickhouse import ClickHouse, Settings
from moorage.traces.records.words import USAGE_DETAILS, USAGE_FIELDS

# The engine may have died more than once since somebody looked. Minute by minute, since millions of runs may have come.
_MINUTES = 3
_MINUTE = timedelta(minutes=1)

_STARTED_AT = "SELECT now64(6, 'UTC') - toIntervalSecond(uptime())"
_LAST_AT = "SELECT max(ingested_at) FROM trace_run_rows WHERE ingested_at < {before:DateTime64(6, 'UTC')}"
_KEY = "tenant_id, session_id, start_time, id"


def _recent(columns: str) -> str:
    return f"""SELECT {columns} FROM trace_run_rows WHERE isNull(deleted_at)
        AND ingested_at >= {{since:DateTime64(6, 'UTC')}} AND ingested_at < {{before:DateTime64(6, 'UTC')}}"""


def _twins(*names: str) -> list[str]:
    return [*names, *(f"patched_{name}" for name in names)]


def _text(prefix: str) -> str:
    """Usage of a run as `trace_keys` has it."""
    counts = [f"'{name}', toString({prefix}{name})" for name in USAGE_FIELDS]
    details = [f"'{name}', {prefix}{name}" for name in USAGE_DETAILS]
    return f"toJSONString(map({', '.join(counts + details)}))"


# All that the tables of keys are made of.
_SAID = ", ".join(["trace_id", "dotted_order", *_twins("first_token_time", *USAGE_FIELDS, *USAGE_DETAILS)])
# The same of runs and of their keys. As a number, since the texts of all runs of a minute are much to remember.
_NO_USAGE = json.dumps(dict.fromkeys((*USAGE_FIELDS, *USAGE_DETAILS)), separators=(",", ":"))
_TIMES = ", ".join(f"ifNull(toString({column}), '')" for column in _twins("first_token_time"))
_PARENTS = "arrayMap(segment -> substring(segment, 23), arrayPopBack(splitByChar('.', ifNull(dotted_order, ''))))"
_SAYS = f"sipHash64({_TIMES}, arrayStringConcat({_PARENTS}, ','), {_text('')}, {_text('patched_')})"
_KNOWN_USAGE = ", ".join(f"ifNull({column}, '{_NO_USAGE}')" for column in _twins("usage"))
_KNOWN = f"sipHash64({_TIMES}, ifNull(parent_run_ids, ''), {_KNOWN_USAGE})"
# What is said again is the same, so it does not matter how often: the views do the rest. Of a whole run, as it is now.
_COMPLETE = f"""
INSERT INTO trace_run_rows ({_KEY}, {_SAID})
SELECT {_KEY}, {_SAID} FROM trace_run_rows FINAL
WHERE isNull(deleted_at) AND ({_KEY}) IN ({_recent(_KEY)})
    AND ((tenant_id, id, session_id, start_time) NOT IN (
            SELECT tenant_id, id, session_id, start_time FROM trace_run_keys
            WHERE (tenant_id, id, session_id, start_time) IN ({_recent("tenant_id, id, session_id, start_time")}))
        OR ({_KEY}, {_SAYS}) NOT IN (
            SELECT {_KEY}, {_KNOWN} FROM trace_keys FINAL
            WHERE (tenant_id, UUIDToNum(trace_id)) IN ({_recent("tenant_id, UUIDToNum(ifNull(trace_id, id))")})))
"""
# What was cut off may be of many months.
_SETTINGS: Settings = {"max_partitions_per_insert_block": 0}


class UnfinishedInserts:
    """May be completed by several processes, and again."""

    def __init__(self, clickhouse: ClickHouse) -> None:
        self._clickhouse = clickhouse

    async def engine_started_at(self) -> datetime:
        """To the second."""
        started_at: datetime = await self._clickhouse.value(_STARTED_AT)
        return started_at

    async def complete(self, before: datetime) -> None:
        """Complete the last minutes in which anything was written before that time."""
        last_at = await self._clickhouse.value(_LAST_AT, {"before": before})
        if last_at is not None:
            for minute in range(_MINUTES):
                since = last_at - (minute + 1) * _MINUTE
                await self._clickhouse.command(_COMPLETE, {"since": since, "before": before}, _SETTINGS)
                before = since
