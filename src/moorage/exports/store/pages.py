"""SQL of what is exported: the trace runs of one export run, page by page, as Parquet that the engine encodes.

A page is bounded by what its rows hold before compression, so that no part, no sort and no reader needs more memory than
that, whatever the runs are like. Where it ends is found first, from what the rows say that they hold; then it is one range
of the key.

The same range gives the same bytes again, however the engine has merged its files since: one thread, a full sort, and all
of it as one row group, however many blocks it came in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import IO, Any, Protocol
from uuid import UUID

from moorage.exports.records.exports import Compression, FormatVersion
from moorage.exports.records.runs import Cursor, Window
from moorage.exports.records.words import EXPORT_FIELDS, TIME_FIELDS
from moorage.kernel.clickhouse import ClickHouse

# What conditions of a filter may build on: the rows that are exported, and all that may be of the same traces.
RUNS_SCOPE = """
tenant_id = {tenant_id:UUID} AND session_id = {session_id:UUID}
AND start_time >= {start_at:DateTime64(6, 'UTC')} AND start_time < {end_at:DateTime64(6, 'UTC')}
"""
TRACES_SCOPE = """
tenant_id = {tenant_id:UUID} AND session_id = {session_id:UUID}
AND start_time >= {start_at:DateTime64(6, 'UTC')} - INTERVAL 3 DAY
AND start_time < {end_at:DateTime64(6, 'UTC')} + INTERVAL 3 DAY
"""
# Neither is reached by a page of the usual size: read as one block it is in order already, and neither its sort nor its
# encoder copies it. Other tables that a filter or feedback asks are read in blocks of the same bounds.
_BLOCK_ROWS, _BLOCKS_OF_PAGE = 2**18, 2
_NEVER_REACHED = 2**40
# What a row holds beside its long texts, roughly; and with them, as a guess at how many rows a page may have.
_ROW_BYTES, _USUAL_ROW_BYTES = 512, 2048
# Descendants of a run begin before it ends. Of one that has not ended, within this time.
_PENDING_FOR = timedelta(days=1)
_LONGEST = timedelta(days=7)

_AFTER = "(start_time, id) > ({after_at:DateTime64(6, 'UTC')}, {after_id:UUID})"
_UP_TO = "(start_time, id) <= ({last_at:DateTime64(6, 'UTC')}, {last_id:UUID})"
# Runs that were there when the export began, even if more of them has arrived since.
_KNOWN = "first_ingested_at <= {cutoff_at:DateTime64(6, 'UTC')}"

# Read in the order of the key, so that it ends where the limit does, however many rows follow. `filtered` is empty, or
# what a filter leaves.
_BOUNDS = """
SELECT countIf(fits), sumIf(bytes, fits), minIf(start_time, fits), maxIf((start_time, id), fits), maxIf(ended_at, fits), count(),
    {{has_feedback}}
