"""SQL of feedback, and of feedback keys: configurations, tokens and formulas.

Feedback is stored in the trace store beside the runs, since filters and exports join it. Rows are written whole, and
the last modified row of an id wins. So an update reads the row, changes it and writes it again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.errors import UniqueViolation
from psycopg.types.json import Jsonb

from moorage.kernel.clickhouse import ClickHouse
from moorage.kernel.encoding import decode, encode_for_storage
from moorage.kernel.errors import ConflictError
from moorage.kernel.gathering import Gathering
from moorage.kernel.ids import uuid7
from moorage.kernel.postgres import Postgres
from moorage.traces.records.feedback import (
    FeedbackConfig,
    FeedbackConfigPatch,
    FeedbackConfigRow,
    FeedbackConfigSearch,
    FeedbackLevel,
    FeedbackRow,
    FeedbackSearch,
    FeedbackTokenSearch,
    Formula,
    FormulaSearch,
    FormulaWrite,
)
from moorage.traces.records.words import FeedbackStat

# The session of feedback whose run has not arrived.
NOWHERE = UUID(int=0)
_TOGETHER_MAX = 5000
_NONE_KEPT_S = 1.0

# --- feedback -----------------------------------------------------------------------------------------------------

_WRITTEN = {
    "tenant_id": "UUID",
    "id": "UUID",
    "session_id": "UUID",
    "run_id": "Nullable(UUID)",
    "trace_id": "Nullable(UUID)",
    "start_time": "DateTime64(6, 'UTC')",
    "key": "LowCardinality(String)",
    "score": "Nullable(Float64)",
    "value": "Nullable(String)",
    "comment": "Nullable(String)",
    "correction": "Nullable(String)",
    "source_type": "LowCardinality(Nullable(String))",
    "source": "Nullable(String)",
    "extra": "Nullable(String)",
    "created_at": "DateTime64(6, 'UTC')",
    "modified_at": "DateTime64(6, 'UTC')",
    "is_deleted": "UInt8",
}
_COLUMNS = """id, session_id, run_id, trace_id, start_time, key, score, value, comment, correction,
    source AS feedback_source, extra, created_at, modified_at"""
# Columns with JSON, and fields that share the column `extra`, since they are rarely or never filtered by.
_JSON = ("value", "correction", "feedback_source")
_RARE = ("feedback_group_id", "comparative_experiment_id", "feedback_thread_id", "error", "extra")
_OF_WORKSPACE = "feedback WHERE tenant_id = {tenant_id:UUID}"
_READ = f"SELECT {_COLUMNS} FROM {_OF_WORKSPACE} AND id = {{id:UUID}}"
_PAGE = f"""
SELECT {_COLUMNS} FROM {_OF_WORKSPACE} AND {{where}}
ORDER BY created_at DESC, id LIMIT {{limit:UInt32}} OFFSET {{offset:UInt32}}
"""
# Feedback that arrived before its run. Only recent feedback is read: the runs of older feedback never came.
_HOMELESS = f"""
SELECT tenant_id, {_COLUMNS} FROM feedback
WHERE session_id = {{nowhere:UUID}} AND modified_at > {{since:DateTime64(6, 'UTC')}} AND run_id IN (
    SELECT id FROM trace_run_keys WHERE start_time > {{since:DateTime64(6, 'UTC')}} - INTERVAL 1 DAY)
LIMIT 10000
"""
# Adds up scores, which are numbers, and values, which are texts. Comments are only kept for the key `note`.
_STATS = """
SELECT {by} AS subject, key, count() AS n, avg(score) AS avg, min(score) AS min, max(score) AS max,
    stddevPop(score) AS stdev, countIf(JSONExtractBool(ifNull(extra, ''), 'error')) AS errors,
    groupArrayIf(1000)(JSONExtractString(assumeNotNull(value)), startsWith(ifNull(value, ''), '"')) AS values,
    groupArrayIf(100)(assumeNotNull(comment), key = 'note' AND isNotNull(comment)) AS comments,
    groupUniqArrayIf(10)(assumeNotNull(source), isNotNull(source)) AS sources
