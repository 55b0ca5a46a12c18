"""The run catalogue: every column and derived field of a trace run, once.

Insert columns, read fields, the columns of whole runs, export fields and the fields of filters are made from it. To add a
column, add a line here and a migration; `tests/traces/test_run_catalogue.py` compares both with the schema and the wire.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

_TEXT = "Nullable(String)"
_WORD = "LowCardinality(Nullable(String))"
_ID = "Nullable(UUID)"
_TIME = "Nullable(DateTime64(6, 'UTC'))"
_COUNT = "Nullable(Int64)"
_COST = "Nullable(Decimal(38, 12))"


class Role(Enum):
    """Way in which a column is written."""

    KEY = auto()  # part of the key of the run; in every row
    FIXED = auto()  # known when the run begins; equal in POST and PATCH
    STAMP = auto()  # set by the store
    PATCHABLE = auto()  # POST writes the column, PATCH writes its twin `patched_…`, which wins
    DERIVED = auto()  # computed from other columns when read


class Column(NamedTuple):
    """A column of `trace_run_rows`, or a derived field.

    `v1`, `v2`: its name in `select` of each version of the wire. `filter`: the kind of a filter's field (`Kind`). `export`: the
    place of its column in an exported file.
    """

    name: str
    type: str
    role: Role
    v1: str | None = None
    v2: str | None = None
    filter: str | None = None
    export: int | None = None

    @property
    def twin(self) -> str:
        """Return the column that a PATCH writes."""
        return f"patched_{self.name}"


_K, _F, _P, _D = Role.KEY, Role.FIXED, Role.PATCHABLE, Role.DERIVED
RUN_CATALOGUE = (
    Column("tenant_id", "UUID", _K, export=2),
    Column("session_id", "UUID", _K, "session_id", "PROJECT_ID", "ID", 3),
    Column("start_time", "DateTime64(6, 'UTC')", _K, "start_time", "START_TIME", "TIME", 10),
    Column("id", "UUID", _K, "id", "ID", "ID", 1),
    Column("trace_id", _ID, _F, "trace_id", "TRACE_ID", "ID", 4),
    Column("parent_run_id", _ID, _F, "parent_run_id", None, "ID", 5),
    Column("dotted_order", _TEXT, _F, "dotted_order", "DOTTED_ORDER", "TEXT", 14),
    Column("is_root", "Nullable(Bool)", _F, None, "IS_ROOT", "FLAG", 13),
    Column("trace_tier", _WORD, _F, "trace_tier", None, "TEXT", 15),
    Column("ingested_at", _TIME, Role.STAMP),
    Column("first_ingested_at", f"SimpleAggregateFunction(min, {_TIME})", Role.STAMP, "trace_first_received_at"),
    Column("name", _WORD, _P, "name", "NAME", "TEXT", 8),
    Column("run_type", _WORD, _P, "run_type", "RUN_TYPE", "TEXT", 9),
    Column("end_time", _TIME, _P, "end_time", "END_TIME", "TIME", 11),
    Column("first_token_time", _TIME, _P, "first_token_time", "FIRST_TOKEN_TIME", "TIME", 29),
    Column("error", _TEXT, _P, "error", "ERROR", "TEXT", 18),
    Column("inputs", _TEXT, _P, "inputs", "INPUTS", "JSON", 16),
    Column("outputs", _TEXT, _P, "outputs", "OUTPUTS", "JSON", 17),
    Column("extra_without_metadata", _TEXT, _P),
    Column("metadata_json", _TEXT, _P, None, "METADATA"),
    Column("events", _TEXT, _P, "events", "EVENTS", None, 20),
    Column("serialized", _TEXT, _P, "serialized", "MANIFEST"),
    Column("tags", _TEXT, _P, "tags", "TAGS", "TAGS", 21),
    Column("reference_example_id", _ID, _P, "reference_example_id", "REFERENCE_EXAMPLE_ID", "ID", 7),
    Column("thread_id", _TEXT, _P, "thread_id", "THREAD_ID", "TEXT"),
    Column("attachments", _TEXT, _P, "s3_urls", "ATTACHMENTS"),
    Column("prompt_tokens", _COUNT, _P, "prompt_tokens", "PROMPT_TOKENS", "NUMBER", 24),
    Column("completion_tokens", _COUNT, _P, "completion_tokens", "COMPLETION_TOKENS", "NUMBER", 25),
    Column("total_tokens", _COUNT, _P, "total_tokens", "TOTAL_TOKENS", "NUMBER", 23),
    Column("prompt_token_details", _TEXT, _P, "prompt_token_details", "PROMPT_TOKEN_DETAILS"),
    Column("completion_token_details", _TEXT, _P, "completion_token_details", "COMPLETION_TOKEN_DETAILS"),
    Column("prompt_cost", _COST, _P, "prompt_cost", "PROMPT_COST", "NUMBER", 27),
    Column("completion_cost", _COST, _P, "completion_cost", "COMPLETION_COST", "NUMBER", 28),
    Column("total_cost", _COST, _P, "total_cost", "TOTAL_COST", "NUMBER", 26),
    Column("prompt_cost_details", _TEXT, _P, "prompt_cost_details", "PROMPT_COST_DETAILS"),
    Column("completion_cost_details", _TEXT, _P, "completion_cost_details", "COMPLETION_COST_DETAILS"),
    Column("parent_run_ids", "", _D, "parent_run_ids", "PARENT_RUN_IDS", None, 6),
    Column("status", "", _D, "status", "STATUS", "TEXT", 12),
    Column("extra", "", _D, "extra", "EXTRA", "JSON", 19),
    Column("feedback_stats", "", _D, "feedback_stats", "FEEDBACK_STATS", None, 22),
    Column("metadata", "", _D, filter="JSON"),
    Column("latency", "", _D, None, "LATENCY_SECONDS", "DURATION"),
    Column("first_token_latency", "", _D, filter="DURATION"),
    # The predecessor of dotted_order; 1 for the root of a trace.
    Column("execution_order", "", _D, filter="NUMBER"),
)


def columns_of(*roles: Role) -> tuple[Column, ...]:
    """Return the columns of these roles, in the order of the catalogue."""
    return tuple(column for column in RUN_CATALOGUE if column.role in roles)


# The fields of an exported run, in the order of a file's columns.
EXPORT_FIELDS = tuple(
    column.name for column in sorted(RUN_CATALOGUE, key=lambda column: column.export or 0) if column.export is not None
)
EXPORT_TIME_FIELDS = frozenset(name for name in EXPORT_FIELDS if name.endswith("_time"))
