"""Commands, by which a caller resumes, updates or redirects a graph."""

from __future__ import annotations

from typing import Any

from moorage.agents.records.words import JsonObject, Request


class Send(Request):
    node: str
    input: Any = None


class Command(Request):
    update: JsonObject | list[tuple[str, Any]] | None = None
    resume: Any = None
    goto: str | Send | list[str | Send] | None = None
