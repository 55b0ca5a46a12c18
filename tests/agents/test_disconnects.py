"""Clients that hang up during a run."""

from __future__ import annotations

import httpx
import pytest

from tests.agents.calls import make_thread


async def status_in_the_end(http: httpx.AsyncClient, thread: str) -> str:
    """Wait for the thread's only run, and return its status."""
    (run,) = (await http.get(f"/threads/{thread}/runs")).json()
    place = f"/threads/{thread}/runs/{run['run_id']}"
    await http.get(f"{place}/join")
    return str((await http.get(place)).json()["status"])


@pytest.mark.parametrize("kind", ["stream", "wait"])
@pytest.mark.parametrize(
    "on_disconnect, status", [("cancel", "interrupted"), ("continue", "success"), (None, "success")]
)
async def test_a_client_that_hangs_up_ends_its_run_only_if_it_said_so(http, kind, on_disconnect, status):
    thread = await make_thread(http)
    run = {"assistant_id": "slow", "input": {"seconds": 1.5}}
    if on_disconnect:
        run["on_disconnect"] = on_disconnect
    async with http.stream("POST", f"/threads/{thread}/runs/{kind}", json=run) as answer:
        assert answer.status_code == 200
        await anext(answer.aiter_raw())
    assert await status_in_the_end(http, thread) == status


async def test_a_client_that_only_joined_may_end_the_run_too(http):
    thread = await make_thread(http)
    run = (await http.post(f"/threads/{thread}/runs", json={"assistant_id": "slow", "input": {"seconds": 60}})).json()
    path = f"/threads/{thread}/runs/{run['run_id']}/stream?cancel_on_disconnect=true"
    with pytest.raises(httpx.ReadTimeout):
        await http.get(path, timeout=0.5)
    assert await status_in_the_end(http, thread) == "interrupted"
