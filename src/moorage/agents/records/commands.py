"""Commands, by which a caller resumes, updates or redirects a graph."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Strict

from moorage.agents.records.words import JsonObject, Request


class Send(Request):
    node: str
    input: Any = None


class Command(Request):
    # Not strict: JSON has no tuples, and a strict one takes no list here.
    update: JsonObject | list[Annotated[tuple[str, Any], Strict(False)]] | None = None
    resume: Any = None
    goto: str | Send | list[str | Send] | None = None
