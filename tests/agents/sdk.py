"""Steps that tests of the official Python SDK have in common."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid5

from langgraph_sdk.client import LangGraphClient

from tests.waiting import until


def system_id(graph: str) -> str:
    """Return the id of the graph's system assistant."""
    return str(uuid5(UUID("6ba7b821-9dad-11d1-80b4-00c04fd430c8"), graph))


async def collect(stream: AsyncIterator[Any]) -> list[tuple[str, Any]]:
    return [(part.event, part.data) async for part in stream]


async def until_asleep(client: LangGraphClient, thread: str) -> None:
    """Wait until the graph `slow` has taken its first step and is in its second."""

    async def is_asleep() -> bool:
        return bool((await client.threads.get_state(thread))["next"] == ["sleep"])

    await until(is_asleep)
