"""SQL of feedback keys: configurations, feedback tokens, and formulas."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

from psycopg.errors import UniqueViolation
from psycopg.types.json import Jsonb

from moorage.kernel.errors import ConflictError
from moorage.kernel.ids import uuid7
from moorage.kernel.postgres import Postgres
from moorage.traces.records.feedback import (
    FeedbackConfig,
    FeedbackConfigPatch,
    FeedbackConfigRow,
    FeedbackConfigSearch,
    FeedbackTokenCreate,
    Formula,
    FormulaWrite,
)

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
WHERE workspace_id = %(workspace_id)s AND (%(keys)s::text[] IS NULL OR feedback_key = ANY(%(keys)s))
    AND (%(contains)s::text IS NULL OR position(lower(%(contains)s) IN lower(feedback_key)) > 0)
ORDER BY modified_at {{order}}, feedback_key LIMIT %(limit)s OFFSET %(offset)s
"""

_ISSUED = "id, run_id, feedback_key, feedback_id, expires_at"
_INSERT_TOKENS = """
INSERT INTO feedback_tokens (id, workspace_id, run_id, feedback_key, feedback_id, expires_at, actor)
VALUES (%s, %s, %s, %s, %s, %s, %s)
"""
# Not limited to a workspace: the holder of a token has none, and the token names it.
_READ_TOKEN = f"SELECT workspace_id, {_ISSUED} FROM feedback_tokens WHERE id = %s AND expires_at > now()"
_PAGE_TOKENS = f"""
SELECT {_ISSUED} FROM feedback_tokens WHERE workspace_id = %s AND run_id = %s AND expires_at > now()
ORDER BY created_at DESC, id LIMIT %s OFFSET %s
"""
_REMOVE_EXPIRED_TOKENS = "DELETE FROM feedback_tokens WHERE expires_at < now()"