FROM {given} GROUP BY subject, key ORDER BY key
"""
_ANY = "SELECT count() > 0 FROM feedback_rows"
# A run may belong to several groups.
_OF_GROUPS = f"""({{groups}}) AS grouped INNER JOIN
    (SELECT * EXCEPT (id) FROM {_OF_WORKSPACE} AND isNotNull(run_id)) AS given ON grouped.id = given.run_id"""
_AT_LEVEL = {FeedbackLevel.RUN: "isNotNull(run_id)", FeedbackLevel.SESSION: "isNull(run_id)"}


Stats = dict[str, FeedbackStat]


class FeedbackStore:
    def __init__(self, clickhouse: ClickHouse) -> None:
        self._clickhouse = clickhouse
        # Each insert costs some 15 ms, however small, and leaves a file. So inserts are grouped.
        self._inserts = Gathering[Sequence[Mapping[str, Any]]](self._insert, (len, _TOGETHER_MAX))
        self._none_until = 0.0

    async def insert(self, workspace_id: UUID, rows: Sequence[FeedbackRow], *, deleted: bool = False) -> None:
        """Write rows durably. The row with the latest `modified_at` wins; `deleted` removes the feedback."""
        if rows:
            marks = {"tenant_id": workspace_id, "is_deleted": int(deleted)}
            await self._inserts.add([{**_written(row), **marks} for row in rows])

    async def _insert(self, members: Sequence[Sequence[Mapping[str, Any]]]) -> None:
        rows = [row for member in members for row in member]
        columns = {name: (kind, [row[name] for row in rows]) for name, kind in _WRITTEN.items()}
        await self._clickhouse.insert("feedback_rows", columns)
        self._none_until = 0.0

    async def read(self, workspace_id: UUID, feedback_id: UUID) -> FeedbackRow | None:
        rows = await self._clickhouse.dicts(_READ, {"tenant_id": workspace_id, "id": feedback_id})
        return _read(rows[0]) if rows else None

    async def page(self, workspace_id: UUID, search: FeedbackSearch) -> list[FeedbackRow]:
        """List feedback, newest first; one row more than asked for when there are more."""
        where, values = _conditions(search)
        values |= {"tenant_id": workspace_id, "limit": search.limit + 1, "offset": search.offset}
        rows = await self._clickhouse.dicts(_PAGE.replace("{where}", where), values)
        return [_read(row) for row in rows]

    async def homeless(self, since: datetime) -> dict[UUID, list[FeedbackRow]]:
        """Find feedback of all workspaces that arrived before its run, and whose run has arrived since."""
        found: dict[UUID, list[FeedbackRow]] = {}
        for row in await self._clickhouse.dicts(_HOMELESS, {"nowhere": NOWHERE, "since": since}):
            found.setdefault(row.pop("tenant_id"), []).append(_read(row))
        return found

    async def stats_by_run(self, workspace_id: UUID, run_ids: Collection[UUID]) -> dict[UUID, Stats]:
        """Add up feedback by run and key; runs without feedback are left out."""
        given = f"{_OF_WORKSPACE} AND run_id IN {{ids:Array(UUID)}}"
        return await self._stats(workspace_id, "run_id", given, {"ids": list(run_ids)}) if run_ids else {}

    async def stats_by_session(
        self, workspace_id: UUID, session_ids: Collection[UUID], level: FeedbackLevel
    ) -> dict[UUID, Stats]:
        """Add up the feedback on the runs of each project, or on each project itself."""
        given = f"{_OF_WORKSPACE} AND session_id IN {{ids:Array(UUID)}} AND {_AT_LEVEL[level]}"
        return await self._stats(workspace_id, "session_id", given, {"ids": list(session_ids)}) if session_ids else {}

    async def stats_of_runs(
        self, workspace_id: UUID, runs: str, values: Mapping[str, Any], by: str
    ) -> dict[Any, Stats]:
        """Add up feedback on the runs that the subselect `runs` (with its `values`) names, grouped by the SQL `by`."""
        return await self._stats(workspace_id, by, f"{_OF_WORKSPACE} AND run_id IN ({runs})", values)

    async def stats_by_group(self, workspace_id: UUID, groups: str, values: Mapping[str, Any]) -> dict[str, Stats]:
        """Add up feedback by group. `groups`: SQL of a subselect of run ids, each with its `grp`, with its `values`."""
        return await self._stats(workspace_id, "grp", _OF_GROUPS.replace("{groups}", groups), values)

    async def _stats(self, workspace_id: UUID, by: str, given: str, values: Mapping[str, Any]) -> dict[Any, Stats]:
        found: dict[Any, Stats] = {}
        if await self._is_empty():
            return found
        sql = _STATS.format(by=by, given=given)
        for row in await self._clickhouse.dicts(sql, {**values, "tenant_id": workspace_id}):
            of_subject, key = found.setdefault(row.pop("subject"), {}), row.pop("key")
            row["values"] = dict(Counter(row["values"]))
            row["sources"] = [decode(source) for source in row["sources"]]
            of_subject[key] = {**row, "contains_thread_feedback": False}  # type: ignore[typeddict-item]
        return found

    async def _is_empty(self) -> bool:
        """Tell whether there is no feedback at all, which is common. Adding up nothing would cost as much as a read."""
        if self._none_until < time.monotonic():
            if await self._clickhouse.value(_ANY):
                return False
            self._none_until = time.monotonic() + _NONE_KEPT_S
        return True


# Conditions of a search's fields: {name} stands for the value; other fields have one condition for each value.
_CONDITIONS: Mapping[str, str | Mapping[Any, str]] = {
    "run": "run_id IN {run:Array(UUID)}",
    "key": "key IN {key:Array(String)}",
    "session": "session_id IN {session:Array(UUID)}",
    "source": "source_type IN {source:Array(String)}",
    "user": "JSONExtractString(ifNull(source, ''), 'user_id') IN {user:Array(String)}",
    "has_comment": {True: "notEmpty(ifNull(comment, ''))", False: "empty(ifNull(comment, ''))"},
    "has_score": {True: "isNotNull(score)", False: "isNull(score)"},
    "level": _AT_LEVEL,
    "min_created_at": "created_at >= {min_created_at:DateTime64(6, 'UTC')}",
    "max_created_at": "created_at <= {max_created_at:DateTime64(6, 'UTC')}",
    "comparative_experiment_id": (
        "JSONExtractString(ifNull(extra, ''), 'comparative_experiment_id') = {comparative_experiment_id:String}"
    ),
}


def _conditions(search: FeedbackSearch) -> tuple[str, dict[str, Any]]:
    given = {name: value for name in _CONDITIONS if (value := getattr(search, name)) is not None}
    conditions = [(_CONDITIONS[name], value) for name, value in given.items()]
    clauses = [each if isinstance(each, str) else each[value] for each, value in conditions]
    return " AND ".join(["1", *clauses]), given


def _written(row: FeedbackRow) -> dict[str, Any]:
    source = row["feedback_source"]
    rare = {name: row[name] for name in _RARE if row[name] is not None}  # type: ignore[literal-required]
    return {
        **row,
        "session_id": row["session_id"] or NOWHERE,
        "start_time": row["start_time"] or row["created_at"],
        "value": _json(row["value"]),
        "correction": _json(row["correction"]),
        "source_type": source and source.get("type"),
        "source": _json(source),
        "extra": _json(rare or None),
    }


def _read(row: dict[str, Any]) -> FeedbackRow:
    rare = _decoded(row["extra"]) or {}
    homed = row["session_id"] != NOWHERE
    return {
        **row,  # type: ignore[typeddict-item]
        **{name: _decoded(row[name]) for name in _JSON},
        **{name: rare.get(name) for name in _RARE},
        "session_id": row["session_id"] if homed else None,
        "start_time": row["start_time"] if homed and row["run_id"] else None,
        "is_root": row["run_id"] is not None and row["run_id"] == row["trace_id"],
    }


def _json(value: Any) -> str | None:
    return None if value is None else encode_for_storage(value).decode()


def _decoded(text: str | None) -> Any:
    return None if text is None else decode(text)


# --- feedback keys ------------------------------------------------------------------------------------------------

_CONFIG = "feedback_key, feedback_config, workspace_id AS tenant_id, modified_at, is_lower_score_better"
# The first configuration of a key wins; the caller compares.
_INSERT_CONFIG = f"""
INSERT INTO feedback_configs (workspace_id, feedback_key, feedback_config, is_lower_score_better, actor)
VALUES (%s, %s, %s, %s, %s) ON CONFLICT DO NOTHING RETURNING {_CONFIG}
"""
_READ_CONFIG = f"SELECT {_CONFIG} FROM feedback_configs WHERE workspace_id = %s AND feedback_key = %s"
_UPDATE_CONFIG = f"""
UPDATE feedback_configs SET feedback_config = coalesce(%s, feedback_config),
    is_lower_score_better = coalesce(%s, is_lower_score_better), modified_at = now(), actor = %s
