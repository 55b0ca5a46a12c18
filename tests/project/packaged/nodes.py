"""A node in another file of the package."""

from typing import Any


async def node(state: Any) -> Any:
    return {"text": "from the package"}
