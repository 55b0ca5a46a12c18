"""SQL of exported runs: the bounds of a page, and its rows as Parquet that the engine encodes.

A range always gives the same bytes, even if the engine has merged its files in between. For this it is read by one
thread, fully sorted, and written as one row group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from string import Template
from typing import IO, Any
from uuid import UUID

from moorage.kernel.clickhouse import ClickHouse
from moorage.traces.records.run_catalogue import EXPORT_FIELDS, EXPORT_TIME_FIELDS
from moorage.traces.records.words import USAGE_FIELDS
from moorage.traces.store.run_columns import runs_for
from moorage.traces.store.selections import TIME, Condition, Position, RunScope

_PROJECT = "tenant_id = {tenant_id:UUID} AND session_id = {session_id:UUID}"
_START, _END = f"{{start_at:{TIME}}}", f"{{end_at:{TIME}}}"
# Scope for the conditions of a filter: the exported rows, and all rows that may be of the same traces.
EXPORT_SCOPE = RunScope(
    runs=f"{_PROJECT} AND start_time >= {_START} AND start_time < {_END}",
    traces=f"{_PROJECT} AND start_time >= {_START} - INTERVAL 3 DAY AND start_time < {_END} + INTERVAL 3 DAY",
)
# Limits of a block, in rows and in multiples of the page. A page of the usual size reaches neither. Read as one block
# it is already in order, and neither sort nor encoder copies it. Other tables of a filter or of feedback have the same
# limits.
_BLOCK_ROWS, _BLOCKS_OF_PAGE = 2**18, 2
_NEVER_REACHED = 2**40
# Approximate size of a row without its long texts.
ROW_BYTES = 512
# Descendants of a run begin before it ends; those of a run that has not ended, within this time.
_PENDING_FOR = timedelta(days=1)
# Descendants that begin later than this after the last run of a page are not added up.
_LONGEST = timedelta(days=7)

_AFTER = f"start_time >= {{after_at:{TIME}}} AND (start_time, id) > ({{after_at:{TIME}}}, {{after_id:UUID}})"
_UP_TO = f"start_time <= {{last_at:{TIME}}} AND (start_time, id) <= ({{last_at:{TIME}}}, {{last_id:UUID}})"
# Runs whose first row had arrived when the export began, even if later rows arrived since.
_KNOWN = f"first_ingested_at <= {{cutoff_at:{TIME}}}"

# Reads in key order and stops at the limit, however many rows follow. `filtered` is empty or the condition of a filter.
_BOUNDS = Template(f"""
SELECT countIf(fits), sumIf(bytes, fits), minIf(start_time, fits), maxIf((start_time, id), fits), maxIf(ended_at, fits), count(),
    $has_feedback
