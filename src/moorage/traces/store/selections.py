"""Selections: the runs of a workspace that a search asks for, as SQL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, NamedTuple
from uuid import UUID

from moorage.traces.store.conditions import Condition, RunScope, time_text

EVER, NEVER = datetime(1900, 1, 1, tzinfo=UTC), datetime(2299, 12, 31, tzinfo=UTC)
# Maximum time between the starts of runs of one trace. Bounds where other runs of a trace are searched.
TRACE_LASTS = timedelta(days=7)
TICK = timedelta(microseconds=1)
TIME = "DateTime64(6, 'UTC')"


class Position(NamedTuple):
    """The run after which a page begins."""

    start_time: datetime
    id: UUID


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

    def scanned(self) -> Selection:
        """Drop the index from the condition: over a short time, a scan costs less."""
        return self if self.condition is None else replace(self, condition=self.condition.scanned())

    def digest(self) -> bytes:
        """Return a hash of the search that does not depend on its time window."""
        condition = self.condition and (self.condition.sql, sorted(self.condition.parameters.items()))
        where = (
            self.workspace_id,
            self.session_ids,
            self.of_roots,
            condition,
            self.feedback_since,
            self.feedback_until,
        )
        return sha256(repr(where).encode()).digest()

    @property
    def whole_trace(self) -> UUID | None:
        """Trace whose runs in these projects are all selected; None if there is no such trace."""
        return self.trace_id if (self.since, self.until) == (EVER, NEVER) else None


def scope_of(session_ids: Sequence[UUID] | None) -> RunScope:
    """Return the scope for compiling the filters of a selection."""
    places = ["tenant_id = {tenant_id:UUID}"]
    if session_ids is not None:
        # Only for a single project does the engine read rows in key order and stop when the page is full.
        single = len(session_ids) == 1
        places.append("session_id = {session_id:UUID}" if single else "session_id IN {session_ids:Array(UUID)}")
    where = " AND ".join(places)
    return RunScope(
        runs=f"{where} AND start_time >= {{since:{TIME}}} AND start_time < {{until:{TIME}}}",
        traces=f"{where} AND start_time >= {{traces_since:{TIME}}} AND start_time < {{traces_until:{TIME}}}",
        feedback=(
            "tenant_id = {tenant_id:UUID}"
            f" AND modified_at >= {{feedback_since:{TIME}}} AND modified_at < {{feedback_until:{TIME}}}"
        ),
    )


def bound(selection: Selection) -> tuple[str, dict[str, Any]]:
    """Return the WHERE clause of a selection, and the values that it binds."""
    clauses = [scope_of(selection.session_ids).runs]
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
        clauses.append(selection.condition.sql)
        values |= selection.condition.parameters
    return " AND ".join(clauses), values


def shifted(at: datetime, by: timedelta) -> datetime:
    return at if at in {EVER, NEVER} else min(max(at, EVER + TRACE_LASTS), NEVER - TRACE_LASTS) + by
