"""SQL of assistants and their versions."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from moorage.agents.records.assistants import (
    Assistant,
    AssistantCount,
    AssistantSearch,
    AssistantVersion,
    AssistantVersionsSearch,
)
from moorage.agents.records.filters import Filter
from moorage.agents.records.words import JsonObject
from moorage.agents.store.visible import visible
from moorage.kernel.postgres import Postgres

COLUMNS = "assistant_id, graph_id, config, context, metadata, name, created_at, updated_at, version, description"
_VERSION_COLUMNS = "assistant_id, graph_id, config, context, metadata, name, created_at, version, description"
_SORTABLE = frozenset({"assistant_id", "created_at", "updated_at", "name", "graph_id"})

# Inserts the assistant and its first version together, or neither.
_INSERT = f"""
WITH made AS (
    INSERT INTO assistants (assistant_id, graph_id, config, context, metadata, name, description, version, actor)
    VALUES (%(assistant_id)s, %(graph_id)s, %(config)s, %(context)s, %(metadata)s, %(name)s, %(description)s, 1,
        %(actor)s)
    ON CONFLICT (assistant_id) DO NOTHING
    RETURNING {COLUMNS}
), version AS (
    INSERT INTO assistant_versions ({_VERSION_COLUMNS}) SELECT {_VERSION_COLUMNS} FROM made
)
SELECT {COLUMNS} FROM made
"""
_THE_ASSISTANT = "a.assistant_id = %(assistant_id)s"


def _read(condition: str) -> str:
    return f"SELECT {COLUMNS} FROM assistants a WHERE {_THE_ASSISTANT} AND {condition}"


def _delete(condition: str) -> str:
    return f"DELETE FROM assistants a WHERE {_THE_ASSISTANT} AND {condition}"


def _update(condition: str) -> str:
    """Return the UPDATE. Missing fields keep their value, and metadata is merged. Version numbers are never reused, not
    even after /latest.
    """
    return f"""
WITH changed AS (
    UPDATE assistants a SET
        graph_id = coalesce(%(graph_id)s, graph_id),
        config = coalesce(%(config)s, config),
        context = coalesce(%(context)s, context),
        metadata = metadata || coalesce(%(metadata)s::jsonb, '{{}}'),
        name = coalesce(%(name)s, name),
        description = coalesce(%(description)s, description),
        version = (SELECT max(v.version) + 1 FROM assistant_versions v WHERE v.assistant_id = %(assistant_id)s),
        updated_at = now()
    WHERE {_THE_ASSISTANT} AND {condition}
    RETURNING {COLUMNS}
), version AS (
    INSERT INTO assistant_versions (assistant_id, graph_id, config, context, metadata, name, version, description)
    SELECT assistant_id, graph_id, config, context, metadata, name, version, description FROM changed
)
SELECT {COLUMNS} FROM changed
"""


def _set_version(condition: str) -> str:
    return f"""
UPDATE assistants a SET
    graph_id = v.graph_id, config = v.config, context = v.context, metadata = v.metadata, name = v.name,
    description = v.description, version = v.version, updated_at = now()
