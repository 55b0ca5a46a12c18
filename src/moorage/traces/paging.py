"""Paging: find the runs of one page, and the cursors between pages.

A page is found in one of three ways. A search for one trace uses the index of traces. A filter on words or metadata
uses their index, and the candidates are then confirmed. All other searches read windows of time that widen until the
page is full. Decision 9 has the figures.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import orjson

from moorage.kernel.clickhouse import ClickHouse
from moorage.kernel.errors import BadRequestError
from moorage.traces.records.words import SortOrder
from moorage.traces.store.run_columns import SHORT
from moorage.traces.store.run_reads import FoundRun, PageRequest, RunKey, RunReads
from moorage.traces.store.selections import EVER, NEVER, TICK, Position, Selection, shifted

# Lists search the newest hours first, and older times only if the page is not full.
_WINDOWS = (timedelta(hours=3), timedelta(days=1), timedelta(days=7), timedelta(days=30))
# Confirming a candidate costs as much as reading it. So the first round takes slightly more candidates than the page
# has runs, and later rounds enough to see whether the index narrows the search at all.
_CANDIDATES_LATER = (300, 2000)
# If the last page of a search covered a short time, the next page is searched in twice that time first. The limit is
# lower for a search with an index, since this shortcut scans every run of that time.
_RECENT_PAGES = 2
_RECENT_MIN, _RECENT_MAX, _RECENT_SCANNED_MAX = timedelta(minutes=1), timedelta(hours=3), timedelta(hours=1)
_SEARCHES_MAX = 1000
# POST and PATCH are separate rows until they are merged. Some runs have more rows than are worth reading.
_ROWS_A_RUN, _ROWS_A_RUN_MAX = 2.0, 8.0


class Paging:
    def __init__(self, clickhouse: ClickHouse) -> None:
        self._runs = RunReads(clickhouse)
        # Times that the newest pages of this process's recent searches covered, and their rows per run.
        self._lengths: dict[bytes, tuple[timedelta, float]] = {}

    async def newest(self, selection: Selection, limit: int, fields: Collection[str]) -> list[FoundRun]:
        """Find the newest page. Lists are polled, so the time of the same search's last page is tried first; there,
        fields are read with the keys if all of them are short.
        """
        page: list[FoundRun] = []
        if recent := self.recent(selection):
            short = tuple(set(fields).difference(RunKey._fields)) if SHORT.issuperset(fields) else ()
            page = await self.page(recent[0].scanned(), PageRequest(limit, fields=short))
        if len(page) < limit:
            page = await self.page(selection, PageRequest(limit))
        self.note(selection, page, limit)
        return page

    async def page(self, selection: Selection, request: PageRequest) -> list[FoundRun]:
        """Find up to `limit` runs in the requested order. For a single trace, deleted runs may be among them."""
        selection = _from_position(selection, request)
        if selection.trace_id is not None:
            return await self._runs.page_of_trace(selection, selection.trace_id, request)
        found: list[FoundRun] = []
        if selection.is_indexed and not selection.located:
            found, after = await self._through_index(selection, request)
            if len(found) >= request.limit or after is None:
                return found[: request.limit]
            request = request._replace(after=after)
            selection = _from_position(selection, request)
        selection = await self._since(selection, newest_first=request.newest_first)
        for window in _windows(selection, newest_first=request.newest_first):
            found += await self._runs.page(window, request._replace(limit=request.limit - len(found)))
            if len(found) >= request.limit:
                break
        return found

    async def _through_index(
        self, selection: Selection, request: PageRequest
    ) -> tuple[list[FoundRun], Position | None]:
        """Confirm a few rounds of candidates. Returns also the position to continue from; None if there are no more."""
        found: list[FoundRun] = []
        after = request.after
        for most in (request.limit + request.limit // 4, *_CANDIDATES_LATER):
            candidates = await self._runs.candidates(selection, request._replace(limit=most, after=after))
            found += await self._confirmed(selection, candidates)
            if len(candidates) < most:
                return found, None
            after = candidates[-1].key.position
            if len(found) >= request.limit:
                break
        return found, after

    async def _confirmed(self, selection: Selection, candidates: Sequence[FoundRun]) -> list[FoundRun]:
        """Keep the candidates whose whole run meets the condition, in the same order. A candidate that is its run's
        only row is judged by this row, if it is still in the same part: a merge may have made one row of two.
        """
        judged = {run.key.place: run for run in candidates if run.row["holds"] is not None}
        parts = await self._runs.parts(selection, [run.key for run in judged.values()]) if judged else {}
        alone = {place: run for place, run in judged.items() if parts.get(place) == [run.row["part"]]}
        keys = {run.key.place: run.key for run in candidates}
        matching = await self._runs.matching(selection, [key for place, key in keys.items() if place not in alone])
        found = {run.key.place: run for run in matching}
        found |= {place: FoundRun(run.key, run.key._asdict()) for place, run in alone.items() if run.row["holds"]}
        return [found[place] for place in keys if place in found]

    async def _since(self, selection: Selection, *, newest_first: bool) -> Selection:
        """Begin with the first run, so that windows from the begin on do not search all the time before it."""
        if newest_first or selection.located or selection.since != EVER:
            return selection
        oldest = await self._runs.oldest(selection)
        return replace(selection, since=oldest) if oldest else selection

    def recent(self, selection: Selection) -> tuple[Selection, float] | None:
        """Return the window that probably holds the newest page, and the number of unmerged rows per run there; None
        when the last page is unknown or covered a long time.
        """
        if (known := self._lengths.get(selection.digest())) is None:
            return None
        since = max(selection.since, _end_of(selection) - _RECENT_PAGES * known[0])
        return replace(selection, since=since), known[1]

    def note(self, selection: Selection, page: Sequence[FoundRun], limit: int, rows_a_run: float = _ROWS_A_RUN) -> None:
        """Remember how much time the newest page covered. A page with fewer runs than the limit is not remembered."""
        search, length_max = selection.digest(), _RECENT_SCANNED_MAX if selection.is_indexed else _RECENT_MAX
        self._lengths.pop(search, None)
        length = max(_end_of(selection) - page[-1].key.start_time, _RECENT_MIN) if len(page) == limit else length_max
        if length < length_max:
            self._lengths[search] = length, min(rows_a_run, _ROWS_A_RUN_MAX)
            if len(self._lengths) > _SEARCHES_MAX:
                del self._lengths[next(iter(self._lengths))]


# --- where to look ------------------------------------------------------------------------------------------------


def _end_of(selection: Selection) -> datetime:
    return min(selection.until, datetime.now(UTC))


def _from_position(selection: Selection, request: PageRequest) -> Selection:
    """Limit the time of the selection to the page and beyond, so that the table's key skips the rest."""
    if request.after is None:
        return selection
    if request.newest_first:
        return replace(selection, until=min(selection.until, request.after[0] + TICK))
    return replace(selection, since=max(selection.since, request.after[0]))