WHERE workspace_id = %s AND feedback_key = %s RETURNING {_CONFIG}
"""
_REMOVE_CONFIG = "DELETE FROM feedback_configs WHERE workspace_id = %s AND feedback_key = %s"
_PAGE_CONFIGS = f"""
SELECT {_CONFIG} FROM feedback_configs
WHERE workspace_id = %(workspace_id)s AND (%(key)s::text[] IS NULL OR feedback_key = ANY(%(key)s))
    AND (%(name_contains)s::text IS NULL OR position(lower(%(name_contains)s) IN lower(feedback_key)) > 0)
ORDER BY modified_at {{order}}, feedback_key LIMIT %(limit)s OFFSET %(offset)s
"""

_ISSUED = "id, run_id, feedback_key, feedback_id, expires_at"
_INSERT_TOKENS = """
INSERT INTO feedback_tokens (id, run_id, feedback_key, feedback_id, expires_at, workspace_id, actor)
VALUES (%(id)s, %(run_id)s, %(feedback_key)s, %(feedback_id)s, %(expires_at)s, %(workspace_id)s, %(actor)s)
"""
# Not limited to a workspace: the holder of a token has none, and the token names it.
_READ_TOKEN = f"SELECT workspace_id, {_ISSUED} FROM feedback_tokens WHERE id = %s AND expires_at > now()"
_PAGE_TOKENS = f"""
SELECT {_ISSUED} FROM feedback_tokens
WHERE workspace_id = %(workspace_id)s AND run_id = %(run_id)s AND expires_at > now()
ORDER BY created_at DESC, id LIMIT %(limit)s OFFSET %(offset)s
"""
_REMOVE_EXPIRED_TOKENS = "DELETE FROM feedback_tokens WHERE expires_at < now()"

_FORMULA = "id, dataset_id, session_id, feedback_key, aggregation_type, formula_parts, created_at, modified_at"
_GIVEN = "dataset_id, session_id, feedback_key, aggregation_type, formula_parts, actor"
_VALUES = """%(dataset_id)s, %(session_id)s, %(feedback_key)s, %(aggregation_type)s, %(formula_parts)s, %(actor)s"""
_INSERT_FORMULA = f"""
INSERT INTO feedback_formulas (id, workspace_id, {_GIVEN}) VALUES (%(id)s, %(workspace_id)s, {_VALUES})
RETURNING {_FORMULA}
"""
_UPDATE_FORMULA = f"""
UPDATE feedback_formulas SET ({_GIVEN}, modified_at) = ROW ({_VALUES}, now())
WHERE workspace_id = %(workspace_id)s AND id = %(id)s RETURNING {_FORMULA}
"""
_READ_FORMULA = f"SELECT {_FORMULA} FROM feedback_formulas WHERE workspace_id = %s AND id = %s"
_REMOVE_FORMULA = "DELETE FROM feedback_formulas WHERE workspace_id = %s AND id = %s"
_PAGE_FORMULAS = f"""
SELECT {_FORMULA} FROM feedback_formulas
WHERE workspace_id = %(workspace_id)s AND (%(dataset_id)s::uuid IS NULL OR dataset_id = %(dataset_id)s)
    AND (%(session_id)s::uuid IS NULL OR session_id = %(session_id)s)
