"""Types that all records of the agent server share: JSON objects, requests and pages.

Rows are plain dictionaries from the database, typed as TypedDicts. Requests are pydantic models. Field names are those
of the wire.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

JsonObject = dict[str, Any]


SortOrder = Literal["asc", "desc"]
# Common fields of assistants, threads and crons, which searches may select.
RowField = Literal["metadata", "created_at", "updated_at"]


class Request(BaseModel):
    """Base of all requests. Ignores unknown fields, as the reference server does, and validates known ones strictly."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)
    # Fields of the API that this version does not support. They are refused, since ignoring one would mislead callers.
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