def _windows(selection: Selection, *, newest_first: bool) -> Iterator[Selection]:
    """Yield windows of growing length, from the begin of the selection, or backwards from its end or from now. The
    first backward window also includes all of the future.
    """
    begin = _end_of(selection) if newest_first else selection.since
    for length in () if selection.located else _WINDOWS:
        edge = shifted(begin, -length if newest_first else length)
        if not selection.since < edge < selection.until:
            break
        before, after = replace(selection, until=edge), replace(selection, since=edge)
        selection, window = (before, after) if newest_first else (after, before)
        yield window
    yield selection


# --- cursors ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PageCursor:
    """Start of a page: the run that it follows, in the order of the search or in reverse. None: the first page."""

    after: Position | None
    order: SortOrder
    backwards: bool = False

    def text(self) -> str:
        assert self.after is not None
        return encode_cursor([self.after[0].isoformat(), str(self.after[1]), self.order, self.backwards])


def read_cursor(text: str | None, order: SortOrder) -> PageCursor:
    """Decode a cursor. Raises BadRequestError for anything but a cursor of a search in this order."""
    if not text:
        return PageCursor(None, order)
    try:
        at, run_id, cursor_order, backwards = decode_cursor(text)
        start_time, last_id = datetime.fromisoformat(at), UUID(run_id)
        valid = cursor_order == order and isinstance(backwards, bool) and EVER <= start_time <= NEVER
    except (ValueError, TypeError, AttributeError):
        valid = False
    if not valid:
        raise BadRequestError("Invalid cursor: give one from an earlier page of the same search, in the same order")
    return PageCursor((start_time, last_id), order, backwards)


def encode_cursor(parts: Sequence[Any]) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(parts)).rstrip(b"=").decode()


def decode_cursor(text: str) -> list[Any]:
    """Decode the parts of a cursor. Raises ValueError for text that is no cursor, TypeError for JSON that is no list."""
    data = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
    return list(orjson.loads(data))
