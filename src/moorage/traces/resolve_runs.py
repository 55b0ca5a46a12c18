"""Resolving runs: find the project, the start and the place in its trace of each run of a request.

Most runs contain all three. Values that an update leaves out come from its run in the same request, else from the
store. Values that a child leaves out come from its parent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from moorage.traces.parse_run import RefusedRunError, RunWrite, order_segment, time_of, us_of
from moorage.traces.records.run_rows import Row
from moorage.traces.store.projects import ProjectStore
from moorage.traces.store.run_writes import RunLocation, RunWrites


@dataclass
class ResolvedRuns:
    """Runs with session_id, start_us and (except updates) dotted_order; `lost` updates of unknown runs; refusals."""

    runs: list[RunWrite]
    lost: list[RunWrite] = field(default_factory=list)
    refused: list[RefusedRunError] = field(default_factory=list)


class RunResolver:
    def __init__(self, *, writes: RunWrites, projects: ProjectStore) -> None:
        self._writes = writes
        self._projects = projects

    async def find(self, workspace_id: UUID, runs: Sequence[RunWrite]) -> ResolvedRuns:
        posts = {run.id: run for run in runs if not run.is_patch}
        placed = ResolvedRuns(list(runs))
        if patches := [run for run in runs if run.is_patch]:
            await self._complete(workspace_id, patches, posts)
            placed.lost = [run for run in patches if not run.has_place]
            placed.runs = [run for run in runs if run.has_place] if placed.lost else placed.runs
        if orphans := [run for run in posts.values() if run.dotted_order is None]:
            await self._adopt(workspace_id, orphans, posts)
        await self._find_projects(workspace_id, placed)
        if unclear := [run for run in placed.runs if run.unclear]:
            stored = await self.read_stored(workspace_id, [run for run in unclear if run.id not in posts])
            for run in unclear:
                run.clarify(posts[run.id].values if run.id in posts else stored.get(run.id, {}))
        return placed

    async def _complete(self, workspace_id: UUID, patches: Sequence[RunWrite], posts: Mapping[str, RunWrite]) -> None:
        """Set the start and the project of updates that leave them out."""
        for run in patches:
            if post := posts.get(run.id):
                run.start_us, run.project = post.start_us, post.project
        if not (missing := [run for run in patches if not run.has_place]):
            return
        wanted = {found for run in missing for found in (run.id, run.trace_id) if found}
        places = await self._writes.read_places(workspace_id, wanted)
        for run in missing:
            if place := places.get(run.id):
                run.session_id, run.start_us = place.session_id, us_of(place.start_at)
                run.trace_id = run.trace_id or (str(place.trace_id) if place.trace_id else None)
            elif run.trace_id in places:  # all of a trace is in one project
                run.session_id = places[run.trace_id].session_id

    async def _find_projects(self, workspace_id: UUID, placed: ResolvedRuns) -> None:
        """Set the ids of the projects that the runs name. The first run that names a project creates it."""
        open_runs = [run for run in placed.runs if run.session_id is None]
        given = {run.project for run in open_runs if isinstance(run.project, UUID)}
        first_starts: dict[str, int] = {}
        for run in open_runs:
            if isinstance(run.project, str) and run.start_us is not None:
                first_starts[run.project] = min(run.start_us, first_starts.get(run.project, run.start_us))
        starts = {name: time_of(start_us) for name, start_us in first_starts.items()}
        ids: dict[UUID | str | None, UUID] = {}
        if starts:
            ids.update(await self._projects.ensure(workspace_id, starts))
        if given:
            ids.update({known: known for known in await self._projects.known(workspace_id, given)})
        for run in open_runs:
            run.session_id = ids.get(run.project)
            if run.session_id is None:
                complaint = f"run {run.id}: session_id {run.project} is not a project of this workspace"
                placed.refused.append(RefusedRunError(complaint))
        if placed.refused:
            placed.runs = [run for run in placed.runs if run.session_id is not None]

    async def _adopt(self, workspace_id: UUID, orphans: list[RunWrite], posts: Mapping[str, RunWrite]) -> None:
        """Set the orders of runs that name only their parent."""
        orders = {run.id: run.dotted_order for run in posts.values()}
        absent = {parent_id for run in orphans if (parent_id := run.parent_run_id) and parent_id not in posts}
        if places := await self._writes.read_places(workspace_id, absent) if absent else {}:
            stored = await self._writes.read_stored(workspace_id, places)
            orders |= {run_id: row["dotted_order"] for run_id, row in stored.items()}
        # Parents first, since a request may hold several generations. A cycle of parents must not loop for ever.
        while orphans:
            open_ids = {run.id for run in orphans}
            for run in [run for run in orphans if run.parent_run_id not in open_ids] or orphans[:1]:
                _order_under(run, orders.get(run.parent_run_id or ""))
                orders[run.id] = run.dotted_order
                orphans.remove(run)

    async def read_stored(self, workspace_id: UUID, runs: Sequence[RunWrite]) -> dict[str, Row]:
        """Read the stored values of runs whose place is known."""
        places = {
            run.id: RunLocation(run.session_id, time_of(run.start_us), None)
            for run in runs
            if run.session_id is not None and run.start_us is not None
        }
        return await self._writes.read_stored(workspace_id, places)


def _order_under(run: RunWrite, parent_order: str | None) -> None:
    """Set the order of a run below its parent. An unknown parent is assumed to have started with its child."""
    assert run.start_us is not None
    assert run.parent_run_id is not None
    if parent_order is None:
        ancestors = dict.fromkeys([run.trace_id or run.parent_run_id, run.parent_run_id])
        parent_order = ".".join(order_segment(run.start_us, ancestor) for ancestor in ancestors)
    run.dotted_order = f"{parent_order}.{order_segment(run.start_us, run.id)}"
    run.trace_id = parent_order[22:58]
