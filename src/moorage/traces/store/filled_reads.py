"""Rows of runs, read by the columns that they fill.

A statement is planned column by column and part by part, and empty columns cost what others cost. Most writers leave most
columns empty, always the same ones. So those are read that runs have filled lately; each row says which it fills (`filled`),
and where that were not enough, it is read again with what it has.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import reduce
from operator import itemgetter, or_
from typing import Any

from moorage.kernel.clickhouse import ClickHouse
from moorage.traces.store.row_merging import Stored
from moorage.traces.store.run_columns import FILLED, TWINS

# A column is read for as long as one of so many answers had it.
_ANSWERS = 64
_ALL = -1


class FilledLately:
    """What runs filled in the last answers."""

    def __init__(self) -> None:
        self._answers: deque[int] = deque([_ALL], maxlen=_ANSWERS)

    def all(self) -> int:
        return reduce(or_, self._answers)

    def note(self, filled: int) -> None:
        if self._answers[0] == _ALL:  # nothing was known
            self._answers.clear()
        self._answers.append(filled)

    def spare_twins(self) -> frozenset[str]:
        """Of each two twins one that is probably empty, if any is: what is made of the two is then made of the other."""
        filled = self.all()
        twins = ((patched if not FILLED[patched] & filled else posted) for posted, patched in TWINS.items())
        return frozenset(name for name in twins if not FILLED[name] & filled)


class FilledReads:
    def __init__(self, clickhouse: ClickHouse) -> None:
        self._clickhouse = clickhouse
        self._lately = FilledLately()

    async def rows(
        self,
        statement: Callable[[str], str],
        values: Mapping[str, Any],
        columns: Sequence[str],
        beside: Sequence[str] = (),
    ) -> list[Stored]:
        """Rows of these columns and of those beside, as the statement for what is read of `trace_run_rows` gives them."""
        reading = _filled(columns, self._lately.all())
        while True:
            what = ", ".join(map(_column, (*reading, *beside, "filled")))
            rows = await self._clickhouse.rows(statement(what), values)
            filled = reduce(or_, (row[-1] for row in rows), 0)
            missing = set(_filled(columns, filled)).difference(reading)
            if not missing:
                break
            reading = [name for name in columns if name in missing or name in reading]
        if rows:
            self._lately.note(filled)
        return _widened(rows, (*reading, *beside), (*columns, *beside))


def _filled(columns: Sequence[str], filled: int) -> list[str]:
    """Those of the columns that are filled, and all of which `filled` says nothing."""
    return [name for name in columns if name not in FILLED or FILLED[name] & filled]


def _widened(rows: Collection[Stored], read: Sequence[str], columns: Sequence[str]) -> list[Stored]:
    """None for each column that was not read. What rows say of what they fill, at their end, is left out."""
    places = {name: place for place, name in enumerate(read)}
    take = itemgetter(*(places.get(name, -1) for name in columns))
    return [take((*row[:-1], None)) for row in rows]


def _column(name: str) -> str:
    return f"trace_run_rows.{name}" if name.isidentifier() else name
