"""SQL of projects."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeGuard
from uuid import UUID

from psycopg.errors import UniqueViolation
from psycopg.types.json import Jsonb

from moorage.kernel.encoding import decode
from moorage.kernel.errors import ConflictError, InvalidRequestError, UnavailableError
from moorage.kernel.ids import uuid7
from moorage.kernel.memory import Memory
from moorage.kernel.postgres import Postgres
from moorage.traces.filter_language import tree
from moorage.traces.filter_language.text import parse
from moorage.traces.filter_language.tree import scalar_text
from moorage.traces.records.projects import NAME_CHARS_MAX, Project, ProjectCreate, ProjectSearch
from moorage.traces.records.words import JsonObject, TraceTier
from moorage.traces.store.filters import like_pattern

# Columns that callers may set, besides name and start.
_GIVEN = (
    "description",
    "extra",
    "end_time",
    "default_dataset_id",
    "reference_dataset_id",
    "trace_tier",
    "longlived_ttl_days",
)
_COLUMNS = f"id, workspace_id AS tenant_id, name, start_time, {', '.join(_GIVEN)}, test_run_number"

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
INSERT INTO projects (id, workspace_id, name, start_time, {", ".join(_GIVEN)}, actor, test_run_number)
VALUES (%(id)s, %(workspace_id)s, %(name)s, coalesce(%(start_time)s, now()),
    {", ".join(f"%({name})s" for name in _GIVEN)}, %(actor)s, CASE WHEN %(reference_dataset_id)s::uuid IS NOT NULL THEN (
        SELECT 1 + count(*) FROM projects WHERE workspace_id = %(workspace_id)s
            AND reference_dataset_id = %(reference_dataset_id)s) END)
{{}}
RETURNING {_COLUMNS}
"""
_INSERT_NEW = _INSERT.format("")
# Given values replace the existing ones; omitted values stay.
_UPSERT = _INSERT.format(f"""
ON CONFLICT (workspace_id, name) DO UPDATE SET
    {", ".join(f"{name} = coalesce(excluded.{name}, projects.{name})" for name in _GIVEN)},
    start_time = coalesce(%(start_time)s, projects.start_time), updated_at = now(), actor = excluded.actor
""")
_EXPERIMENTS = """
SELECT id FROM projects WHERE workspace_id = %s AND reference_dataset_id IS NOT NULL ORDER BY created_at, id LIMIT 1001
"""
_READ = f"SELECT {_COLUMNS} FROM projects WHERE workspace_id = %s AND id = ANY(%s)"
_PAGE = f"""
SELECT {_COLUMNS} FROM projects WHERE {{where}}
ORDER BY {{column}} {{order}}, id {{order}} LIMIT %(limit)s OFFSET %(offset)s
"""
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
_KEPT_MAX = 10_000  # clients choose the names, so their number is unbounded
_COUNT = "SELECT count(*) AS n FROM projects WHERE workspace_id = %s"


