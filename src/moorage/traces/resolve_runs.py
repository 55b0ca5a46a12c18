"""Resolving runs: find the project, the start and the place in its trace of each run of a request.

Most runs contain all three. Values that an update leaves out come from its run in the same request, else from the
store. Values that a child leaves out come from its parent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from moorage.kernel.encoding import decode
from moorage.traces.parse_run import DEFAULT_PROJECT, RefusedRunError, RunWrite, order_segment
from moorage.traces.records.run_rows import RunValues
from moorage.traces.store.projects import ProjectStore
from moorage.traces.store.run_writes import KnownRun, RunLocation, RunWrites

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass
class ResolvedRuns:
    """Runs with session_id, start_us and (except updates) dotted_order; `lost` updates of unknown runs; refusals."""

    runs: list[RunWrite] = field(default_factory=list)
    lost: list[RunWrite] = field(default_factory=list)
    refused: list[RefusedRunError] = field(default_factory=list)


class RunResolver:
    def __init__(self, *, writes: RunWrites, projects: ProjectStore) -> None:
        self._writes = writes
        self._projects = projects

    async def find(self, workspace_id: UUID, runs: Sequence[RunWrite]) -> ResolvedRuns:
        posts = {run.id: run for run in runs if not run.is_patch}
        placed = ResolvedRuns(runs=list(runs))
        if patches := [run for run in runs if run.is_patch]:
            await self._complete(workspace_id, patches, posts)
            placed.lost = [run for run in patches if run.start_us is None or not _names_project(run)]
            placed.runs = [run for run in runs if run not in placed.lost] if placed.lost else placed.runs
        await self._adopt(workspace_id, posts)
        await self._find_projects(workspace_id, placed)
        if unclear := [run for run in placed.runs if run.unclear]:
            await self._clarify(workspace_id, unclear, posts)
        return placed

    async def _complete(self, workspace_id: UUID, patches: Sequence[RunWrite], posts: Mapping[str, RunWrite]) -> None:
        """Set the start and the project of updates that leave them out."""
        for run in patches:
            if post := posts.get(run.id):
                run.start_us = post.start_us
                run.project_id, run.project_name = post.project_id, post.project_name or DEFAULT_PROJECT
        missing = [run for run in patches if run.start_us is None or not _names_project(run)]
        if not missing:
            return
        wanted = {found for run in missing for found in (run.id, run.trace_id) if found}
        places = await self._writes.read_places(workspace_id, wanted)
        for run in missing:
            if place := places.get(run.id):
                run.session_id = place.session_id
                run.start_us = (place.start_at - _EPOCH) // _MICROSECOND
                run.trace_id = run.trace_id or (str(place.trace_id) if place.trace_id else None)
            elif run.trace_id in places:  # all of a trace is in one project
                run.session_id = places[run.trace_id].session_id

    async def _find_projects(self, workspace_id: UUID, placed: ResolvedRuns) -> None:
        """Set the ids of the projects that the runs name. The first run that names a project creates it."""
        open_runs = [run for run in placed.runs if run.session_id is None]
        given = {run.project_id for run in open_runs if run.project_id}
        known = await self._projects.known(workspace_id, given) if given else given
        first_starts = _first_starts([run for run in open_runs if run.project_id is None])
        ids = await self._projects.ensure(workspace_id, first_starts) if first_starts else {}
        for run in open_runs:
            if run.project_id is None:
                run.session_id = ids[run.project_name or DEFAULT_PROJECT]
            elif run.project_id in known:
                run.session_id = run.project_id
            else:
                placed.refused.append(_unknown_project(run))
        if len(known) < len(given):
            placed.runs = [run for run in placed.runs if run.session_id is not None]

    # --- runs with a parent and no dotted_order -----------------------------------------------------------------------

    async def _adopt(self, workspace_id: UUID, posts: Mapping[str, RunWrite]) -> None:
        orphans = [run for run in posts.values() if run.dotted_order is None]
        if not orphans:
            return
        orders = {run.id: run.dotted_order for run in posts.values() if run.dotted_order}
        absent = {run.parent_run_id for run in orphans if run.parent_run_id not in posts} - {None}
        orders |= await self._read_orders(workspace_id, [parent for parent in absent if parent])
        # Parents first, since a request may hold several generations. A cycle of parents must not loop for ever.
        while orphans:
            open_ids = {run.id for run in orphans}
            ready = [run for run in orphans if run.parent_run_id not in open_ids] or orphans[:1]
            for run in ready:
                orders[run.id] = _order_under(run, orders.get(run.parent_run_id or ""))
                orphans.remove(run)

    async def _read_orders(self, workspace_id: UUID, ids: Sequence[str]) -> dict[str, str]:
        places = await self._writes.read_places(workspace_id, ids) if ids else {}
        stored = await self._writes.read_stored(workspace_id, places) if places else {}
        return {run_id: run.dotted_order for run_id, run in stored.items() if run.dotted_order}

    async def read_stored(self, workspace_id: UUID, runs: Sequence[RunWrite]) -> dict[str, KnownRun]:
        """Read the stored values of runs whose place is known."""
        places = {run.id: _place(run) for run in runs}
        return await self._writes.read_stored(workspace_id, places) if places else {}

    # --- updates that leave out the kind of their run -----------------------------------------------------------------

    async def _clarify(self, workspace_id: UUID, unclear: Sequence[RunWrite], posts: Mapping[str, RunWrite]) -> None:
        stored = await self.read_stored(workspace_id, [run for run in unclear if run.id not in posts])
        for run in unclear:
            if post := posts.get(run.id):
                said = RunValues(*post.values)
                run.clarify(post.run_type, _decoded(said.metadata_json), _parameters(said.extra_without_metadata))
            elif found := stored.get(run.id):
                run.clarify(found.run_type, _decoded(found.metadata_json), _parameters(found.extra))
            else:
                run.clarify(None, None, None)


def _first_starts(runs: Iterable[RunWrite]) -> dict[str, datetime]:
    """Find when the first run of each project began, by the project's name."""
    found: dict[str, int] = {}
    for run in runs:
        assert run.start_us is not None
        name = run.project_name or DEFAULT_PROJECT
        found[name] = min(run.start_us, found.get(name, run.start_us))
    return {name: _EPOCH + start_us * _MICROSECOND for name, start_us in found.items()}


def _names_project(run: RunWrite) -> bool:
    return run.session_id is not None or run.project_id is not None or run.project_name is not None


def _unknown_project(run: RunWrite) -> RefusedRunError:
    return RefusedRunError(f"run {run.id}: session_id {run.project_id} is not a project of this workspace")


def _order_under(run: RunWrite, parent_order: str | None) -> str:
    """Set the order of a run below its parent. An unknown parent is assumed to have started with its child."""
    assert run.start_us is not None
    assert run.parent_run_id is not None
    if parent_order is None:
        ancestors: Iterable[str] = dict.fromkeys([run.trace_id or run.parent_run_id, run.parent_run_id])
        parent_order = ".".join(order_segment(run.start_us, ancestor) for ancestor in ancestors)
    run.dotted_order = f"{parent_order}.{order_segment(run.start_us, run.id)}"
    run.trace_id = parent_order[22:58]
    return run.dotted_order


def _place(run: RunWrite) -> RunLocation:
    assert run.session_id is not None
    assert run.start_us is not None
    return RunLocation(run.session_id, _EPOCH + run.start_us * _MICROSECOND, None)


def _decoded(json: str | bytes | None) -> Any:
    return decode(json) if json else None


def _parameters(extra: str | bytes | None) -> Any:
    return decode(extra).get("invocation_params") if extra else None
