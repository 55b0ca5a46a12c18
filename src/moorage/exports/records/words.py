"""Words that every noun of bulk export uses: the fields of a file, times, and what requests have in common.

Names, enums and limits are those of the wire. Times without a zone are UTC.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict

JsonObject = dict[str, Any]

# In the order in which the columns of a file stand.
EXPORT_FIELDS = (
    "id",
    "tenant_id",
    "session_id",
    "trace_id",
    "parent_run_id",
    "parent_run_ids",
    "reference_example_id",
    "name",
    "run_type",
    "start_time",
    "end_time",
    "status",
    "is_root",
    "dotted_order",
    "trace_tier",
    "inputs",
    "outputs",
    "error",
    "extra",
    "events",
    "tags",
    "feedback_stats",
    "total_tokens",
    "prompt_tokens",
    "completion_tokens",
    "total_cost",
    "prompt_cost",
    "completion_cost",
    "first_token_time",
)
TIME_FIELDS = frozenset({"start_time", "end_time", "first_token_time"})
# What files can hold as nanoseconds, which v1 has.
EARLIEST_AT = datetime(1970, 1, 1, tzinfo=UTC)
LATEST_AT = datetime(2262, 1, 1, tzinfo=UTC)


def _in_utc(moment: datetime) -> datetime:
    zoned = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    if not EARLIEST_AT <= zoned < LATEST_AT:
        raise ValueError(f"must be from {EARLIEST_AT:%Y} to {LATEST_AT:%Y}")
    return zoned.astimezone(UTC)


def any_case(kind: type[StrEnum]) -> BeforeValidator:
    """Words of the wire come in in any case, and go out as they are written here."""
    known = {word.casefold(): word for word in kind}
    return BeforeValidator(lambda given: known.get(given.casefold(), given) if isinstance(given, str) else given)


def _one_line(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must not hold control characters")
    return text


Moment = Annotated[datetime, AfterValidator(_in_utc)]
Line = Annotated[str, AfterValidator(_one_line)]


class StrictRequest(BaseModel):
    """A field that is misspelt would be left out of what people rely on, so it is refused."""

    model_config = ConfigDict(extra="forbid")
