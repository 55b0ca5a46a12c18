"""Words that every noun of traces uses: kinds, states and times."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict

JsonObject = dict[str, Any]


class RunType(StrEnum):
    TOOL = "tool"
    CHAIN = "chain"
    LLM = "llm"
    RETRIEVER = "retriever"
    EMBEDDING = "embedding"
    PROMPT = "prompt"
    PARSER = "parser"


class RunStatus(StrEnum):
    """Never stored, always read from the row: error if it has one, else success once it has ended, else pending."""

    PENDING = "pending"
    SUCCESS = "success"
    ERROR = "error"


class TraceTier(StrEnum):
    LONGLIVED = "longlived"
    SHORTLIVED = "shortlived"


SortOrder = Literal["asc", "desc"]

# Tokens and costs: a run that has none of its own shows the sum over its descendants that do.
USAGE_FIELDS = (
    "total_tokens",
    "prompt_tokens",
    "completion_tokens",
    "total_cost",
    "prompt_cost",
    "completion_cost",
)
USAGE_DETAILS = (
    "prompt_token_details",
    "completion_token_details",
    "prompt_cost_details",
    "completion_cost_details",
)


def _in_utc(at: datetime) -> datetime:
    try:
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except OverflowError:
        raise ValueError("a time between the years 1 and 9999 is needed") from None


# A time on the wire; without a zone it is UTC.
At = Annotated[datetime, AfterValidator(_in_utc)]


class TraceRequest(BaseModel):
    """Unknown fields are ignored, as the reference does."""

    model_config = ConfigDict(extra="ignore", frozen=True)
