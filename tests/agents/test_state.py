"""The state of a thread: read, history, update and copy, for graphs whose shape depends on a configuration."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.waiting import until

MINT = {"configurable": {"flavour": "mint"}}


async def new(http: httpx.AsyncClient, path: str, body: Any) -> Any:
    answer = await http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def asked(http: httpx.AsyncClient, configured: str) -> str:
    """Create a thread that waits at a node that only the configured graph has."""
    thread: str = (await new(http, "/threads", {}))["thread_id"]
    assistant, run = "factory_asks", dict[str, Any]()
    if configured == "assistant":
        assistant = (await new(http, "/assistants", {"graph_id": "factory_asks", "config": MINT}))["assistant_id"]
    elif configured == "context of the run":
        run = {"context": MINT["configurable"]}
    else:
        run = {"config": MINT}
    result = await new(http, f"/threads/{thread}/runs/wait", {"assistant_id": assistant, "input": {}, **run})
    assert result["__interrupt__"][0]["value"] == "Which?"
    return thread


@pytest.mark.parametrize("configured", ["assistant", "run", "context of the run"])
async def test_the_state_of_a_factory_graph_is_read_as_its_run_was_configured(http, configured):
    thread = await asked(http, configured)
    state = (await http.get(f"/threads/{thread}/state")).json()
    assert (state["next"], [task["name"] for task in state["tasks"]]) == (["mint"], ["mint"])
    assert [interrupt["value"] for interrupt in state["interrupts"]] == ["Which?"]
    at = {"checkpoint": state["checkpoint"]}
    assert (await new(http, f"/threads/{thread}/state/checkpoint", at))["interrupts"] == state["interrupts"]
    (latest,) = await new(http, f"/threads/{thread}/history", {"limit": 1})
    assert latest["interrupts"] == state["interrupts"]


async def test_the_state_of_a_factory_graph_is_updated_as_its_run_was_configured(http):
    thread = await asked(http, "assistant")
    await new(http, f"/threads/{thread}/state", {"values": {"items": ["by hand"]}, "as_node": "mint"})
    state = (await http.get(f"/threads/{thread}/state")).json()
    assert (state["values"]["items"], state["next"]) == (["by hand"], [])
    assert (await http.get(f"/threads/{thread}")).json()["status"] == "idle"


async def test_a_rolled_back_run_of_a_factory_graph_leaves_the_interrupt_before_it(http):
    thread = await asked(http, "run")
    resumed = {"assistant_id": "factory_asks", "command": {"resume": "x"}, "config": MINT, "after_seconds": 600}
    run = await new(http, f"/threads/{thread}/runs", resumed)
    answer = await http.post(f"/threads/{thread}/runs/{run['run_id']}/cancel?wait=true&action=rollback")
    assert answer.status_code == 200
    assert len((await http.get(f"/threads/{thread}/state")).json()["interrupts"]) == 1


async def test_a_run_of_a_factory_graph_that_is_rolled_back_while_it_runs_leaves_the_thread_as_it_was(http):
    thread = (await new(http, "/threads", {}))["thread_id"]
    run = {"assistant_id": "factory_sleeps", "config": MINT}
    await new(http, f"/threads/{thread}/runs/wait", {**run, "input": {"text": "x"}})
    before = (await http.get(f"/threads/{thread}")).json()
    assert before["status"] == "interrupted"
    resumed = {**run, "command": {"resume": "y", "update": {"seconds": 60}}}
    running = await new(http, f"/threads/{thread}/runs", resumed)

    async def passed_the_node() -> bool:
        return bool((await http.get(f"/threads/{thread}/state")).json()["next"] == ["sleep"])

    await until(passed_the_node)
    place = f"/threads/{thread}/runs/{running['run_id']}"
    assert (await http.post(f"{place}/cancel?wait=true&action=rollback")).status_code == 200
    after = (await http.get(f"/threads/{thread}")).json()
    kept = ("status", "values", "interrupts", "metadata")
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
    state = (await http.get(f"/threads/{thread}/state")).json()
    assert (state["next"], [interrupt["value"] for interrupt in state["interrupts"]]) == (["mint"], ["Which?"])
    assert (await http.get(place)).status_code == 404
    await http.delete(f"/threads/{thread}")


async def test_an_assistant_that_is_gone_does_not_hide_the_state(http):
    thread = await asked(http, "assistant")
    found = (await http.get(f"/threads/{thread}")).json()
    await http.delete(f"/assistants/{found['metadata']['assistant_id']}")
    assert (await http.get(f"/threads/{thread}/state")).status_code == 200
    await http.patch(f"/threads/{thread}", json={"metadata": {"assistant_id": ["no id"]}})
    assert (await http.get(f"/threads/{thread}/state")).status_code == 200


async def test_the_metadata_of_a_state_names_its_thread_after_a_copy_too(http):
    thread = (await new(http, "/threads", {}))["thread_id"]
    await new(http, f"/threads/{thread}/runs/wait", {"assistant_id": "pair", "input": {"text": "x"}})
    copy = (await new(http, f"/threads/{thread}/copy", {}))["thread_id"]
    for thread_id, other in ((thread, copy), (copy, thread)):
        assert (await http.get(f"/threads/{thread_id}/state")).json()["metadata"]["thread_id"] == thread_id
        states = await new(http, f"/threads/{thread_id}/history", {"limit": 10, "metadata": {"thread_id": thread_id}})
        assert {state["metadata"]["thread_id"] for state in states} == {thread_id}
        assert await new(http, f"/threads/{thread_id}/history", {"limit": 10, "metadata": {"thread_id": other}}) == []


async def test_a_schema_named_after_its_class_is_the_config_schema(http):
    found = await new(http, "/assistants/search", {"graph_id": "configured"})
    schemas = (await http.get(f"/assistants/{found[0]['assistant_id']}/schemas")).json()
    assert schemas["config_schema"]["properties"]["flavour"]["type"] == "string"


@pytest.mark.parametrize("place", ["/runs", "/runs/wait", "/runs/stream", "/runs/batch"])
async def test_the_multitask_strategy_of_a_stateless_run_is_checked(http, place):
    def body(strategy: str) -> Any:
        run = {"assistant_id": "echo", "input": {}, "multitask_strategy": strategy}
        return [run] if place == "/runs/batch" else run

    assert (await http.post(place, json=body("whatever"))).status_code == 422
    assert (await http.post(place, json=body("reject"))).status_code == 200


@pytest.mark.parametrize("action", ["interrupt", "rollback"])
async def test_a_cancellation_that_nobody_waits_for_shows_at_once(http, action):
    for _ in range(5):
        thread = (await new(http, "/threads", {}))["thread_id"]
        slow = {"assistant_id": "slow", "input": {"seconds": 60}}
        run = await new(http, f"/threads/{thread}/runs", slow)
        place = f"/threads/{thread}/runs/{run['run_id']}"
        assert (await http.post(f"{place}/cancel?action={action}")).status_code == 202
        found = await http.get(place)
        assert found.status_code == 404 if action == "rollback" else found.json()["status"] == "interrupted"
        assert (await http.get(f"/threads/{thread}")).json()["status"] != "busy"


async def test_a_bulk_cancellation_shows_at_once(http):
    thread = (await new(http, "/threads", {}))["thread_id"]
    run = await new(http, f"/threads/{thread}/runs", {"assistant_id": "slow", "input": {"seconds": 60}})
    body = {"thread_id": thread, "run_ids": [run["run_id"]]}
    assert (await http.post("/runs/cancel", json=body)).status_code == 204
    assert (await http.get(f"/threads/{thread}/runs/{run['run_id']}")).json()["status"] == "interrupted"
