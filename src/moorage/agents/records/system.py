"""Answers of the server about itself."""

from __future__ import annotations

from typing_extensions import TypedDict

from moorage.agents.records.words import JsonObject


class Health(TypedDict):
    ok: bool
    services: JsonObject


class Info(TypedDict):
    version: str
    langgraph_py_version: str
    moorage_version: str
    not_served: list[str]
    flags: dict[str, bool]
    host: JsonObject
    metadata: JsonObject
