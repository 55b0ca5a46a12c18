"""Words that the nouns of the agent server share: JSON objects, requests and their pages.

Rows are plain dictionaries straight from the database, described by TypedDicts; requests are pydantic models that
ignore unknown fields, as the reference server does. Field names are those of the wire.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

JsonObject = dict[str, Any]


SortOrder = Literal["asc", "desc"]
# Fields that assistants, threads and crons have in common, for searches that select fields.
RowField = Literal["metadata", "created_at", "updated_at"]


class Request(BaseModel):
    """Unknown fields are ignored, as the reference does; known ones are strict."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)
    # Fields of the wire that this version cannot honour yet. They are refused: dropping one in silence would be a lie.
    unserved: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _refuse_unserved(cls, body: Any) -> Any:
        if isinstance(body, dict) and cls.unserved:
            for field in sorted(cls.unserved & body.keys()):
                if body[field] not in (None, False):
                    raise ValueError(f"{field} is not supported by this version of moorage; leave it out")
        return body


class Page(Request):
    limit: int = Field(10, ge=1, le=1000)
    offset: int = Field(0, ge=0)
