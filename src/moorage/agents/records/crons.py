"""Crons, which start runs at scheduled times, and the rules for computing these times."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Literal, Self
from uuid import UUID
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from pydantic import Field, field_validator, model_validator
from typing_extensions import TypedDict

from moorage.agents.records.runs import MultitaskStrategy, RunCreate, RunCreateStateless
from moorage.agents.records.words import JsonObject, Page, Request, RowField, SortOrder
from moorage.kernel.encoding import encode

CronField = Literal[
    "cron_id",
    "assistant_id",
    "thread_id",
    "user_id",
    "schedule",
    "timezone",
    "end_time",
    "enabled",
    "on_run_completed",
    "payload",
    "next_run_date",
    RowField,
]


class Cron(TypedDict):
    cron_id: UUID
    assistant_id: UUID
    thread_id: UUID | None  # None: each run gets a new thread
    user_id: str | None
    schedule: str
    timezone: str | None  # None: UTC
    end_time: datetime | None
    enabled: bool
    on_run_completed: Literal["delete", "keep"] | None  # None on a thread, which outlives its runs
    payload: JsonObject
    metadata: JsonObject
    next_run_date: datetime | None
    created_at: datetime
    updated_at: datetime


# --- the clock ------------------------------------------------------------------------------------------------------


def next_tick(schedule: str, timezone: str | None, after: datetime) -> datetime | None:
    """Return the first time after `after` that matches the schedule, in UTC; None if none does within 50 years.

    A schedule has five fields as in Debian's cron; a field of seconds may precede them. When clocks change, Debian's
    rules apply: a job at a skipped time starts right after the change, and a job at a repeated time starts once. A
    schedule whose minute or hour begins with `*` follows real time instead.

    Raises ValueError for an invalid schedule or an unknown time zone.
    """
    fields, seconds = _fields_and_seconds(schedule)
    ticks = _ticks(fields, (after - seconds).astimezone(_zone(timezone)))
    # While an hour is repeated, the library may yield ticks of its first pass, which are over.
    return next((at for at in (tick.astimezone(UTC) + seconds for tick in ticks) if at > after), None)


def _fields_and_seconds(schedule: str) -> tuple[str, timedelta]:
    """Split off a plain number of seconds: the library handles clock changes for five fields only."""
    seconds, _, fields = schedule.strip().partition(" ")
    if len(schedule.split()) == 6 and seconds.isascii() and seconds.isdigit() and int(seconds) < 60:
        return fields, timedelta(seconds=int(seconds))
    return schedule, timedelta()


def _ticks(fields: str, after: datetime) -> Iterator[datetime]:
    try:
        return iter(CronSim(fields, after))
    except CronSimError as error:
        raise ValueError(f"Invalid cron schedule '{fields}': {error}") from None


def _zone(timezone: str | None) -> ZoneInfo:
    try:
        return ZoneInfo(timezone or "UTC")
    except (KeyError, ValueError, OSError):
        raise ValueError(f"Unknown timezone '{timezone}': expected an IANA name such as Europe/Berlin") from None


def next_run_date(
    schedule: str, timezone: str | None, end_time: datetime | None, *, enabled: bool, after: datetime
) -> datetime | None:
    """Return when a cron fires next; None if it is disabled or would fire after its end. Raises ValueError."""
    tick = next_tick(schedule, timezone, after)
    over = tick is None or (end_time is not None and tick > end_time)
    return tick if enabled and not over else None


def run_request(cron: Cron) -> RunCreateStateless:
    """Return the request for a run of the cron, without the cron's id. Raises ValidationError if the payload is no
    valid request.
    """
    config = dict(cron["payload"].get("config") or {})
    config["configurable"] = {k: v for k, v in (config.get("configurable") or {}).items() if k != "cron_id"}
    named = {"assistant_id": str(cron["assistant_id"]), "metadata": cron["metadata"], "config": config}
    payload = {**cron["payload"], **named}
    if cron["thread_id"] is not None:
        return RunCreate.model_validate_json(encode(payload))
    return RunCreateStateless.model_validate_json(encode({**payload, "on_completion": cron["on_run_completed"]}))


# --- requests -------------------------------------------------------------------------------------------------------


class CronTiming(Request):
    schedule: str | None = Field(None, min_length=1, max_length=1000)
    timezone: str | None = Field(None, max_length=100)
    end_time: datetime | None = Field(None, strict=False)
    on_run_completed: Literal["delete", "keep"] | None = None

    @field_validator("end_time")
    @classmethod
    def _in_utc(cls, end_time: datetime | None) -> datetime | None:
        """Return the time with a zone; a time without one is UTC, like a schedule without one."""
        return end_time.replace(tzinfo=UTC) if end_time is not None and end_time.tzinfo is None else end_time

    @model_validator(mode="after")
    def _has_ticks(self) -> Self:
        next_tick(self.schedule or "* * * * *", self.timezone, datetime.now(UTC))
        return self


class CronCreate(RunCreateStateless, CronTiming):
    """Request for a cron that runs on a new thread each time. `on_run_completed` says whether the thread is kept."""

    schedule: str = Field(min_length=1, max_length=1000)
    on_run_completed: Literal["delete", "keep"] = "delete"
    enabled: bool = True


class ThreadCronCreate(RunCreateStateless, CronTiming):
    """Request for a cron whose runs share one thread."""

    schedule: str = Field(min_length=1, max_length=1000)
    enabled: bool = True


class CronPatch(RunCreateStateless, CronTiming):
    """Changes of a cron. Sent fields replace old ones; `end_time: null` removes the end. Metadata is merged."""

    assistant_id: str | None = None  # type: ignore[assignment]
    multitask_strategy: MultitaskStrategy | None = None  # type: ignore[assignment]
    enabled: bool | None = None


class CronCount(Request):
    assistant_id: str | None = None  # or the name of a graph, which means its system assistant
    thread_id: UUID | None = None
    metadata: JsonObject | None = None
    enabled: bool | None = None


class CronSearch(CronCount, Page):
    sort_by: Literal[
        "cron_id", "assistant_id", "thread_id", "next_run_date", "end_time", "created_at", "updated_at"
    ] = "created_at"
    sort_order: SortOrder = "desc"
    select: list[CronField] | None = None
