"""The official Python SDK, unmodified, against a real server: assistants, their versions and schemas."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from langgraph_sdk.errors import BadRequestError, ConflictError, NotFoundError

from tests.agents.sdk import system_id


async def test_every_graph_has_a_system_assistant_whose_id_anybody_can_compute(client):
    found = await client.assistants.search(metadata={"created_by": "system"}, limit=100)
    assert {"echo", "pair", "nested", "broken"} <= {assistant["graph_id"] for assistant in found}
    for assistant in found:
        assert assistant["assistant_id"] == system_id(assistant["graph_id"])
        assert (assistant["name"], assistant["config"], assistant["version"]) == (assistant["graph_id"], {}, 1)


async def test_the_configuration_of_an_assistant_is_also_its_context(client):
    made = await client.assistants.create("echo", config={"configurable": {"model_name": "m"}}, name="Mine")
    assert (made["graph_id"], made["name"], made["version"]) == ("echo", "Mine", 1)
    assert made["config"] == {"configurable": {"model_name": "m"}}
    assert made["context"] == {"model_name": "m"}
    assert await client.assistants.get(made["assistant_id"]) == made


async def test_the_context_of_an_assistant_is_also_its_configuration(client):
    made = await client.assistants.create("echo", context={"model_name": "m"}, description="What for")
    assert (made["name"], made["description"]) == ("Untitled", "What for")
    assert made["context"] == {"model_name": "m"}
    assert made["config"] == {"configurable": {"model_name": "m"}}


async def test_configuration_and_context_together_are_refused(client):
    with pytest.raises(BadRequestError, match="Cannot specify both"):
        await client.assistants.create("echo", config={"configurable": {"a": 1}}, context={"b": 2})


async def test_an_assistant_needs_a_graph_that_is_served(client):
    with pytest.raises(NotFoundError, match="nope"):
        await client.assistants.create("nope")


async def test_an_assistant_id_is_taken_once(client):
    chosen = str(uuid4())
    first = await client.assistants.create("echo", assistant_id=chosen, name="First")
    with pytest.raises(ConflictError, match=chosen):
        await client.assistants.create("echo", assistant_id=chosen, name="Second")
    again = await client.assistants.create("echo", assistant_id=chosen, name="Second", if_exists="do_nothing")
    assert first["assistant_id"] == chosen
    assert again == first


async def test_assistants_are_found_by_what_they_carry(client, mark):
    echo = await client.assistants.create("echo", metadata={**mark, "nested": {"a": 1, "b": 2}}, name="The Echo")
    pair = await client.assistants.create("pair", metadata=mark, name="The pair")

    async def ids(**search: Any) -> list[str]:
        return [found["assistant_id"] for found in await client.assistants.search(**search)]

    assert await ids(metadata=mark) == [pair["assistant_id"], echo["assistant_id"]]
    assert await ids(metadata=mark, graph_id="echo") == [echo["assistant_id"]]
    assert await ids(metadata=mark, name="the E") == [echo["assistant_id"]]
    assert await ids(metadata={**mark, "nested": {"a": 1}}) == [echo["assistant_id"]]
    assert await ids(metadata={**mark, "nested": {"a": 2}}) == []
    assert await client.assistants.count(metadata=mark) == 2
    assert await client.assistants.count(metadata=mark, graph_id="pair") == 1
    assert await client.assistants.count(metadata=mark, name="echo") == 1


async def test_assistants_are_sorted_paged_and_cut_to_the_fields_asked_for(client, mark):
    for name in ("b", "a", "c"):
        await client.assistants.create("echo", metadata=mark, name=name)
    by_name: dict[str, Any] = {"metadata": mark, "sort_by": "name", "sort_order": "asc"}
    page = await client.assistants.search(**by_name, limit=2, select=["name"], response_format="object")
    assert page["assistants"] == [{"name": "a"}, {"name": "b"}]
    last = await client.assistants.search(**by_name, offset=int(page["next"]), response_format="object")
    assert [assistant["name"] for assistant in last["assistants"]] == ["c"]
    assert last["next"] is None


async def test_an_update_makes_a_version_and_merges_metadata(client):
    made = await client.assistants.create("echo", config={"configurable": {"a": 1}}, metadata={"kept": 1, "new": 1})
    changed = await client.assistants.update(
        made["assistant_id"], config={"configurable": {"b": 2}}, metadata={"new": 2}, name="Renamed"
    )
    assert (changed["version"], changed["name"], changed["graph_id"]) == (2, "Renamed", "echo")
    assert changed["metadata"] == {"kept": 1, "new": 2}
    assert changed["config"] == {"configurable": {"b": 2}}
    assert changed["context"] == {"b": 2}
    assert await client.assistants.get(made["assistant_id"]) == changed


async def test_versions_are_listed_newest_first_and_each_can_be_the_latest_again(client):
    made = await client.assistants.create("echo", context={"n": 1}, name="one")
    await client.assistants.update(made["assistant_id"], graph_id="pair", context={"n": 2}, name="two")
    versions = await client.assistants.get_versions(made["assistant_id"])
    assert [(v["version"], v["graph_id"], v["name"]) for v in versions] == [(2, "pair", "two"), (1, "echo", "one")]
    assert [v["version"] for v in await client.assistants.get_versions(made["assistant_id"], limit=1, offset=1)] == [1]

    old = await client.assistants.set_latest(made["assistant_id"], 1)
    assert (old["version"], old["graph_id"], old["name"], old["context"]) == (1, "echo", "one", {"n": 1})
    assert (await client.assistants.get(made["assistant_id"]))["version"] == 1
    third = await client.assistants.update(made["assistant_id"], name="three")
    assert (third["version"], third["graph_id"]) == (3, "echo")


async def test_a_run_uses_the_latest_version_of_its_assistant(client):
    made = await client.assistants.create("shows_config", config={"configurable": {"n": 1}})
    await client.assistants.update(made["assistant_id"], config={"configurable": {"n": 2}})
    values = await client.runs.wait(None, made["assistant_id"], input={})
    assert values["seen"]["configurable"]["n"] == 2


async def test_a_version_that_was_never_made_cannot_be_the_latest(client):
    made = await client.assistants.create("echo")
    with pytest.raises(NotFoundError):
        await client.assistants.set_latest(made["assistant_id"], 7)


async def test_the_graph_of_an_assistant_is_drawn_by_name_and_by_id(client):
    drawn = await client.assistants.get_graph("nested")
    assert [node["id"] for node in drawn["nodes"]] == ["__start__", "before", "inner", "after", "__end__"]
    assert {"source": "before", "target": "inner"} in drawn["edges"]
    assert await client.assistants.get_graph(system_id("nested")) == drawn


async def test_a_drawing_looks_into_subgraphs_when_asked(client):
    drawn = await client.assistants.get_graph("nested", xray=True)
    assert {"inner:a", "inner:b"} <= {node["id"] for node in drawn["nodes"]}


async def test_the_schemas_of_an_assistant_are_json_schemas(client):
    made = await client.assistants.create("echo")
    schemas = await client.assistants.get_schemas(made["assistant_id"])
    assert schemas["graph_id"] == "echo"
    for kind in ("input_schema", "output_schema", "state_schema"):
        assert schemas[kind]["type"] == "object"
        assert {"text", "items"} <= schemas[kind]["properties"].keys()
    assert schemas["config_schema"] == {}
    assert schemas["context_schema"] is None


async def test_subgraphs_are_listed_by_namespace(client):
    nested = system_id("nested")
    found = await client.assistants.get_subgraphs(nested)
    assert found.keys() == {"inner"}
    assert "text" in found["inner"]["input_schema"]["properties"]
    assert await client.assistants.get_subgraphs(nested, namespace="inner", recurse=True) == found
    assert await client.assistants.get_subgraphs(nested, namespace="nowhere") == {}


async def test_a_deleted_assistant_is_gone(client):
    made = await client.assistants.create("echo")
    await client.assistants.delete(made["assistant_id"])
    with pytest.raises(NotFoundError):
        await client.assistants.get(made["assistant_id"])
    with pytest.raises(NotFoundError):
        await client.assistants.delete(made["assistant_id"])
    with pytest.raises(NotFoundError):
        await client.assistants.update(made["assistant_id"], name="Late")


async def test_an_assistant_can_be_deleted_with_its_threads(client, thread):
    made = await client.assistants.create("echo")
    await client.runs.wait(thread, made["assistant_id"], input={"text": "hi"})
    await client.assistants.delete(made["assistant_id"], delete_threads=True)
    with pytest.raises(NotFoundError):
        await client.threads.get(thread)


async def test_a_system_assistant_is_there_again_after_its_deletion(client):
    system = system_id("described")
    await client.assistants.update(system, name="Changed")
    await client.assistants.delete(system)
    found = await client.assistants.get(system)
    assert (found["name"], found["version"], found["metadata"]) == ("described", 1, {"created_by": "system"})
    assert found["description"] == "An echo with a description."
