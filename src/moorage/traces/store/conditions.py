"""Conditions of statements: SQL, the values that it binds, and its scope."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

# Range of times that the engine can store. Times outside of it are clamped.
_AT_MIN = datetime(1900, 1, 1, tzinfo=UTC)
_AT_MAX = datetime(2299, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
_DEAR_OF_CANDIDATES = re.compile(
    r"\b(?:SELECT|inputs|outputs|events|serialized|attachments|extra|extra_without_metadata)\b"
)


@dataclass(frozen=True)
class Condition:
    """SQL that is true or false for each whole run, over the columns of `trace_runs`, and the values that it binds.

    `candidates`: SQL over the rows of `trace_run_rows` that an index answers. It holds for at least one row of each run
    that meets the condition. Empty if no index helps.
    `proved`: the part of `sql` that is certainly true for a run whose only row is a candidate. Empty if there is none.
    """

    sql: str
    parameters: Mapping[str, Any]
    candidates: str = ""
    proved: str = ""

    def scanned(self) -> Condition:
        return replace(self, candidates="", proved="")

    def of_candidates(self) -> str | None:
        """Return the SQL that must still hold for a candidate that is its run's only row.

        None if this SQL reads other rows than the run's, which costs as much as a separate statement, or columns that
        may be long, since all candidates are in memory at once.
        """
        left = self.sql.replace(self.proved, "true") if self.proved else self.sql
        return None if _DEAR_OF_CANDIDATES.search(left) else left


@dataclass(frozen=True)
class RunScope:
    """Scope of a filter: conditions on tenant_id, session_id and start_time that bound every read.

    `runs` bounds the filtered runs, `traces` all runs of their traces, `feedback` the feedback on them. The caller
    binds the parameters that they name, which always include `tenant_id`.
    """

    runs: str
    traces: str
    feedback: str = "tenant_id = {tenant_id:UUID}"


def time_text(at: datetime) -> str:
    """Write a time as the engine reads it."""
    return min(max(at, _AT_MIN), _AT_MAX).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
