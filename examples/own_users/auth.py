"""Users by tokens of their own; each sees their own threads. A real project asks its identity provider instead."""

from __future__ import annotations

from typing import Any

from langgraph_sdk import Auth

auth = Auth()

USERS = {"token-of-ada": "Ada", "token-of-bob": "Bob"}


@auth.authenticate
async def authenticate(authorization: str | None) -> Auth.types.MinimalUserDict:
    name = USERS.get((authorization or "").removeprefix("Bearer "))
    if name is None:
        raise Auth.exceptions.HTTPException(status_code=401, detail="Send one of our tokens")
    return {"identity": name.lower(), "display_name": name}


@auth.on
async def own(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> Auth.types.FilterType:
    value.setdefault("metadata", {})["owner"] = ctx.user.identity
    return {"owner": ctx.user.identity}
