"""SQL of the long-term store: items below namespaces, and their vectors."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from psycopg import AsyncConnection
from psycopg.rows import DictRow
from psycopg.types.json import Jsonb

from moorage.agents.records.items import FoundItem, Item
from moorage.agents.store.item_filters import compile_filter
from moorage.kernel.errors import StartupError
from moorage.kernel.postgres import Postgres

_COLUMNS = "i.namespace, i.key, i.value, i.created_at, i.updated_at"
_IS_LIVE = "(i.expires_at IS NULL OR i.expires_at > now())"
_NEWEST_FIRST = "ORDER BY i.updated_at DESC, i.namespace, i.key"


def _refreshing(found: str) -> str:
    """Read rows and, if `refresh` is true, restart their time to live, in one statement."""
    return f"""
WITH found AS ({found}), refreshed AS (
    UPDATE items SET expires_at = now() + items.ttl_minutes * interval '1 minute' FROM found
    WHERE %(refresh)s AND items.ttl_minutes IS NOT NULL
        AND items.namespace = found.namespace AND items.key = found.key
)
SELECT * FROM found
"""


_READ = _refreshing(
    f"SELECT {_COLUMNS} FROM items i WHERE i.namespace = %(namespace)s AND i.key = %(key)s AND {_IS_LIVE}"
)
_PUT = """
INSERT INTO items AS i (namespace, key, value, ttl_minutes, expires_at)
VALUES (%(namespace)s, %(key)s, %(value)s, %(ttl)s::float8, now() + %(ttl)s::float8 * interval '1 minute')
ON CONFLICT (namespace, key) DO UPDATE SET
    value = excluded.value, ttl_minutes = excluded.ttl_minutes, expires_at = excluded.expires_at, updated_at = now(),
    created_at = CASE WHEN i.expires_at <= now() THEN now() ELSE i.created_at END
