"""`GET /threads/{id}/stream`: the frames of all runs of a thread, whoever started them, over several connections."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import httpx
import pytest
from langgraph_sdk.client import LangGraphClient

from tests.serving import Server

Frame = tuple[str, str, Any]  # event, id, data
TOKENS = {"assistant_id": "tokens", "input": {"messages": [{"role": "user", "content": "hi"}]}}


@pytest.fixture
async def http(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        yield client


@asynccontextmanager
async def following(http: httpx.AsyncClient, thread: str, last: str = "", **query: Any) -> AsyncIterator[Any]:
    headers = {"Last-Event-ID": last} if last else {}
    async with http.stream("GET", f"/threads/{thread}/stream", params=query, headers=headers) as answer:
        assert answer.status_code == 200
        yield _frames(answer)


async def _frames(answer: httpx.Response) -> AsyncIterator[Frame]:
    fields: dict[str, str] = {}
    async for line in answer.aiter_lines():
        if not line and "event" in fields:
            yield fields["event"], fields["id"], json.loads(fields["data"])
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value


async def take(frames: AsyncIterator[Frame], runs: int = 1) -> list[Frame]:
    """Read until this many runs have ended."""
    found: list[Frame] = []
    async with asyncio.timeout(60):
        async for frame in frames:
            found.append(frame)
            if is_end(frame):
                runs -= 1
            if not runs:
                break
    return found


def is_end(frame: Frame) -> bool:
    return frame[0] == "metadata" and frame[2].get("status") == "run_done"


async def new_thread(http: httpx.AsyncClient) -> str:
    return str((await http.post("/threads", json={})).json()["thread_id"])


async def test_who_follows_a_thread_sees_each_of_its_runs_from_beginning_to_end(http: httpx.AsyncClient) -> None:
    thread = await new_thread(http)
    async with following(http, thread) as frames:
        ids = []
        for place in ("runs", "runs/wait", "runs/stream"):
            answer = await http.post(
                f"/threads/{thread}/{place}", json={**TOKENS, "stream_mode": ["values", "messages"]}
            )
            assert answer.status_code == 200
            seen = await take(frames)
            ids += [frame[1] for frame in seen]
            assert (seen[0][0], seen[-1][2]["run_id"]) == ("metadata", seen[0][2]["run_id"])
            assert {"values"} < {event for event, _, _ in seen}
            final = [data for event, _, data in seen if event == "values"][-1]
            assert "one two three" in [message["content"] for message in final["messages"]]
    keys = [tuple(map(int, each.split("-"))) for each in ids]
    assert keys == sorted(set(keys))


async def test_who_drops_after_any_frame_and_comes_back_misses_none_and_sees_none_twice(
    http: httpx.AsyncClient,
) -> None:
    thread = await new_thread(http)
    async with following(http, thread) as frames:
        for _ in range(2):
            await http.post(f"/threads/{thread}/runs", json={**TOKENS, "stream_mode": ["values", "updates"]})
        whole = await take(frames, runs=2)
    for at, (_, last, _) in enumerate(whole[:-1]):
        async with following(http, thread, last) as frames:
            assert await take(frames, runs=sum(map(is_end, whole[at + 1 :]))) == whole[at + 1 :]
    async with following(http, thread, "-") as frames:
        assert await take(frames, runs=2) == whole


async def test_modes_choose_what_comes(http: httpx.AsyncClient) -> None:
    thread = await new_thread(http)
    async with (
        following(http, thread, stream_modes="lifecycle") as ends,
        following(http, thread, stream_mode=["state_update", "lifecycle"]) as states,
    ):
        await http.post(f"/threads/{thread}/runs", json={**TOKENS, "stream_mode": ["values", "messages", "custom"]})
        assert [event for event, _, _ in await take(ends)] == ["metadata", "metadata"]
        assert {event for event, _, _ in await take(states)} == {"metadata", "values"}
    answer = await http.get(f"/threads/{thread}/stream", params={"stream_modes": "everything"})
    assert answer.status_code == 422
    assert "everything" in answer.json()["detail"]


async def test_a_run_of_the_protocol_is_seen_to_begin_and_to_end(http: httpx.AsyncClient) -> None:
    thread = await new_thread(http)
    async with following(http, thread) as frames:
        command = {"id": 1, "method": "run.start", "params": TOKENS}
        run_id = (await http.post(f"/threads/{thread}/commands", json=command)).json()["result"]["run_id"]
        seen = await take(frames)
    assert [(event, data["run_id"]) for event, _, data in seen] == [("metadata", run_id)] * len(seen)


async def test_the_official_client_joins_a_thread(client: LangGraphClient) -> None:
    thread = (await client.threads.create())["thread_id"]
    parts = await client.threads.join_stream(thread, stream_mode="run_modes")
    seen: list[Any] = []

    async def follow() -> None:
        async for part in parts:
            seen.append(part)
            if part.event == "metadata" and part.data.get("status") == "run_done":
                return

    following_it = asyncio.create_task(follow())
    await asyncio.sleep(1)
    await client.runs.create(thread, "tokens", input=TOKENS["input"])
    await asyncio.wait_for(following_it, 60)
    assert [part.event for part in seen][:2] == ["metadata", "values"]
    assert all(part.id for part in seen)


async def test_a_thread_that_is_not_there_yet_may_be_followed(http: httpx.AsyncClient) -> None:
    thread = str(uuid4())
    async with following(http, thread) as frames:
        await http.post("/threads", json={"thread_id": thread})
        await http.post(f"/threads/{thread}/runs", json=TOKENS)
        assert is_end((await take(frames))[-1])
