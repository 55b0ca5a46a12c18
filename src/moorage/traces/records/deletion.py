"""Deletions that callers may ask for."""

from __future__ import annotations

from typing import Annotated, Self
from uuid import UUID

from pydantic import Field, model_validator

from moorage.traces.records.words import TraceRequest

TRACES_MAX = 1000
PAIRS_MAX = 100
TraceIds = Annotated[list[UUID], Field(min_length=1, max_length=TRACES_MAX)]


class TracesDelete(TraceRequest):
    """Traces of a project by their ids; or traces of the whole workspace that have any of the metadata on any run."""

    session_id: UUID | None = None
    trace_ids: TraceIds | None = None
    metadata: Annotated[dict[str, str], Field(min_length=1, max_length=PAIRS_MAX)] | None = None

    @model_validator(mode="after")
    def _one_of_the_two(self) -> Self:
        by_id = self.session_id is not None and self.trace_ids is not None
        if by_id == (self.metadata is not None):
            raise ValueError("expected either session_id with trace_ids, or metadata")
        return self


class TracesDeleteById(TraceRequest):
    session_id: UUID
    trace_ids: TraceIds
