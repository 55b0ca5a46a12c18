"""Runs made of their rows, as the engine makes them when it merges.

Of the few runs of a page this takes less than to have them merged by the statement that reads them (FINAL), which plans a
merge of every column.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Stored = tuple[Any, ...]

# What a statement reads of each row besides, at its end.
HOW_MERGED = ("_part", "deleted_at")
# The engine keeps the least of it, and of everything else the last that is said.
_LEAST = "first_ingested_at"


def merged(rows: Iterable[Stored], columns: Sequence[str], place: Sequence[int]) -> list[Stored]:
    """One row of these columns for each run that was not deleted, in the order in which their first rows came.

    `rows`: of these columns and HOW_MERGED, all that there are of their runs. `place`: which of the columns say which run.
    """
    by_place: dict[Stored, list[Stored]] = {}
    for row in rows:
        by_place.setdefault(tuple(row[index] for index in place), []).append(row)
    return [_whole(same, columns) for same in by_place.values() if all(row[-1] is None for row in same)]


def _whole(rows: list[Stored], columns: Sequence[str]) -> Stored:
    if len(rows) == 1:
        return rows[0][: len(columns)]
    oldest, *newer = sorted(rows, key=_written)
    said = list(oldest[: len(columns)])
    for row in newer:
        said = [old if new is None else new for old, new in zip(said, row, strict=False)]
    if _LEAST in columns:
        index = columns.index(_LEAST)
        said[index] = min((row[index] for row in rows if row[index] is not None), default=None)
    return tuple(said)


def _written(row: Stored) -> int:
    """When, among the rows of its run: a part is named by its partition and the numbers of the inserts that it holds."""
    _, first, *_ = row[-2].split("_")
    return int(first)
