"""The official Python SDK, unmodified, against a real server: the synchronous client."""

from __future__ import annotations

import pytest


def test_the_synchronous_client_manages_assistants(sync_client, mark):
    made = sync_client.assistants.create("echo", context={"a": 1}, metadata=mark)
    assert sync_client.assistants.update(made["assistant_id"], name="Renamed")["version"] == 2
    (found,) = sync_client.assistants.search(metadata=mark)
    assert (found["name"], found["config"]) == ("Renamed", {"configurable": {"a": 1}})
    sync_client.assistants.delete(made["assistant_id"])
    assert sync_client.assistants.count(metadata=mark) == 0


def test_the_synchronous_client_streams_waits_and_reads_the_thread(sync_client):
    thread = sync_client.threads.create()["thread_id"]
    parts = list(sync_client.runs.stream(thread, "pair", input={"text": "x"}, stream_mode=["updates", "values"]))
    assert [part.event for part in parts] == ["metadata", "values", "updates", "values", "updates", "values"]
    assert sync_client.runs.wait(thread, "echo", input={"text": "y"})["text"] == "y!"
    assert sync_client.threads.get_state(thread)["values"]["items"] == ["a", "b", "echo"]
    assert len(sync_client.threads.get_history(thread, limit=3)) == 3
    with pytest.raises(Exception, match="ValueError: boom"):
        sync_client.runs.wait(thread, "raises", input={})


def test_the_synchronous_client_resumes_interrupts_and_streams(sync_client):
    thread = sync_client.threads.create()["thread_id"]
    assert sync_client.runs.wait(thread, "ask", input={})["__interrupt__"]
    run = sync_client.runs.create(
        thread, "ask", command={"resume": "this"}, stream_mode="updates", stream_resumable=True
    )
    sync_client.runs.join(thread, run["run_id"])
    parts = list(sync_client.runs.join_stream(thread, run["run_id"], last_event_id="-1"))
    assert [part.event for part in parts] == ["metadata", "updates", "updates"]
    rest = list(sync_client.runs.join_stream(thread, run["run_id"], last_event_id=parts[0].id))
    assert rest == parts[1:]


def test_the_synchronous_client_cancels(sync_client):
    thread = sync_client.threads.create()["thread_id"]
    run = sync_client.runs.create(thread, "slow", input={"seconds": 30})
    sync_client.runs.cancel(thread, run["run_id"], wait=True)
    assert sync_client.runs.get(thread, run["run_id"])["status"] == "interrupted"
