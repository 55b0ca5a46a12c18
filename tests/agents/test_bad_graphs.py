"""Graphs that fail: the errors that their callers get, and the effects on other runs."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from tests.agents.calls import RUN, make_thread, system
from tests.serving import ROOT

SECRET = "hunter2"
HOST_PATH = str(ROOT)

BOOM = {"error": "ValueError", "message": "boom"}
PRIVATE = {"error": "PrivateError", "message": "An internal error occurred"}


def frames_of(text: str) -> list[tuple[str, Any]]:
    """Return (event, data) of each frame."""
    found = [dict(line.split(": ", 1) for line in frame.split("\r\n")) for frame in text.split("\r\n\r\n") if frame]
    return [(frame["event"], json.loads(frame["data"])) for frame in found]


async def test_a_graph_that_raises_tells_it_everywhere(http):
    thread = await make_thread(http)
    run = {"assistant_id": "raises", "input": {"text": "x"}}
    streamed = await http.post(f"/threads/{thread}/runs/stream", json=run)
    assert streamed.status_code == 200
    assert frames_of(streamed.text)[-1] == ("error", BOOM)

    waited = await http.post(f"/threads/{thread}/runs/wait", json=run)
    assert (waited.status_code, waited.json()) == (200, {"__error__": BOOM})

    (last, first) = (await http.get(f"/threads/{thread}/runs")).json()
    assert (last["status"], first["status"]) == ("error", "error")
    joined = await http.get(f"/threads/{thread}/runs/{last['run_id']}/join")
    assert (joined.status_code, joined.json()) == (200, {"__error__": BOOM})

    shown = (await http.get(f"/threads/{thread}")).json()
    assert (shown["status"], shown["error"], shown["values"]) == ("error", BOOM, {"text": "xa", "items": ["a", "a"]})
    (task,) = (await http.get(f"/threads/{thread}/state")).json()["tasks"]
    assert (task["name"], task["error"]) == ("bad", "ValueError('boom')")
    assert (await http.post("/threads/search", json={"ids": [thread], "status": "error"})).json() == [shown]


async def test_a_private_message_is_shown_to_nobody_but_the_reader_of_the_state(http):
    thread = await make_thread(http)
    everything = ["values", "updates", "messages-tuple", "custom", "tasks", "checkpoints", "debug"]
    run = {"assistant_id": "leaks", "input": {}, "stream_mode": everything, "stream_resumable": True}
    streamed = await http.post(f"/threads/{thread}/runs/stream", json=run)
    waited = await http.post(f"/threads/{thread}/runs/wait", json=run)
    runs = await http.get(f"/threads/{thread}/runs")
    place = f"/threads/{thread}/runs/{runs.json()[0]['run_id']}"

    assert frames_of(streamed.text)[-1] == ("error", PRIVATE)
    assert waited.json() == {"__error__": PRIVATE}
    assert (await http.get(f"/threads/{thread}")).json()["error"] == PRIVATE
    for answer in (
        streamed,
        waited,
        runs,
        await http.get(place),
        await http.get(f"{place}/join"),
        await http.get(f"{place}/stream"),
        await http.get(f"/threads/{thread}"),
        await http.post("/threads/search", json={"ids": [thread]}),
    ):
        assert SECRET not in answer.text, answer.request.url
    state = (await http.get(f"/threads/{thread}/state")).json()
    assert state.pop("tasks")[0]["error"] == "PrivateError('the password is hunter2')"
    assert SECRET not in json.dumps(state)


@pytest.mark.parametrize("modes", [["tools"], ["events"], ["tools", "events"]], ids="+".join)
async def test_a_private_message_of_a_tool_is_shown_to_nobody(http, modes):
    call = {"name": "leak", "args": {}, "id": "a call"}
    given = {"messages": [{"role": "assistant", "content": "", "tool_calls": [call]}]}
    run = {"assistant_id": "uses_tools", "input": given, "stream_mode": modes}
    streamed = await http.post("/runs/stream", json=run)
    assert "An internal error occurred" in str(frames_of(streamed.text)[-2])
    assert "on_tool_error" in streamed.text
    assert SECRET not in streamed.text


async def test_a_factory_that_fails_keeps_its_message_too(http):
    waited = await http.post("/runs/wait", json={"assistant_id": "factory_fails"})
    assert waited.json() == {"__error__": {"error": "OSError", "message": "An internal error occurred"}}


async def test_a_graph_without_end_meets_its_recursion_limit(http):
    thread = await make_thread(http)
    run = {"assistant_id": "endless", "input": {}, "config": {"recursion_limit": 3}}
    failure = (await http.post(f"/threads/{thread}/runs/wait", json=run)).json()["__error__"]
    assert failure["error"] == "GraphRecursionError"
    assert failure["message"].startswith("Recursion limit of 3 reached without hitting a stop condition.")
    shown = (await http.get(f"/threads/{thread}")).json()
    assert (shown["status"], shown["error"]) == ("error", failure)
    assert shown["values"] == {"items": ["again"] * 3}


@pytest.mark.parametrize("place", ["/runs", "/threads/{thread}/runs"], ids=["stateless", "on a thread"])
async def test_a_result_without_a_json_form_fails_its_run_and_no_other(http, place):
    thread = await make_thread(http)
    bad, good = {"assistant_id": "unencodable", "input": {}}, {**RUN, "input": {"text": "x"}}
    path = place.format(thread=thread)
    failed, *others = await asyncio.gather(
        http.post(f"{path}/wait", json=bad), *(http.post("/runs/wait", json=good) for _ in range(4))
    )
    assert failed.status_code == 200
    assert failed.json()["__error__"]["error"] == "TypeError"
    assert "not msgpack serializable" in failed.json()["__error__"]["message"]
    assert [other.json()["text"] for other in others] == ["x!"] * 4
    if place != "/runs":
        (run,) = (await http.get(path)).json()
        assert run["status"] == "error"
        assert (await http.get(f"/threads/{thread}")).json()["status"] == "error"


BROKEN = {
    "broken": "Graph 'broken' (./broken.py:graph) cannot be loaded: "
    "ModuleNotFoundError: No module named 'a_package_that_nobody_installed'",
    "missing": "Graph 'missing' (./nowhere.py:graph) cannot be loaded: "
    "FileNotFoundError: the file does not exist",
    "broken_import": "Graph 'broken_import' (./broken_import.py:graph) cannot be loaded: "
    "ImportError: cannot import name 'a_name_that_is_not_there' from 'graphs'",
    "factory_of_nothing": "Graph 'factory_of_nothing' (./watched.py:makes_no_graph) made str, not a graph",
}  # fmt: skip


@pytest.mark.parametrize("graph", BROKEN)
async def test_a_broken_graph_names_itself_its_file_and_the_cause(http, graph):
    thread = await make_thread(http)
    assistant = system(graph)
    run = {"assistant_id": graph, "input": {}}
    waited = await http.post(f"/threads/{thread}/runs/wait", json=run)
    streamed = await http.post(f"/threads/{thread}/runs/stream", json=run)
    shown = await http.get(f"/threads/{thread}")
    reads = [
        await http.get(f"/assistants/{assistant}/graph"),
        await http.get(f"/assistants/{assistant}/schemas"),
        await http.get(f"/threads/{thread}/state"),
    ]

    for answer in (waited, streamed, shown, *reads):
        assert HOST_PATH not in answer.text
    failure = {"error": "GraphLoadError", "message": waited.json()["__error__"]["message"]}
    assert failure["message"].startswith(BROKEN[graph])
    assert waited.json() == {"__error__": failure}
    assert frames_of(streamed.text)[-1] == ("error", failure)
    assert shown.json()["error"] == failure
    assert [(read.status_code, read.json()) for read in reads] == [(500, {"detail": failure["message"]})] * 3


async def test_a_broken_graph_does_not_hide_the_others(http):
    await http.post("/runs/wait", json={"assistant_id": "broken"})
    assert (await http.post("/runs/wait", json={**RUN, "input": {}})).json() == {"text": "!", "items": ["echo"]}


async def test_a_node_that_blocks_does_not_block_the_server(http):
    thread = await make_thread(http)
    run = {"assistant_id": "blocking", "input": {"seconds": 1.5}}
    blocked = asyncio.create_task(http.post(f"/threads/{thread}/runs/wait", json=run))
    latencies = []
    while not blocked.done():
        start = time.perf_counter()
        assert (await http.get("/ok")).json() == {"ok": True, "services": {}}
        latencies.append(time.perf_counter() - start)
        await asyncio.sleep(0.05)
    assert blocked.result().json() == {"seconds": 1.5, "items": ["blocked"]}
    # If the graph blocked the server, one request would be answered before, and one after. The duration of each depends
    # on the machine.
    assert len(latencies) > 3
