"""Operations on many objects at once: batches of runs, bulk cancel, prune, and the size of a thread in the database."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest


async def _thread(http: httpx.AsyncClient) -> str:
    return str((await http.post("/threads", json={})).json()["thread_id"])


async def _started(http: httpx.AsyncClient, seconds: float = 30) -> dict[str, Any]:
    body = {"assistant_id": "slow", "input": {"seconds": seconds}}
    run: dict[str, Any] = (await http.post(f"/threads/{await _thread(http)}/runs", json=body)).json()
    return run


async def test_a_batch_makes_a_run_for_each_entry(http: httpx.AsyncClient) -> None:
    answer = await http.post(
        "/runs/batch",
        json=[{"assistant_id": "echo", "input": {"text": text}, "on_completion": "keep"} for text in ("a", "b")],
    )
    assert answer.status_code == 200
    results = [
        (await http.get(f"/threads/{run['thread_id']}/runs/{run['run_id']}/join")).json()["text"]
        for run in answer.json()
    ]
    assert results == ["a!", "b!"]


async def test_an_empty_batch_is_refused(http: httpx.AsyncClient) -> None:
    answer = await http.post("/runs/batch", json=[])
    assert answer.status_code == 422
    assert isinstance(answer.json()["detail"], str)


async def test_named_runs_of_a_thread_are_cancelled(http: httpx.AsyncClient) -> None:
    run = await _started(http)
    place = f"/threads/{run['thread_id']}/runs/{run['run_id']}"
    body = {"thread_id": run["thread_id"], "run_ids": [run["run_id"]]}
    assert (await http.post("/runs/cancel", json=body)).status_code == 204
    await http.get(f"{place}/join")
    assert (await http.get(place)).json()["status"] == "interrupted"
    again = await http.post("/runs/cancel", json=body)
    assert again.status_code == 404
    assert again.json()["detail"].startswith("No matching runs to cancel.")


async def test_bulk_cancel_wants_one_way_to_name_the_runs(http: httpx.AsyncClient) -> None:
    thread_id = await _thread(http)
    for body in ({}, {"status": "all", "thread_id": thread_id, "run_ids": []}, {"status": "finished"}):
        assert (await http.post("/runs/cancel", json=body)).status_code == 422, body


async def test_pruned_threads_are_gone_and_unknown_ones_count_nothing(http: httpx.AsyncClient) -> None:
    thread_id = await _thread(http)
    unknown = "00000000-0000-0000-0000-000000000000"
    answer = await http.post("/threads/prune", json={"thread_ids": [thread_id, unknown], "strategy": "delete"})
    assert answer.json() == {"pruned_count": 1}
    assert (await http.get(f"/threads/{thread_id}")).status_code == 404


async def test_keep_latest_leaves_the_state_and_drops_the_history(http: httpx.AsyncClient) -> None:
    thread_id = await _thread(http)
    for _ in range(2):
        await http.post(f"/threads/{thread_id}/runs/wait", json={"assistant_id": "nested", "input": {"text": "x"}})
    before, storage = (await http.get(f"/threads/{thread_id}/state")).json(), await _storage(http, thread_id)
    answer = await http.post("/threads/prune", json={"thread_ids": [thread_id], "strategy": "keep_latest"})
    assert answer.json() == {"pruned_count": 1}
    after = (await http.get(f"/threads/{thread_id}/state")).json()
    assert after["values"] == before["values"]
    assert after["checkpoint"] == before["checkpoint"]
    assert len((await http.post(f"/threads/{thread_id}/history", json={"limit": 10})).json()) == 1
    assert (await _storage(http, thread_id))["total_bytes"] < storage["total_bytes"]
    # The thread continues from there.
    again = await http.post(f"/threads/{thread_id}/runs/wait", json={"assistant_id": "nested", "input": {"text": "y"}})
    assert again.json()["items"][: len(before["values"]["items"])] == before["values"]["items"]


@pytest.mark.parametrize("strategy", ["delete", "keep_latest"])
async def test_a_dry_run_removes_nothing_and_shows_what_would_go(http: httpx.AsyncClient, strategy: str) -> None:
    thread_id, untouched = await _thread(http), await _thread(http)
    for thread in (thread_id, thread_id, untouched):
        await http.post(f"/threads/{thread}/runs/wait", json={"assistant_id": "nested", "input": {"text": "x" * 999}})
    before = await _storage(http, thread_id)
    unknown = "00000000-0000-0000-0000-000000000000"
    named = {"thread_ids": [thread_id, thread_id, unknown], "strategy": strategy}
    told = (await http.post("/threads/prune", json={**named, "dry_run": True})).json()
    assert await _storage(http, thread_id) == before
    assert (await http.post("/threads/prune", json=named)).json() == {"pruned_count": told["pruned_count"]}
    if strategy == "delete":
        rows, size = _rows(before) + 3, before["total_bytes"]  # rows of two runs and the thread
        assert told["pruned_count"] == 1
        assert told["rows"] == rows
        assert size < told["bytes"] < size + 10_000
    else:
        after = await _storage(http, thread_id)
        freed = before["total_bytes"] - after["total_bytes"]
        assert told == {"pruned_count": 1, "rows": _rows(before) - _rows(after), "bytes": freed}
        assert freed > 0


async def test_a_dry_run_counts_no_thread_that_keep_latest_leaves_alone(http: httpx.AsyncClient) -> None:
    run = await _started(http)
    named = {"thread_ids": [run["thread_id"]], "strategy": "keep_latest", "dry_run": True}
    assert (await http.post("/threads/prune", json=named)).json() == {"pruned_count": 0, "rows": 0, "bytes": 0}
    await http.post(f"/threads/{run['thread_id']}/runs/{run['run_id']}/cancel?wait=true")


def _rows(storage: dict[str, Any]) -> int:
    return sum(int(storage[part]["count"]) for part in ("checkpoints", "channel_values", "pending_writes"))


async def test_storage_adds_up(http: httpx.AsyncClient) -> None:
    thread_id = await _thread(http)
    await http.post(f"/threads/{thread_id}/runs/wait", json={"assistant_id": "echo", "input": {"text": "x"}})
    storage = await _storage(http, thread_id)
    values = storage["channel_values"]
    assert storage["checkpoints"]["count"] == 3
    assert values["bytes"] == sum(channel["bytes"] for channel in values["by_channel"].values()) > 0
    assert storage["total_bytes"] == sum(
        storage[part]["bytes"] for part in ("checkpoints", "channel_values", "pending_writes")
    )
    missing = await http.get("/threads/00000000-0000-0000-0000-000000000000/storage")
    assert missing.status_code == 404


async def _storage(http: httpx.AsyncClient, thread_id: str) -> dict[str, Any]:
    storage: dict[str, Any] = (await http.get(f"/threads/{thread_id}/storage")).json()
    return storage


async def test_runs_of_many_threads_go_side_by_side(http: httpx.AsyncClient) -> None:
    body = {"assistant_id": "slow", "input": {"seconds": 1}}
    started = asyncio.get_running_loop().time()
    answers = await asyncio.gather(*(http.post("/runs/wait", json=body) for _ in range(50)))
    assert all(answer.json()["items"] == ["counted", "slept", "echo"] for answer in answers)
    assert asyncio.get_running_loop().time() - started < 5
