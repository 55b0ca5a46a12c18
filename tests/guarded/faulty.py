"""Handlers that misbehave as the request asks. `authenticate` is synchronous."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from fastapi import HTTPException
from langgraph_sdk import Auth
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

auth = Auth()
asked: list[str] = []


@dataclass
class Person:
    identity: str
    team: str


ANSWERS: dict[str, Any] = {
    "none": None,
    "number": 5,
    "empty": {},
    "unauthenticated": {"identity": "x", "is_authenticated": False},
    "permissions": {"identity": "x", "permissions": "all"},
    "object": Person("person", "blue"),
}


@auth.authenticate
def authenticate(
    headers: dict[bytes, bytes],
    authorization: str | None,
    path: str,
    method: str,
    path_params: dict[str, str],
    query_params: dict[str, str],
    body: Any,
    request: Request,
) -> Any:
    asked.append(path)
    does = headers.get("x-does") or "well"
    if does == "raise":
        raise RuntimeError("a secret of the handler")
    if does == "assert":
        raise AssertionError("not you")
    if does == "fastapi":
        raise HTTPException(402, "pay first", headers={"X-Price": "1"})
    if does == "sleep":
        time.sleep(0.5)
    if does == "hang":
        time.sleep(3)
    if does in ANSWERS:
        return ANSWERS[does]
    return {
        "identity": "user",
        "seen": {
            "same": headers.get(b"x-does", b"").decode() == (headers.get("X-Does") or ""),
            "authorization": authorization,
            "path": path,
            "method": method,
            "path_params": path_params,
            "query_params": query_params,
            "body": body,
            "request": request.url.path,
            "times": len(asked),
        },
    }


@auth.on
async def decide(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> Any:
    decision = (value.get("metadata") or {}).get("decide")
    if decision == "raise":
        raise KeyError("a secret of the handler")
    if decision == "hang":
        await asyncio.sleep(30)
    if decision == "block":
        time.sleep(0.3)  # noqa: ASYNC251 - what handlers should not do
    if decision == "metadata":
        value["metadata"] = 5
    if decision == "user":
        value["metadata"] = {"seen": ctx.user.get("seen"), "team": ctx.user.get("team")}
    return {"number": 5, "operator": {"a": {"$gt": 1}}, "or": {"$or": []}, "unknown": {"nothing": "x"}}.get(
        str(decision)
    )


class Show:
    """Middleware that shows whether authentication ran before it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == "/order":
            await JSONResponse({"authenticated": "principal" in scope})(scope, receive, send)
        else:
            if scope["type"] == "http" and scope["path"] == "/rewritten":
                scope = {**scope, "path": "/threads/count"}
                scope.pop("principal", None)
            await self._app(scope, receive, send)


def mine(request: Request) -> JSONResponse:
    return JSONResponse({"user": request.user.identity})


app = Starlette(routes=[Route("/mine", mine)], middleware=[Middleware(Show)])
