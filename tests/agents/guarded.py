"""A server whose project has its own authentication, and the users of that project."""

from __future__ import annotations

from typing import Any

import httpx
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient

from tests.serving import ROOT, Server

GUARDED = ROOT / "tests" / "guarded" / "langgraph.json"


def client_of(server: Server, token: str | None) -> LangGraphClient:
    return get_client(url=server.url, api_key=None, headers=credentials(token))


def http_of(server: Server, token: str | None) -> httpx.Client:
    return httpx.Client(base_url=server.url, headers=credentials(token), timeout=60)


def credentials(token: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


def refused(answer: Any) -> str:
    return str(answer.json()["detail"])
