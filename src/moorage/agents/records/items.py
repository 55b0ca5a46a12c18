"""Items of the long-term store: what agents remember across threads, as JSON objects below namespaces."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Literal

from langgraph.store.base import InvalidNamespaceError
from pydantic import Field
from typing_extensions import TypedDict

from moorage.agents.records.words import JsonObject, Request
from moorage.kernel.errors import BadRequestError, InvalidRequestError

_LABELS_MAX = 100
# An entry of PostgreSQL's index holds about 2,700 bytes.
_ADDRESS_BYTES_MAX = 2000
_TTL_MINUTES_MAX = 100 * 365 * 24 * 60


class Item(TypedDict):
    namespace: list[str]
    key: str
    value: JsonObject
    created_at: datetime
    updated_at: datetime


class FoundItem(Item):
    score: float | None  # cosine similarity to the query; None without a query or a vector


class FoundItems(TypedDict):
    items: list[FoundItem]


class Namespaces(TypedDict):
    namespaces: list[list[str]]


class NamespaceError(InvalidRequestError, InvalidNamespaceError):
    """A namespace has invalid labels. Graphs can catch it as LangGraph's own class."""


def check_address(namespace: tuple[str, ...], key: str) -> None:
    """Check the address of an item. Raises BadRequestError for an empty or reserved namespace, InvalidRequestError for
    invalid labels or an address that is too long.
    """
    if not namespace:
        raise BadRequestError("Namespace cannot be empty")
    check_labels(namespace)
    if namespace[0] == "langgraph":
        raise BadRequestError('Root label for namespace cannot be "langgraph"')
    size = len(key.encode(errors="surrogatepass")) + sum(
        len(label.encode(errors="surrogatepass")) for label in namespace
    )
    if size > _ADDRESS_BYTES_MAX:
        raise InvalidRequestError(f"Namespace and key have {size} bytes together; {_ADDRESS_BYTES_MAX} are allowed")


def check_labels(labels: tuple[object, ...]) -> None:
    """Check labels of a namespace. Raises NamespaceError for invalid ones, or too many."""
    if len(labels) > _LABELS_MAX:
        raise NamespaceError(f"Namespace has {len(labels)} labels; {_LABELS_MAX} are allowed")
    for label in labels:
        if not isinstance(label, str) or not label or "." in label:
            raise NamespaceError("Namespace labels must be text that is not empty and has no dot ('.')")


def check_ttl(minutes: float | None) -> None:
    if minutes is not None and not (math.isfinite(minutes) and 0 < minutes <= _TTL_MINUTES_MAX):
        raise InvalidRequestError(f"ttl must be minutes, more than 0 and at most {_TTL_MINUTES_MAX}")


# --- requests -------------------------------------------------------------------------------------------------------


class ItemPut(Request):
    namespace: list[str]
    key: str = Field(min_length=1)
    value: JsonObject
    index: Literal[False] | list[str] | None = None
    ttl: float | None = None


class ItemDelete(Request):
    namespace: list[str] = Field(default_factory=list)
    key: str


class ItemSearch(Request):
    namespace_prefix: list[str] | None = None
    filter: JsonObject | None = None
    limit: int = Field(10, ge=1, le=1000)
    offset: int = Field(0, ge=0, le=2**31)
    query: str | None = None
    refresh_ttl: bool | None = None


class NamespaceSearch(Request):
    prefix: list[str] | None = None
    suffix: list[str] | None = None
    max_depth: int | None = Field(None, ge=1, le=_LABELS_MAX)
    limit: int = Field(100, ge=1, le=1000)
    offset: int = Field(0, ge=0, le=2**31)
