"""Words that every noun of traces uses: kinds, states and times."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict
from typing_extensions import TypedDict

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

# Tokens and costs. A run without own values shows the sum over the descendants that have some.
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


def in_utc(at: datetime) -> datetime:
    try:
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except OverflowError:
        raise ValueError("a time between the years 1 and 9999 is needed") from None


# A time on the wire; without a zone it is UTC.
At = Annotated[datetime, AfterValidator(in_utc)]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def us_of(at: datetime) -> int:
    """Return the microseconds since 1970."""
    return (at - _EPOCH) // _MICROSECOND


def time_of(at_us: int) -> datetime:
    return _EPOCH + at_us * _MICROSECOND


class TraceRequest(BaseModel):
    """Unknown fields are ignored, as the reference does."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class FeedbackStat(TypedDict):
    """Totals of the feedback with one key, on one run or on many."""

    n: int
    avg: float | None
    min: float | None
    max: float | None
    stdev: float | None
    errors: int
    values: dict[str, int]
    comments: list[str]
    sources: list[Any]
    contains_thread_feedback: bool


def schema(name: str, meaning: str, types: Mapping[str, Any], *, total: bool = False) -> Any:
    """Make the schema of an answer from a table of its fields. `total`: all of them are always there."""
    made = TypedDict(name, dict(types), total=total)  # type: ignore[misc]  # noqa: UP013 - the fields are a table's
    made.__doc__ = meaning
    return made
