"""Answers about the server itself, and the request to empty it."""

from __future__ import annotations

from typing import NotRequired

from typing_extensions import TypedDict

from moorage.agents.records.words import JsonObject, Request


class Health(TypedDict):
    """Health of the server. Under `moorage dev`, `graphs` maps each graph that cannot be loaded to the reason, and `ok`
    is false if there is one.
    """

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
    """Request to remove all rows of the named kinds."""

    runs: bool = False
    threads: bool = False
    assistants: bool = False
    checkpointer: bool = False
    store: bool = False
