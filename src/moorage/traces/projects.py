"""Projects (wire: sessions), and the statistics of their runs."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

from moorage.kernel.access import Caller
from moorage.kernel.errors import InvalidRequestError, NotFoundError, existing
from moorage.traces.feedback import composed
from moorage.traces.filter_language.text import parse
from moorage.traces.records.feedback import FeedbackLevel
from moorage.traces.records.projects import (
    AddressKind,
    AddressSearch,
    MetadataSearch,
    Project,
    ProjectCreate,
    ProjectPatch,
    ProjectSearch,
    ProjectSort,
    ProjectStats,
    ProjectWithStats,
    ResolvedAddress,
    WorkspaceStats,
)
from moorage.traces.records.words import JsonObject
from moorage.traces.statistics import Statistics
from moorage.traces.store.feedback import FeedbackKeyStore, FeedbackStore
from moorage.traces.store.project_stats import ProjectStatsStore, Size
from moorage.traces.store.projects import ProjectStore

_IN_POSTGRES = frozenset({ProjectSort.NAME, ProjectSort.START_TIME})
# Reads without statistics still have all their keys, with null as values.
_UNASKED: ProjectStats = dict.fromkeys(ProjectStats.__annotations__)  # type: ignore[assignment]
_COUNTS = ("run_count", "total_tokens", "prompt_tokens", "completion_tokens")
_NO_STATS: ProjectStats = {**_UNASKED, **dict.fromkeys(_COUNTS, 0), "run_facets": []}  # type: ignore[typeddict-item]


class Projects:
    def __init__(
        self,
        projects: ProjectStore,
        stats: ProjectStatsStore,
        statistics: Statistics,
        feedback: FeedbackStore,
        keys: FeedbackKeyStore,
    ) -> None:
        self._projects = projects
        self._stats = stats
        self._statistics = statistics
        self._feedback = feedback
        self._keys = keys

    async def create(self, caller: Caller, new: ProjectCreate, *, upsert: bool) -> Project:
        """Create a project. Raises ConflictError when the name is taken and `upsert` is not set."""
        return await self._projects.insert(caller.workspace_id, new, caller.actor, upsert=upsert)

    async def get(self, caller: Caller, project_id: UUID, search: ProjectSearch) -> ProjectWithStats:
        """Get one project. Only the statistics arguments of `search` count."""
        project = existing(await self._projects.read(caller.workspace_id, project_id), _missing(project_id))
        return (await self._with_stats(caller.workspace_id, [project], search))[0]

    async def workspace_stats(self, caller: Caller) -> WorkspaceStats:
        none: dict[str, Any] = dict.fromkeys(WorkspaceStats.__annotations__, 0)
        count = await self._projects.count(caller.workspace_id)
        return {**none, "tenant_id": caller.workspace_id, "tracer_session_count": count}  # type: ignore[typeddict-item]

    async def resolve(self, caller: Caller, address: AddressSearch) -> ResolvedAddress:
        """Find the project that an address names. Raises NotFoundError when nothing was sent there yet."""
        name = address.project_name
        wanted = ProjectSearch(name=name, limit=1) if name else ProjectSearch(id=_experiment_ids(address), limit=1)
        found = await self._projects.page(caller.workspace_id, wanted)
        if not found:
            raise NotFoundError("No session belongs to this address; it is made when something is sent there")
        return {"session_id": found[0]["id"]}

    async def update(self, caller: Caller, project_id: UUID, patch: ProjectPatch) -> Project:
        """Change a project. Raises ConflictError when the new name is taken."""
        changed = await self._projects.update(caller.workspace_id, project_id, patch.changes(), caller.actor)
        return existing(changed, _missing(project_id))

    async def metadata(self, caller: Caller, project_id: UUID, search: MetadataSearch) -> dict[str, list[str]]:
        """Return the `k` most frequent values of each metadata key that the project's runs have."""
        existing(await self._projects.read(caller.workspace_id, project_id), _missing(project_id))
        return await self._stats.metadata(caller.workspace_id, project_id, search)

    async def list(self, caller: Caller, search: ProjectSearch) -> Sequence[ProjectWithStats]:
        """Return one project more than asked for when there are more."""
        if search.sort_by in _IN_POSTGRES:
            found = await self._projects.page(caller.workspace_id, search)
        else:
            ids = await self._sorted(caller.workspace_id, search)
            page = ids[search.offset : search.offset + search.limit + 1]
            found = await self._projects.read_all(caller.workspace_id, page)
        return await self._with_stats(caller.workspace_id, found, search)

    async def _sorted(self, workspace_id: UUID, search: ProjectSearch) -> Sequence[UUID]:
        """Sort all matching projects by a statistic of the trace store; projects without any come last."""
        ids = await self._projects.matching(workspace_id, search)
        known = await self._sort_keys(workspace_id, ids, search)
        with_key = [id_ for id_ in ids if known.get(id_) is not None]
        with_key.sort(key=lambda id_: (known[id_], id_), reverse=search.sort_by_desc)
        return with_key + sorted(set(ids) - set(with_key))

    async def _sort_keys(self, workspace_id: UUID, ids: Collection[UUID], search: ProjectSearch) -> dict[UUID, Any]:
        if search.sort_by == ProjectSort.LAST_RUN_START_TIME:
            return dict(await self._stats.last_starts(workspace_id, ids))
        if search.sort_by == ProjectSort.FEEDBACK:
            key = search.sort_by_feedback_key or ""
            level = FeedbackLevel(search.sort_by_feedback_source or "run")
            feedback = await self._feedback.stats_by_session(workspace_id, ids, level)
            return {id_: stats[key]["avg"] for id_, stats in feedback.items() if key in stats}
        column = "run_count" if search.sort_by == ProjectSort.RUNS_COUNT else search.sort_by.value
        stats = await self._stats.stats(workspace_id, ids, search.stats_start_time, None)
        return {id_: found.get(column) for id_, found in stats.items()}

    async def _with_stats(
        self, workspace_id: UUID, projects: Sequence[Project], search: ProjectSearch
    ) -> Sequence[ProjectWithStats]:
        ids = [project["id"] for project in projects]
        stats, facets = await asyncio.gather(
            self._stats_of(workspace_id, ids, search), self._facets_of(workspace_id, ids, search)
        )
        found: list[ProjectWithStats] = []
        for project in projects:
            shown = stats.get(project["id"], _UNASKED)
            if search.facets:
                shown = {**shown, "run_facets": facets.get(project["id"], [])}
            last = shown["last_run_start_time"]
            found.append({**_selected(shown, search.stats_select), **project, "last_run_start_time_live": last})
        return found

    async def _stats_of(
        self, workspace_id: UUID, ids: Sequence[UUID], search: ProjectSearch
    ) -> dict[UUID, ProjectStats]:
        if not (search.include_stats and ids):
            return {}
        expression = parse(search.stats_filter) if search.stats_filter else None
        runs, sizes, of_runs, of_projects, formulas = await asyncio.gather(
            self._stats.stats(workspace_id, ids, search.stats_start_time, expression),
            self._stats.sizes(workspace_id, ids),
            self._feedback.stats_by_session(workspace_id, ids, FeedbackLevel.RUN),
            self._feedback.stats_by_session(workspace_id, ids, FeedbackLevel.SESSION),
            self._keys.formulas_of(workspace_id, ids),
        )
        found: dict[UUID, ProjectStats] = {}
        for id_ in ids:
            size = sizes.get(id_, Size(0, 0))
            mine = [formula for formula in formulas if formula["session_id"] == id_]
            found[id_] = {
                **_NO_STATS,
                **runs.get(id_, {}),
                "feedback_stats": composed(of_runs.get(id_, {}), mine),
                "session_feedback_stats": of_projects.get(id_, {}),
                "stored_runs": size.runs,
                "stored_bytes": size.bytes,
            }
        return found

    async def _facets_of(
        self, workspace_id: UUID, ids: Sequence[UUID], search: ProjectSearch
    ) -> Mapping[UUID, Sequence[JsonObject]]:
        if not (search.facets and ids):
            return {}
        return await self._statistics.facets_of_projects(workspace_id, ids, search)


def _selected(stats: ProjectStats, names: Sequence[str] | None) -> ProjectStats:
    if names is None:
        return stats
    return {name: value if name in names else None for name, value in stats.items()}  # type: ignore[return-value]


def _experiment_ids(address: AddressSearch) -> list[UUID]:
    if address.kind is not AddressKind.EXPERIMENT:
        raise InvalidRequestError("An agent's address has an id and an environment")
    try:
        return [UUID(address.id or "")]
    except ValueError:
        raise InvalidRequestError("An experiment's address has the id of its session, a UUID") from None


def _missing(project_id: UUID) -> str:
    return f"Session with id {project_id} not found"
