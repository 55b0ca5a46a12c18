"""Feedback: what people and programs think of a run, a trace or a project. And how the values of a key are meant."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Literal, Self
from uuid import UUID

from pydantic import AfterValidator, Field, StringConstraints, model_validator
from typing_extensions import TypedDict

from moorage.traces.records.words import At, JsonObject, TraceRequest

KEY_CHARS_MAX = 180
Key = Annotated[str, StringConstraints(max_length=KEY_CHARS_MAX)]


def _finite(score: float | None) -> float | None:
    """Convert a score to a number: true is 1, false is 0."""
    if score is None:
        return None
    if abs(score) > _SCORE_MAX:
        raise ValueError("expected a finite number")
    return float(score)


_SCORE_MAX = 1e300
Score = Annotated[float | int | bool | None, AfterValidator(_finite)]
FeedbackValue = float | int | bool | str | JsonObject | None
Correction = JsonObject | str | None
Offset = Annotated[int, Field(ge=0, le=2**31)]
Limit = Annotated[int, Field(ge=1, le=100)]

# The range of times that the trace store can hold.
_EARLIEST, _LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(2262, 1, 1, tzinfo=UTC)


def _storable(at: datetime) -> datetime:
    if not _EARLIEST <= at < _LATEST:
        raise ValueError("expected a time between 1970 and 2261")
    return at


StorableAt = Annotated[At, AfterValidator(_storable)]


class FeedbackSourceType(StrEnum):
    API = "api"
    MODEL = "model"
    APP = "app"
    AUTO_EVAL = "auto_eval"


class FeedbackLevel(StrEnum):
    RUN = "run"
    SESSION = "session"


# --- configurations of keys ---------------------------------------------------------------------------------------


class FeedbackType(StrEnum):
    CONTINUOUS = "continuous"
    CATEGORICAL = "categorical"
    FREEFORM = "freeform"


class FeedbackCategory(TraceRequest):
    value: float
    label: Annotated[str, StringConstraints(min_length=1)] | None = None


class FeedbackConfig(TraceRequest):
    """Bounds of a continuous score, or the categories of a categorical one."""

    type: FeedbackType
    min: float | None = None
    max: float | None = None
    categories: Annotated[list[FeedbackCategory], Field(max_length=1000)] | None = None


class FeedbackConfigRow(TypedDict):
    """`feedback_config` has the fields of FeedbackConfig."""

    feedback_key: str
    feedback_config: JsonObject
    tenant_id: UUID
    modified_at: datetime
    is_lower_score_better: bool


class FeedbackConfigCreate(TraceRequest):
    feedback_key: Annotated[str, StringConstraints(min_length=1, max_length=KEY_CHARS_MAX)]
    feedback_config: FeedbackConfig
    # If absent, an existing key keeps its direction.
    is_lower_score_better: bool | None = False


class FeedbackConfigPatch(TraceRequest):
    feedback_key: Key
    feedback_config: FeedbackConfig | None = None
    is_lower_score_better: bool | None = None


class FeedbackConfigSearch(TraceRequest):
    key: Annotated[list[str], Field(max_length=50)] | None = None
    name_contains: str | None = None
    offset: Offset = 0
    limit: Limit | None = None
    sort_by_desc: bool = True
    read_after_write: bool = False


# --- feedback -----------------------------------------------------------------------------------------------------


class FeedbackSource(TypedDict, total=False):
    type: str | None
    metadata: JsonObject | None
    user_id: UUID | None
    ls_user_id: UUID | None
    user_name: str | None


class FeedbackRow(TypedDict):
    """Piece of feedback, as every operation shows it. Without a run it is about the whole project."""

    id: UUID
    key: str
    score: Score
    value: FeedbackValue
    comment: str | None
    correction: Correction
    run_id: UUID | None
    trace_id: UUID | None
    # None until the run arrives.
    session_id: UUID | None
    start_time: datetime | None
    is_root: bool
    feedback_source: FeedbackSource | None
    feedback_group_id: UUID | None
    comparative_experiment_id: UUID | None
    feedback_thread_id: str | None
    extra: JsonObject | None
    error: bool | None
    created_at: datetime
    modified_at: datetime


class FeedbackSourceGiven(TraceRequest):
    type: FeedbackSourceType = FeedbackSourceType.API
    metadata: JsonObject | None = None
    user_id: UUID | str | None = None
    user_name: str | None = None


class Opinion(TraceRequest):
    score: Score = None
    value: FeedbackValue = None
    comment: str | None = None
    correction: Correction = None


class FeedbackCreate(Opinion):
    """`run_id` alone is enough: the trace and the project are looked up. `session_id` alone is about the project."""

    id: UUID | None = None
    key: Key
    run_id: UUID | None = None
    trace_id: UUID | None = None
    session_id: UUID | None = None
    start_time: StorableAt | None = None
    feedback_source: FeedbackSourceGiven | None = None
    feedback_config: FeedbackConfig | None = None
    feedback_group_id: UUID | None = None
    comparative_experiment_id: UUID | None = None
    extra: JsonObject | None = None
    error: bool | None = None
    created_at: StorableAt | None = None
    modified_at: StorableAt | None = None

    @model_validator(mode="after")
    def _about_something(self) -> Self:
        if self.run_id is None and self.trace_id is None and self.session_id is None:
            raise ValueError("expected run_id, trace_id or session_id: what the feedback is about")
        return self


class FeedbackPatch(Opinion):
    """Changes to feedback: fields that are present are set, null included."""

    feedback_config: FeedbackConfig | None = None


class FeedbackSearch(TraceRequest):
    """Conditions of a list, all of which must hold; newest first."""

    run: Annotated[list[UUID], Field(max_length=1000)] | None = None
    key: Annotated[list[str], Field(max_length=1000)] | None = None
    session: Annotated[list[UUID], Field(max_length=1000)] | None = None
    source: list[FeedbackSourceType] | None = None
    limit: Limit = 100
    offset: Offset = 0
    user: list[UUID] | None = None
    has_comment: bool | None = None
    has_score: bool | None = None
    level: FeedbackLevel | None = None
    min_created_at: StorableAt | None = None
    max_created_at: StorableAt | None = None
    include_user_names: bool | None = None
    comparative_experiment_id: UUID | None = None


# --- tokens -------------------------------------------------------------------------------------------------------


class Timedelta(TraceRequest):
    days: Annotated[int, Field(ge=0, le=3650)] = 0
    hours: Annotated[int, Field(ge=0, le=100_000)] = 0
    minutes: Annotated[int, Field(ge=0, le=6_000_000)] = 0


class FeedbackTokenCreate(TraceRequest):
    """Without an expiry it is good for three hours. `id` names the feedback that each use of the token sets."""

    run_id: UUID
    feedback_key: Key
    feedback_config: FeedbackConfig | None = None
    expires_in: Timedelta | None = None
    expires_at: StorableAt | None = None
    id: UUID | None = None


class FeedbackTokenSearch(TraceRequest):
    run_id: UUID
    limit: Limit = 100
    offset: Offset = 0


class FeedbackToken(TypedDict):
    """`url` is open to everyone who knows it, until it expires."""

    id: UUID
    url: str
    expires_at: datetime
    feedback_key: str


class FeedbackByLink(TraceRequest):
    """Feedback as query parameters."""

    score: Score = None
    value: float | int | bool | str | None = None
    comment: str | None = None
    correction: str | None = None


class FeedbackByToken(Opinion):
    metadata: JsonObject | None = None


# --- formulas -----------------------------------------------------------------------------------------------------


class FormulaPart(TraceRequest):
    part_type: Literal["weighted_key"]
    weight: float
    key: Annotated[str, StringConstraints(min_length=1, max_length=KEY_CHARS_MAX)]


class FormulaWrite(TraceRequest):
    """A key that is computed from others: the sum or the average of their weighted scores."""

    dataset_id: UUID | None = None
    session_id: UUID | None = None
    feedback_key: Key
    aggregation_type: Literal["sum", "avg"]
    formula_parts: Annotated[list[FormulaPart], Field(min_length=1, max_length=50)]


class FormulaSearch(TraceRequest):
    dataset_id: UUID | None = None
    session_id: UUID | None = None
    limit: Limit = 20
    offset: Offset = 0


class Formula(TypedDict):
    """Each of `formula_parts` has the fields of FormulaPart."""

    id: UUID
    dataset_id: UUID | None
    session_id: UUID | None
    feedback_key: str
    aggregation_type: Literal["sum", "avg"]
    formula_parts: list[JsonObject]
    created_at: datetime
    modified_at: datetime
