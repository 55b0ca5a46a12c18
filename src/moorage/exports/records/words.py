"""Types that all records of bulk export share: times, text, and the base of requests.

Names, enums and limits are those of the API. Times without a zone are UTC.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict

JsonObject = dict[str, Any]

# The range of times that files of v1 can hold, since they count nanoseconds.
EARLIEST_AT = datetime(1970, 1, 1, tzinfo=UTC)
LATEST_AT = datetime(2262, 1, 1, tzinfo=UTC)


def _in_utc(moment: datetime) -> datetime:
    zoned = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    if not EARLIEST_AT <= zoned < LATEST_AT:
        raise ValueError(f"must be from {EARLIEST_AT:%Y} to {LATEST_AT:%Y}")
    return zoned.astimezone(UTC)


def any_case(kind: type[StrEnum]) -> BeforeValidator:
    """Return a validator that accepts words of the enum in any case and converts them to the enum."""
    known = {word.casefold(): word for word in kind}
    return BeforeValidator(lambda given: known.get(given.casefold(), given) if isinstance(given, str) else given)


def _one_line(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must not hold control characters")
    return text


Moment = Annotated[datetime, AfterValidator(_in_utc)]
Line = Annotated[str, AfterValidator(_one_line)]


class StrictRequest(BaseModel):
    """Base of requests. Unknown fields are refused, since a misspelt one would otherwise be ignored."""

    model_config = ConfigDict(extra="forbid")
