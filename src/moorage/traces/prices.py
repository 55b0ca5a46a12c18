"""Prices of models: the workspace's own price map, then the table that is shipped with the program.

Prices apply to runs that arrive after them: costs are computed once, when a run is written.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from importlib.resources import files
from itertools import groupby, islice
from operator import itemgetter
from typing import Any
from uuid import UUID, uuid5

from moorage.kernel.access import Caller
from moorage.kernel.encoding import decode
from moorage.kernel.errors import BadRequestError, NotFoundError, existing
from moorage.kernel.memory import Memory
from moorage.traces.records.prices import MODEL_KEYS, ModelPrice, ModelPriceCreate, plain
from moorage.traces.records.words import us_of
from moorage.traces.store.prices import PriceStore
from moorage.traces.usage import Model, Price

# Seconds for which a process may use cached prices after another process changed a price.
PRICES_KEPT_S = 10.0
_MODELS_MAX = 10_000  # clients choose the names, so their number is unbounded
_SHIPPED_IDS = UUID("5f3c1c52-6d0e-4b0c-9d0a-0f6d1a3a7c11")
_MILLION = Decimal(1_000_000)

Tariff = tuple[Price, ...]


class Prices:
    def __init__(self, *, store: PriceStore) -> None:
        self._store = store
        self._found = Memory[tuple[UUID, Model], Tariff](_MODELS_MAX)

    async def list(self, caller: Caller) -> Sequence[ModelPrice]:
        """List the workspace's own prices, which win, then the shipped ones."""
        return [*await self._store.list(caller.workspace_id), *(shown for shown, _, _ in _shipped())]

    async def write(self, caller: Caller, new: ModelPriceCreate, price_id: UUID | None = None) -> ModelPrice:
        """Create a price, or replace the one with the id. Raises InvalidRequestError for an invalid pattern."""
        _refuse_shipped(price_id)
        await self._store.check_pattern(new.match_pattern)
        written = await self._store.write(caller.workspace_id, new, price_id, caller.actor)
        self._forget(caller.workspace_id)
        return existing(written, f"Model price {price_id} not found")

    async def delete(self, caller: Caller, price_id: UUID) -> None:
        _refuse_shipped(price_id)
        found = await self._store.remove(caller.workspace_id, price_id)
        self._forget(caller.workspace_id)
        if not found:
            raise NotFoundError(f"Model price {price_id} not found")

    async def find(self, workspace_id: UUID, models: Collection[Model]) -> Mapping[Model, Tariff]:
        """Find the prices that may apply to each model; `choose` selects one. Takes one statement, or none if all
        models are cached.
        """
        kept = {model: self._found.recall((workspace_id, model)) for model in models}
        found = {model: tariff for model, tariff in kept.items() if tariff is not None}
        if missing := [model for model in models if model not in found]:
            found |= await self._read(workspace_id, missing)
        return found

    async def _read(self, workspace_id: UUID, models: Sequence[Model]) -> dict[Model, Tariff]:
        rows = await self._store.read_matching(workspace_id, [(model.provider, dict(model.names)) for model in models])
        own = {number: tuple(map(_price, group)) for number, group in groupby(rows, itemgetter("number"))}
        tariffs = {model: own.get(number, ()) + _shipped_for(model) for number, model in enumerate(models)}
        for model, tariff in tariffs.items():
            self._found.keep((workspace_id, model), tariff, PRICES_KEPT_S)
        return tariffs

    def _forget(self, workspace_id: UUID) -> None:
        self._found.forget(lambda key, _: key[0] == workspace_id)


def choose(tariff: Tariff, start_us: int) -> Price | None:
    """Choose the price of a run that started at `start_us` (microseconds since 1970)."""
    return next((price for price in tariff if price.start_us is None or price.start_us <= start_us), None)


def _price(row: Mapping[str, Any]) -> Price:
    def details(name: str) -> dict[str, Decimal]:
        # The most specific kind first: `cache_read_over_200k` before `cache_read`.
        by_kind = sorted((row.get(name) or {}).items(), key=lambda item: (-len(item[0]), item[0]))
        return {kind: Decimal(cost) for kind, cost in by_kind}

    return Price(
        Decimal(row["prompt_cost"]),
        Decimal(row["completion_cost"]),
        details("prompt_cost_details"),
        details("completion_cost_details"),
        us_of(row["start_time"]) if row["start_time"] else None,
    )


# --- the shipped table --------------------------------------------------------------------------------------------------


@lru_cache(1)
def _shipped() -> list[tuple[ModelPrice, re.Pattern[str], Price]]:
    """Read the shipped prices; the file has US dollars per million tokens, as in providers' price lists."""
    entries = decode((files("moorage.traces") / "default_prices.json").read_bytes())
    return [(shown := _shown(entry), re.compile(entry["match_pattern"]), _price(shown)) for entry in entries]


def _shown(entry: Mapping[str, Any]) -> ModelPrice:
    shown: dict[str, Any] = dict.fromkeys(ModelPrice.__annotations__)
    shown |= {"id": uuid5(_SHIPPED_IDS, entry["name"]), "name": entry["name"]}
    shown |= {"match_path": list(MODEL_KEYS), "match_pattern": entry["match_pattern"]}
    for cost in ("prompt_cost", "completion_cost"):
        shown[cost] = _per_token(entry[cost])
        details = entry.get(f"{cost}_details", {})
        shown[f"{cost}_details"] = {kind: _per_token(each) for kind, each in details.items()} or None
    return shown  # type: ignore[return-value]


def _per_token(cost: str) -> str:
    return plain(Decimal(cost) / _MILLION)


def _shipped_for(model: Model) -> Tariff:
    matching = (price for _, name in model.names for _, pattern, price in _shipped() if pattern.search(name))
    return tuple(islice(matching, 1))


def _refuse_shipped(price_id: UUID | None) -> None:
    if any(shown["id"] == price_id for shown, _, _ in _shipped()):
        raise BadRequestError(
            "This price is shipped with the program and stays as it is; create one of your own with the same pattern, "
            "which wins"
        )
