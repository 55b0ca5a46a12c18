"""The smallest server that really runs the graphs of bench/project: Starlette, uvicorn, orjson and the stock checkpoint
saver of LangGraph. It has no run rows, no queue, no resuming, no validation: what it reaches is a ceiling, not a goal.

Threads are dicts in memory with either saver. Its collector is tuned like ours, so that the ratio shows our work and
not a setting. Started by agents.py; `DATABASE_URI` is read for `--saver postgres`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
import uvicorn
from langgraph.checkpoint.memory import InMemorySaver
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

sys.path.insert(0, str(Path(__file__).parent / "project"))
from graphs import GRAPHS

RECURSION_LIMIT = 100
Record = dict[str, Any]


class Ceiling:
    def __init__(self, saver: str) -> None:
        self._saver = saver
        self._graphs: dict[str, Any] = {}
        self._threads: dict[str, Record] = {}
        self._graph_of: dict[str, str] = {}
        self._runs: dict[str, asyncio.Task[Any]] = {}

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        async with checkpoint_saver(self._saver) as saver:
            self._graphs = {name: graph.builder.compile(checkpointer=saver) for name, graph in GRAPHS.items()}
            gc.collect()
            gc.freeze()
            gc.set_threshold(50_000, 20, 100)
            yield

    async def ok(self, request: Request) -> Response:
        return answer({"ok": True})

    async def create_thread(self, request: Request) -> Response:
        await request.body()
        thread = {"thread_id": str(uuid4()), "status": "idle", "metadata": {}, "values": None}
        self._threads[thread["thread_id"]] = thread
        return answer(thread)

    async def search_threads(self, request: Request) -> Response:
        limit = orjson.loads(await request.body()).get("limit", 10)
        return answer(list(islice(reversed(self._threads.values()), limit)))

    async def wait(self, request: Request) -> Response:
        return answer(await self._invoke(request.path_params["thread_id"], orjson.loads(await request.body())))

    async def stream(self, request: Request) -> Response:
        thread_id = request.path_params["thread_id"]
        frames = self._frames(thread_id, orjson.loads(await request.body()))
        return StreamingResponse(frames, media_type="text/event-stream")

    async def start_run(self, request: Request) -> Response:
        run_id, thread_id = str(uuid4()), request.path_params["thread_id"]
        self._runs[run_id] = asyncio.create_task(self._invoke(thread_id, orjson.loads(await request.body())))
        return answer({"run_id": run_id, "thread_id": thread_id, "status": "pending"})

    async def join_run(self, request: Request) -> Response:
        return answer(await self._runs.pop(request.path_params["run_id"]))

    async def state(self, request: Request) -> Response:
        thread_id = request.path_params["thread_id"]
        return answer(await self._graph(thread_id).aget_state(config_of(thread_id)))

    async def history(self, request: Request) -> Response:
        thread_id = request.path_params["thread_id"]
        limit = orjson.loads(await request.body()).get("limit", 10)
        return answer([s async for s in self._graph(thread_id).aget_state_history(config_of(thread_id), limit=limit)])

    def _graph(self, thread_id: str) -> Any:
        return self._graphs[self._graph_of[thread_id]]

    async def _invoke(self, thread_id: str, body: Record) -> Any:
        self._graph_of[thread_id] = body["assistant_id"]
        graph, durability = self._graph(thread_id), body.get("durability", "async")
        return await graph.ainvoke(body["input"], config_of(thread_id), durability=durability)

    async def _frames(self, thread_id: str, body: Record) -> AsyncIterator[bytes]:
        self._graph_of[thread_id] = body["assistant_id"]
        yield frame("metadata", {"run_id": str(uuid4()), "attempt": 1})
        modes = ["messages" if mode == "messages-tuple" else mode for mode in body["stream_mode"]]
        graph, durability = self._graph(thread_id), body.get("durability", "async")
        chunks = graph.astream(body["input"], config_of(thread_id), stream_mode=modes, durability=durability)
        async for mode, chunk in chunks:
            yield frame(mode, chunk)

    def app(self) -> Starlette:
        routes = [
            Route("/ok", self.ok),
            Route("/threads", self.create_thread, methods=["POST"]),
            Route("/threads/search", self.search_threads, methods=["POST"]),
            Route("/threads/{thread_id}/state", self.state),
            Route("/threads/{thread_id}/history", self.history, methods=["POST"]),
            Route("/threads/{thread_id}/runs/wait", self.wait, methods=["POST"]),
            Route("/threads/{thread_id}/runs/stream", self.stream, methods=["POST"]),
            Route("/threads/{thread_id}/runs/{run_id}/join", self.join_run),
            Route("/threads/{thread_id}/runs", self.start_run, methods=["POST"]),
        ]
        return Starlette(routes=routes, lifespan=self.lifespan)


@asynccontextmanager
async def checkpoint_saver(kind: str) -> AsyncIterator[Any]:
    if kind == "memory":
        yield InMemorySaver()
        return
    # only here when it was asked for: this package is not among our dependencies
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
    from psycopg.rows import dict_row
    from psycopg_pool import AsyncConnectionPool

    each = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    async with AsyncConnectionPool(os.environ["DATABASE_URI"], min_size=8, max_size=16, kwargs=each) as pool:
        saver = AsyncPostgresSaver(pool)
        await saver.setup()
        yield saver


def config_of(thread_id: str) -> Record:
    return {"configurable": {"thread_id": thread_id}, "recursion_limit": RECURSION_LIMIT}


def answer(value: Any) -> Response:
    return Response(encode(value), media_type="application/json")


def frame(event: str, value: Any) -> bytes:
    return b"event: %b\r\ndata: %b\r\n\r\n" % (event.encode(), encode(value))


def encode(value: Any) -> bytes:
    return orjson.dumps(value, default=plain, option=orjson.OPT_NON_STR_KEYS)


def plain(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump()
    if hasattr(value, "_asdict"):  # a state snapshot is a named tuple
        return value._asdict()
    raise TypeError(type(value).__name__)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--port", type=int, required=True)
    options.add_argument("--saver", choices=["memory", "postgres"], default="memory")
    chosen = options.parse_args()
    app = Ceiling(chosen.saver).app()
    uvicorn.run(app, port=chosen.port, loop="uvloop", http="httptools", log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
