"""Lines that deployments print: written in batches, read in pages."""

from __future__ import annotations

import base64
import binascii
import struct
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Literal
from uuid import UUID

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from typing_extensions import TypedDict

from moorage.kernel.errors import InvalidRequestError

_CURSOR = struct.Struct(">q16sQ")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
PAGE_MAX = 1000


class LogKind(StrEnum):
    """The phase in which a line was printed."""

    BUILD = "build"
    DEPLOY = "deploy"


class LogLevel(StrEnum):
    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"
    CRITICAL = "CRITICAL"

    @property
    def severity(self) -> int:
        """Return a number that grows with the severity."""
        return 10 * (list(LogLevel).index(self) + 1)


def level_of(severity: int) -> LogLevel:
    return list(LogLevel)[max(0, min(severity // 10, len(LogLevel)) - 1)]


@dataclass(frozen=True)
class LogLine:
    """One printed line of a revision.

    `position` is unique among the lines of a revision and kind, and grows as they are printed: it is the line's place
    in a file. A line that is inserted again with the same `logged_at` and `position` is the same line, so both must
    come from the printed line, never from the time of reading.
    """

    workspace_id: UUID
    deployment_id: UUID
    revision_id: UUID
    kind: LogKind
    logged_at: datetime
    position: int
    level: LogLevel
    message: str
    run_id: str = ""


@dataclass(frozen=True)
class LogCursor:
    """A line's place in the order of its deployment's lines."""

    logged_at: datetime
    revision_id: UUID
    position: int

    def encoded(self) -> str:
        micros = (self.logged_at - _EPOCH) // _MICROSECOND
        return base64.urlsafe_b64encode(_CURSOR.pack(micros, self.revision_id.bytes, self.position)).decode()

    @classmethod
    def decoded(cls, text: str) -> LogCursor:
        """Decode a cursor. Raises InvalidRequestError for a text that this server has not issued."""
        try:
            micros, revision, position = _CURSOR.unpack(base64.b64decode(text, altchars=b"-_", validate=True))
            return cls(_EPOCH + micros * _MICROSECOND, UUID(bytes=revision), position)
        except (binascii.Error, struct.error, OverflowError, ValueError):
            raise InvalidRequestError("The offset or cursor is none of this server; begin without one") from None


def _zoned(moment: datetime) -> datetime:
    """Return the time; one without a zone is UTC."""
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _upper(value: object) -> object:
    return value.upper() if isinstance(value, str) else value


Moment = Annotated[datetime, AfterValidator(_zoned)]
Level = Annotated[LogLevel, BeforeValidator(_upper)]


class LogQuery(BaseModel):
    """A query for a page of log lines. `level` also finds worse lines. `query` ignores case."""

    model_config = ConfigDict(extra="ignore")

    start_time: Moment | None = None
    end_time: Moment | None = None
    order: Literal["asc", "desc"] = "asc"
    limit: int = Field(50, ge=1, le=PAGE_MAX)
    offset: str | None = None
    query: Annotated[str, Field(max_length=1000)] | None = None
    level: Level | None = None
    run_id: Annotated[str, Field(max_length=64)] | None = None


class LogEntry(TypedDict):
    """A log line. `timestamp` is in milliseconds of the epoch: clients show it, and send it to follow from there."""

    id: str
    timestamp: int
    level: str
    message: str
    type: str
    revision_id: UUID
    run_id: str | None


class LogPage(TypedDict):
    logs: list[LogEntry]
    next_offset: str | None


class DeploymentLogs(TypedDict):
    items: list[LogEntry]
    next_cursor: str | None
