"""Routes, middleware and a lifespan beside the server's own operations."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, WebSocket
from fastapi.responses import JSONResponse, StreamingResponse


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
    app.state.started = True
    yield {"pool": "open"}


app = FastAPI(lifespan=lifespan)


class ProblemError(Exception):
    pass


@app.exception_handler(ProblemError)
async def on_problem(request: Request, error: ProblemError) -> JSONResponse:
    return JSONResponse({"problem": str(error)}, 418)


@app.middleware("http")
async def mark(request: Request, call_next: Any) -> Any:
    if request.headers.get("x-team") == "blocked":
        return JSONResponse({"detail": "blocked"}, 403)
    answer = await call_next(request)
    answer.headers["x-own"] = "marked"
    return answer


@app.get("/hello/{name}")
async def hello(request: Request, name: str) -> dict[str, Any]:
    return {"hello": name, "started": request.app.state.started, "pool": request.state.pool}


@app.get("/info")
async def info() -> dict[str, str]:
    return {"version": "mine"}


@app.get("/problem")
async def problem() -> None:
    raise ProblemError("mine")


@app.get("/crash")
async def crash() -> None:
    raise RuntimeError("a secret")


@app.get("/endless")
async def endless() -> StreamingResponse:
    async def chunks() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 1000

    return StreamingResponse(chunks())


@app.websocket("/echo")
async def echo(socket: WebSocket) -> None:
    await socket.accept()
    await socket.send_text(await socket.receive_text())
    await socket.close()
