"""SQL of projects."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.errors import UniqueViolation
from psycopg.types.json import Jsonb

from moorage.kernel.errors import ConflictError, InvalidRequestError, UnavailableError
from moorage.kernel.ids import uuid7
from moorage.kernel.postgres import Postgres
from moorage.traces.filter_language.text import parse
from moorage.traces.records.projects import NAME_CHARS_MAX, Project, ProjectCreate, ProjectSearch
from moorage.traces.records.words import JsonObject, TraceTier
from moorage.traces.store.project_filters import compile_project_filter

_COLUMNS = """id, workspace_id AS tenant_id, name, description, extra, start_time, end_time, default_dataset_id,
    reference_dataset_id, trace_tier, longlived_ttl_days, test_run_number"""

# Finds the ids of projects by name for ingest, and creates missing projects. A name that another process is just
# inserting is in neither half of the result, since the statement's snapshot is older. The next try finds it.
_ENSURE = """
WITH wanted AS (
    SELECT * FROM unnest(%(names)s::text[], %(ids)s::uuid[], %(starts)s::timestamptz[]) AS given (name, id, start_time)
),
found AS (
    SELECT name, id, trace_tier FROM projects WHERE workspace_id = %(workspace_id)s AND name = ANY(%(names)s)
),
made AS (
    INSERT INTO projects (id, workspace_id, name, start_time)
    SELECT id, %(workspace_id)s, name, start_time FROM wanted WHERE name NOT IN (SELECT name FROM found) ORDER BY name
    ON CONFLICT (workspace_id, name) DO NOTHING RETURNING name, id, trace_tier
)
SELECT p.name, p.id, coalesce(p.trace_tier, s.default_trace_tier, 'longlived') AS trace_tier
FROM (SELECT * FROM found UNION ALL SELECT * FROM made) AS p
LEFT JOIN retention_settings s ON s.workspace_id = %(workspace_id)s
"""
_ENSURE_TRIES = 5
_TIERS = """
SELECT p.id, coalesce(p.trace_tier, s.default_trace_tier, 'longlived') AS trace_tier
FROM projects p LEFT JOIN retention_settings s USING (workspace_id) WHERE p.workspace_id = %s AND p.id = ANY(%s)
"""
# Experiments are numbered within their dataset.
_INSERT = f"""
INSERT INTO projects (id, workspace_id, name, description, extra, start_time, end_time, default_dataset_id,
    reference_dataset_id, trace_tier, longlived_ttl_days, actor, test_run_number)
VALUES (%(id)s, %(workspace_id)s, %(name)s, %(description)s, %(extra)s, coalesce(%(start_time)s, now()), %(end_time)s,
    %(default_dataset_id)s, %(reference_dataset_id)s, %(trace_tier)s, %(longlived_ttl_days)s, %(actor)s,
    CASE WHEN %(reference_dataset_id)s::uuid IS NOT NULL THEN (
        SELECT 1 + count(*) FROM projects WHERE workspace_id = %(workspace_id)s
            AND reference_dataset_id = %(reference_dataset_id)s) END)
{{}}
RETURNING {_COLUMNS}
"""
_INSERT_NEW = _INSERT.format("")
# Given values replace the existing ones; omitted values stay.
_UPSERT = _INSERT.format("""
ON CONFLICT (workspace_id, name) DO UPDATE SET
    description = coalesce(excluded.description, projects.description),
    extra = coalesce(excluded.extra, projects.extra),
    start_time = coalesce(%(start_time)s, projects.start_time),
    end_time = coalesce(excluded.end_time, projects.end_time),
    default_dataset_id = coalesce(excluded.default_dataset_id, projects.default_dataset_id),
    reference_dataset_id = coalesce(excluded.reference_dataset_id, projects.reference_dataset_id),
    trace_tier = coalesce(excluded.trace_tier, projects.trace_tier),
    longlived_ttl_days = coalesce(excluded.longlived_ttl_days, projects.longlived_ttl_days),
    updated_at = now(), actor = excluded.actor
