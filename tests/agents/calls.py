"""Requests that several tests send."""

from __future__ import annotations

from uuid import UUID, uuid5

import httpx

RUN = {"assistant_id": "echo"}
SYSTEM_NAMESPACE = UUID("6ba7b821-9dad-11d1-80b4-00c04fd430c8")


def system(graph: str) -> UUID:
    """Return the id of the graph's system assistant."""
    return uuid5(SYSTEM_NAMESPACE, graph)


async def make_thread(http: httpx.AsyncClient) -> str:
    return str((await http.post("/threads", json={})).json()["thread_id"])
