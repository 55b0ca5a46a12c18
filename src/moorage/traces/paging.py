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
from typing import Any, NamedTuple
from uuid import UUID

import orjson

from moorage.kernel.clickhouse import ClickHouse
from moorage.kernel.errors import BadRequestError
from moorage.traces.records.words import SortOrder
from moorage.traces.store.run_columns import SHORT
from moorage.traces.store.run_reads import Candidate, FoundRun, PageRequest, RunKey, RunReads
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
        self.recent = RecentPages()

    async def newest(self, selection: Selection, limit: int, fields: Collection[str]) -> list[FoundRun]:
        """Find the newest page. Lists are polled, so the time of the same search's last page is tried first; there,
        fields are read with the keys if all of them are short.
        """
        page: list[FoundRun] = []
        if recent := self.recent.page(selection):
            short = tuple(set(fields).difference(RunKey._fields)) if SHORT.issuperset(fields) else ()
            page = await self.page(recent.window.scanned(), PageRequest(limit, fields=short))
        if len(page) < limit:
            page = await self.page(selection, PageRequest(limit))
        self.recent.note(selection, page, limit)
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
        for window in await self._windows(selection, newest_first=request.newest_first):
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
            after = Position(candidates[-1].key.start_time, candidates[-1].key.id)
            if len(found) >= request.limit:
                break
        return found, after

    async def _confirmed(self, selection: Selection, candidates: Sequence[Candidate]) -> list[FoundRun]:
        """Keep the candidates whose whole run meets the condition, in the same order. A candidate that is its run's
        only row is judged by this row, if it is still in the same part: a merge may have made one row of two.
        """
        judged = {each.key.place: each for each in candidates if each.holds is not None}
        parts = await self._runs.parts(selection, [each.key for each in judged.values()]) if judged else {}
        alone = {place: each for place, each in judged.items() if parts.get(place) == [each.part]}
        keys = {each.key.place: each.key for each in candidates}
        matching = await self._runs.matching(selection, [key for place, key in keys.items() if place not in alone])
        found = {run.key.place: run for run in matching}
        found |= {place: FoundRun(each.key, each.key._asdict()) for place, each in alone.items() if each.holds}
        return [found[place] for place in keys if place in found]

    async def _windows(self, selection: Selection, *, newest_first: bool) -> list[Selection]:
        if selection.located:
            return [selection]
        if newest_first:
            return list(_backward_windows(selection))
        oldest = await self._runs.oldest(selection) if selection.since == EVER else None
        return list(_forward_windows(replace(selection, since=oldest) if oldest else selection))


# --- where to look ------------------------------------------------------------------------------------------------


class RecentPage(NamedTuple):
    """Window that probably holds the newest page of a search, and the number of unmerged rows per run there."""

    window: Selection
    rows_a_run: float


class RecentPages:
    """Times that the newest pages of this process's recent searches covered."""

    def __init__(self) -> None:
        self._lengths: dict[bytes, tuple[timedelta, float]] = {}

    def page(self, selection: Selection) -> RecentPage | None:
        """Return the window to try first; None when the last page is unknown or covered a long time."""
        if (known := self._lengths.get(selection.digest())) is None:
            return None
        since = max(selection.since, _end_of(selection) - _RECENT_PAGES * known[0])
        return RecentPage(replace(selection, since=since), known[1])

    def note(self, selection: Selection, page: Sequence[FoundRun], limit: int, rows_a_run: float = _ROWS_A_RUN) -> None:
        """Remember how much time the newest page covered. A page with fewer runs than the limit is not remembered."""
        search, length_max = selection.digest(), _RECENT_SCANNED_MAX if selection.is_indexed else _RECENT_MAX
        self._lengths.pop(search, None)
        length = max(_end_of(selection) - page[-1].key.start_time, _RECENT_MIN) if len(page) == limit else length_max
        if length < length_max:
            self._lengths[search] = length, min(rows_a_run, _ROWS_A_RUN_MAX)
            if len(self._lengths) > _SEARCHES_MAX:
                del self._lengths[next(iter(self._lengths))]


def _end_of(selection: Selection) -> datetime:
    return min(selection.until, datetime.now(UTC))


def _from_position(selection: Selection, request: PageRequest) -> Selection:
    """Limit the time of the selection to the page and beyond, so that the table's key skips the rest."""
    if request.after is None:
        return selection
    if request.newest_first:
        return replace(selection, until=min(selection.until, request.after.start_time + TICK))
    return replace(selection, since=max(selection.since, request.after.start_time))


def _backward_windows(selection: Selection) -> Iterator[Selection]:
    """Yield windows of growing length, backwards from the end of the selection or from now. The first one also includes
    all of the future.
    """
    upper, now = selection.until, _end_of(selection)
    for length in _WINDOWS:
        lower = shifted(now, -length)
        if lower <= selection.since:
            break
        yield replace(selection, since=lower, until=upper)
        upper = lower
    yield replace(selection, until=upper)


def _forward_windows(selection: Selection) -> Iterator[Selection]:
    lower, start = selection.since, selection.since
    for length in _WINDOWS:
        upper = shifted(start, length)
        if upper >= selection.until:
            break
        yield replace(selection, since=lower, until=upper)
        lower = upper
    yield replace(selection, since=lower)


# --- cursors ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PageCursor:
    """Start of a page: the run that it follows, in the order of the search or in reverse."""

    position: Position
    order: SortOrder
    backwards: bool = False

    def text(self) -> str:
        at = self.position.start_time.isoformat()
        return encode_cursor([at, str(self.position.id), self.order, self.backwards])


def read_cursor(text: str | None, order: SortOrder) -> PageCursor | None:
    """Raises BadRequestError for anything but a cursor of a search in this order."""
    if not text:
        return None
    try:
        at, run_id, cursor_order, backwards = decode_cursor(text)
        position = Position(datetime.fromisoformat(at), UUID(run_id))
        valid = cursor_order == order and isinstance(backwards, bool) and EVER <= position.start_time <= NEVER
    except (ValueError, TypeError, AttributeError):
        valid = False
    if not valid:
        raise BadRequestError("Invalid cursor: give one from an earlier page of the same search, in the same order")
    return PageCursor(position, order, backwards)


def encode_cursor(parts: Sequence[Any]) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(parts)).rstrip(b"=").decode()


def decode_cursor(text: str) -> list[Any]:
    """Raises ValueError for text that is no cursor, TypeError for JSON that is no list."""
    data = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
    return list(orjson.loads(data))
