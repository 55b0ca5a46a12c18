"""Columns of whole runs, as the view `trace_runs` has them, for statements that name only some.

A statement over the view is planned with all of its columns, which takes longer than reading a page of runs. What is
said here and in the view is the same; a test compares them. A PATCH goes before a POST, wherever both have a column.
(`tags_json` and `extra_without_metadata` are here only.)
"""

from __future__ import annotations

import re

from moorage.traces.records.words import USAGE_DETAILS, USAGE_FIELDS

_KEY = ("tenant_id", "session_id", "start_time", "id")
_FIXED = ("trace_id", "parent_run_id", "dotted_order", "is_root", "trace_tier", "ingested_at", "first_ingested_at")
_TWINS = (
    "name",
    "run_type",
    "end_time",
    "first_token_time",
    "error",
    "inputs",
    "outputs",
    "extra_without_metadata",
    "metadata_json",
    "events",
    "serialized",
    "reference_example_id",
    "thread_id",
    *USAGE_FIELDS,
    *USAGE_DETAILS,
)


def _latest(name: str) -> str:
    return f"coalesce(patched_{name}, trace_run_rows.{name})"


COLUMNS = {
    **{name: f"trace_run_rows.{name}" for name in (*_KEY, *_FIXED)},
    **{name: _latest(name) for name in _TWINS},
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


def runs_for(*sql: str) -> str:
    """What to select from: whole runs, with the columns that some SQL names."""
    words = {*_KEY, *re.findall(r"[a-z_]+", " ".join(sql))}
    columns = ", ".join(f"{expression} AS {name}" for name, expression in COLUMNS.items() if name in words)
    return f"(SELECT {columns} FROM trace_run_rows FINAL WHERE isNull(deleted_at))"
