"""Rows of trace runs as they are written. POST and PATCH of a run are rows of one key that the engine merges."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

from moorage.traces.records.words import USAGE_DETAILS, USAGE_FIELDS


class RowKey(NamedTuple):
    """Key that all rows of a run share. `start_us` is microseconds since 1970, `id` canonical text."""

    tenant_id: UUID
    session_id: UUID
    start_us: int
    id: str


class RunIdentity(NamedTuple):
    """Values that are fixed when a run is made. None: a PATCH did not give it."""

    trace_id: str | None
    parent_run_id: str | None
    dotted_order: str | None
    is_root: bool | None
    trace_tier: str | None


class RunValues(NamedTuple):
    """Values that POST and PATCH may both carry; None: not given. Times are microseconds since 1970, JSON is bytes."""

    name: str | None = None
    run_type: str | None = None
    end_us: int | None = None
    first_token_us: int | None = None
    error: str | None = None
    inputs: bytes | None = None
    outputs: bytes | None = None
    extra_without_metadata: bytes | None = None
    metadata_json: bytes | None = None
    events: bytes | None = None
    serialized: bytes | None = None
    tags: bytes | None = None
    reference_example_id: str | None = None
    thread_id: str | None = None
    attachments: bytes | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_token_details: bytes | None = None
    completion_token_details: bytes | None = None
    prompt_cost: Decimal | None = None
    completion_cost: Decimal | None = None
    total_cost: Decimal | None = None
    prompt_cost_details: bytes | None = None
    completion_cost_details: bytes | None = None


_USAGE = frozenset({*USAGE_FIELDS, *USAGE_DETAILS})
# What a write that tells usage says of each field that it does not tell: usage is one thing, and what an earlier write said
# of such a field is no part of it. Nothing that a client sends reads as one of these.
NO_USAGE: dict[str, int | Decimal | bytes] = {
    name: -1 if name.endswith("tokens") else Decimal(-(10**15)) if name.endswith("cost") else b"{}"
    for name in RunValues._fields
    if name in _USAGE
}


class RunRow:
    """Row to write for one run: values of POSTs, of PATCHes, or both."""

    __slots__ = ("identity", "key", "patched", "posted")

    def __init__(self, key: RowKey, identity: RunIdentity, posted: RunValues | None, patched: RunValues | None) -> None:
        self.key = key
        self.identity = identity
        self.posted = posted
        self.patched = patched

    def merge(self, newer: RunRow) -> None:
        """Take in a row of the same key that arrived later."""
        self.identity = RunIdentity._make(_newest(self.identity, newer.identity))
        self.posted = _merged(self.posted, newer.posted)
        self.patched = _merged(self.patched, newer.patched)

    def settle(self) -> None:
        """Leave out what a POST said and a PATCH has changed: nobody will read it. Attachments are the exception, since
        readers see those of both.
        """
        if self.posted and self.patched:
            left = [None if new is not None else old for old, new in zip(self.posted, self.patched, strict=True)]
            self.posted = RunValues._make(left)._replace(attachments=self.posted.attachments)


def _merged(older: RunValues | None, newer: RunValues | None) -> RunValues | None:
    if older is None or newer is None:
        return older or newer
    return RunValues._make(_newest(older, newer))


def _newest(older: tuple[Any, ...], newer: tuple[Any, ...]) -> list[Any]:
    return [new if new is not None else old for old, new in zip(older, newer, strict=True)]
