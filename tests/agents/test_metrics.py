"""`/metrics` in both formats: the queue of all processes, and the work of this process."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx


async def figures(http: httpx.AsyncClient) -> dict[str, float]:
    """Return samples by name with labels, as Prometheus reads them."""
    answer = await http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = [line for line in answer.text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


async def as_json(http: httpx.AsyncClient) -> Any:
    answer = await http.get("/metrics", params={"format": "json"})
    assert answer.headers["content-type"] == "application/json"
    return answer.json()


async def test_ended_runs_are_counted_by_status_with_their_checkpoints_and_first_events(http):
    before, told = await figures(http), await as_json(http)
    thread = (await http.post("/threads", json={})).json()["thread_id"]
    await http.post(f"/threads/{thread}/runs/wait", json={"assistant_id": "echo", "input": {"text": "x"}})
    await http.post("/runs/wait", json={"assistant_id": "raises", "input": {}})
    after = await figures(http)

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0)

    assert grown('lg_api_runs_total{status="success"}') == 1
    assert grown('lg_api_runs_total{status="error"}') == 1
    assert grown("lg_api_checkpoint_bytes_total") > 100
    assert grown("lg_api_first_event_seconds_count") == 2
    route = 'lg_api_http_requests_total{method="POST",path="/threads/{thread_id}/runs/wait",status="200"}'
    assert grown(route) == 1
    assert (await as_json(http))["runs"]["success"] == told["runs"].get("success", 0) + 1


async def test_runs_at_work_those_that_wait_and_open_streams_are_shown(http):
    thread = (await http.post("/threads", json={})).json()["thread_id"]
    before = await as_json(http)
    slow = {"assistant_id": "slow", "input": {"seconds": 60}}
    run = (await http.post(f"/threads/{thread}/runs", json=slow)).json()
    await http.post(f"/threads/{thread}/runs", json=slow)
    await http.post(f"/threads/{thread}/runs", json={**slow, "after_seconds": 600})
    async with http.stream("GET", f"/threads/{thread}/runs/{run['run_id']}/stream"):
        await asyncio.sleep(0.1)
        told, shown = await as_json(http), await figures(http)
    assert told["queue"]["n_running"] - before["queue"]["n_running"] == 1
    assert told["queue"]["n_pending"] - before["queue"]["n_pending"] == 1  # the other one is not due
    assert told["queue"]["pending_runs_wait_time_max_secs"] >= told["queue"]["pending_runs_wait_time_med_secs"] > 0
    assert told["workers"]["active"] - before["workers"]["active"] == 1
    assert told["workers"]["max"] == told["workers"]["active"] + told["workers"]["available"]
    assert told["streams"]["open"] == before["streams"]["open"] + 1
    assert told["postgres"].keys() == {"max", "open", "available", "waiting"}
    assert shown["lg_api_num_pending_runs"] >= 1
    assert shown["lg_api_num_running_runs"] >= 1
    assert shown['lg_api_pg_pool{what="max"}'] == told["postgres"]["max"]
    await http.post("/runs/cancel?action=rollback", json={"status": "all"})


async def test_ids_of_callers_are_in_no_label(http):
    thread = (await http.post("/threads", json={})).json()["thread_id"]
    await http.get(f"/threads/{thread}")
    text = (await http.get("/metrics")).text
    assert thread not in text
    assert not re.search(r"[0-9a-f]{8}-[0-9a-f]{4}-", text)


async def test_an_unknown_format_is_refused(http):
    answer = await http.get("/metrics", params={"format": "xml"})
    assert (answer.status_code, answer.json()) == (
        422,
        {"detail": "Invalid format value: expected one of prometheus, json"},
    )