class ProjectStore:
    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres
        # For each workspace, cached ids by name and cached tiers by id.
        self._kept = Memory[tuple[UUID, str | UUID], Any](_KEPT_MAX)

    # --- the hot path of ingest -----------------------------------------------------------------------------------

    async def ensure(self, workspace_id: UUID, first_starts: Mapping[str, datetime]) -> dict[str, UUID]:
        """Return the ids of the projects with these names. Creates missing projects, with the start of their first run
        as start time.

        Takes one statement, or none when all names are cached. Raises InvalidRequestError for a name that is empty or
        too long.
        """
        found: dict[str, UUID] = self._recall(workspace_id, first_starts)
        if missing := {name: start for name, start in first_starts.items() if name not in found}:
            found |= await self._ensure(workspace_id, missing)
        return found

    async def _ensure(self, workspace_id: UUID, first_starts: Mapping[str, datetime]) -> dict[str, UUID]:
        if any(not 0 < len(name) <= NAME_CHARS_MAX for name in first_starts):
            raise InvalidRequestError(f"The name of a project has between 1 and {NAME_CHARS_MAX} characters")
        # PostgreSQL's text cannot hold NUL.
        stored = {name: name.replace("\0", "\ufffd") for name in first_starts}
        starts = {stored[name]: start for name, start in first_starts.items()}
        ids: dict[str, UUID] = {}
        for _ in range(_ENSURE_TRIES):
            missing = sorted(starts.keys() - ids.keys())
            values = {
                "workspace_id": workspace_id,
                "names": missing,
                "ids": [uuid7() for _ in missing],
                "starts": [starts[name] for name in missing],
            }
            rows = await self._postgres.fetch(_ENSURE, values)
            ids |= {row["name"]: row["id"] for row in rows}
            self._remember(workspace_id, _tiers(rows))
            if len(ids) == len(starts):
                ensured = {name: ids[stored[name]] for name in first_starts}
                self._remember(workspace_id, ensured)
                return ensured
        raise UnavailableError("A project is being made and deleted again and again; try again in a moment")

    async def tiers(self, workspace_id: UUID, ids: Collection[UUID]) -> dict[UUID, TraceTier]:
        """Return the tiers of the projects; ids that are not projects of the workspace are left out."""
        found: dict[UUID, TraceTier] = self._recall(workspace_id, ids)
        if missing := set(ids) - found.keys():
            read = _tiers(await self._postgres.fetch(_TIERS, (workspace_id, list(missing))))
            self._remember(workspace_id, read)
            found |= read
        return found

    async def known(self, workspace_id: UUID, ids: Collection[UUID]) -> set[UUID]:
        """Return the ids that are projects of the workspace."""
        return set(await self.tiers(workspace_id, ids))

    def _recall(self, workspace_id: UUID, keys: Iterable[Any]) -> dict[Any, Any]:
        kept = {key: self._kept.recall((workspace_id, key)) for key in keys}
        return {key: value for key, value in kept.items() if value is not None}

    def _remember(self, workspace_id: UUID, found: Mapping[Any, Any]) -> None:
        for key, value in found.items():
            self._kept.keep((workspace_id, key), value, KEPT_S)

    def _forget(self, ids: Collection[UUID]) -> None:
        gone = set(ids)
        self._kept.forget(lambda key, value: key[1] in gone or value in gone)

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
        return next(iter(await self.read_all(workspace_id, [project_id])), None)

    async def count(self, workspace_id: UUID) -> int:
        row = await self._postgres.fetch_one(_COUNT, (workspace_id,))
        return int(row["n"]) if row else 0

    async def experiments(self, workspace_id: UUID) -> list[UUID]:
        """List projects that are experiments on a dataset, oldest first."""
        return [row["id"] for row in await self._postgres.fetch(_EXPERIMENTS, (workspace_id,))]

    async def update(
        self, workspace_id: UUID, project_id: UUID, changes: Mapping[str, Any], actor: str
    ) -> Project | None:
        """Change a project; None when there is no such project. Raises ConflictError when the new name is taken."""
        assignments = ", ".join(f"{column} = %({column})s" for column in changes) or "name = name"
        extra = _jsonb(changes.get("extra"))
        values = {**changes, "extra": extra, "workspace_id": workspace_id, "id": project_id, "actor": actor}
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

    async def page(self, workspace_id: UUID, search: ProjectSearch) -> list[Project]:
        """List projects by name or start time; one row more than asked for when there are more."""
        where, values = _conditions(workspace_id, search)
        column = "name" if search.sort_by == "name" else "start_time"
        sql = _PAGE.format(where=where, column=column, order="DESC" if search.sort_by_desc else "ASC")
        values |= {"limit": search.limit + 1, "offset": search.offset}
        return await self._postgres.fetch(sql, values)  # type: ignore[return-value]

    async def matching(self, workspace_id: UUID, search: ProjectSearch) -> list[UUID]:
        """List the ids of all matching projects, for callers that sort them by statistics of the trace store."""
        where, values = _conditions(workspace_id, search)
        return [row["id"] for row in await self._postgres.fetch(f"SELECT id FROM projects WHERE {where}", values)]

    async def read_all(self, workspace_id: UUID, ids: Sequence[UUID]) -> list[Project]:
        """Read projects in the order of the ids."""
        rows = {row["id"]: row for row in await self._postgres.fetch(_READ, (workspace_id, list(ids)))}
        return [rows[project_id] for project_id in ids if project_id in rows]  # type: ignore[misc]


