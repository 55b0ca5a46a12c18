"""SQL of model prices."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from moorage.kernel.ids import uuid7
from moorage.kernel.postgres import Postgres
from moorage.traces.records.prices import ModelPrice, ModelPriceCreate, plain

_DETAILS = ("prompt_cost_details", "completion_cost_details")
_PRICE = "start_time, prompt_cost, completion_cost, prompt_cost_details, completion_cost_details"
_COLUMNS = f"id, workspace_id AS tenant_id, name, match_path, match_pattern, provider, {_PRICE}"
_NAMES = f"name, match_path, match_pattern, provider, {_PRICE}, actor"
_VALUES = ", ".join(f"%({name})s" for name in _NAMES.split(", "))

# Matches nothing, but fails for an invalid pattern.
_CHECK_PATTERN = "SELECT '' ~ %s"
_INSERT = f"""
INSERT INTO model_prices (id, workspace_id, {_NAMES}) VALUES (%(id)s, %(workspace_id)s, {_VALUES}) RETURNING {_COLUMNS}
"""
_UPDATE = f"""
UPDATE model_prices SET ({_NAMES}, updated_at) = ROW ({_VALUES}, now())
WHERE workspace_id = %(workspace_id)s AND id = %(id)s RETURNING {_COLUMNS}
"""
_REMOVE = "DELETE FROM model_prices WHERE workspace_id = %s AND id = %s"
_LIST = f"SELECT {_COLUMNS} FROM model_prices WHERE workspace_id = %s ORDER BY name, start_time DESC NULLS LAST, id"
# Prices that may apply to each requested model; the price with the latest start comes first.
_MATCHING = f"""
SELECT asked.number, {_PRICE}
FROM unnest(%(numbers)s::int[], %(providers)s::text[], %(names)s::jsonb[]) AS asked (number, provider, names)
JOIN model_prices p ON p.workspace_id = %(workspace_id)s AND (p.provider IS NULL OR p.provider = asked.provider)
WHERE EXISTS (
    SELECT FROM jsonb_each_text(asked.names) AS said (key, name)
    WHERE (said.key = 'ls_model_name' OR said.key = ANY (p.match_path)) AND said.name ~ p.match_pattern
)
ORDER BY asked.number, p.start_time DESC NULLS LAST, p.created_at DESC
"""


class PriceStore:
    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres

    async def check_pattern(self, pattern: str) -> None:
        """Check a pattern. Raises InvalidRequestError for an invalid pattern."""
        await self._postgres.fetch_one(_CHECK_PATTERN, (pattern,))

    async def write(
        self, workspace_id: UUID, new: ModelPriceCreate, price_id: UUID | None, actor: str
    ) -> ModelPrice | None:
        """Insert a price, or change the one with the id; None when there is none."""
        values = {**new.model_dump(), "id": price_id or uuid7(), "workspace_id": workspace_id, "actor": actor}
        for name in _DETAILS:
            values[name] = Jsonb({kind: plain(cost) for kind, cost in (values[name] or {}).items()})
        row = await self._postgres.fetch_one(_UPDATE if price_id else _INSERT, values)
        return _shown(row) if row else None

    async def remove(self, workspace_id: UUID, price_id: UUID) -> bool:
        return await self._postgres.execute(_REMOVE, (workspace_id, price_id)) > 0

    async def list(self, workspace_id: UUID) -> Sequence[ModelPrice]:
        return [_shown(row) for row in await self._postgres.fetch(_LIST, (workspace_id,))]

    async def read_matching(
        self, workspace_id: UUID, asked: Sequence[tuple[str | None, dict[str, str]]]
    ) -> Sequence[dict[str, Any]]:
        """Read matching prices, each with the `number` of its model in `asked`, a list of (provider, names by key)."""
        values = {
            "workspace_id": workspace_id,
            "numbers": list(range(len(asked))),
            "providers": [provider for provider, _ in asked],
            "names": [Jsonb(names) for _, names in asked],
        }
        return await self._postgres.fetch(_MATCHING, values)


def _shown(row: dict[str, Any]) -> ModelPrice:
    costs = {name: plain(Decimal(row[name])) for name in ("prompt_cost", "completion_cost")}
    details = {name: row[name] or None for name in _DETAILS}
    return {**row, **costs, **details}  # type: ignore[typeddict-item]
