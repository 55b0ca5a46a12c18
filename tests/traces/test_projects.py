"""Projects in PostgreSQL, and the totals of their runs in the trace store."""

import asyncio
from datetime import timedelta
from decimal import Decimal
from uuid import uuid4

import pytest

from moorage.kernel.errors import ConflictError, InvalidRequestError, NotFoundError
from moorage.traces.filter_language.tree import FIELDS, Kind, operators_of
from moorage.traces.records.projects import MetadataSearch, ProjectCreate, ProjectPatch, ProjectSearch
from moorage.traces.store import projects as project_store
from moorage.traces.store.projects import ProjectStore
from tests.traces.naive_filter import Feedback
from tests.traces.rooms import NOW, caller_of

pytest_plugins = "tests.traces.room_fixtures"


async def made(room, name, **fields):
    return await room.projects.create(room.caller, ProjectCreate(name=name, **fields), upsert=False)


async def names(room, **search):
    return [project["name"] for project in await room.projects.list(room.caller, ProjectSearch(**search))]


async def test_names_become_projects_on_first_use_and_the_same_ones_after(room):
    first = await room.store.ensure(room.caller.workspace_id, dict.fromkeys(["a", "b"], NOW))
    again = await ProjectStore(room.postgres).ensure(room.caller.workspace_id, dict.fromkeys(["b", "c"], NOW))
    assert first["b"] == again["b"]
    assert set(await names(room)) == {"a", "b", "c"}


async def test_what_was_seen_lately_is_not_asked_for_again(room):
    found = await room.store.ensure(room.caller.workspace_id, {"a": NOW})
    await room.postgres.execute("DELETE FROM projects WHERE id = %s", (found["a"],))
    assert await room.store.ensure(room.caller.workspace_id, {"a": NOW}) == found
    assert await room.store.known(room.caller.workspace_id, found.values()) == set(found.values())


async def test_another_process_notices_a_deletion_when_what_it_knows_is_old(room, monkeypatch):
    other = ProjectStore(room.postgres)
    monkeypatch.setattr(project_store, "KEPT_S", 0.05)
    before = await other.ensure(room.caller.workspace_id, {"a": NOW})
    await room.deletion.delete_projects(room.caller, before.values())
    await asyncio.sleep(0.06)
    assert (await other.ensure(room.caller.workspace_id, {"a": NOW}))["a"] != before["a"]


async def test_a_deleted_project_is_forgotten_at_once_in_its_own_process(room):
    before = await room.store.ensure(room.caller.workspace_id, {"a": NOW})
    await room.deletion.delete_projects(room.caller, before.values())
    assert not await room.store.known(room.caller.workspace_id, before.values())
    assert (await room.store.ensure(room.caller.workspace_id, {"a": NOW}))["a"] != before["a"]


async def test_many_processes_that_see_a_new_name_at_once_make_one_project(room):
    stores = [ProjectStore(room.postgres) for _ in range(20)]
    wanted = [["x", "y"], ["y", "x"]] * 10
    found = await asyncio.gather(
        *(
            store.ensure(room.caller.workspace_id, dict.fromkeys(some, NOW))
            for store, some in zip(stores, wanted, strict=True)
        )
    )
    assert all(each == found[0] for each in found)
    assert sorted(await names(room)) == ["x", "y"]


async def test_projects_of_one_name_in_two_workspaces_are_two(room):
    mine = await room.store.ensure(room.caller.workspace_id, {"a": NOW})
    theirs = await room.store.ensure(uuid4(), {"a": NOW})
    assert mine["a"] != theirs["a"]
    assert await room.store.known(room.caller.workspace_id, [mine["a"], theirs["a"]]) == {mine["a"]}


@pytest.mark.parametrize("name", ["", "n" * 601])
async def test_a_name_that_cannot_be_kept_is_refused(room, name):
    with pytest.raises(InvalidRequestError, match="between 1 and 600"):
        await room.store.ensure(room.caller.workspace_id, {name: NOW})


async def test_a_name_may_hold_what_the_database_cannot(room):
    found = await room.store.ensure(
        room.caller.workspace_id, dict.fromkeys(["a\0b", "'; DROP TABLE projects; --", "日" * 600], NOW)
    )
    assert len(set(found.values())) == 3
    assert "a\ufffdb" in await names(room)


async def test_the_tier_is_the_projects_own_or_that_of_the_workspace(room):
    own = await made(room, "own", trace_tier="shortlived")
    plain = await made(room, "plain")
    ids = [own["id"], plain["id"], uuid4()]
    assert await room.store.tiers(room.caller.workspace_id, ids) == {
        own["id"]: "shortlived",
        plain["id"]: "longlived",
    }


