"""Words that every noun of bulk export uses: times, and what requests have in common.

Names, enums and limits are those of the wire. Times without a zone are UTC.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict

JsonObject = dict[str, Any]

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
