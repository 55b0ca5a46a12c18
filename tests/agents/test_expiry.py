"""Threads that expire: their settings, and the result of a sweep."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serving import PROJECT, Server, make_server
from tests.waiting import until

DAY = 24 * 60


async def made(http: httpx.AsyncClient, **new: Any) -> str:
    answer = await http.post("/threads", json=new)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["thread_id"])


async def ttl_of(http: httpx.AsyncClient, thread: str) -> Any:
    return (await http.get(f"/threads/{thread}?include=ttl")).json()["ttl"]


async def test_a_thread_is_told_when_it_expires(http):
    thread = await made(http, ttl={"ttl": DAY})
    told = await ttl_of(http, thread)
    assert (told["strategy"], told["ttl_minutes"]) == ("delete", DAY)
    expires_in = datetime.fromisoformat(told["expires_at"]) - datetime.now(UTC)
    assert timedelta(hours=23) < expires_in <= timedelta(days=1)
    await http.patch(f"/threads/{thread}", json={"ttl": {"ttl": 2 * DAY, "strategy": "keep_latest"}})
    changed = await ttl_of(http, thread)
    assert (changed["strategy"], changed["ttl_minutes"]) == ("keep_latest", 2 * DAY)
    assert (await http.patch(f"/threads/{thread}", json={"metadata": {"a": 1}})).status_code == 200
    assert await ttl_of(http, thread) == changed
    assert (await ttl_of(http, (await http.post(f"/threads/{thread}/copy")).json()["thread_id"]))[
        "ttl_minutes"
    ] == 2 * DAY
    assert "ttl" not in (await http.get(f"/threads/{thread}")).json()
    assert await ttl_of(http, await made(http)) is None


@pytest.mark.parametrize("ttl", [60, {"ttl": 0}, {"ttl": -1}, {"ttl": 1e300}, {"ttl": 1, "strategy": "burn"}, {}])
async def test_a_wrong_ttl_is_refused(http, ttl):
    assert (await http.post("/threads", json={"ttl": ttl})).status_code == 422


async def test_what_sweeps_will_remove_is_shown_before(http):
    async def expiring(minutes: int) -> Any:
        return (await http.get("/threads/expiring", params={"within_minutes": minutes})).json()

    before, later = await expiring(30), await expiring(2 * DAY)
    run = {"assistant_id": "pair", "input": {"text": "x" * 500}}
    gone, kept = await made(http, ttl={"ttl": DAY}), await made(http, ttl={"ttl": DAY, "strategy": "keep_latest"})
    for thread in (gone, kept):
        await http.post(f"/threads/{thread}/runs/wait", json=run)
    busy = await made(http, ttl={"ttl": DAY})
    slow = await http.post(f"/threads/{busy}/runs", json={"assistant_id": "slow", "input": {"seconds": 60}})
    assert await expiring(30) == before
    told = await expiring(2 * DAY)
    await http.post(f"/threads/{busy}/runs/{slow.json()['run_id']}/cancel?wait=true")
    for strategy, thread in (("delete", gone), ("keep_latest", kept)):
        named = {"thread_ids": [thread], "strategy": strategy}
        pruned = (await http.post("/threads/prune", json={**named, "dry_run": True})).json()
        grown = {name: told[strategy][name] - later[strategy][name] for name in ("threads", "rows", "bytes")}
        assert grown == {"threads": 1, "rows": pruned["rows"], "bytes": pruned["bytes"]}
        assert pruned["bytes"] > 0
    assert (await http.get("/threads/expiring?within_minutes=-1")).status_code == 422
    for thread in (gone, kept, busy):
        await http.delete(f"/threads/{thread}")


@pytest.fixture
def sweeping(folder: Path) -> Server:
    """Start a server that sweeps every second, where threads expire after half a second by default."""
    keys = json.loads(PROJECT.read_text())
    keys["graphs"] = {name: keys["graphs"][name] for name in ("pair", "slow")}
    keys["dependencies"] = [str(PROJECT.parent)]
    keys["graphs"] = {name: path.replace("./", f"{PROJECT.parent}/") for name, path in keys["graphs"].items()}
    ttl = {"default_ttl": 0.5 / 60, "sweep_interval_minutes": 1 / 60, "sweep_limit": 3}
    (folder / "langgraph.json").write_text(json.dumps({**keys, "dependencies": ["."], "checkpointer": {"ttl": ttl}}))
    return make_server(folder, folder / "langgraph.json")


async def test_expired_threads_go_or_keep_their_latest_state(sweeping: Server) -> None:
    sweeping.start()
    async with httpx.AsyncClient(base_url=sweeping.url, timeout=30) as http:
        kept, busy = await made(http, ttl={"ttl": DAY}), await made(http, ttl={"ttl": 2})
        pruned = await made(http, ttl={"ttl": DAY, "strategy": "keep_latest"})
        run = {"assistant_id": "pair", "input": {"text": "x"}}
        for thread in (kept, pruned):
            await http.post(f"/threads/{thread}/runs/wait", json=run)
        slow = await http.post(f"/threads/{busy}/runs", json={"assistant_id": "slow", "input": {"seconds": 60}})
        await http.patch(f"/threads/{busy}", json={"ttl": {"ttl": 0.5 / 60}})
        gone = [await made(http) for _ in range(4)]
        made_by_run = (await http.post("/runs", json={**run, "on_completion": "keep"})).json()["thread_id"]

        async def all_gone() -> bool:
            answers = [await http.get(f"/threads/{thread}") for thread in (*gone, made_by_run)]
            return {answer.status_code for answer in answers} == {404}

        await until(all_gone)
        await http.patch(f"/threads/{pruned}", json={"ttl": {"ttl": 0.5 / 60, "strategy": "keep_latest"}})

        async def one_left() -> bool:
            return len((await http.post(f"/threads/{pruned}/history", json={"limit": 10})).json()) == 1

        await until(one_left)
        assert (await http.get(f"/threads/{pruned}/state")).json()["values"]["text"] == "xab"
        assert len((await http.post(f"/threads/{kept}/history", json={"limit": 10})).json()) == 4
        assert (await http.get(f"/threads/{busy}")).json()["status"] == "busy"
        await http.post(f"/threads/{busy}/runs/{slow.json()['run_id']}/cancel?wait=true")
    assert sweeping.stop() == 0