async def test_a_taken_name_is_a_conflict_unless_it_is_upserted(room):
    first = await made(room, "a", description="old", extra={"metadata": {"k": "v"}})
    with pytest.raises(ConflictError, match="'a' already exists"):
        await made(room, "a")
    again = await room.projects.create(room.caller, ProjectCreate(id=uuid4(), name="a", description="new"), upsert=True)
    assert again == {**first, "description": "new"}


async def test_a_taken_id_is_a_conflict_that_tells_nothing_about_its_owner(room):
    first = await made(room, "a")
    with pytest.raises(ConflictError, match="id of the project is taken"):
        await room.projects.create(caller_of(uuid4()), ProjectCreate(id=first["id"], name="b"), upsert=True)


async def test_a_patch_changes_what_it_names_and_a_null_changes_nothing(room):
    project = await made(room, "a", description="old", extra={"metadata": {"k": "v"}})
    patch = ProjectPatch.model_validate({"name": None, "extra": None, "description": "new", "end_time": NOW})
    changed = await room.projects.update(room.caller, project["id"], patch)
    assert changed == {**project, "description": "new", "end_time": NOW}


async def test_how_long_a_project_keeps_runs_can_be_taken_back(room):
    project = await made(room, "a", longlived_ttl_days=7)
    patch = ProjectPatch.model_validate({"longlived_ttl_days": None})
    assert (await room.projects.update(room.caller, project["id"], patch))["longlived_ttl_days"] is None
    untouched = await room.projects.update(room.caller, project["id"], ProjectPatch(longlived_ttl_days=0))
    assert untouched["longlived_ttl_days"] == 0


async def test_a_new_name_must_be_free(room):
    await made(room, "a")
    project = await made(room, "b")
    with pytest.raises(ConflictError, match="'a' already exists"):
        await room.projects.update(room.caller, project["id"], ProjectPatch(name="a"))


async def test_a_foreign_project_is_not_there(room):
    project = await made(room, "a")
    stranger = caller_of(uuid4())
    with pytest.raises(NotFoundError):
        await room.projects.get(stranger, project["id"], ProjectSearch())
    with pytest.raises(NotFoundError):
        await room.projects.update(stranger, project["id"], ProjectPatch(name="b"))
    with pytest.raises(NotFoundError):
        await room.deletion.delete_projects(stranger, [project["id"]])
    with pytest.raises(NotFoundError):
        await room.projects.metadata(stranger, project["id"], MetadataSearch())
    assert not await room.projects.list(stranger, ProjectSearch())


async def test_lists_are_filtered_sorted_and_paged(room):
    dataset = uuid4()
    one = await made(room, "Chat one", extra={"metadata": {"team": "x", "n": 1}}, start_time=NOW)
    await made(room, "chat two", reference_dataset_id=dataset, start_time=NOW + timedelta(days=1))
    await made(room, "other", extra={"metadata": {"team": "y"}}, start_time=NOW + timedelta(days=2))

    assert await names(room) == ["other", "chat two", "Chat one"]
    assert await names(room, sort_by_desc=False) == ["Chat one", "chat two", "other"]
    assert sorted(await names(room, sort_by="name")) == ["Chat one", "chat two", "other"]
    assert await names(room, name="other") == ["other"]
    assert await names(room, name_contains="CHAT") == ["chat two", "Chat one"]
    assert await names(room, name_contains="%") == []
    assert await names(room, id=[one["id"]]) == ["Chat one"]
    assert await names(room, reference_free=True) == ["other", "Chat one"]
    assert await names(room, reference_dataset=[dataset]) == ["chat two"]
    assert await names(room, metadata='{"team": "x", "n": 1}') == ["Chat one"]
    assert await names(room, tag_value_id=[uuid4()]) == []
    # One row more than requested shows that there are more.
    assert await names(room, limit=1) == ["other", "chat two"]
    assert await names(room, limit=1, offset=2) == ["Chat one"]


