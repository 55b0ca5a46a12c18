"""Users by their tokens. Each sees what they own, and what is shared with them."""

from __future__ import annotations

from typing import Any

from langgraph_sdk import Auth

auth = Auth()

USERS: dict[str, Any] = {
    "ada": {
        "identity": "ada",
        "display_name": "Ada",
        "permissions": ["runs:create", "crons:delete"],
        "org": "engines",
        "session": object(),  # for handlers only: it has no JSON form
    },
    "bob": {"identity": "bob", "permissions": ["runs:create", "crons:delete"], "org": "engines"},
    "guest": "guest",
}


@auth.authenticate
async def authenticate(authorization: str | None) -> Any:
    token = (authorization or "").removeprefix("Bearer ")
    if token not in USERS:
        raise Auth.exceptions.HTTPException(status_code=401, detail="Who are you?", headers={"X-Why": "token"})
    return USERS[token]


@auth.on
async def own(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> Auth.types.FilterType:
    value.setdefault("metadata", {})["owner"] = ctx.user.identity
    return {"owner": ctx.user.identity}


@auth.on.threads.read
async def read(ctx: Auth.types.AuthContext, value: Any) -> Any:
    return {"$or": [{"owner": ctx.user.identity}, {"shared": {"$contains": ctx.user.identity}}]}


@auth.on.threads.create_run
async def create_run(ctx: Auth.types.AuthContext, value: Any) -> Any:
    if "runs:create" not in ctx.permissions:
        raise Auth.exceptions.HTTPException(status_code=403, detail="Guests only read.")
    value["metadata"]["owner"] = ctx.user.identity
    return {"owner": ctx.user.identity}


@auth.on.threads.delete
async def delete(ctx: Auth.types.AuthContext, value: Any) -> Any:
    return ctx.user.identity != "guest" and {"owner": ctx.user.identity}


@auth.on.store
async def own_namespace(ctx: Auth.types.AuthContext, value: Any) -> None:
    """Give each user a part of the store of their own."""
    value["namespace"] = (ctx.user.identity, *(value["namespace"] or ()))


@auth.on.crons.delete
async def never(ctx: Auth.types.AuthContext, value: Any) -> Any:
    assert "crons:delete" in ctx.permissions, "Crons stay."
    return {"owner": ctx.user.identity}


@auth.on(resources=["threads", "assistants", "crons"], actions=["search"])
async def find(ctx: Auth.types.AuthContext, value: Any) -> Any:
    return {"owner": {"$eq": ctx.user.identity}}
