"""Selections: the runs of a workspace that a search asks for, and conditions on them, as SQL with bound values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any
from uuid import UUID

TICK = timedelta(microseconds=1)
# Range of times that the engine can store. Times outside of it are clamped.
EVER, NEVER = datetime(1900, 1, 1, tzinfo=UTC), datetime(2299, 12, 31, tzinfo=UTC)
_AT_MAX = NEVER + timedelta(days=1) - TICK
# Maximum time between the starts of runs of one trace. Bounds where other runs of a trace are searched.
TRACE_LASTS = timedelta(days=7)
TIME = "DateTime64(6, 'UTC')"

# Start time and id of a run: pages are in this order, and begin after a run.
Position = tuple[datetime, UUID]


@dataclass(frozen=True)
class RunScope:
    """Scope of a filter: conditions on tenant_id, session_id and start_time that bound every read.

    `runs` bounds the filtered runs, `traces` all runs of their traces, `feedback` the feedback on them. The caller
    binds the parameters that they name, which always include `tenant_id`.
    """

    runs: str
    traces: str
    feedback: str = "tenant_id = {tenant_id:UUID}"


@dataclass(frozen=True)
class Condition:
    """SQL that is true or false for each whole run, over the columns of `trace_runs`, and the values that it binds.

    `candidates`: SQL over the rows of `trace_run_rows` that an index answers. It holds for at least one row of each run
    that meets the condition. Empty if no index helps.
    `alone`: the SQL that must still hold for a candidate that is its run's only row. Empty if only a read of whole runs
    can tell.
    """

    sql: str
    parameters: Mapping[str, Any]
    candidates: str = ""
    alone: str = ""


@dataclass(frozen=True)
class Selection:
    """Runs of a workspace that begin from `since` until before `until` and meet the condition. The condition's parts on
    feedback only see feedback that was last changed from `feedback_since` until before `feedback_until`.

    `located`: the condition names runs or traces, so reads need no narrow time. `trace_id`: the condition is only this
    trace. `of_roots`: the condition is only that runs are roots.
    """

    workspace_id: UUID
    session_ids: Sequence[UUID] | None
    since: datetime = EVER
    until: datetime = NEVER
    condition: Condition | None = None
    located: bool = False
    trace_id: UUID | None = None
    of_roots: bool = False
    feedback_since: datetime = EVER
    feedback_until: datetime = NEVER

    @property
    def is_plain(self) -> bool:
        """Tell whether the selection is all runs, or all roots, of its time."""
        return self.condition is None or self.of_roots

    @property
    def is_indexed(self) -> bool:
        return self.condition is not None and bool(self.condition.candidates)

    @property
    def whole_trace(self) -> UUID | None:
        """Trace whose runs in these projects are all selected; None if there is no such trace."""
        return self.trace_id if (self.since, self.until) == (EVER, NEVER) else None

    def scanned(self) -> Selection:
        """Drop the index from the condition: over a short time, a scan costs less."""
        return replace(self, condition=self.condition and replace(self.condition, candidates=""))

    def digest(self) -> bytes:
        """Return a hash of the search that does not depend on its time window."""
        return sha256(repr(replace(self, since=EVER, until=NEVER)).encode()).digest()


def scope_of(session_ids: Sequence[UUID] | None) -> RunScope:
    """Return the scope for compiling the filters of a selection."""
    place = "tenant_id = {tenant_id:UUID}"
    if session_ids is not None:
        # Only for a single project does the engine read rows in key order and stop when the page is full.
        single = len(session_ids) == 1
        place += f" AND session_id {'= {session_id:UUID}' if single else 'IN {session_ids:Array(UUID)}'}"
    return RunScope(
        runs=f"{place} AND {_within('start_time', '')}",
        traces=f"{place} AND {_within('start_time', 'traces_')}",
        feedback=f"tenant_id = {{tenant_id:UUID}} AND {_within('modified_at', 'feedback_')}",
    )


def _within(column: str, prefix: str) -> str:
    return f"{column} >= {{{prefix}since:{TIME}}} AND {column} < {{{prefix}until:{TIME}}}"


def bound(selection: Selection) -> tuple[str, dict[str, Any]]:
    """Return the WHERE clause of a selection, and the values that it binds."""
    where = scope_of(selection.session_ids).runs
    values: dict[str, Any] = {
        "tenant_id": selection.workspace_id,
        "since": time_text(selection.since),
        "until": time_text(selection.until),
        "traces_since": time_text(shifted(selection.since, -TRACE_LASTS)),
        "traces_until": time_text(shifted(selection.until, TRACE_LASTS)),
        "feedback_since": time_text(selection.feedback_since),
        "feedback_until": time_text(selection.feedback_until),
    }
    match selection.session_ids:
        case [session_id]:
            values["session_id"] = session_id
        case [*session_ids]:
            values["session_ids"] = session_ids
    if selection.condition is not None:
        where += f" AND {selection.condition.sql}"
        values |= selection.condition.parameters
    return where, values


def shifted(at: datetime, by: timedelta) -> datetime:
    return at if at in {EVER, NEVER} else min(max(at, EVER + TRACE_LASTS), NEVER - TRACE_LASTS) + by


def time_text(at: datetime) -> str:
    """Write a time as the engine reads it."""
    return min(max(at, EVER), _AT_MAX).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
