"""Authentication that costs nothing of its own: what is left is what the server does for it."""

from __future__ import annotations

from typing import Any

from langgraph_sdk import Auth

auth = Auth()


@auth.authenticate
async def authenticate(authorization: str | None) -> str:
    return authorization or "somebody"


@auth.on
async def allow(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> None:
    """Everything."""