""")
_EXPERIMENTS = """
SELECT id FROM projects WHERE workspace_id = %s AND reference_dataset_id IS NOT NULL ORDER BY created_at, id LIMIT %s
"""
_READ = f"SELECT {_COLUMNS} FROM projects WHERE workspace_id = %s AND id = %s"
_UPDATE = f"""
UPDATE projects SET {{}}, updated_at = now(), actor = %(actor)s
WHERE workspace_id = %(workspace_id)s AND id = %(id)s RETURNING {_COLUMNS}
"""
# Deletes projects and orders the removal of their contents in one statement, so a crash leaves both or neither. The
# first order removes the contents at once; the second one removes later what other processes still wrote by the
# project's name.
_REMOVE = """
WITH gone AS (DELETE FROM projects WHERE workspace_id = %(workspace_id)s AND id = ANY(%(ids)s) RETURNING id),
ordered AS (
    INSERT INTO trace_deletions (id, workspace_id, project_id, not_before, actor)
    SELECT gen_random_uuid(), %(workspace_id)s, id, now() + make_interval(secs => wait_s), %(actor)s
    FROM gone, unnest(ARRAY[0, %(wait_s)s::float8]) AS wait_s
)
SELECT id FROM gone
"""

# Seconds for which a process may use cached projects. A project deleted by another process takes runs this much longer.
KEPT_S = 5.0
_KEPT_MAX = 10_000
_COUNT = "SELECT count(*) AS n FROM projects WHERE workspace_id = %s"


class ProjectStore:
    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres
        # Cached projects, with the time until which each entry may be used.
        self._by_name: dict[tuple[UUID, str], tuple[UUID, float]] = {}
        self._tier_by_id: dict[tuple[UUID, UUID], tuple[TraceTier, float]] = {}

    # --- the hot path of ingest -----------------------------------------------------------------------------------

    async def ensure(self, workspace_id: UUID, first_starts: Mapping[str, datetime]) -> dict[str, UUID]:
        """Return the ids of the projects with these names. Creates missing projects, with the start of their first run
        as start time.

        Takes one statement, or none when all names are cached. Raises InvalidRequestError for a name that is empty or
        too long.
        """
        now = time.monotonic()
        found: dict[str, UUID] = {}
        missing = []
        for name in first_starts:
            project_id, usable_until = self._by_name.get((workspace_id, name), (None, 0.0))
            if project_id is not None and usable_until > now:
                found[name] = project_id
            else:
                missing.append(name)
        if missing:
            found |= await self._ensure(workspace_id, {name: first_starts[name] for name in missing})
        return found

    async def _ensure(self, workspace_id: UUID, first_starts: Mapping[str, datetime]) -> dict[str, UUID]:
        # PostgreSQL's text cannot hold NUL.
        stored = {name: name.replace("\0", "\ufffd") for name in first_starts}
        starts = {stored[name]: start for name, start in first_starts.items()}
        if any(not 0 < len(name) <= NAME_CHARS_MAX for name in first_starts):
            raise InvalidRequestError(f"The name of a project has between 1 and {NAME_CHARS_MAX} characters")
        wanted = sorted(set(stored.values()))
        found: dict[str, UUID] = {}
        tiers: dict[UUID, TraceTier] = {}
        for _ in range(_ENSURE_TRIES):
            missing = [name for name in wanted if name not in found]
            if not missing:
                break
            values = {
                "workspace_id": workspace_id,
                "names": missing,
                "ids": [uuid7() for _ in missing],
                "starts": [starts[name] for name in missing],
            }
            for row in await self._postgres.fetch(_ENSURE, values):
                found[row["name"]] = row["id"]
                tiers[row["id"]] = TraceTier(row["trace_tier"])
        else:
            raise UnavailableError("A project is being made and deleted again and again; try again in a moment")
        ensured = {name: found[stored[name]] for name in first_starts}
        self._remember(workspace_id, ensured, tiers)
        return ensured

    async def tiers(self, workspace_id: UUID, ids: Collection[UUID]) -> dict[UUID, TraceTier]:
        """Return the tiers of the projects; ids that are not projects of the workspace are left out."""
        now = time.monotonic()
        found: dict[UUID, TraceTier] = {}
        for project_id in ids:
            tier, usable_until = self._tier_by_id.get((workspace_id, project_id), (None, 0.0))
            if tier is not None and usable_until > now:
                found[project_id] = tier
        if missing := set(ids) - found.keys():
            rows = await self._postgres.fetch(_TIERS, (workspace_id, list(missing)))
            read = {row["id"]: TraceTier(row["trace_tier"]) for row in rows}
            self._remember(workspace_id, {}, read)
            found |= read
        return found

    async def known(self, workspace_id: UUID, ids: Collection[UUID]) -> set[UUID]:
        """Return the ids that are projects of the workspace."""
        return set(await self.tiers(workspace_id, ids))

    def _remember(self, workspace_id: UUID, names: Mapping[str, UUID], tiers: Mapping[UUID, TraceTier]) -> None:
        for kept in (self._by_name, self._tier_by_id):
            if len(kept) > _KEPT_MAX:  # clients choose the names, so their number is unbounded
                kept.clear()
        until = time.monotonic() + KEPT_S
        self._by_name |= {(workspace_id, name): (project_id, until) for name, project_id in names.items()}
        self._tier_by_id |= {(workspace_id, project_id): (tier, until) for project_id, tier in tiers.items()}

    def _forget(self, ids: Collection[UUID]) -> None:
        gone = set(ids)
        self._by_name = {key: value for key, value in self._by_name.items() if value[0] not in gone}
        self._tier_by_id = {key: value for key, value in self._tier_by_id.items() if key[1] not in gone}

    # --- projects as callers know them ----------------------------------------------------------------------------

    async def insert(self, workspace_id: UUID, new: ProjectCreate, actor: str, *, upsert: bool) -> Project:
        """Insert a project. Raises ConflictError when the id is taken, or the name is and `upsert` is not set."""
        project_id = new.id or uuid7()
        name = new.name or f"project-{project_id.hex[-8:]}"
        values = {
            **new.model_dump(),
            "id": project_id,
            "workspace_id": workspace_id,
            "name": name,
            "extra": _jsonb(new.extra),
            "actor": actor,
        }
        try:
            row = await self._postgres.fetch_one(_UPSERT if upsert else _INSERT_NEW, values)
        except UniqueViolation as error:
            raise _conflict(error, name) from None
        self._forget([project_id])
        return row  # type: ignore[return-value]

    async def read(self, workspace_id: UUID, project_id: UUID) -> Project | None:
        return await self._postgres.fetch_one(_READ, (workspace_id, project_id))  # type: ignore[return-value]

    async def count(self, workspace_id: UUID) -> int:
        row = await self._postgres.fetch_one(_COUNT, (workspace_id,))
        return int(row["n"]) if row else 0

    async def experiments(self, workspace_id: UUID, most: int = 1001) -> list[UUID]:
        """List projects that are experiments on a dataset, oldest first."""
        return [row["id"] for row in await self._postgres.fetch(_EXPERIMENTS, (workspace_id, most))]

    async def update(
        self, workspace_id: UUID, project_id: UUID, changes: Mapping[str, Any], actor: str
    ) -> Project | None:
        """Change a project; None when there is no such project. Raises ConflictError when the new name is taken."""
        assignments = ", ".join(f"{column} = %({column})s" for column in changes) or "name = name"
        values = {**changes, "workspace_id": workspace_id, "id": project_id, "actor": actor}
        if "extra" in changes:
            values["extra"] = _jsonb(changes["extra"])
        try:
            row = await self._postgres.fetch_one(_UPDATE.format(assignments), values)
        except UniqueViolation as error:
            raise _conflict(error, changes["name"]) from None
        self._forget([project_id])
        return row  # type: ignore[return-value]

    async def remove(self, workspace_id: UUID, ids: Collection[UUID], actor: str, wait_s: float) -> list[UUID]:
        """Remove projects, and order the removal of their contents now and again after `wait_s`. Returns the ids of
        projects that existed.
        """
        values = {"workspace_id": workspace_id, "ids": list(ids), "actor": actor, "wait_s": wait_s}
        rows = await self._postgres.fetch(_REMOVE, values)
        self._forget(ids)
        return [row["id"] for row in rows]

    async def page(self, workspace_id: UUID, search: ProjectSearch, metadata: JsonObject | None) -> list[Project]:
        """List projects by name or start time; one row more than asked for when there are more."""
        where, values = _conditions(workspace_id, search, metadata)
        column = "name" if search.sort_by == "name" else "start_time"
        order = "DESC" if search.sort_by_desc else "ASC"
        sql = f"""SELECT {_COLUMNS} FROM projects WHERE {where}
            ORDER BY {column} {order}, id {order} LIMIT %(limit)s OFFSET %(offset)s"""
        values |= {"limit": search.limit + 1, "offset": search.offset}
        return await self._postgres.fetch(sql, values)  # type: ignore[return-value]

    async def matching(self, workspace_id: UUID, search: ProjectSearch, metadata: JsonObject | None) -> list[UUID]:
        """List the ids of all matching projects, for callers that sort them by statistics of the trace store."""
        where, values = _conditions(workspace_id, search, metadata)
        return [row["id"] for row in await self._postgres.fetch(f"SELECT id FROM projects WHERE {where}", values)]

    async def read_all(self, workspace_id: UUID, ids: Sequence[UUID]) -> list[Project]:
        """Read projects in the order of the ids."""
        sql = f"SELECT {_COLUMNS} FROM projects WHERE workspace_id = %s AND id = ANY(%s)"
        rows = {row["id"]: row for row in await self._postgres.fetch(sql, (workspace_id, list(ids)))}
        return [rows[project_id] for project_id in ids if project_id in rows]  # type: ignore[misc]


def _conditions(workspace_id: UUID, search: ProjectSearch, metadata: JsonObject | None) -> tuple[str, dict[str, Any]]:
    clauses, values = ["workspace_id = %(workspace_id)s"], dict[str, Any](workspace_id=workspace_id)

    def add(clause: str, **value: Any) -> None:
        clauses.append(clause)
        values.update(value)

    if search.id is not None:
        add("id = ANY(%(ids)s)", ids=search.id)
    if search.name is not None:
        add("name = %(name)s", name=search.name)
    if search.name_contains:
        add("position(lower(%(name_contains)s) IN lower(name)) > 0", name_contains=search.name_contains)
    if search.reference_free is not None:
        add(f"reference_dataset_id IS {'NULL' if search.reference_free else 'NOT NULL'}")
    if search.reference_dataset is not None:
        add("reference_dataset_id = ANY(%(datasets)s)", datasets=search.reference_dataset)
    if search.dataset_version is not None:
        add("extra->'metadata'->>'dataset_version' = %(dataset_version)s", dataset_version=search.dataset_version)
    if metadata is not None:
        add("extra->'metadata' @> %(metadata)s", metadata=Jsonb(metadata))
    if search.tag_value_id:
        add("FALSE")
    if search.filter:
        condition, bound = compile_project_filter(parse(search.filter))
        add(condition, **bound)
    return " AND ".join(clauses), values


def _jsonb(value: JsonObject | None) -> Jsonb | None:
    return None if value is None else Jsonb(value)


def _conflict(error: UniqueViolation, name: str) -> ConflictError:
    if error.diag.constraint_name == "projects_name":
        return ConflictError(f"Session with name {name!r} already exists; name another, or upsert it")
    return ConflictError("The id of the project is taken; leave it out to be given one")