"""
_DELETE = "DELETE FROM items WHERE namespace = %(namespace)s AND key = %(key)s"
_SWEEP = """
DELETE FROM items WHERE (namespace, key) IN (
    SELECT namespace, key FROM items WHERE expires_at <= now() LIMIT %s FOR UPDATE SKIP LOCKED
)
"""
_DELETE_VECTORS = "DELETE FROM item_vectors WHERE namespace = %(namespace)s AND key = %(key)s"
_PUT_VECTOR = """
INSERT INTO item_vectors (namespace, key, field, embedding) VALUES (%(namespace)s, %(key)s, %(field)s, %(vector)s)
"""
_HAS_NO_VECTOR = "NOT EXISTS (SELECT FROM item_vectors v WHERE v.namespace = i.namespace AND v.key = i.key)"
# Dimensions above which pgvector cannot index a type, so that only exact search remains.
_VECTOR_DIMS_MAX, _HALFVEC_DIMS_MAX, _DIMS_MAX = 2000, 4000, 16_000
# How many candidates the index keeps; with fewer, it misses near neighbours.
_EF_SEARCH = 100
_EF_SEARCH_MAX = 1000


@dataclass(frozen=True)
class ItemWrite:
    """An item to put, or to delete if it has no value. `vectors` are by field; None if nothing is indexed."""

    namespace: tuple[str, ...]
    key: str
    value: Mapping[str, Any] | None
    ttl_minutes: float | None = None
    vectors: Mapping[str, Sequence[float]] | None = None


@dataclass(frozen=True)
class ItemQuery:
    """Items below `prefix` that match the filter."""

    prefix: tuple[str, ...]
    filter: Mapping[str, Any] = field(default_factory=dict)
    limit: int = 10
    offset: int = 0
    refresh: bool = False


@dataclass(frozen=True)
class Match:
    """A condition on namespaces: labels from the front or the end, `*` for any."""

    labels: tuple[str, ...]
    at_end: bool


class ItemStore:
    def __init__(self, postgres: Postgres, dims: int | None) -> None:
        """Make the store. `dims` is the number of dimensions of the vectors; None without an index."""
        self._postgres = postgres
        self._dims = dims

    async def prepare(self) -> None:
        """Make the table of vectors. Raises StartupError if the database lacks the extension, or has vectors of other
        dimensions.
        """
        if self._dims is None:
            return
        if not 1 <= self._dims <= _DIMS_MAX:
            raise StartupError(f"langgraph.json, store.index.dims: {self._dims} is not from 1 to {_DIMS_MAX}.")
        async with self._postgres.connection() as connection, connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock(hashtext('moorage.item_vectors'))")
            await _require_extension(connection)
            await connection.execute(_vector_table(self._dims))
            await _require_dims(connection, self._dims)

    async def read(self, namespace: tuple[str, ...], key: str, *, refresh: bool) -> Item | None:
        values = {"namespace": list(namespace), "key": key, "refresh": refresh}
        return await self._postgres.fetch_one(_READ, values)  # type: ignore[return-value]

    async def write(self, writes: Sequence[ItemWrite]) -> None:
        """Put and delete all of the items, or none."""
        async with self._postgres.connection() as connection, connection.transaction(), connection.pipeline():
            for write in writes:
                for sql, values in self._statements(write):
                    await connection.execute(sql, values)

    def _statements(self, write: ItemWrite) -> list[tuple[str, dict[str, Any]]]:
        address: dict[str, Any] = {"namespace": list(write.namespace), "key": write.key}
        if write.value is None:
            return [(_DELETE, address)]
        statements = [(_PUT, {**address, "value": Jsonb(write.value), "ttl": write.ttl_minutes})]
        if self._dims is not None:
            statements.append((_DELETE_VECTORS, address))
            for name, vector in (write.vectors or {}).items():
                statements.append((_PUT_VECTOR, {**address, "field": name, "vector": _vector(vector)}))
        return statements

    async def search(self, query: ItemQuery, *, scoreless: bool = False) -> list[FoundItem]:
        """Return items newest first, without scores. `scoreless` returns only items that have no vector."""
        where, values = _conditions(query)
        clause = f"AND {_HAS_NO_VECTOR}" if scoreless else ""
        sql = _refreshing(f"""
            SELECT {_COLUMNS}, NULL::float8 AS score FROM items i WHERE {where} {clause} {_NEWEST_FIRST}
            LIMIT %(limit)s OFFSET %(offset)s
        """)
        return await self._postgres.fetch(sql, values)  # type: ignore[return-value]

    async def search_near(self, query: ItemQuery, vector: Sequence[float]) -> list[FoundItem]:
        """Return the nearest items first. An item with several vectors counts by its nearest one.

        The index returns vectors, not items, so a few items with many vectors may fill all places. Then the query is
        repeated with more candidates.
        """
        assert self._dims is not None
        wanted = query.offset + query.limit
        candidates = wanted
        while True:
            rows = await self._nearest(query, vector, candidates)
            seen = rows[0].pop("seen") if rows else 0
            if len(rows) >= query.limit or seen < candidates:
                return rows  # type: ignore[return-value]
            candidates *= 4

    async def _nearest(self, query: ItemQuery, vector: Sequence[float], candidates: int) -> list[DictRow]:
        where, values = _conditions(query)
        distance = _distance(cast(int, self._dims))
        sql = _refreshing(f"""
            SELECT {_COLUMNS}, 1 - best.distance AS score, best.seen FROM (
                SELECT namespace, key, min(distance) AS distance, sum(count(*)) OVER () AS seen FROM (
                    SELECT v.namespace, v.key, {distance} AS distance
                    FROM item_vectors v JOIN items i ON i.namespace = v.namespace AND i.key = v.key
                    WHERE {where} ORDER BY {distance} LIMIT %(candidates)s
                ) nearest GROUP BY namespace, key ORDER BY distance LIMIT %(limit)s OFFSET %(offset)s
            ) best JOIN items i ON i.namespace = best.namespace AND i.key = best.key
        """)
        values |= {"vector": _vector(vector), "candidates": candidates}
        async with self._postgres.connection() as connection, connection.transaction():
            async with connection.pipeline():
                # The scan continues until enough candidates pass the filter, instead of filtering the first ones only.
                await connection.execute("SET LOCAL hnsw.iterative_scan = strict_order")
                breadth = min(max(_EF_SEARCH, candidates), _EF_SEARCH_MAX)
                await connection.execute(f"SET LOCAL hnsw.ef_search = {breadth}")
                cursor = await connection.execute(f"{sql} ORDER BY score DESC", values)
            return [{**row, "seen": int(row["seen"])} for row in await cursor.fetchall()]

    async def namespaces(
        self, matches: Sequence[Match], *, max_depth: int | None, limit: int, offset: int
    ) -> list[list[str]]:
        """Return the namespaces in order, cut to `max_depth` labels, each once."""
        clauses, values = [_IS_LIVE], dict[str, Any]()
        for number, match in enumerate(matches):
            clauses.append(_match(match, number, values))
        shown = "i.namespace[1:%(max_depth)s]" if max_depth is not None else "i.namespace"
        sql = f"""SELECT DISTINCT {shown} AS namespace FROM items i WHERE {" AND ".join(clauses)}
            ORDER BY 1 LIMIT %(limit)s OFFSET %(offset)s"""
        values |= {"max_depth": max_depth, "limit": limit, "offset": offset}
        return [row["namespace"] for row in await self._postgres.fetch(sql, values)]

    async def sweep(self, rows_max: int) -> int:
        """Delete expired items. Returns how many."""
        return await self._postgres.execute(_SWEEP, (rows_max,))


async def _require_extension(connection: AsyncConnection[DictRow]) -> None:
    row = await (
        await connection.execute("SELECT default_version AS version FROM pg_available_extensions WHERE name = 'vector'")
    ).fetchone()
    if row is None or tuple(map(int, row["version"].split(".")[:2])) < (0, 8):
        found = f"has {row['version']}" if row else "has none"
        raise StartupError(f"langgraph.json, store.index needs pgvector 0.8 or newer; this PostgreSQL {found}.")
    await connection.execute("CREATE EXTENSION IF NOT EXISTS vector")


async def _require_dims(connection: AsyncConnection[DictRow], dims: int) -> None:
    row = await (
        await connection.execute(
            "SELECT atttypmod AS dims FROM pg_attribute "
            "WHERE attrelid = 'item_vectors'::regclass AND attname = 'embedding'"
        )
    ).fetchone()
    if row is not None and row["dims"] != dims:
        raise StartupError(
            f"langgraph.json, store.index.dims is {dims}, and the stored vectors have {row['dims']} dimensions. Put the old "
            "value back, or drop the table item_vectors: items are found by meaning again when they are put again."
        )


def _vector_table(dims: int) -> str:
    index = ""
    if dims <= _HALFVEC_DIMS_MAX:
        kind = (
            f"(embedding::halfvec({dims})) halfvec_cosine_ops"
            if dims > _VECTOR_DIMS_MAX
            else "embedding vector_cosine_ops"
        )
        kind = f"({kind})"
        index = f"CREATE INDEX IF NOT EXISTS item_vectors_near ON item_vectors USING hnsw {kind};"
    return f"""
