"""Filters of the rows that a user may see, as a condition for the WHERE of any statement.

Every statement that reads or changes rows for a user takes a `Filter` and holds the condition made from it. Values are
bound parameters; the text depends on the form of the filter alone, so statements stay prepared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from psycopg.types.json import Jsonb

from moorage.agents.records.filters import AllOf, AnyOf, Contains, Equal, Filter

Bind = Callable[[Any], str]


def visible(seen: Filter, metadata: str, *, prefix: str = "seen") -> tuple[str, dict[str, Any]]:
    """Return a condition on the column `metadata`, and its parameters; `TRUE` for a user who may see every row.

    A second condition in one statement needs a `prefix` of its own.
    """
    values: dict[str, Any] = {}

    def bind(value: Any) -> str:
        name = f"{prefix}_{len(values)}"
        values[name] = value
        return f"%({name})s"

    return _condition(seen, metadata, bind), values


def visible_run(seen: Filter, run: str) -> tuple[str, dict[str, Any]]:
    """Return a condition on the run in the table or alias `run`. A run is visible with its thread. A temporary run has
    no thread row, so its own metadata decides.
    """
    condition, values = visible(seen, "owned.metadata")
    if condition == _TRUE:
        return condition, values
    whose = f"SELECT coalesce((SELECT t.metadata FROM threads t WHERE t.thread_id = {run}.thread_id), {run}.metadata)"
    return f"EXISTS (SELECT FROM ({whose} AS metadata) AS owned WHERE {condition})", values


_TRUE = "TRUE"


def _condition(seen: Filter, metadata: str, bind: Bind) -> str:
    match seen:
        case AllOf(parts) | AnyOf(parts):
            word, empty = (" AND ", _TRUE) if isinstance(seen, AllOf) else (" OR ", "FALSE")
            return f"({word.join(_condition(part, metadata, bind) for part in parts)})" if parts else empty
        case Contains(key, values):
            return f"{metadata} @> {bind(Jsonb({key: list(values)}))}"
        case Equal(key, value) if isinstance(value, dict | list | tuple):
            # Containment (@>) would also match a part of the value.
            return f"{metadata} -> {bind(key)}::text = {bind(Jsonb(value))}"
        case Equal(key, value):
            return f"{metadata} @> {bind(Jsonb({key: value}))}"
