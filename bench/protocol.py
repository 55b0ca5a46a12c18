"""The thread-centric protocol beside the older streams: CPU of an event, replay, and one subscriber more.

    python bench/protocol.py --passes 3

CPU is that of the server and of PostgreSQL, from outside, divided by the events that clients have read; making the thread and
the run is in it. The forms take turns, on one server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import httpx
from subjects import MOORAGE, Running, running

TOKENS = 1_000
CLIENTS = 50
REPLAYED = 10_000
SUBSCRIBERS = 20
FOLLOWED_TOKENS = 4_000
# What a page of `useStream` asks for.
CHANNELS = ["values", "updates", "messages", "tools", "lifecycle", "input", "tasks"]
MODES = ["values", "updates", "messages-tuple", "tasks"]

Stream = Callable[[httpx.AsyncClient, int], Awaitable[int]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passes", type=int, default=3)
    options = parser.parse_args()
    found: dict[str, list[float]] = {}
    with running(MOORAGE) as subject:
        for turn in range(options.passes + 1):
            for name, value in asyncio.run(_measured(subject)).items():
                if turn:  # the first pass warms up
                    found.setdefault(name, []).append(value)
            print(f"pass {turn} of {options.passes}", file=sys.stderr)
    print("| what | median | passes |\n|---|---|---|")
    for name, values in found.items():
        print(f"| {name} | {statistics.median(values):.3g} | {', '.join(f'{value:.3g}' for value in values)} |")
    return 0


async def _measured(subject: Running) -> dict[str, float]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{subject.port}", timeout=120, limits=limits) as client:
        plain = await _event_us(subject, client, _older(resumable=False))
        kept = await _event_us(subject, client, _older(resumable=True))
        protocol = await _event_us(subject, client, _protocol)
        return {
            "older stream, us an event": plain,
            "older stream that is kept, us an event": kept,
            "protocol, us an event": protocol,
            "protocol / older stream": protocol / plain,
            "protocol / older stream that is kept": protocol / kept,
            **await _replay(client),
            "one subscriber more, us an event": await _subscriber_us(subject, client),
        }


async def _event_us(subject: Running, client: httpx.AsyncClient, stream: Stream) -> float:
    before = sum(subject.cpu_s())
    events = sum(await asyncio.gather(*(stream(client, TOKENS) for _ in range(CLIENTS))))
    return (sum(subject.cpu_s()) - before) / events * 1e6


def _older(*, resumable: bool) -> Stream:
    async def stream(client: httpx.AsyncClient, tokens: int) -> int:
        body = {"assistant_id": "tokens", "input": _given(tokens), "stream_mode": MODES, "stream_resumable": resumable}
        path = f"/threads/{uuid4()}/runs/stream"
        async with client.stream("POST", path, json={**body, "if_not_exists": "create"}) as answer:
            answer.raise_for_status()
            return sum([chunk.count(b"event: ") async for chunk in answer.aiter_raw()])

    return stream


async def _protocol(client: httpx.AsyncClient, tokens: int) -> int:
    thread = str(uuid4())
    async with _events(client, thread, since=0) as chunks:
        await _start(client, thread, tokens)
        return await _count(chunks)


@asynccontextmanager
async def _events(client: httpx.AsyncClient, thread: str, since: int) -> AsyncIterator[AsyncIterator[bytes]]:
    body = {"channels": CHANNELS, "since": since}
    async with client.stream("POST", f"/threads/{thread}/stream/events", json=body) as answer:
        answer.raise_for_status()
        yield answer.aiter_raw()


async def _start(client: httpx.AsyncClient, thread: str, tokens: int) -> None:
    params = {"assistant_id": "tokens", "input": _given(tokens)}
    answer = await client.post(f"/threads/{thread}/commands", json={"id": 1, "method": "run.start", "params": params})
    assert json.loads(answer.content)["type"] == "success", answer.text


async def _count(chunks: AsyncIterator[bytes]) -> int:
    """Events up to the end of the run."""
    events = 0
    async for chunk in chunks:
        events += chunk.count(b"event: ")
        if b'"event":"completed","run_id"' in chunk:
            break
    return events


def _given(tokens: int) -> dict[str, Any]:
    return {"n": tokens, "messages": [{"role": "user", "content": "hello"}]}


async def _replay(client: httpx.AsyncClient) -> dict[str, float]:
    """A run of some 10,000 events that has ended, from its first event on."""
    thread = str(uuid4())
    async with _events(client, thread, since=0) as chunks:
        await _start(client, thread, REPLAYED)
        await _count(chunks)
    began_at, first_at, events = time.perf_counter(), 0.0, 0
    async with _events(client, thread, since=0) as chunks:
        async for chunk in chunks:
            first_at = first_at or time.perf_counter()
            events += chunk.count(b"event: ")
            if b'"event":"completed","run_id"' in chunk:
                break
    took_s = time.perf_counter() - first_at
    return {"replay: first event, ms": (first_at - began_at) * 1000, "replay: events/s": events / took_s}


async def _subscriber_us(subject: Running, client: httpx.AsyncClient) -> float:
    """CPU of a run that many follow less that of one that one follows, for each event of each of the others."""

    async def followed(subscribers: int) -> tuple[float, int]:
        thread, before = str(uuid4()), sum(subject.cpu_s())

        async def follow() -> int:
            async with _events(client, thread, since=0) as chunks:
                return await _count(chunks)

        following = [asyncio.create_task(follow()) for _ in range(subscribers)]
        await asyncio.sleep(0.5)
        await _start(client, thread, FOLLOWED_TOKENS)
        counts = await asyncio.gather(*following)
        return sum(subject.cpu_s()) - before, min(counts)

    alone_s, events = await followed(1)
    together_s, _ = await followed(1 + SUBSCRIBERS)
    return (together_s - alone_s) / (SUBSCRIBERS * events) * 1e6


if __name__ == "__main__":
    raise SystemExit(main())