FROM (
    SELECT *, sum(bytes) OVER (
        ORDER BY start_time, id ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) - bytes < {bytes_max:UInt64} AS fits
    FROM (
        SELECT start_time, id, {row_bytes:UInt32} + {{size}} AS bytes,
            ifNull(coalesce(patched_end_time, end_time), start_time + toIntervalSecond({pending_s:UInt32})) AS ended_at
        FROM trace_run_rows FINAL
        WHERE {{keys}} {{filtered}} AND isNull(deleted_at) AND first_ingested_at <= {cutoff_at:DateTime64(6, 'UTC')}
        ORDER BY start_time, id LIMIT {rows_max:UInt32}
    )
)
SETTINGS max_threads = 1
"""
_FILTERED = """
AND (start_time, id) IN (
    SELECT start_time, id FROM {runs} WHERE {where} ORDER BY start_time, id LIMIT {{rows_max:UInt32}}
)
"""
_PAGE = """
SELECT {columns}
FROM {runs} AS run
{joins}
ORDER BY run.start_time, run.id
SETTINGS {settings}
FORMAT Parquet
"""
# Of runs without tokens or costs of their own: what their descendants had. ANY spares a copy of all that it is joined to.
_USAGE = """
ANY LEFT JOIN (
    SELECT arrayJoin(parent_run_ids) AS ancestor, {sums}
    FROM {runs}
    WHERE tenant_id = {{tenant_id:UUID}} AND session_id = {{session_id:UUID}} AND {known} AND ({any})
        AND start_time >= {{first_at:DateTime64(6, 'UTC')}} AND start_time <= {{usage_until:DateTime64(6, 'UTC')}}
    GROUP BY ancestor
) AS usage ON usage.ancestor = run.id
"""
# Feedback as one JSON object a run, its keys in order so that it is always the same text.
_FEEDBACK = """
ANY LEFT JOIN (
    SELECT assumeNotNull(run_id) AS run_id, concat('{{', arrayStringConcat(arrayMap(
        stat -> concat(toJSONString(stat.1), ':', stat.2), arraySort(groupArray((toString(key), stat)))), ','), '}}') AS stats
    FROM (
        SELECT run_id, key, arraySort(groupArrayIf(JSONExtractString(assumeNotNull(value)), startsWith(ifNull(value, ''), '"')))
                AS texts, arrayDistinct(texts) AS words,
            concat('{{"n":', toString(count()), ',"avg":', ifNull(toJSONString(avg(score)), 'null'), ',"min":', ifNull(toJSONString(min(score)), 'null'),
                ',"max":', ifNull(toJSONString(max(score)), 'null'), ',"stdev":', ifNull(toJSONString(stddevPop(score)), 'null'),
                ',"errors":', toString(countIf(JSONExtractBool(ifNull(extra, ''), 'error'))),
                ',"values":', toJSONString(mapFromArrays(words, arrayMap(word -> countEqual(texts, word), words))),
                ',"comments":', toJSONString(arraySort(groupArrayIf(assumeNotNull(comment), key = 'note' AND isNotNull(comment)))),
                ',"sources":[', arrayStringConcat(arraySort(groupUniqArrayIf(assumeNotNull(source), isNotNull(source))), ','),
                '],"contains_thread_feedback":false}}') AS stat
        FROM feedback
        WHERE tenant_id = {{tenant_id:UUID}} AND run_id IN (SELECT id FROM {runs} WHERE {where})
            AND created_at <= {{cutoff_at:DateTime64(6, 'UTC')}}
        GROUP BY run_id, key
    ) GROUP BY run_id
) AS feedback ON feedback.run_id = run.id
"""
_HAS_FEEDBACK = "(SELECT count() FROM (SELECT 1 FROM feedback_rows WHERE tenant_id = {tenant_id:UUID} LIMIT 1))"
_COUNT = """
SELECT toDate(start_time) AS day, count() FROM {runs} WHERE {where} GROUP BY day ORDER BY day
"""
# Days on which something arrived or went after a moment. A deleted run is no longer in the view, so its rows are asked.
_CHANGED_DAYS = """
SELECT DISTINCT toDate(start_time) FROM trace_run_rows
WHERE tenant_id = {tenant_id:UUID} AND session_id = {session_id:UUID}
    AND start_time >= {start_at:DateTime64(6, 'UTC')} AND start_time < {end_at:DateTime64(6, 'UTC')}
    AND (ifNull(ingested_at > {since:DateTime64(6, 'UTC')}, 0) OR ifNull(deleted_at > {since:DateTime64(6, 'UTC')}, 0))
"""
_STALE = """
SELECT toDate(start_time) AS day, uniqExact(id) FROM trace_run_rows
WHERE tenant_id = {tenant_id:UUID} AND session_id = {session_id:UUID}
    AND start_time >= {start_at:DateTime64(6, 'UTC')} AND start_time < {end_at:DateTime64(6, 'UTC')}
    AND (ifNull(ingested_at > {since:DateTime64(6, 'UTC')}, 0) OR ifNull(deleted_at > {since:DateTime64(6, 'UTC')}, 0))
