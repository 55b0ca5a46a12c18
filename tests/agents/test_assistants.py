"""System assistants: their configuration from the start, and who may change it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.serving import Server, make_server


@contextmanager
def started(server: Server, defaults: Any) -> Iterator[tuple[httpx.Client, dict[str, Any], dict[str, Any]]]:
    """Start a server with LANGGRAPH_CONFIG; return the system assistant of `shows_config`, and what
    a run of it shows.
    """
    server.environment["LANGGRAPH_CONFIG"] = json.dumps(defaults)
    server.start()
    with httpx.Client(base_url=server.url, timeout=30) as http:
        (assistant,) = http.post("/assistants/search", json={"graph_id": "shows_config"}).json()
        shown = http.post("/runs/wait", json={"assistant_id": "shows_config", "input": {}}).json()["seen"]
        yield http, assistant, shown
    assert server.stop() == 0


def test_system_assistants_take_their_defaults_until_somebody_changes_them(folder: Path) -> None:
    server = make_server(folder)
    config = {"configurable": {"flavour": "mint"}, "tags": ["t"], "recursion_limit": 7}
    with started(server, {"shows_config": config}) as (_, assistant, shown):
        assert (assistant["config"], assistant["context"]) == (config, {"flavour": "mint"})
        assert assistant["version"] == 1
        assert (shown["configurable"]["flavour"], shown["tags"]) == ("mint", ["t"])

    with started(server, {"shows_config": {"context": {"flavour": "lime"}}}) as (http, assistant, shown):
        assert assistant["config"] == {"configurable": {"flavour": "lime"}}
        assert (assistant["version"], shown["configurable"]["flavour"]) == (1, "lime")
        place = f"/assistants/{assistant['assistant_id']}"
        assert http.patch(place, json={"context": {"flavour": "mine"}}).json()["version"] == 2

    with started(server, {}) as (http, assistant, shown):
        assert shown["configurable"]["flavour"] == "mine"
        assert http.delete(place).status_code == 204
        assert http.get(place).json()["config"] == {}