CREATE TABLE IF NOT EXISTS item_vectors (
    namespace text[] COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    field text NOT NULL,
    embedding vector({dims}) NOT NULL,
    PRIMARY KEY (namespace, key, field),
    FOREIGN KEY (namespace, key) REFERENCES items ON DELETE CASCADE
);
{index}
"""


def _distance(dims: int) -> str:
    """Return the expression that the index is built on."""
    if _VECTOR_DIMS_MAX < dims <= _HALFVEC_DIMS_MAX:
        return f"v.embedding::halfvec({dims}) <=> %(vector)s::halfvec({dims})"
    return f"v.embedding <=> %(vector)s::vector({dims})"


def _vector(numbers: Sequence[float]) -> str:
    return json.dumps([float(number) for number in numbers])


def _conditions(query: ItemQuery) -> tuple[str, dict[str, Any]]:
    values: dict[str, Any] = {"limit": query.limit, "offset": query.offset, "refresh": query.refresh}
    clauses = [_IS_LIVE]
    if query.prefix:
        clauses.append(_below("prefix", query.prefix, values))
    if query.filter:
        condition, parameters = compile_filter(query.filter)
        clauses.append(condition)
        values |= parameters
    return " AND ".join(clauses), values


def _below(name: str, prefix: tuple[str, ...], values: dict[str, Any]) -> str:
    """Return a range condition for namespaces below `prefix`. Its end is the prefix with U+0001 appended to the last
    label.
    """
    values |= {name: list(prefix), f"beyond_{name}": [*prefix[:-1], f"{prefix[-1]}\x01"]}
    return f"i.namespace >= %({name})s AND i.namespace < %(beyond_{name})s"


def _match(match: Match, number: int, values: dict[str, Any]) -> str:
    name = f"labels_{number}"
    if not match.at_end and "*" not in match.labels and match.labels:
        return _below(name, match.labels, values)
    size = len(match.labels)
    clauses = [f"cardinality(i.namespace) >= {size}"]
    for place, label in enumerate(match.labels, start=1):
        if label != "*":
            at = f"cardinality(i.namespace) - {size - place}" if match.at_end else str(place)
            values[f"{name}_{place}"] = label
            clauses.append(f"i.namespace[{at}] = %({name}_{place})s")
    return " AND ".join(clauses)