FILTERS = [
    ('eq(name, "one")', "one"),
    ('neq(name, "one")', "two three"),
    ('like(name, "t%")', "two three"),
    ('and(gte(start_time, "2026-06-16"), not(like(name, "th%")))', "two"),
    ("eq(end_time, null)", "two three"),
    ('in(name, ["one", "two", "x"])', "one two"),
    ('has(tags, "prod")', "one"),
    ('eq(tags, "prod")', "one"),
    ('neq(tags, "prod")', "two three"),
    ('in(tags, ["prod", "x"])', "one"),
    ('like(tags, "pr%")', "one"),
    ('notlike(tags, "pr%")', "two three"),
    ('has(metadata, \'{"team": "x"}\')', "one"),
    ('like(metadata, "%team%")', "one two"),
    ('like(name, "one\\\\")', ""),
    ("neq(extra, null)", "one two"),
    ('exists(metadata, "team")', "one two"),
    ('and(eq(metadata_key, "team"), eq(metadata_value, "x"))', "one"),
    ('and(eq(metadata_key, "n"), eq(metadata_value, 1))', "one"),
    ('and(eq(metadata_key, "team"), neq(metadata_value, "x"))', "two"),
    ('neq(metadata_key, "team")', "three"),
    ('and(neq(metadata_key, "n"), eq(metadata_value, "y"))', "two"),
    ('or(eq(name, "three"), eq(metadata_value, "y"))', "two three"),
    ('search("ONE")', "one"),
    ("""eq(name, "'; DROP TABLE projects; --")""", ""),
]


async def test_a_filter_selects_projects(room):
    one = {"metadata": {"team": "x", "n": 1}, "tags": ["prod"]}
    await made(room, "one", extra=one, start_time=NOW, end_time=NOW)
    await made(room, "two", extra={"metadata": {"team": "y"}}, start_time=NOW + timedelta(days=1))
    await made(room, "three", start_time=NOW + timedelta(days=2))
    for text, expected in FILTERS:
        assert " ".join(await names(room, filter=text, sort_by_desc=False)) == expected, text


def every_comparison():
    texts = {Kind.ID: f'"{uuid4()}"', Kind.TIME: '"2026-06-15"', Kind.JSON: "'{\"a\": 1}'"}
    for name in ("id", "session_id", "name", "start_time", "end_time", "trace_tier", "metadata", "tags", "extra"):
        field = FIELDS[name]
        value = texts.get(field.kind, '"x"')
        special = {"in": f", [{value}]", "exists": ""}
        if field.kind is Kind.JSON:
            special |= {"eq": ", null", "neq": ", null"}
        for operator in sorted(operators_of(field)):
            yield f"{operator}({name}{special.get(operator, f', {value}')})"


async def test_every_comparison_of_what_a_project_has_is_answered(room):
    await made(room, "one", extra={"metadata": {"a": 1}, "tags": ["x"]})
    await made(room, "two", extra={"metadata": [], "tags": "x"})
    for text in every_comparison():
        both = await names(room, filter=text) + await names(room, filter=f"not({text})")
        assert sorted(both) == ["one", "two"], text


@pytest.mark.parametrize("text", ['eq(run_type, "llm")', 'eq(input_key, "x")', "eq(name", "eq(total_tokens, 1)"])
async def test_a_filter_that_projects_cannot_answer_is_refused(room, text):
    with pytest.raises(InvalidRequestError, match="Invalid filter"):
        await names(room, filter=text)


@pytest.mark.parametrize("metadata", ["[]", "{", "1"])
async def test_metadata_to_look_for_is_a_json_object(room, metadata):
    with pytest.raises(InvalidRequestError, match="JSON object"):
        await names(room, metadata=metadata)


async def test_experiments_are_numbered_within_their_dataset(room):
    dataset = uuid4()
    numbers = [(await made(room, name, reference_dataset_id=dataset))["test_run_number"] for name in "ab"]
    assert numbers == [1, 2]
    assert (await made(room, "c"))["test_run_number"] is None


async def test_statistics_are_those_of_traces_and_usage_is_that_of_all_runs(room):
    project = await made(room, "a")
    await made(room, "empty")
    root = room.run(project["id"], first_token_time=NOW + timedelta(seconds=0.5))
    child = room.run(project["id"], root, total_tokens=10, prompt_tokens=7, total_cost=Decimal("0.0010"))
    failed = room.run(
        project["id"],
        start_time=NOW + timedelta(minutes=1),
        end_time=NOW + timedelta(minutes=1, seconds=4),
        error="no",
        total_tokens=5,
        feedback=[Feedback("score", 1.0), Feedback("score", 0.0, "bad"), Feedback("note", comment="hm")],
    )
    await room.keep(root, child, failed)
    found = {
        project["name"]: project for project in await room.projects.list(room.caller, ProjectSearch(include_stats=True))
    }

    stats = found["a"]
    assert (stats["run_count"], stats["total_tokens"], stats["prompt_tokens"]) == (2, 15, 7)
    assert (stats["total_cost"], stats["completion_cost"]) == ("0.001", None)
    assert (stats["latency_p50"], stats["latency_p99"]) == (3.0, pytest.approx(3.98))
    assert (stats["first_token_p50"], stats["error_rate"], stats["streaming_rate"]) == (0.5, 0.5, 0.5)
    assert stats["last_run_start_time"] == failed.start_time == stats["last_run_start_time_live"]
    score = stats["feedback_stats"]["score"]
    assert (score["n"], score["avg"], score["min"], score["max"], score["stdev"]) == (2, 0.5, 0.0, 1.0, 0.5)
    assert score["values"] == {"bad": 1}
    assert stats["feedback_stats"]["note"]["comments"] == ["hm"]
    assert stats["stored_runs"] == 3
    assert stats["stored_bytes"] > 0
    assert (found["empty"]["run_count"], found["empty"]["feedback_stats"]) == (0, {})
    assert found["empty"]["reference_dataset_id"] is None

    since = ProjectSearch(include_stats=True, stats_start_time=failed.start_time)
    assert (await room.projects.get(room.caller, project["id"], since))["run_count"] == 1
    few = ProjectSearch(include_stats=True, stats_select=["run_count"])
    selected = await room.projects.get(room.caller, project["id"], few)
    assert (selected["run_count"], selected["total_tokens"], selected["feedback_stats"]) == (2, None, None)
    only = ProjectSearch(include_stats=True, stats_filter='eq(status, "error")')
    assert (await room.projects.get(room.caller, project["id"], only))["total_tokens"] == 5


