"""The two shapes of a trace run on its way in: as its client sent it, and as a row."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from moorage.traces.records.words import USAGE_DETAILS, USAGE_FIELDS

# Values of a row by column; a missing column is NULL. POST and PATCH of a run are rows of one key that the engine
# merges. Times are microseconds since 1970, JSON is bytes.
Row = dict[str, Any]

# Values of usage fields that a write with usage leaves out. They replace the values of earlier writes, since usage is
# replaced as a whole. No value of a client can equal one of these.
NO_USAGE: dict[str, int | Decimal | bytes] = {
    name: -1 if name.endswith("tokens") else Decimal(-(10**15)) if name.endswith("cost") else b"{}"
    for name in (*USAGE_FIELDS, *USAGE_DETAILS)
}


@dataclass(slots=True, eq=False)
class SentRun:
    """Operation on one run, as its client sent it: the bytes of its parts. `attachments` is JSON: name -> place."""

    id: str
    is_patch: bool
    main: bytes | None = None
    payloads: dict[str, bytes] = field(default_factory=dict)
    attachments: bytes | None = None