# Conditions of a search's fields. A flag has one condition for each value.
_CONDITIONS: Mapping[str, str | Mapping[bool, str]] = {
    "id": "id = ANY(%(id)s)",
    "name": "name = %(name)s",
    "name_contains": "position(lower(%(name_contains)s) IN lower(name)) > 0",
    "reference_free": {True: "reference_dataset_id IS NULL", False: "reference_dataset_id IS NOT NULL"},
    "reference_dataset": "reference_dataset_id = ANY(%(reference_dataset)s)",
    "dataset_version": "extra->'metadata'->>'dataset_version' = %(dataset_version)s",
    "metadata": "extra->'metadata' @> %(metadata)s",
}


def _conditions(workspace_id: UUID, search: ProjectSearch) -> tuple[str, dict[str, Any]]:
    values = {name: value for name in _CONDITIONS if (value := getattr(search, name)) is not None}
    conditions = [(_CONDITIONS[name], value) for name, value in values.items()]
    clauses = [each if isinstance(each, str) else each[value] for each, value in conditions]
    if search.metadata is not None:
        values["metadata"] = Jsonb(_object(search.metadata))
    if search.tag_value_id:
        clauses.append("FALSE")
    if search.filter:
        clauses.append(_FilterCompiler(values).expression(parse(search.filter)))
    return " AND ".join(["workspace_id = %(workspace_id)s", *clauses]), {**values, "workspace_id": workspace_id}