FROM (
    SELECT *, sum(bytes) OVER (
        ORDER BY start_time, id ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) - bytes < {{bytes_max:UInt64}} AS fits
    FROM (
        SELECT start_time, id, {{row_bytes:UInt32}} + $size AS bytes,
            ifNull(coalesce(patched_end_time, end_time), start_time + toIntervalSecond({{pending_s:UInt32}})) AS ended_at
        FROM trace_run_rows FINAL
        WHERE $keys $filtered AND isNull(deleted_at) AND {_KNOWN}
        ORDER BY start_time, id LIMIT {{rows_max:UInt32}}
    )
)
SETTINGS max_threads = 1
""")
_FILTERED = Template("""
AND (start_time, id) IN (
    SELECT start_time, id FROM $runs WHERE $where ORDER BY start_time, id LIMIT {rows_max:UInt32}
)
""")
_PAGE = Template("""
SELECT $columns
FROM $runs AS run
$joins
ORDER BY run.start_time, run.id
SETTINGS $settings
FORMAT Parquet
""")
# Adds up the usage of descendants, for runs without own tokens or costs. ANY avoids copying the joined rows.
_USAGE = Template(f"""
ANY LEFT JOIN (
    SELECT arrayJoin(parent_run_ids) AS ancestor, $sums
    FROM $runs
    WHERE {_PROJECT} AND {_KNOWN} AND ($any)
        AND start_time >= {{first_at:{TIME}}} AND start_time <= {{usage_until:{TIME}}}
    GROUP BY ancestor
) AS usage ON usage.ancestor = run.id
""")
# Feedback of a run as one JSON object. Its keys are sorted, so that the text is always the same.
_FEEDBACK = Template("""
ANY LEFT JOIN (
    SELECT assumeNotNull(run_id) AS run_id, concat('{', arrayStringConcat(arrayMap(
        stat -> concat(toJSONString(stat.1), ':', stat.2), arraySort(groupArray((toString(key), stat)))), ','), '}') AS stats
    FROM (
        SELECT run_id, key, arraySort(groupArrayIf(JSONExtractString(assumeNotNull(value)), startsWith(ifNull(value, ''), '"')))
                AS texts, arrayDistinct(texts) AS words,
            concat('{"n":', toString(count()), ',"avg":', ifNull(toJSONString(avg(score)), 'null'), ',"min":', ifNull(toJSONString(min(score)), 'null'),
                ',"max":', ifNull(toJSONString(max(score)), 'null'), ',"stdev":', ifNull(toJSONString(stddevPop(score)), 'null'),
                ',"errors":', toString(countIf(JSONExtractBool(ifNull(extra, ''), 'error'))),
                ',"values":', toJSONString(mapFromArrays(words, arrayMap(word -> countEqual(texts, word), words))),
                ',"comments":', toJSONString(arraySort(groupArrayIf(assumeNotNull(comment), key = 'note' AND isNotNull(comment)))),
                ',"sources":[', arrayStringConcat(arraySort(groupUniqArrayIf(assumeNotNull(source), isNotNull(source))), ','),
                '],"contains_thread_feedback":false}') AS stat
        FROM feedback
        WHERE tenant_id = {tenant_id:UUID} AND run_id IN (SELECT id FROM $runs WHERE $where)
            AND created_at <= {cutoff_at:DateTime64(6, 'UTC')}
        GROUP BY run_id, key
    ) GROUP BY run_id
) AS feedback ON feedback.run_id = run.id
""")
_HAS_FEEDBACK = "(SELECT count() FROM (SELECT 1 FROM feedback_rows WHERE tenant_id = {tenant_id:UUID} LIMIT 1))"
_COUNT = Template("SELECT toDate(start_time) AS day, count() FROM $runs WHERE $where GROUP BY day ORDER BY day")
# Counts runs that arrived, changed or were deleted after a time, by day. Reads rows, since the view omits deleted runs.
_CHANGED = f"""
SELECT toDate(start_time) AS day, uniqExact(id) FROM trace_run_rows
WHERE {EXPORT_SCOPE.runs} AND (ifNull(ingested_at > {{since:{TIME}}}, 0) OR ifNull(deleted_at > {{since:{TIME}}}, 0))
GROUP BY day ORDER BY day
"""

_LAST_NANOSECOND = "toDateTime64('2262-01-01', 6, 'UTC')"
_NANOSECONDS = f"toDateTime64(if(run.{{0}} > {_LAST_NANOSECOND}, {_LAST_NANOSECOND}, run.{{0}}), 9, 'UTC')"
# SQL of the exported fields that are not as in the view.
_FORMS = {
    "toString(run.{})": ("id", "trace_id", "parent_run_id", "reference_example_id"),
    "toString({{{}:UUID}})": ("tenant_id", "session_id"),  # one for all of them
    "CAST(run.{}, 'Nullable(String)')": ("name", "run_type", "status"),
    "ifNull(CAST(run.{}, 'Nullable(String)'), 'longlived')": ("trace_tier",),
    "ifNull(run.{}, false)": ("is_root",),
    "arrayMap(parent -> toString(parent), run.{})": ("parent_run_ids",),
    "coalesce(run.{0}, usage.sum_of_{0})": ("total_tokens", "prompt_tokens", "completion_tokens"),
    "CAST(coalesce(run.{0}, usage.sum_of_{0}), 'Nullable(Float64)')": ("total_cost", "prompt_cost", "completion_cost"),
    "CAST(NULL, 'Nullable(String)')": ("feedback_stats",),
}
# Fields that payload_bytes counts. An export without them has many rows in each part.
_LONG = frozenset({"inputs", "outputs", "error", "events", "tags", "extra"})
_CODECS = {"none": "none", "gzip": "gzip", "snappy": "snappy", "zstandard": "zstd"}


@dataclass(frozen=True)
class ExportSelection:
    """Trace runs of one project that began from `start_at` until before `end_at`, had arrived by the cutoff, and meet
    the condition.
    """

    tenant_id: UUID
    session_id: UUID
    start_at: datetime
    end_at: datetime
    cutoff_at: datetime
    condition: Condition | None = None


@dataclass(frozen=True)
class ExportPage:
    """A range of the selection: from after one position (or the start) up to and including `last`."""

    after: Position | None
    last: Position
    rows: int
    bytes: int  # before compression
    first_at: datetime
    usage_until: datetime  # descendants of its runs begin no later
    is_last: bool = False  # True: known to be the last page; False: unknown
    has_feedback: bool = True  # False: known to have no feedback, so none is joined


class ExportedRunStore:
    def __init__(self, clickhouse: ClickHouse) -> None:
        self._clickhouse = clickhouse

    async def page_after(
        self, selection: ExportSelection, after: Position | None, fields: Sequence[str], bytes_max: int, rows_max: int
    ) -> ExportPage | None:
        """Find the page after this position, within the next `rows_max` rows; None if there are none. The page exceeds
        `bytes_max` by at most one run.
        """
        keys, where, values = _bound(selection, after)
        sql = _BOUNDS.substitute(
            keys=keys,
            filtered=_FILTERED.substitute(runs=runs_for(where), where=where) if selection.condition else "",
            size="payload_bytes" if _LONG.intersection(fields) else "0",
            has_feedback=_HAS_FEEDBACK if "feedback_stats" in fields else "0",
        )
        values |= {
            "bytes_max": bytes_max,
            "rows_max": rows_max,
            "row_bytes": ROW_BYTES,
            "pending_s": int(_PENDING_FOR.total_seconds()),
        }
        [(rows, size_bytes, first_at, last, ended_at, seen, feedback)] = await self._clickhouse.rows(sql, values)
        if not rows:
            return None
        usage_until = min(max(ended_at, last[0]), last[0] + _LONGEST)
        is_last = rows == seen < rows_max
        return ExportPage(after, last, rows, size_bytes, first_at, usage_until, is_last, feedback > 0)

    async def write_parquet(
        self,
        selection: ExportSelection,
        page: ExportPage,
        fields: Sequence[str],
        file: IO[bytes],
        *,
        version: str,
        compression: str,
    ) -> None:
        """Write the page as one Parquet file, ordered by start time and id. `version`: `v1` or `v2_beta`;
        `compression`: `none`, `gzip`, `snappy` or `zstandard`.
        """
        _, where, values = _bound(selection, page.after, page.last)
        with_feedback = "feedback_stats" in fields and page.has_feedback
        columns = _columns(is_v1=version == "v1", with_feedback=with_feedback)
        sql = _PAGE.substitute(
            columns=", ".join(f"{columns[name]} AS {name}" for name in fields),
            runs=runs_for("start_time", "id", *(name for name in fields if name != "feedback_stats"), where=where),
            joins=_joins(fields, where, with_feedback=with_feedback),
            settings=_settings(page, compression),
        )
        await self._clickhouse.save(sql, file, values | {"first_at": page.first_at, "usage_until": page.usage_until})

    async def count(self, selection: ExportSelection) -> dict[date, int]:
        """Count rows by day; days without rows are left out."""
        _, where, values = _bound(selection)
        sql = _COUNT.substitute(runs=runs_for(where), where=where)
        return dict(await self._clickhouse.rows(sql, values))

    async def changed(self, selection: ExportSelection, since: datetime) -> dict[date, int]:
        """Count trace runs with rows that arrived, changed or were deleted since then, by day, ignoring the filter."""
        _, _, values = _bound(selection)
        return dict(await self._clickhouse.rows(_CHANGED, values | {"since": since}))


def _bound(
    selection: ExportSelection, after: Position | None = None, last: Position | None = None
) -> tuple[str, str, dict[str, Any]]:
    """Return the condition on the key between two positions, the condition for the runs of that range that readers see,
    and the values that they bind.
    """
    keys = EXPORT_SCOPE.runs
    values: dict[str, Any] = {
        "tenant_id": selection.tenant_id,
        "session_id": selection.session_id,
        "start_at": selection.start_at,
        "end_at": selection.end_at,
        "cutoff_at": selection.cutoff_at,
    }
    if after is not None:
        keys += f" AND {_AFTER}"
        values |= {"after_at": after[0], "after_id": after[1]}
    if last is not None:
        keys += f" AND {_UP_TO}"
        values |= {"last_at": last[0], "last_id": last[1]}
    where = f"{keys} AND {_KNOWN}"
    if selection.condition is not None:
        where += f" AND ({selection.condition.sql})"
        values |= selection.condition.parameters
    return keys, where, values


def _settings(page: ExportPage, compression: str) -> str:
    """Write the settings into the statement: over HTTP, each separate set of settings costs a connection."""
    settings: dict[str, str | int] = {
        "max_threads": 1,
        # The engine's default spreads a join over threads. With only one thread they busy-wait, a quarter of all work.
        "join_algorithm": "'hash'",
        "max_block_size": _BLOCK_ROWS,
        "preferred_block_size_bytes": _BLOCKS_OF_PAGE * page.bytes,
        "optimize_read_in_order": 0,
        # For conditions on the key only: other rows in the page's first and last granule are not decompressed.
        "optimize_move_to_prewhere_if_final": 1,
        "output_format_parquet_row_group_size": _NEVER_REACHED,
        "output_format_parquet_row_group_size_bytes": _NEVER_REACHED,
        "output_format_parquet_compression_method": f"'{_CODECS[compression]}'",
        # Names and kinds fit into this size. Unique ids and texts exceed it soon, which saves useless lookups.
        "output_format_parquet_max_dictionary_size": 2**14,
        "output_format_parquet_string_as_string": 1,
        "output_format_parquet_write_bloom_filter": 0,
        "output_format_json_quote_64bit_integers": 0,
        "output_format_json_quote_denormals": 0,
    }
    if compression == "zstandard":
        # A tenth less work than the engine's default level, for files that are a twentieth larger.
        settings["output_format_compression_level"] = 1
    return ", ".join(f"{name} = {value}" for name, value in settings.items())


def _joins(fields: Sequence[str], where: str, *, with_feedback: bool) -> str:
    joins = ""
    if usage := [name for name in USAGE_FIELDS if name in fields]:
        joins += _USAGE.substitute(
            sums=", ".join(f"sum({name}) AS sum_of_{name}" for name in usage),
            runs=runs_for("parent_run_ids", _KNOWN, *usage),
            any=" OR ".join(f"isNotNull({name})" for name in usage),
        )
    if with_feedback:
        joins += _FEEDBACK.substitute(runs=runs_for(where), where=where)
    return joins


def _columns(*, is_v1: bool, with_feedback: bool) -> dict[str, str]:
    """Write each field as SQL. Lists are lists in v2_beta and JSON text in v1. Ids are text, which every reader can
    join on. Times of v1 are nanoseconds, and `drop_zones` later removes their zone.
    """
    columns = {name: f"run.{name}" for name in EXPORT_FIELDS}
    for form, names in _FORMS.items():
        columns |= {name: form.format(name) for name in names}
    if with_feedback:
        columns["feedback_stats"] = "if(feedback.stats = '', NULL, feedback.stats)"
    if not is_v1:
        return columns
    # Nanoseconds only reach 2262, and clients may send any time.
    columns |= {name: _NANOSECONDS.format(name) for name in EXPORT_TIME_FIELDS}
    columns |= {name: f"toJSONString({columns[name]})" for name in ("parent_run_ids", "tags")}
    return {name: f"toNullable({sql})" for name, sql in columns.items()}  # every column of v1 may be empty