GROUP BY day ORDER BY day
"""

_LAST_NANOSECOND = "toDateTime64('2262-01-01', 6, 'UTC')"
_USAGE_FIELDS = ("total_tokens", "prompt_tokens", "completion_tokens", "total_cost", "prompt_cost", "completion_cost")
# What payload_bytes counts. An export of none of them has many rows to a part.
_LONG = frozenset({"inputs", "outputs", "error", "events", "tags", "extra"})
_CODECS = {
    Compression.NONE: "none",
    Compression.GZIP: "gzip",
    Compression.SNAPPY: "snappy",
    Compression.ZSTANDARD: "zstd",
}


class Condition(Protocol):
    """A compiled filter: SQL over the columns of runs, and what it binds."""

    @property
    def sql(self) -> str: ...
    @property
    def parameters(self) -> Mapping[str, Any]: ...


class CompileFilter(Protocol):
    def __call__(self, text: str, *, runs: str, traces: str, prefix: str) -> Condition:
        """Raises InvalidRequestError that says what is wrong with the filter."""


class RunsFor(Protocol):
    def __call__(self, *sql: str, where: str = ...) -> str:
        """What to select from: whole runs, with the columns that some SQL names, and of them those for which a condition
        holds. Others are planned even if nobody reads them.
        """


@dataclass(frozen=True)
class Selection:
    """The trace runs of one export run."""

    tenant_id: UUID
    session_id: UUID
    window: Window
    cutoff_at: datetime
    condition: Condition | None = None


@dataclass(frozen=True)
class Page:
    """A range of the selection: after the cursor (or from the start), up to `last`."""

    after: Cursor | None
    last: Cursor
    rows: int
    bytes: int  # before compression
    first_at: datetime
    usage_until: datetime  # descendants of its runs begin no later
    is_last: bool = False  # known to be; another may be it too
    has_feedback: bool = True  # False: known to have none, so that it is not joined


@dataclass(frozen=True)
class DayCount:
    day: date
    rows: int


class PageStore:
    def __init__(self, clickhouse: ClickHouse, runs_for: RunsFor) -> None:
        self._clickhouse = clickhouse
        self._runs_for = runs_for

    async def next_page(
        self, selection: Selection, after: Cursor | None, fields: Sequence[str], bytes_max: int
    ) -> Page | None:
        """The page after the cursor; None at the end of the selection. Larger than `bytes_max` by one run at most."""
        keys, parameters = _range(selection, after, None)
        filtered = ""
        if selection.condition is not None:
            where, parameters = _where(selection, after, None)
            filtered = _FILTERED.format(runs=self._runs_for(where), where=where)
        sql = _BOUNDS.replace("{{keys}}", keys).replace("{{filtered}}", filtered).replace("{{size}}", _size(fields))
        sql = sql.replace("{{has_feedback}}", _HAS_FEEDBACK if "feedback_stats" in fields else "0")
        limits = {
            "cutoff_at": selection.cutoff_at,
            "bytes_max": bytes_max,
            "row_bytes": _ROW_BYTES,
            "pending_s": int(_PENDING_FOR.total_seconds()),
        }
        for row_bytes in (_USUAL_ROW_BYTES, _ROW_BYTES):  # none takes less than the second
            rows_max = bytes_max // row_bytes + 1
            values = {**parameters, **limits, "rows_max": rows_max}
            [(rows, size, first_at, last, end_at, seen, feedback)] = await self._clickhouse.rows(sql, values)
            if rows < seen or seen < rows_max:
                break
        if not rows:
            return None
        is_last = rows == seen < rows_max
        return Page(after, Cursor(*last), rows, size, first_at, _bounded(end_at, last[0]), is_last, feedback > 0)

    async def write_parquet(
        self,
        selection: Selection,
        page: Page,
        fields: Sequence[str],
        version: FormatVersion,
        compression: Compression,
        file: IO[bytes],
    ) -> None:
        """The page as one Parquet file, ordered by start time and id."""
        where, parameters = _where(selection, page.after, page.last)
        with_feedback = "feedback_stats" in fields and page.has_feedback
        columns = _columns(version, with_feedback=with_feedback)
        sql = _PAGE.format(
            columns=", ".join(f"{columns[name]} AS {name}" for name in fields),
            runs=self._runs_for(*_raw(fields), where=where),
            joins=_joins(self._runs_for, fields, where, with_feedback=with_feedback),
            settings=_settings(page, compression),
        )
        bound = {**parameters, "first_at": page.first_at, "usage_until": page.usage_until}
        await self._clickhouse.save(sql, file, bound)

    async def count(self, selection: Selection) -> list[DayCount]:
        """Rows by day, for days that have any."""
        where, parameters = _where(selection, None, None)
        found = await self._clickhouse.rows(_COUNT.format(runs=self._runs_for(where), where=where), parameters)
        return [DayCount(day, rows) for day, rows in found]

    async def changed_days(self, selection: Selection, since: datetime) -> set[date]:
        """Dates on which something arrived, changed or was deleted since then."""
        parameters = {**_keys(selection), "since": since}
        return {day for (day,) in await self._clickhouse.rows(_CHANGED_DAYS, parameters)}

    async def stale(self, selection: Selection) -> list[DayCount]:
        """Trace runs that arrived, changed or were deleted after the cutoff, by day. The filter is not asked."""
        parameters = {**_keys(selection), "since": selection.cutoff_at}
        return [DayCount(day, rows) for day, rows in await self._clickhouse.rows(_STALE, parameters)]


def _keys(selection: Selection) -> dict[str, Any]:
    return {
        "tenant_id": selection.tenant_id,
        "session_id": selection.session_id,
        "start_at": selection.window.start_at,
        "end_at": selection.window.end_at,
    }


def _range(selection: Selection, after: Cursor | None, last: Cursor | None) -> tuple[str, dict[str, Any]]:
    """The part of the key between two cursors."""
    clauses, parameters = [RUNS_SCOPE.strip()], _keys(selection)
    if after is not None:
        clauses.append(f"start_time >= {{after_at:DateTime64(6, 'UTC')}} AND {_AFTER}")
        parameters |= {"after_at": after.start_at, "after_id": after.run_id}
    if last is not None:
        clauses.append(f"start_time <= {{last_at:DateTime64(6, 'UTC')}} AND {_UP_TO}")
        parameters |= {"last_at": last.start_at, "last_id": last.run_id}
    return " AND ".join(clauses), parameters


def _where(selection: Selection, after: Cursor | None, last: Cursor | None) -> tuple[str, dict[str, Any]]:
    """The runs of that range, as readers see them."""
    where, parameters = _range(selection, after, last)
    parameters["cutoff_at"] = selection.cutoff_at
    if selection.condition is None:
        return f"{where} AND {_KNOWN}", parameters
    return f"{where} AND {_KNOWN} AND ({selection.condition.sql})", {**parameters, **selection.condition.parameters}


def _bounded(end_at: datetime, last_at: datetime) -> datetime:
    return min(max(end_at, last_at), last_at + _LONGEST)


def _size(fields: Sequence[str]) -> str:
    return "payload_bytes" if _LONG.intersection(fields) else "0"


def _settings(page: Page, compression: Compression) -> str:
    """Numbers of ours, so they stand in the text: over HTTP each set of settings costs a connection."""
    settings: dict[str, str | int] = {
        "max_threads": 1,
        # The engine's own choice spreads a join over threads, which wait for each other in a loop when there is only one:
        # a quarter of all work.
        "join_algorithm": "'hash'",
        "max_block_size": _BLOCK_ROWS,
        "preferred_block_size_bytes": _BLOCKS_OF_PAGE * page.bytes,
        "optimize_read_in_order": 0,
        # Of conditions on the key alone: what a page shares its first and last granule with is not even unpacked.
        "optimize_move_to_prewhere_if_final": 1,
        "output_format_parquet_row_group_size": _NEVER_REACHED,
        "output_format_parquet_row_group_size_bytes": _NEVER_REACHED,
        "output_format_parquet_compression_method": f"'{_CODECS[compression]}'",
        # Names and kinds fit; ids and texts, each of which is there once, are not looked up in vain.
        "output_format_parquet_max_dictionary_size": 2**14,
        "output_format_parquet_string_as_string": 1,
        "output_format_parquet_write_bloom_filter": 0,
        "output_format_json_quote_64bit_integers": 0,
        "output_format_json_quote_denormals": 0,
    }
    if compression is Compression.ZSTANDARD:
        # A tenth of the work less than the engine's default, for files that are a twentieth larger.
        settings["output_format_compression_level"] = 1
    return ", ".join(f"{name} = {value}" for name, value in settings.items())


def _raw(fields: Sequence[str]) -> list[str]:
    """Columns of the view that the fields and the order are made of."""
    return list(dict.fromkeys(["start_time", "id", *(name for name in fields if name != "feedback_stats")]))


def _joins(runs_for: RunsFor, fields: Sequence[str], where: str, *, with_feedback: bool) -> str:
    joins = ""
    usage = [name for name in _USAGE_FIELDS if name in fields]
    if usage:
        sums = ", ".join(f"sum({name}) AS sum_of_{name}" for name in usage)
        runs, any_ = runs_for("parent_run_ids", _KNOWN, *usage), " OR ".join(f"isNotNull({name})" for name in usage)
        joins += _USAGE.format(sums=sums, runs=runs, known=_KNOWN, any=any_)
    if with_feedback:
        joins += _FEEDBACK.format(runs=runs_for(where), where=where)
    return joins


def _columns(version: FormatVersion, *, with_feedback: bool) -> dict[str, str]:
    """Each field as SQL. Lists are lists in v2_beta and JSON text in v1; ids are text, which every reader can join. Times of v1
    are nanoseconds, whose zone `drop_zones` takes away.
    """
    columns = {name: f"run.{name}" for name in EXPORT_FIELDS}
    for name in ("id", "trace_id", "parent_run_id", "reference_example_id"):
        columns[name] = f"toString(run.{name})"
    for name in ("tenant_id", "session_id"):  # one for all of them
        columns[name] = f"toString({{{name}:UUID}})"
    for name in ("name", "run_type", "status"):
        columns[name] = f"CAST(run.{name}, 'Nullable(String)')"
    columns["trace_tier"] = "ifNull(CAST(run.trace_tier, 'Nullable(String)'), 'longlived')"
    columns["is_root"] = "ifNull(run.is_root, false)"
    parents, tags = "arrayMap(parent -> toString(parent), run.parent_run_ids)", "run.tags"
    if version is FormatVersion.V1:
        # Nanoseconds end in 2262, and a client may have said any time.
        for name in TIME_FIELDS:
            columns[name] = (
                f"toDateTime64(if(run.{name} > {_LAST_NANOSECOND}, {_LAST_NANOSECOND}, run.{name}), 9, 'UTC')"
            )
        parents, tags = f"toJSONString({parents})", f"toJSONString({tags})"
    columns["parent_run_ids"], columns["tags"] = parents, tags
    for name in ("total_tokens", "prompt_tokens", "completion_tokens"):
        columns[name] = f"coalesce(run.{name}, usage.sum_of_{name})"
    for name in ("total_cost", "prompt_cost", "completion_cost"):
        columns[name] = f"CAST(coalesce(run.{name}, usage.sum_of_{name}), 'Nullable(Float64)')"
    columns["feedback_stats"] = (
        "if(feedback.stats = '', NULL, feedback.stats)" if with_feedback else "CAST(NULL, 'Nullable(String)')"
    )
    if version is FormatVersion.V1:  # in which every column may be empty
        return {name: f"toNullable({sql})" for name, sql in columns.items()}
    return columns
