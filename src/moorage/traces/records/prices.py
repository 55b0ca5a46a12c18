"""Model prices (wire: model-price-map): what a model's tokens cost."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Annotated
from uuid import UUID

from pydantic import Field, field_validator
from typing_extensions import TypedDict

from moorage.traces.records.words import At, TraceRequest

# Keys of `extra.invocation_params` that may hold a model's name, in order of preference.
MODEL_KEYS = ("model", "model_name", "model_id", "model_path", "endpoint_name")

# US dollars per token, as a number or its text; exact either way.
Cost = Annotated[Decimal, Field(ge=0, lt=1_000_000, allow_inf_nan=False, max_digits=40, decimal_places=24)]
CostDetails = Annotated[dict[Annotated[str, Field(min_length=1, max_length=100)], Cost], Field(max_length=100)]
Text = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00]*$")]


class ModelPriceCreate(TraceRequest):
    name: Text
    match_pattern: Annotated[str, Field(min_length=1, max_length=500, pattern=r"^[^\x00]*$")]
    match_path: Annotated[list[str], Field(max_length=10, default_factory=lambda: list(MODEL_KEYS))]
    start_time: At | None = None
    provider: Text | None = None
    prompt_cost: Cost
    completion_cost: Cost
    prompt_cost_details: CostDetails | None = None
    completion_cost_details: CostDetails | None = None

    @field_validator("match_path")
    @classmethod
    def _known_places(cls, value: list[str]) -> list[str]:
        if unknown := set(value) - set(MODEL_KEYS):
            raise ValueError(f"no model is looked for under {min(unknown)!r}; expected {', '.join(MODEL_KEYS)}")
        return value

    @field_validator("match_pattern")
    @classmethod
    def _no_back_reference(cls, value: str) -> str:
        # Nothing but a back reference makes matching slow.
        if any(f"\\{digit}" in value for digit in range(1, 10)):
            raise ValueError("a pattern cannot refer back to a group")
        return value


class ModelPrice(TypedDict):
    """Price as operations show it. Costs are decimal strings. `tenant_id` is null for prices shipped with the program."""

    id: UUID
    tenant_id: UUID | None
    name: str
    start_time: datetime | None
    match_path: list[str]
    match_pattern: str
    provider: str | None
    prompt_cost: str
    completion_cost: str
    prompt_cost_details: dict[str, str] | None
    completion_cost_details: dict[str, str] | None


def plain(cost: Decimal) -> str:
    """Write a cost without an exponent and without trailing zeros."""
    text = f"{cost:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
