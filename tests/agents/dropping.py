"""A client of a stream whose connection is cut after any number of bytes, and that reconnects to any server."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import httpx

Frame = tuple[str, str, Any]  # event, id, data


@dataclass(frozen=True)
class Kind:
    """A form of stream: how it is requested after the last frame that was seen, and which frame ends a run."""

    open: Callable[[httpx.AsyncClient, str], AbstractAsyncContextManager[httpx.Response]]
    ends_run: Callable[[Frame], bool]
    closes: bool = False  # when the run ends, without a frame that says so


def run_stream(thread: str, run: str) -> Kind:
    def open_at(client: httpx.AsyncClient, last: str) -> AbstractAsyncContextManager[httpx.Response]:
        path = f"/threads/{thread}/runs/{run}/stream"
        return client.stream("GET", path, headers={"Last-Event-ID": last or "-1"})

    return Kind(open_at, lambda frame: False, closes=True)


def thread_stream(thread: str) -> Kind:
    def open_at(client: httpx.AsyncClient, last: str) -> AbstractAsyncContextManager[httpx.Response]:
        return client.stream("GET", f"/threads/{thread}/stream", headers={"Last-Event-ID": last or "-"})

    return Kind(open_at, lambda frame: frame[0] == "metadata" and frame[2].get("status") == "run_done")


def protocol_stream(thread: str) -> Kind:
    channels = ["values", "updates", "messages", "lifecycle", "tasks", "checkpoints"]

    def open_at(client: httpx.AsyncClient, last: str) -> AbstractAsyncContextManager[httpx.Response]:
        body = {"channels": channels, "since": int(last or 0)}
        return client.stream("POST", f"/threads/{thread}/stream/events", json=body)

    def ends_run(frame: Frame) -> bool:
        params = frame[2]["params"]
        return frame[0] == "lifecycle" and not params["namespace"] and params["data"]["event"] == "completed"

    return Kind(open_at, ends_run)


async def follow(
    kind: Kind, clients: Sequence[httpx.AsyncClient], runs: int, chance: random.Random | None
) -> list[Frame]:
    """Return all frames of this many runs, read with cuts; without `chance`, over one connection."""
    seen: list[Frame] = []
    while True:
        client = chance.choice(clients) if chance else clients[0]
        most = chance.choice([1, 40, 400, 4000]) * chance.randint(1, 9) if chance else 2**40
        async with kind.open(client, seen[-1][1] if seen else "") as answer:
            assert answer.status_code == 200, await answer.aread()
            is_whole = await _read(answer, most, seen, kind, runs)
        if is_whole:
            return seen


async def _read(answer: httpx.Response, most: int, seen: list[Frame], kind: Kind, runs: int) -> bool:
    """Add the complete frames within `most` bytes. Returns True if the last run has ended."""
    text = b""
    async for chunk in answer.aiter_raw():
        text += chunk[:most]
        most -= len(chunk)
        *whole, text = text.split(b"\r\n\r\n")
        seen += [frame for block in whole if (frame := _frame(block))]
        if not kind.closes and sum(map(kind.ends_run, seen)) == runs:
            return True
        if most <= 0:
            return False
    return kind.closes


def _frame(block: bytes) -> Frame | None:
    fields = dict(line.split(": ", 1) for line in block.decode().splitlines() if not line.startswith(":"))
    return (fields["event"], fields["id"], json.loads(fields["data"])) if fields else None
