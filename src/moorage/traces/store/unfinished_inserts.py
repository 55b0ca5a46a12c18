"""SQL that completes inserts that a crash of the engine cut off.

An insert writes `trace_run_rows`, and views fill the tables of keys from it. It is one statement, but no transaction.
An insert that was cut off was never acknowledged, and its client mostly repeats it. If not, some runs may appear in
lists although no lookup by id finds them, or may be missing in the roll-ups of their ancestors.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta

from moorage.kernel.clickhouse import ClickHouse, Settings
from moorage.traces.records.words import USAGE_DETAILS, USAGE_FIELDS

# Several minutes, since the engine may have crashed more than once since the last check. One minute at a time, since
# millions of runs may have arrived.
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
    """Write the usage of a run in the form of `trace_keys`."""
    values = [f"'{name}', toString({prefix}{name})" for name in (*USAGE_FIELDS, *USAGE_DETAILS)]
    return f"toJSONString(map({', '.join(values)}))"


# Columns from which the views fill the tables of keys.
_SAID = ", ".join(["trace_id", "dotted_order", *_twins("first_token_time", *USAGE_FIELDS, *USAGE_DETAILS)])
# Hashes of these values, of runs (_SAYS) and of their keys (_KNOWN), to compare them. The texts of all runs of a minute
# would take much memory.
_NO_USAGE = json.dumps(dict.fromkeys((*USAGE_FIELDS, *USAGE_DETAILS)), separators=(",", ":"))
_TIMES = ", ".join(f"ifNull(toString({column}), '')" for column in _twins("first_token_time"))
_PARENTS = "arrayMap(segment -> substring(segment, 23), arrayPopBack(splitByChar('.', ifNull(dotted_order, ''))))"
_SAYS = f"sipHash64({_TIMES}, arrayStringConcat({_PARENTS}, ','), {_text('')}, {_text('patched_')})"
_KNOWN_USAGE = ", ".join(f"ifNull({column}, '{_NO_USAGE}')" for column in _twins("usage"))
_KNOWN = f"sipHash64({_TIMES}, ifNull(parent_run_ids, ''), {_KNOWN_USAGE})"
# Inserts the current values of whole runs again. Equal values change nothing, and the views then fill the tables of
# keys.
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
# The runs of an insert may span many months.
_SETTINGS: Settings = {"max_partitions_per_insert_block": 0}


class UnfinishedInserts:
    """Completion of unfinished inserts. Several processes may run it, and repeat it."""

    def __init__(self, clickhouse: ClickHouse) -> None:
        self._clickhouse = clickhouse

    async def engine_started_at(self) -> datetime:
        """Return when the engine started, with a precision of a second."""
        started_at: datetime = await self._clickhouse.value(_STARTED_AT)
        return started_at

    async def complete(self, before: datetime) -> None:
        """Complete the inserts of the last minutes of activity before that time."""
        last_at = await self._clickhouse.value(_LAST_AT, {"before": before})
        if last_at is not None:
            for minute in range(_MINUTES):
                since = last_at - (minute + 1) * _MINUTE
                await self._clickhouse.command(_COMPLETE, {"since": since, "before": before}, _SETTINGS)
                before = since