def _object(text: str) -> JsonObject:
    try:
        found = decode(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InvalidRequestError('metadata must be a JSON object, such as {"key": "value"}')
    return found


def _tiers(rows: Iterable[Mapping[str, Any]]) -> dict[UUID, TraceTier]:
    return {row["id"]: TraceTier(row["trace_tier"]) for row in rows}


def _jsonb(value: JsonObject | None) -> Jsonb | None:
    return None if value is None else Jsonb(value)


def _conflict(error: UniqueViolation, name: str) -> ConflictError:
    if error.diag.constraint_name == "projects_name":
        return ConflictError(f"Session with name {name!r} already exists; name another, or upsert it")
    return ConflictError("The id of the project is taken; leave it out to be given one")


# --- filters ------------------------------------------------------------------------------------------------------

# The filter language of runs, restricted to the fields that projects have. An expression is never NULL, so that `not`
# works as expected. Every value of the caller is a bound parameter.
_FIELDS = {
    "id": "id",
    "session_id": "id",
    "name": "name",
    "start_time": "start_time",
    "end_time": "end_time",
    "trace_tier": "trace_tier",
    "metadata": "extra->'metadata'",
    "tags": "extra->'tags'",
    "extra": "extra",
}
_SIGNS = {"eq": "=", "gt": ">", "gte": ">=", "lt": "<", "lte": "<=", "like": "LIKE"}
_INVERSE = {"neq": "eq", "notlike": "like"}
_PAIRS = """EXISTS (SELECT FROM jsonb_each_text(
    CASE jsonb_typeof(extra->'metadata') WHEN 'object' THEN extra->'metadata' ELSE '{{}}' END) AS pair WHERE {})"""
_TAGS = """EXISTS (SELECT FROM jsonb_array_elements_text(
    CASE jsonb_typeof(extra->'tags') WHEN 'array' THEN extra->'tags' ELSE '[]' END) AS tag WHERE {})"""
_PAIR_PARTS = {"metadata_key": "pair.key", "metadata_value": "coalesce(pair.value, 'null')"}


class _FilterCompiler:
    """Compiles a condition on `projects`, and adds its values to the given ones."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def expression(self, node: tree.Expression) -> str:
        match node:
            case tree.And(parts):
                return self._all(parts)
            case tree.Or(parts):
                return f"({' OR '.join(map(self.expression, parts))})"
            case tree.Not(part):
                return f"(NOT {self.expression(part)})"
            case tree.Compare() | tree.In():
                return self._pairs([node]) if node.field.pair else self._compared(node)
            case tree.Has():
                return self._has(node)
            case tree.Exists():
                return self._exists(node)
            case tree.Search():
                return self._search(node)

    def _all(self, parts: Sequence[tree.Expression]) -> str:
        paired = [part for part in parts if isinstance(part, tree.Compare | tree.In) and part.field.pair]
        clauses = [self.expression(part) for part in parts if part not in paired]
        if paired:
            clauses.append(self._pairs(paired))
        return f"({' AND '.join(clauses)})"

    def _pairs(self, conditions: Sequence[tree.Compare | tree.In]) -> str:
        """Read the conditions of one `PairGroup` together."""
        bound = [each for each in conditions if not _is_negative(each)]
        apart = [each for each in conditions if _is_negative(each)]
        if any(each.field.is_key for each in bound):
            bound += [each for each in apart if not each.field.is_key]
            apart = [each for each in apart if each.field.is_key]
        clauses = [self._pair(bound)] if bound else []
        clauses += [f"(NOT {self._pair([_inverse(each)])})" for each in apart]
        return f"({' AND '.join(clauses)})"

    def _pair(self, conditions: Sequence[tree.Compare | tree.In]) -> str:
        tests = [self._holds(_column(each.field), each) for each in conditions]
        return _PAIRS.format(" AND ".join(tests))

    def _compared(self, node: tree.Compare | tree.In) -> str:
        if _is_negative(node):
            return f"(NOT {self._compared(_inverse(node))})"
        column = _column(node.field)
        if node.field.kind is tree.Kind.TAGS:
            return _TAGS.format(self._holds("tag", node))
        if isinstance(node, tree.Compare) and node.operator == "like":
            column = f"({column})::text"
        return self._holds(column, node)

    def _holds(self, value: str, node: tree.Compare | tree.In) -> str:
        as_text = node.field.pair is not None
        if isinstance(node, tree.In):
            wanted = [scalar_text(each) if as_text else each for each in node.values]  # type: ignore[arg-type]
            return f"coalesce({value} = ANY({self._bind(wanted)}), false)" if wanted else "false"
        if _is_negative(node):
            return f"(NOT {self._holds(value, _inverse(node))})"
        if node.value is None and not as_text:
            return f"({value} IS NULL)"
        given = scalar_text(node.value) if as_text else node.value  # type: ignore[arg-type]
        if node.operator == "like":
            given = like_pattern(str(given))
        return f"coalesce({value} {_SIGNS[node.operator]} {self._bind(given)}, false)"

    def _has(self, node: tree.Has) -> str:
        wanted = [node.value] if node.field.name == "tags" else decode(node.value)
        return f"coalesce({_column(node.field)} @> {self._bind(Jsonb(wanted))}, false)"

    def _exists(self, node: tree.Exists) -> str:
        if node.key is None:
            return f"({_column(node.field)} IS NOT NULL)"
        return f"coalesce(jsonb_exists({_column(node.field)}, {self._bind(node.key)}), false)"

    def _search(self, node: tree.Search) -> str:
        column = "concat_ws(' ', name, description)" if node.field is None else f"({_column(node.field)})::text"
        return f"coalesce(position(lower({self._bind(node.text)}) IN lower({column})) > 0, false)"

    def _bind(self, value: Any) -> str:
        name = f"f{len(self._values)}"
        self._values[name] = value
        return f"%({name})s"


def _column(field: tree.Field) -> str:
    """Return the column of a field. Raises InvalidRequestError for a field that projects lack."""
    column = _PAIR_PARTS.get(field.name) or _FIELDS.get(field.name)
    if column is None:
        raise InvalidRequestError(f"Invalid filter: a session has no {field.name}; it has {', '.join(_FIELDS)}")
    return column


def _is_negative(node: tree.Compare | tree.In) -> TypeGuard[tree.Compare]:
    return isinstance(node, tree.Compare) and node.operator in _INVERSE


def _inverse(node: tree.Compare) -> tree.Compare:
    return tree.Compare(_INVERSE[node.operator], node.field, node.value)  # type: ignore[arg-type]
