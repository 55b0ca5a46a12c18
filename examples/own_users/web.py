"""Routes and middleware beside the agent: a FastAPI application of the project's own."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request, Response


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    app.state.started_at = time.time()  # a connection to a database, for example
    yield


app = FastAPI(lifespan=lifespan)


@app.get("/uptime")
async def uptime(request: Request) -> dict[str, float]:
    return {"seconds": time.time() - request.app.state.started_at}


@app.middleware("http")
async def tell_time(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    """Around the routes here and around those of the server."""
    began_at = time.perf_counter()
    answer = await call_next(request)
    answer.headers["Server-Timing"] = f"app;dur={(time.perf_counter() - began_at) * 1000:.1f}"
    return answer
