"""How much time the newest pages of searches took: who shows a list asks for it again and again."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from moorage.traces.store.selections import Selection

# The next page is looked for in so many times as much as the last one took.
_PAGES = 2
# If that was no more than this; of what an index finds less, since each run is looked at then.
_LENGTH_MIN, _LENGTH_MAX, _LENGTH_SCANNED_MAX = timedelta(minutes=1), timedelta(hours=3), timedelta(hours=1)
# Of runs of which nothing is known: POST and PATCH lie apart until they are merged. And the most that is worth reading.
_ROWS_A_RUN, _ROWS_A_RUN_MAX = 2.0, 8.0
_SEARCHES_MAX = 1000


class PageLength(NamedTuple):
    """`rows_a_run`: of how many rows its runs were made. `by_time`: whether what is below its runs was found by the time
    that the ids of their traces say, or would be.
    """

    time: timedelta
    rows_a_run: float
    by_time: bool


class PageGuess(NamedTuple):
    """Where the newest page of a search probably is, and what else is known from the last one."""

    window: Selection
    rows_a_run: float
    by_time: bool


class PageLengths:
    """Of the searches that were asked last, in this process."""

    def __init__(self) -> None:
        self._lengths: dict[bytes, PageLength] = {}

    def guess(self, selection: Selection) -> PageGuess | None:
        """None where too little is known, or the last page took too long."""
        if (length := self._lengths.get(selection.digest())) is None:
            return None
        since = _newest(selection) - _PAGES * length.time
        return PageGuess(replace(selection, since=max(selection.since, since)), length.rows_a_run, length.by_time)

    def note(self, selection: Selection, oldest: datetime | None, rows_a_run: float | None, *, by_time: bool) -> None:
        """`oldest`: when the last run of the newest page began; None where there is no whole page."""
        search, length_max = selection.digest(), _LENGTH_SCANNED_MAX if selection.is_indexed else _LENGTH_MAX
        self._lengths.pop(search, None)
        length = length_max if oldest is None else max(_newest(selection) - oldest, _LENGTH_MIN)
        if length < length_max:
            self._lengths[search] = PageLength(length, min(rows_a_run or _ROWS_A_RUN, _ROWS_A_RUN_MAX), by_time)
            if len(self._lengths) > _SEARCHES_MAX:
                del self._lengths[next(iter(self._lengths))]


def _newest(selection: Selection) -> datetime:
    return min(selection.until, datetime.now(UTC))