async def test_without_asking_statistics_are_null_and_their_keys_are_there(room):
    await made(room, "a")
    (project,) = await room.projects.list(room.caller, ProjectSearch())
    assert project["run_count"] is None
    assert project["feedback_stats"] is None


async def test_facets_are_counted_for_each_project_and_bring_the_filter_that_narrows_to_them(room):
    one, other = [(await made(room, name))["id"] for name in ("one", "other")]
    root = room.run(one, name="agent", run_type="chain", tags=["prod"])
    models = [room.run(one, root, name="model", run_type="llm", error=error) for error in (None, None, "no")]
    await room.keep(root, *models, room.run(other, name="elsewhere"))

    def counted(project) -> dict[tuple[str, str], int]:
        return {(facet["key"], facet["value"]): facet["n"] for facet in project["run_facets"]}

    (shown,) = await room.projects.list(room.caller, ProjectSearch(facets=True, name="one"))
    assert counted(shown) == {
        ("name", "model"): 3,
        ("name", "agent"): 1,
        ("run_type", "llm"): 3,
        ("run_type", "chain"): 1,
        ("status", "success"): 3,
        ("status", "error"): 1,
        ("tag", "prod"): 1,
    }
    assert shown["run_count"] is None, "statistics were not asked for"
    for facet in shown["run_facets"]:
        narrowed = ProjectSearch(include_stats=True, facets=True, stats_filter=facet["query"])
        found = await room.projects.get(room.caller, one, narrowed)
        assert (
            counted(found)[facet["key"], facet["value"]]
            == facet["n"]
            == sum(n for (key, _), n in counted(found).items() if key == "status")
        )
    later = ProjectSearch(facets=True, stats_start_time=NOW + timedelta(days=1))
    assert [each["run_facets"] for each in await room.projects.list(room.caller, later)] == [[], []]


async def test_the_trace_store_can_give_the_order(room):
    old, new, idle = [(await made(room, name))["id"] for name in ("old", "new", "idle")]
    await room.keep(
        room.run(old, error="no"),
        room.run(old, feedback=[Feedback("score", 0.9)]),
        room.run(new, start_time=NOW + timedelta(days=1), feedback=[Feedback("score", 0.1)]),
    )
    assert idle
    assert await names(room, sort_by="last_run_start_time") == ["new", "old", "idle"]
    assert await names(room, sort_by="last_run_start_time", limit=1, offset=1) == ["old", "idle"]
    assert await names(room, sort_by="runs_count") == ["old", "new", "idle"]
    assert await names(room, sort_by="error_rate", sort_by_desc=False) == ["new", "old", "idle"]
    assert await names(room, sort_by="feedback", sort_by_feedback_key="score") == ["old", "new", "idle"]


async def test_metadata_are_told_with_the_most_frequent_values_first(room):
    project = await made(room, "a")
    root = room.run(project["id"], metadata={"user": "ann", "n": 1})
    await room.keep(
        root,
        room.run(project["id"], root, metadata={"user": "ann"}),
        room.run(project["id"], root, metadata={"user": "bob", "n": 2}),
    )

    async def told(**asked):
        return await room.projects.metadata(room.caller, project["id"], MetadataSearch(**asked))

    assert await told() == {"n": ["1", "2"], "user": ["ann", "bob"]}
    assert await told(k=1, metadata_keys=["user"]) == {"user": ["ann"]}
    assert await told(root_runs_only=True) == {"n": ["1"], "user": ["ann"]}
    assert await told(start_time=NOW + timedelta(days=1)) == {}