_FORMULA = "id, dataset_id, session_id, feedback_key, aggregation_type, formula_parts, created_at, modified_at"
_INSERT_FORMULA = f"""
INSERT INTO feedback_formulas (id, workspace_id, dataset_id, session_id, feedback_key, aggregation_type, formula_parts,
    actor)
VALUES (%(id)s, %(workspace_id)s, %(dataset_id)s, %(session_id)s, %(feedback_key)s, %(aggregation_type)s,
    %(formula_parts)s, %(actor)s) RETURNING {_FORMULA}
"""
_READ_FORMULA = f"SELECT {_FORMULA} FROM feedback_formulas WHERE workspace_id = %s AND id = %s"
_UPDATE_FORMULA = f"""
UPDATE feedback_formulas SET dataset_id = %(dataset_id)s, session_id = %(session_id)s, feedback_key = %(feedback_key)s,
    aggregation_type = %(aggregation_type)s, formula_parts = %(formula_parts)s, modified_at = now(), actor = %(actor)s
WHERE workspace_id = %(workspace_id)s AND id = %(id)s RETURNING {_FORMULA}
"""
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

    # --- configurations -------------------------------------------------------------------------------------------

    async def insert_config(
        self, workspace_id: UUID, key: str, config: FeedbackConfig, *, lower_is_better: bool, actor: str
    ) -> FeedbackConfigRow | None:
        """Insert a configuration; None when the key already has one."""
        values = (workspace_id, key, _config(config), lower_is_better, actor)
        return await self._one(_INSERT_CONFIG, values)  # type: ignore[no-any-return]

    async def read_config(self, workspace_id: UUID, key: str) -> FeedbackConfigRow | None:
        return await self._one(_READ_CONFIG, (workspace_id, key))  # type: ignore[no-any-return]

    async def update_config(
        self, workspace_id: UUID, patch: FeedbackConfigPatch, actor: str
    ) -> FeedbackConfigRow | None:
        config = _config(patch.feedback_config) if patch.feedback_config else None
        values = (config, patch.is_lower_score_better, actor, workspace_id, patch.feedback_key)
        return await self._one(_UPDATE_CONFIG, values)  # type: ignore[no-any-return]

    async def remove_config(self, workspace_id: UUID, key: str) -> bool:
        return bool(await self._postgres.execute(_REMOVE_CONFIG, (workspace_id, key)))

    async def page_configs(self, workspace_id: UUID, search: FeedbackConfigSearch) -> list[FeedbackConfigRow]:
        values = {
            "workspace_id": workspace_id,
            "keys": search.key,
            "contains": search.name_contains,
            "limit": search.limit,
            "offset": search.offset,
        }
        sql = _PAGE_CONFIGS.format(order="DESC" if search.sort_by_desc else "ASC")
        return await self._postgres.fetch(sql, values)  # type: ignore[return-value]

    # --- tokens ---------------------------------------------------------------------------------------------------

    async def insert_tokens(
        self, workspace_id: UUID, tokens: Sequence[tuple[UUID, FeedbackTokenCreate]], actor: str
    ) -> None:
        """Insert tokens; the id of each is its secret. `expires_at` must be set."""
        rows = [
            (secret, workspace_id, new.run_id, new.feedback_key, new.id, new.expires_at, actor)
            for secret, new in tokens
        ]
        await self._postgres.execute_all([(_INSERT_TOKENS, rows)])

    async def read_token(self, secret: UUID) -> dict[str, Any] | None:
        """Read a token with its workspace; None when it has expired."""
        return await self._postgres.fetch_one(_READ_TOKEN, (secret,))

    async def page_tokens(self, workspace_id: UUID, run_id: UUID, limit: int, offset: int) -> list[dict[str, Any]]:
        return await self._postgres.fetch(_PAGE_TOKENS, (workspace_id, run_id, limit, offset))

    async def remove_expired_tokens(self) -> int:
        return await self._postgres.execute(_REMOVE_EXPIRED_TOKENS)

    # --- formulas -------------------------------------------------------------------------------------------------

    async def insert_formula(self, workspace_id: UUID, new: FormulaWrite, actor: str) -> Formula:
        """Insert a formula. Raises ConflictError when the key has one for the same project and dataset."""
        return await self._write_formula(_INSERT_FORMULA, workspace_id, uuid7(), new, actor)  # type: ignore[return-value]

    async def update_formula(
        self, workspace_id: UUID, formula_id: UUID, new: FormulaWrite, actor: str
    ) -> Formula | None:
        """Change a formula; None when there is none. Raises ConflictError as above."""
        return await self._write_formula(_UPDATE_FORMULA, workspace_id, formula_id, new, actor)

    async def _write_formula(
        self, sql: str, workspace_id: UUID, formula_id: UUID, new: FormulaWrite, actor: str
    ) -> Formula | None:
        given = new.model_dump(mode="json")
        values = {
            **given,
            "id": formula_id,
            "workspace_id": workspace_id,
            "formula_parts": Jsonb(given["formula_parts"]),
            "actor": actor,
        }
        try:
            return await self._one(sql, values)  # type: ignore[no-any-return]
        except UniqueViolation:
            raise ConflictError(f"The key {new.feedback_key!r} has a formula there; update it instead") from None

    async def read_formula(self, workspace_id: UUID, formula_id: UUID) -> Formula | None:
        return await self._one(_READ_FORMULA, (workspace_id, formula_id))  # type: ignore[no-any-return]

    async def remove_formula(self, workspace_id: UUID, formula_id: UUID) -> bool:
        return bool(await self._postgres.execute(_REMOVE_FORMULA, (workspace_id, formula_id)))

    async def page_formulas(
        self, workspace_id: UUID, *, dataset_id: UUID | None, session_id: UUID | None, limit: int, offset: int
    ) -> list[Formula]:
        values = {
            "workspace_id": workspace_id,
            "dataset_id": dataset_id,
            "session_id": session_id,
            "limit": limit,
            "offset": offset,
        }
        return await self._postgres.fetch(_PAGE_FORMULAS, values)  # type: ignore[return-value]

    async def formulas_of(self, workspace_id: UUID, session_ids: Collection[UUID]) -> list[Formula]:
        return await self._postgres.fetch(_FORMULAS_OF_SESSIONS, (workspace_id, list(session_ids)))  # type: ignore[return-value]

    async def _one(self, sql: str, values: Any) -> Any:
        return await self._postgres.fetch_one(sql, values)


def _config(config: FeedbackConfig) -> Jsonb:
    return Jsonb(config.model_dump(mode="json"))
