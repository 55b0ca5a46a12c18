"""Fields of whole runs: as SQL for conditions, like the view `trace_runs`; as stored columns for runs that are read.

The engine takes longer to plan a statement than to read a page. The view with all of its columns, or an expression for
each field, would cost more than the read itself. So statements name only the columns that they need, and reads return
stored values, of which `records/run_fields.py` makes the other fields. The SQL and the view must agree; tests compare
them. If POST and PATCH both set a column, the PATCH wins. (`tags_json` and `extra_without_metadata` exist only here.)
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from uuid import UUID

from moorage.traces.records.run_catalogue import Role, columns_of
from moorage.traces.records.run_rows import NO_USAGE
from moorage.traces.records.words import USAGE_DETAILS

_KEY = tuple(column.name for column in columns_of(Role.KEY))
_STORED = tuple(column.name for column in columns_of(Role.KEY, Role.FIXED, Role.STAMP))
# Columns that both POST and PATCH may set.
_PATCHABLE = tuple(column.name for column in columns_of(Role.PATCHABLE))
# Texts of the placeholders that a write of usage stores in fields that it leaves out.
ABSENT = {name: sign.decode() if isinstance(sign, bytes) else str(sign) for name, sign in NO_USAGE.items()}


def _latest(name: str) -> str:
    said = f"coalesce(patched_{name}, trace_run_rows.{name})"
    if name not in ABSENT:
        return said
    return f"nullIf({said}, {ABSENT[name]!r})" if name in USAGE_DETAILS else f"nullIf({said}, {ABSENT[name]})"


COLUMNS = {
    **{name: f"trace_run_rows.{name}" for name in _STORED},
    **{name: _latest(name) for name in _PATCHABLE},
    "tags": "JSONExtract(coalesce(patched_tags, trace_run_rows.tags, '[]'), 'Array(String)')",
    "tags_json": _latest("tags"),
    # A segment of dotted_order is 22 characters of time, then the id. The last one is the run's own.
    "parent_run_ids": (
        "arrayMap(segment -> toUUIDOrZero(substring(segment, 23)),"
        " arrayPopBack(splitByChar('.', ifNull(trace_run_rows.dotted_order, ''))))"
    ),
    "status": f"multiIf(isNotNull({_latest('error')}), 'error', isNotNull({_latest('end_time')}), 'success', 'pending')",
    "latency_s": f"dateDiff('microsecond', trace_run_rows.start_time, {_latest('end_time')}) / 1e6",
    "attachments": (
        "multiIf(isNull(patched_attachments), trace_run_rows.attachments,"
        " isNull(trace_run_rows.attachments), patched_attachments,"
        " jsonMergePatch(trace_run_rows.attachments, patched_attachments))"
    ),
    "extra": (
        f"multiIf(isNull({_latest('metadata_json')}), {_latest('extra_without_metadata')},"
        f" length(ifNull({_latest('extra_without_metadata')}, '')) <= 2,"
        f""" concat('{{"metadata":', {_latest("metadata_json")}, '}}'),"""
        f""" concat('{{"metadata":', {_latest("metadata_json")}, ',', substring({_latest("extra_without_metadata")}, 2)))"""
    ),
}

# Expressions of the indexes of `trace_run_rows`, exactly as in the schema. They apply to rows, not to whole runs.
_TEXT = """concat(
    ifNull(coalesce(patched_inputs, trace_run_rows.inputs), ''), ' ',
    ifNull(coalesce(patched_outputs, trace_run_rows.outputs), ''))"""
INDEXED_LETTERS = f"""translate(
    {_TEXT}, 'ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789', 'abcdefghijklmnopqrstuvwxyz          ')"""
INDEXED_DIGITS = f"lower(arrayStringConcat(extractAll({_TEXT}, '[A-Za-z]*[0-9][A-Za-z0-9]*'), ' '))"
INDEXED_PAIRS = """arrayConcat(
    arrayMap(
        pair -> concat(pair.1, '=', if(startsWith(pair.2, '"'), JSONExtractString(pair.2), pair.2)),
        JSONExtractKeysAndValuesRaw(ifNull(coalesce(patched_metadata_json, trace_run_rows.metadata_json), ''))),
    if(isNull(coalesce(patched_thread_id, trace_run_rows.thread_id)), [],
        [concat('\\0thread=', assumeNotNull(coalesce(patched_thread_id, trace_run_rows.thread_id)))]))"""


# Selects runs by traces whose ids are bound with `nums_of`, as the bytes that are the key.
BY_TRACES = "UUIDToNum(trace_id) IN {trace_nums:Array(FixedString(16))}"


def nums_of(trace_ids: Iterable[UUID]) -> list[bytes]:
    return [trace_id.bytes for trace_id in trace_ids]


def columns_for(*sql: str) -> str:
    """Write the columns of whole runs that some SQL names, as expressions over `trace_run_rows`."""
    words = {*_KEY, *re.findall(r"[a-z_]+", " ".join(sql))}
    return ", ".join(f"{expression} AS {name}" for name, expression in COLUMNS.items() if name in words)


def runs_for(*sql: str, where: str = "true") -> str:
    """Write the FROM clause of whole runs that meet `where`, with the columns that some SQL names. The same condition
    around this clause would be planned as one more select.
    """
    return f"(SELECT {columns_for(*sql, where)} FROM trace_run_rows FINAL WHERE isNull(deleted_at) AND {where})"


# Enough text to recognise a run in a list.
_HEAD_CHARS = 20_000


def _twins(name: str) -> tuple[str, str]:
    return f"patched_{name}", name


def _heads(name: str) -> tuple[str, ...]:
    return tuple(f"leftUTF8(trace_run_rows.{column}, {_HEAD_CHARS}) AS {column}_head" for column in _twins(name))


# The columns that hold each field; the first that is not NULL counts. Readers see the attachments of POST and PATCH.
# Tokens and costs are read from `trace_keys`, where they are one JSON text.
READABLE: dict[str, tuple[str, ...]] = {
    **{name: (name,) for name in _STORED},
    **{name: _twins(name) for name in _PATCHABLE if name not in {*ABSENT, "tags", "attachments"}},
    "inputs_head": _heads("inputs"),
    "outputs_head": _heads("outputs"),
    "tags_json": _twins("tags"),
    "posted_attachments": ("attachments",),
    "patched_attachments": ("patched_attachments",),
}
# Fields that are short in most runs.
SHORT = frozenset(
    READABLE.keys()
    - {"inputs", "outputs", "extra_without_metadata", "metadata_json", "events", "serialized", "tenant_id"}
    - {"inputs_head", "outputs_head", "posted_attachments", "patched_attachments"}
)
