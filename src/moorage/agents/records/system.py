"""Answers of the server about itself."""

from __future__ import annotations

from typing import NotRequired

from typing_extensions import TypedDict

from moorage.agents.records.words import JsonObject, Request


class Health(TypedDict):
    """`graphs` is there only under `moorage dev`, when some cannot be loaded: their faults by id. `ok` is false then."""

    ok: bool
    services: JsonObject
    graphs: NotRequired[dict[str, str]]


class Info(TypedDict):
    version: str
    langgraph_py_version: str
    moorage_version: str
    not_served: list[str]
    flags: dict[str, bool]
    host: JsonObject
    metadata: JsonObject


class Truncation(Request):
    """Kinds of rows that a test removes."""

    runs: bool = False
    threads: bool = False
    assistants: bool = False
    checkpointer: bool = False
    store: bool = False