FROM assistant_versions v
WHERE {_THE_ASSISTANT} AND {condition} AND v.assistant_id = a.assistant_id AND v.version = %(version)s
RETURNING {", ".join(f"a.{column}" for column in COLUMNS.split(", "))}
"""


# Updates only an assistant that nobody has changed: its first version is its only one.
_SET_DEFAULTS = """
WITH first AS (
    UPDATE assistant_versions v SET config = %(config)s, context = %(context)s
    WHERE v.assistant_id = %(assistant_id)s AND (v.config, v.context) IS DISTINCT FROM (%(config)s, %(context)s)
        AND NOT EXISTS (
            SELECT FROM assistant_versions o WHERE o.assistant_id = v.assistant_id AND o.version <> v.version
        )
    RETURNING assistant_id
)
UPDATE assistants a SET config = %(config)s, context = %(context)s, updated_at = now()
FROM first WHERE a.assistant_id = first.assistant_id
"""
_THREADS_OF = "SELECT thread_id FROM threads WHERE metadata @> jsonb_build_object('assistant_id', %s::text)"
_VERSIONS = f"""
SELECT {_VERSION_COLUMNS}, created_at AS updated_at FROM assistant_versions
WHERE assistant_id = %(assistant_id)s AND metadata @> %(metadata)s
ORDER BY version DESC LIMIT %(limit)s OFFSET %(offset)s
"""


def _conditions(search: AssistantCount, seen: Filter) -> tuple[str, dict[str, Any]]:
    condition, values = visible(seen, "metadata")
    clauses = [condition]
    if search.metadata:
        clauses.append("metadata @> %(metadata)s")
        values["metadata"] = Jsonb(search.metadata)
    if search.graph_id is not None:
        clauses.append("graph_id = %(graph_id)s")
        values["graph_id"] = search.graph_id
    if search.name is not None:
        clauses.append("name ILIKE %(name)s ESCAPE '\\'")
        escaped = search.name.replace("\\", r"\\").replace("%", r"\%").replace("_", r"\_")
        values["name"] = f"%{escaped}%"
    return " AND ".join(clauses), values


def _jsonb(value: JsonObject | None) -> Jsonb | None:
    return None if value is None else Jsonb(value)


class AssistantStore:
    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres

    async def insert(
        self,
        assistant_id: UUID,
        graph_id: str,
        *,
        config: JsonObject,
        context: JsonObject,
        metadata: JsonObject,
        name: str,
        description: str | None,
        actor: str | None = None,
    ) -> Assistant | None:
        """Return the row, or None when the id is taken."""
        values = {
            "assistant_id": assistant_id,
            "graph_id": graph_id,
            "config": Jsonb(config),
            "context": Jsonb(context),
            "metadata": Jsonb(metadata),
            "name": name,
            "description": description,
            "actor": actor,
        }
        return await self._one(_INSERT, values)

    async def set_defaults(self, assistant_id: UUID, *, config: JsonObject, context: JsonObject) -> None:
        values = {"assistant_id": assistant_id, "config": Jsonb(config), "context": Jsonb(context)}
        await self._postgres.execute(_SET_DEFAULTS, values)

    async def read(self, assistant_id: UUID, seen: Filter) -> Assistant | None:
        condition, values = visible(seen, "a.metadata")
        return await self._one(_read(condition), {"assistant_id": assistant_id, **values})

    async def update(
        self,
        assistant_id: UUID,
        seen: Filter,
        *,
        graph_id: str | None,
        config: JsonObject | None,
        context: JsonObject | None,
        metadata: JsonObject | None,
        name: str | None,
        description: str | None,
    ) -> Assistant | None:
        values = {
            "assistant_id": assistant_id,
            "graph_id": graph_id,
            "config": _jsonb(config),
            "context": _jsonb(context),
            "metadata": _jsonb(metadata),
            "name": name,
            "description": description,
        }
        condition, more = visible(seen, "a.metadata")
        return await self._one(_update(condition), {**values, **more})

    async def set_version(self, assistant_id: UUID, version: int, seen: Filter) -> Assistant | None:
        condition, values = visible(seen, "a.metadata")
        return await self._one(_set_version(condition), {"assistant_id": assistant_id, "version": version, **values})

    async def remove(self, assistant_id: UUID, seen: Filter) -> bool:
        condition, values = visible(seen, "a.metadata")
        return bool(await self._postgres.execute(_delete(condition), {"assistant_id": assistant_id, **values}))

    async def threads_of(self, assistant_id: UUID) -> list[UUID]:
        return [row["thread_id"] for row in await self._postgres.fetch(_THREADS_OF, (assistant_id,))]

    async def search(self, search: AssistantSearch, seen: Filter) -> list[Assistant]:
        """Return one row more than requested if there are more."""
        where, values = _conditions(search, seen)
        sort_by = search.sort_by if search.sort_by in _SORTABLE else "created_at"
        order = "ASC" if search.sort_order == "asc" else "DESC"
        columns = ", ".join(search.select) if search.select else COLUMNS
        sql = f"""SELECT {columns} FROM assistants WHERE {where}
            ORDER BY {sort_by} {order}, assistant_id LIMIT %(limit)s OFFSET %(offset)s"""
        page = {"limit": search.limit + 1, "offset": search.offset}
        return await self._postgres.fetch(sql, {**values, **page})  # type: ignore[return-value]

    async def count(self, search: AssistantCount, seen: Filter) -> int:
        where, values = _conditions(search, seen)
        row = await self._postgres.fetch_one(f"SELECT count(*) AS n FROM assistants WHERE {where}", values)
        return int(row["n"]) if row else 0

    async def versions(self, assistant_id: UUID, search: AssistantVersionsSearch) -> list[AssistantVersion]:
        values = {
            "assistant_id": assistant_id,
            "metadata": Jsonb(search.metadata or {}),
            "limit": search.limit,
            "offset": search.offset,
        }
        return await self._postgres.fetch(_VERSIONS, values)  # type: ignore[return-value]

    async def _one(self, sql: str, values: Any) -> Assistant | None:
        return await self._postgres.fetch_one(sql, values)  # type: ignore[return-value]
