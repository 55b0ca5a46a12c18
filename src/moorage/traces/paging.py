"""Paging: find the runs of one page, and the cursors between pages.

A page is found in one of three ways: in the index of traces, when one trace is asked for; through an index of words or
metadata, whose candidates are then confirmed; else in windows of time that widen until the page is full. Decision 9 has
the figures.
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

# A list looks at the newest hours first, and at the rest only when these do not fill the page.
_WINDOWS = (timedelta(hours=3), timedelta(days=1), timedelta(days=7), timedelta(days=30))
# Confirming a candidate costs what reading it costs: first some more than the page has, then enough to see whether the
# index narrows at all.
_CANDIDATES_LATER = (300, 2000)
# The next page is looked for in twice the time that the last one took, if that was short. Where an index could find
# candidates it must be shorter, since each run is looked at then.
_RECENT_PAGES = 2
_RECENT_MIN, _RECENT_MAX, _RECENT_SCANNED_MAX = timedelta(minutes=1), timedelta(hours=3), timedelta(hours=1)
_SEARCHES_MAX = 1000
# POST and PATCH lie apart until they are merged; some runs have more rows than are worth reading.
_ROWS_A_RUN, _ROWS_A_RUN_MAX = 2.0, 8.0


class Paging:
    def __init__(self, clickhouse: ClickHouse) -> None:
        self._runs = RunReads(clickhouse)
        self.recent = RecentPages()

    async def newest(self, selection: Selection, limit: int, fields: Collection[str]) -> list[FoundRun]:
        """Find the newest page, first where the last page of the same search was: lists are asked again and again. Fields come
        with the keys there when all of them are short.
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
        """Find up to `limit` runs in the order asked for. Of a trace some may have been deleted."""
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
        """Confirm a few rounds of candidates. Returns where to look further; None when these were all."""
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
        """Keep the candidates whose whole run meets the condition, in the same order. A candidate that is the only row of its
        run is judged by itself. It must still lie in the part where it was found: a merge may have made one row of two.
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
    """Time in which the newest page of a search probably lies, and rows for each of its runs until they are merged."""

    window: Selection
    rows_a_run: float


class RecentPages:
    """The newest pages of the recent searches of this process."""

    def __init__(self) -> None:
        self._lengths: dict[bytes, tuple[timedelta, float]] = {}

    def page(self, selection: Selection) -> RecentPage | None:
        """Return the time of the last page; None when it is unknown or was long."""
        if (known := self._lengths.get(selection.digest())) is None:
            return None
        since = max(selection.since, _end_of(selection) - _RECENT_PAGES * known[0])
        return RecentPage(replace(selection, since=since), known[1])

    def note(self, selection: Selection, page: Sequence[FoundRun], limit: int, rows_a_run: float = _ROWS_A_RUN) -> None:
        """Remember how much time the newest page took. Fewer runs than the limit are no page."""
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
    """The selection without the time before the page, which the key of the table can skip."""
    if request.after is None:
        return selection
    if request.newest_first:
        return replace(selection, until=min(selection.until, request.after.start_time + TICK))
    return replace(selection, since=max(selection.since, request.after.start_time))


def _backward_windows(selection: Selection) -> Iterator[Selection]:
    """Windows of growing length from the end of the selection, or from now. The first one has all of the future."""
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
    """Beginning of a page: after a run, in the order of the search or against it."""

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
