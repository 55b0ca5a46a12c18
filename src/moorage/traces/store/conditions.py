"""Conditions of statements: SQL, the values that it binds, and its scope."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

# Times that the engine can hold. A bound beyond them means the same as the bound.
_AT_MIN = datetime(1900, 1, 1, tzinfo=UTC)
_AT_MAX = datetime(2299, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
_DEAR_OF_CANDIDATES = re.compile(
    r"\b(?:SELECT|inputs|outputs|events|serialized|attachments|extra|extra_without_metadata)\b"
)


@dataclass(frozen=True)
class Condition:
    """SQL that is true or false for each whole run, by the columns of `trace_runs`, and the values that it binds.

    `candidates`: SQL over the rows of `trace_run_rows` that holds for some row of each run that the condition holds for,
    and that an index answers. Empty where no index helps.
    `proved`: the part of `sql` that needs no look at a run of a single row which is a candidate. Empty where there is none.
    """

    sql: str
    parameters: Mapping[str, Any]
    candidates: str = ""
    proved: str = ""

    def scanned(self) -> Condition:
        return replace(self, candidates="", proved="")

    def of_candidates(self) -> str | None:
        """SQL that still has to hold for a candidate that is the only row of its run. None when it reads more than the run, which
        costs as much as a statement of its own, or at what may be long: all candidates are held at once.
        """
        left = self.sql.replace(self.proved, "true") if self.proved else self.sql
        return None if _DEAR_OF_CANDIDATES.search(left) else left


@dataclass(frozen=True)
class RunScope:
    """Scope of a filter: conditions on tenant_id, session_id and start_time, without which nothing is read.

    `runs` bounds the runs that are filtered, `traces` all runs of their traces, `feedback` the feedback on them. They name
    parameters that the caller binds, `tenant_id` always among them.
    """

    runs: str
    traces: str
    feedback: str = "tenant_id = {tenant_id:UUID}"


def time_text(at: datetime) -> str:
    """A time as the engine reads it."""
    return min(max(at, _AT_MIN), _AT_MAX).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
