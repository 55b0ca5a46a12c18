"""Row merging: build whole runs from their rows in Python, as the engine does in its merges.

For the few runs of a page this is faster than `FINAL`, which plans a merge of every column (decision 9).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Stored = tuple[Any, ...]

# Columns that a statement must read after the wanted ones.
MERGE_COLUMNS = ("_part", "deleted_at")
# The engine keeps the smallest value of this column, and the last value of every other column.
_LEAST = "first_ingested_at"


def merge_rows(rows: Iterable[Stored], columns: Sequence[str], key: Sequence[str]) -> list[Stored]:
    """Merge rows into one row for each run that was not deleted, in the order of the runs' first rows.

    `rows` have these columns and then MERGE_COLUMNS, and include all rows of their runs. `key`: columns that identify a
    run.
    """
    place = [columns.index(name) for name in key]
    by_place: dict[Stored, list[Stored]] = {}
    for row in rows:
        by_place.setdefault(tuple(row[index] for index in place), []).append(row)
    return [_whole(same, columns) for same in by_place.values() if all(row[-1] is None for row in same)]


def _whole(rows: list[Stored], columns: Sequence[str]) -> Stored:
    if len(rows) == 1:
        return rows[0][: len(columns)]
    oldest, *newer = sorted(rows, key=_written)
    values = list(oldest[: len(columns)])
    for row in newer:
        values = [old if new is None else new for old, new in zip(values, row, strict=False)]
    if _LEAST in columns:
        index = columns.index(_LEAST)
        values[index] = min((row[index] for row in rows if row[index] is not None), default=None)
    return tuple(values)


def _written(row: Stored) -> int:
    """Number of the insert that wrote the row, from the name of its part: the partition, then the inserts' numbers."""
    _, first, *_ = row[-2].split("_")
    return int(first)