ORDER BY created_at DESC, id LIMIT %(limit)s OFFSET %(offset)s
"""
_FORMULAS_OF_SESSIONS = f"SELECT {_FORMULA} FROM feedback_formulas WHERE workspace_id = %s AND session_id = ANY(%s)"


class FeedbackKeyStore:
    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres

    async def insert_config(
        self, workspace_id: UUID, key: str, config: FeedbackConfig, actor: str, *, lower_is_better: bool = False
    ) -> FeedbackConfigRow | None:
        """Insert a configuration; None when the key already has one."""
        values = (workspace_id, key, Jsonb(config.model_dump()), lower_is_better, actor)
        return await self._postgres.fetch_one(_INSERT_CONFIG, values)  # type: ignore[return-value]

    async def read_config(self, workspace_id: UUID, key: str) -> FeedbackConfigRow | None:
        return await self._postgres.fetch_one(_READ_CONFIG, (workspace_id, key))  # type: ignore[return-value]

    async def update_config(
        self, workspace_id: UUID, patch: FeedbackConfigPatch, actor: str
    ) -> FeedbackConfigRow | None:
        config = patch.feedback_config and Jsonb(patch.feedback_config.model_dump())
        values = (config, patch.is_lower_score_better, actor, workspace_id, patch.feedback_key)
        return await self._postgres.fetch_one(_UPDATE_CONFIG, values)  # type: ignore[return-value]

    async def remove_config(self, workspace_id: UUID, key: str) -> bool:
        return bool(await self._postgres.execute(_REMOVE_CONFIG, (workspace_id, key)))

    async def page_configs(self, workspace_id: UUID, search: FeedbackConfigSearch) -> list[FeedbackConfigRow]:
        sql = _PAGE_CONFIGS.format(order="DESC" if search.sort_by_desc else "ASC")
        return await self._postgres.fetch(sql, {"workspace_id": workspace_id, **search.model_dump()})  # type: ignore[return-value]

    async def insert_tokens(self, workspace_id: UUID, tokens: Sequence[Mapping[str, Any]], actor: str) -> None:
        """Insert tokens; the id of each is its secret."""
        rows = [{**token, "workspace_id": workspace_id, "actor": actor} for token in tokens]
        await self._postgres.execute_all([(_INSERT_TOKENS, rows)])

    async def read_token(self, secret: UUID) -> dict[str, Any] | None:
        """Read a token with its workspace; None when it has expired."""
        return await self._postgres.fetch_one(_READ_TOKEN, (secret,))

    async def page_tokens(self, workspace_id: UUID, search: FeedbackTokenSearch) -> list[dict[str, Any]]:
        return await self._postgres.fetch(_PAGE_TOKENS, {"workspace_id": workspace_id, **search.model_dump()})

    async def remove_expired_tokens(self) -> int:
        return await self._postgres.execute(_REMOVE_EXPIRED_TOKENS)

    async def write_formula(
        self, workspace_id: UUID, new: FormulaWrite, formula_id: UUID | None, actor: str
    ) -> Formula | None:
        """Insert a formula, or change the one with the id; None when there is none.

        Raises ConflictError when the key has another one for the same project and dataset.
        """
        sql = _UPDATE_FORMULA if formula_id else _INSERT_FORMULA
        given = new.model_dump()
        given |= {"id": formula_id or uuid7(), "workspace_id": workspace_id, "actor": actor}
        given["formula_parts"] = Jsonb(given["formula_parts"])
        try:
            return await self._postgres.fetch_one(sql, given)  # type: ignore[return-value]
        except UniqueViolation:
            raise ConflictError(f"The key {new.feedback_key!r} has a formula there; update it instead") from None

    async def read_formula(self, workspace_id: UUID, formula_id: UUID) -> Formula | None:
        return await self._postgres.fetch_one(_READ_FORMULA, (workspace_id, formula_id))  # type: ignore[return-value]

    async def remove_formula(self, workspace_id: UUID, formula_id: UUID) -> bool:
        return bool(await self._postgres.execute(_REMOVE_FORMULA, (workspace_id, formula_id)))

    async def page_formulas(self, workspace_id: UUID, search: FormulaSearch) -> list[Formula]:
        return await self._postgres.fetch(_PAGE_FORMULAS, {"workspace_id": workspace_id, **search.model_dump()})  # type: ignore[return-value]

    async def formulas_of(self, workspace_id: UUID, session_ids: Collection[UUID]) -> list[Formula]:
        return await self._postgres.fetch(_FORMULAS_OF_SESSIONS, (workspace_id, list(session_ids)))  # type: ignore[return-value]
