"""Feedback in the trace store, configurations of its keys, and tokens to give feedback without a key."""

from datetime import timedelta
from uuid import uuid4

import pytest

from moorage.kernel.errors import BadRequestError, ConflictError, InvalidRequestError, NotFoundError
from moorage.traces.records.feedback import (
    FeedbackByToken,
    FeedbackConfigCreate,
    FeedbackConfigPatch,
    FeedbackConfigSearch,
    FeedbackCreate,
    FeedbackPatch,
    FeedbackSearch,
    FeedbackTokenCreate,
    FeedbackTokenSearch,
    FormulaSearch,
    FormulaWrite,
)
from moorage.traces.records.projects import ProjectCreate, ProjectSearch
from tests.traces.rooms import NOW, caller_of

pytest_plugins = "tests.traces.room_fixtures"

STARS = {"type": "continuous", "min": 1, "max": 5}


@pytest.fixture
async def project(room):
    return (await room.projects.create(room.caller, ProjectCreate(name="a"), upsert=False))["id"]


@pytest.fixture
async def run(room, project):
    """Return a run below another one."""
    root = room.run(project)
    child = room.run(project, root)
    await room.keep(root, child)
    return child


def given(**fields):
    return FeedbackCreate.model_validate({"key": "score", **fields})


async def listed(room, **search):
    return await room.feedback.list(room.caller, FeedbackSearch(**search))


async def test_feedback_takes_the_place_of_its_run(room, project, run):
    made = await room.feedback.create(room.caller, given(run_id=run.id, score=True, value={"a": [1]}, comment="good"))
    assert await room.feedback.get(room.caller, made["id"]) == made
    assert (made["session_id"], made["trace_id"], made["start_time"]) == (project, run.trace_id, run.start_time)
    assert (made["score"], made["value"], made["is_root"]) == (1.0, {"a": [1]}, False)
    assert made["feedback_source"] == {"type": "api"}
    root = await room.feedback.create(room.caller, given(trace_id=run.trace_id, correction="42"))
    assert (root["run_id"], root["is_root"], root["correction"]) == (run.trace_id, True, "42")


async def test_all_that_a_client_can_say_comes_back(room, run):
    sent = {
        "id": uuid4(),
        "score": 0.25,
        "value": "bad",
        "correction": {"right": None},
        "feedback_source": {"type": "model", "metadata": {"__run": {"run_id": str(uuid4())}}},
        "feedback_group_id": uuid4(),
        "comparative_experiment_id": uuid4(),
        "extra": {"x": 1},
        "error": True,
        "created_at": NOW,
        "modified_at": NOW + timedelta(seconds=1),
    }
    made = await room.feedback.create(room.caller, given(run_id=run.id, **sent))
    assert {name: made[name] for name in sent} == sent
    kept = await room.feedback.get(room.caller, sent["id"])
    assert {name: str(value) for name, value in kept.items()} == {name: str(value) for name, value in made.items()}


async def test_feedback_may_come_before_its_run_and_finds_its_place_when_that_comes(room, project):
    run = room.run(project)
    early = await room.feedback.create(room.caller, given(run_id=run.id, score=1))
    assert (early["session_id"], early["start_time"]) == (None, None)
    assert not await listed(room, session=[project])
    await room.keep(run)
    assert await room.feedback.settle(NOW) == 1
    (settled,) = await listed(room, session=[project])
    assert settled == {**early, "session_id": project, "trace_id": run.id, "start_time": run.start_time,
                       "is_root": True, "modified_at": settled["modified_at"]}  # fmt: skip
    assert await room.feedback.settle(NOW) == 0


async def test_a_project_that_is_named_must_be_the_workspaces_own(room, project):
    early = await room.feedback.create(room.caller, given(run_id=uuid4(), session_id=project))
    assert early["session_id"] == project
    of_project = await room.feedback.create(room.caller, given(session_id=project, score=1))
    assert (of_project["run_id"], of_project["start_time"]) == (None, None)
    for about in ({"run_id": uuid4()}, {}):
        with pytest.raises(NotFoundError, match="Session"):
            await room.feedback.create(caller_of(uuid4()), given(session_id=project, **about))


async def test_feedback_about_nothing_is_refused():
    with pytest.raises(ValueError, match="expected run_id, trace_id or session_id"):
        given(score=1)


@pytest.mark.parametrize("wrong", [{"score": float("inf")}, {"created_at": "0001-01-01"}, {"key": "k" * 181}])
async def test_what_cannot_be_stored_is_refused(wrong):
    with pytest.raises(ValueError, match=r"finite|1970|180"):
        given(run_id=uuid4(), **wrong)


async def test_a_batch_is_kept_whole_or_not_at_all(room, run):
    item = {"id": str(uuid4()), "key": "k", "run_id": str(run.id), "trace_id": str(run.trace_id), "score": 1}
    with pytest.raises(InvalidRequestError, match=r"Invalid feedback: 1\.key: Field required"):
        await room.feedback.accept(room.caller, [item, {"run_id": str(run.id)}])
    assert not await listed(room)
    await room.feedback.accept(room.caller, [item, {**item, "id": str(uuid4()), "key": "other"}])
    await room.feedback.accept(room.caller, [item])
    await room.feedback.accept(room.caller, [])
    assert sorted(row["key"] for row in await listed(room)) == ["k", "other"]


async def test_a_batch_may_say_how_its_keys_are_meant_and_the_first_one_is_right(room, run):
    for config in (STARS, {"type": "freeform"}):
        item = {"key": "stars", "run_id": str(run.id), "feedback_config": config}
        await room.feedback.accept(room.caller, [item])
    (kept,) = await room.feedback_keys.list_configs(room.caller, FeedbackConfigSearch())
    assert kept["feedback_config"] == {**STARS, "categories": None}


async def test_a_change_sets_what_it_names(room, run):
    made = await room.feedback.create(room.caller, given(run_id=run.id, score=1, comment="good", value="x"))
    patch = FeedbackPatch.model_validate({"score": 0, "value": None})
    changed = await room.feedback.update(room.caller, made["id"], patch)
    assert (changed["score"], changed["comment"], changed["value"]) == (0.0, "good", None)
    assert changed["modified_at"] > made["modified_at"]
    assert await room.feedback.get(room.caller, made["id"]) == changed


async def test_the_clock_of_a_client_does_not_keep_feedback_from_being_changed(room, run):
    ahead = {"created_at": NOW + timedelta(days=5000), "modified_at": NOW + timedelta(days=5000)}
    made = await room.feedback.create(room.caller, given(run_id=run.id, score=1, **ahead))
    await room.feedback.update(room.caller, made["id"], FeedbackPatch(score=0))
    assert (await room.feedback.get(room.caller, made["id"]))["score"] == 0.0
    await room.feedback.delete(room.caller, made["id"])
    with pytest.raises(NotFoundError):
        await room.feedback.get(room.caller, made["id"])


async def test_a_retried_post_takes_back_neither_a_change_nor_a_deletion(room, run):
    sent = given(id=uuid4(), run_id=run.id, score=1, created_at=NOW, modified_at=NOW)
    made = await room.feedback.create(room.caller, sent)
    await room.feedback.update(room.caller, made["id"], FeedbackPatch(score=0.5))
    await room.feedback.create(room.caller, sent)
    assert (await room.feedback.get(room.caller, made["id"]))["score"] == 0.5
    await room.feedback.delete(room.caller, made["id"])
    await room.feedback.create(room.caller, sent)
    assert not await listed(room, run=[run.id])


async def test_foreign_feedback_is_not_there(room, run):
    made = await room.feedback.create(room.caller, given(run_id=run.id))
    stranger = caller_of(uuid4())
    with pytest.raises(NotFoundError):
        await room.feedback.get(stranger, made["id"])
    with pytest.raises(NotFoundError):
        await room.feedback.update(stranger, made["id"], FeedbackPatch(score=1))
    with pytest.raises(NotFoundError):
        await room.feedback.delete(stranger, made["id"])
    assert not await room.feedback.list(stranger, FeedbackSearch(run=[run.id]))
    assert await room.feedback_store.stats_by_run(stranger.workspace_id, [run.id]) == {}


async def test_lists_are_filtered_and_newest_first(room, project, run):
    user = uuid4()

    async def make(key, hours, **fields):
        made = given(key=key, run_id=run.id, created_at=NOW + timedelta(hours=hours), **fields)
        await room.feedback.create(room.caller, made)

    await make("a", 1, score=1, comment="c")
    await make("b", 2, feedback_source={"type": "model"})
    await make("c", 3, comment="", feedback_source={"type": "app", "user_id": str(user)})
    await room.feedback.create(room.caller, given(key="p", session_id=project, created_at=NOW))

    async def keys(**search):
        return "".join(row["key"] for row in await listed(room, **search))

    assert await keys() == "cbap"
    assert await keys(limit=1) == "cb"
    assert await keys(limit=1, offset=3) == "p"
    assert await keys(run=[run.id, uuid4()], key=["a", "b"]) == "ba"
    assert await keys(session=[project]) == "cbap"
    assert await keys(source=["model", "app"]) == "cb"
    assert await keys(user=[user]) == "c"
    assert (await keys(has_comment=True), await keys(has_comment=False)) == ("a", "cbp")
    assert (await keys(has_score=True), await keys(has_score=False)) == ("a", "cbp")
    assert (await keys(level="session"), await keys(level="run")) == ("p", "cba")
    within = {"min_created_at": NOW + timedelta(hours=1), "max_created_at": NOW + timedelta(hours=2)}
    assert await keys(**within) == "ba"
    assert await keys(comparative_experiment_id=uuid4()) == ""


async def test_statistics_of_a_run_tell_what_was_said(room, run):
    for fields in (
        {"score": 1, "value": "good"},
        {"score": 0, "value": "good"},
        {"value": 3},
        {"error": True, "feedback_source": {"type": "model", "metadata": {"x": 1}}},
    ):
        await room.feedback.create(room.caller, given(run_id=run.id, **fields))
    await room.feedback.create(room.caller, given(key="note", run_id=run.id, comment="see here"))
    stats = (await room.feedback_store.stats_by_run(room.caller.workspace_id, [run.id, uuid4()]))[run.id]
    sources = stats["score"].pop("sources")
    assert sorted(map(str, sources)) == ["{'type': 'api'}", "{'type': 'model', 'metadata': {'x': 1}}"]
    assert stats["score"] == {
        "n": 4,
        "avg": 0.5,
        "min": 0.0,
        "max": 1.0,
        "stdev": 0.5,
        "errors": 1,
        "values": {"good": 2},
        "comments": [],
        "contains_thread_feedback": False,
    }
    assert (stats["note"]["avg"], stats["note"]["comments"]) == (None, ["see here"])


async def test_a_formula_adds_a_key_to_the_statistics_of_its_project(room, project, run):
    for key, score in (("a", 1), ("a", 0), ("b", 1)):
        await room.feedback.create(room.caller, given(key=key, run_id=run.id, score=score))

    def formula(key, how, parts):
        written = [{"part_type": "weighted_key", "weight": weight, "key": part} for part, weight in parts.items()]
        sent = {"session_id": project, "feedback_key": key, "aggregation_type": how, "formula_parts": written}
        return FormulaWrite.model_validate(sent)

    made = await room.feedback_keys.write_formula(room.caller, formula("sum", "sum", {"a": 2, "b": 3}))
    await room.feedback_keys.write_formula(room.caller, formula("avg", "avg", {"a": 2, "b": 3}))
    await room.feedback_keys.write_formula(room.caller, formula("open", "sum", {"a": 1, "never": 1}))
    stats = (await room.projects.get(room.caller, project, ProjectSearch(include_stats=True)))["feedback_stats"]
    assert (stats["sum"]["avg"], stats["avg"]["avg"], "open" in stats) == (4.0, 2.0, False)

    with pytest.raises(ConflictError, match="'sum' has a formula"):
        await room.feedback_keys.write_formula(room.caller, formula("sum", "avg", {"a": 1}))
    changed = await room.feedback_keys.write_formula(room.caller, formula("sum", "avg", {"a": 1}), made["id"])
    assert await room.feedback_keys.get_formula(room.caller, made["id"]) == changed
    stranger = caller_of(uuid4())
    with pytest.raises(NotFoundError):
        await room.feedback_keys.get_formula(stranger, made["id"])
    with pytest.raises(NotFoundError):
        await room.feedback_keys.delete_formula(stranger, made["id"])
    await room.feedback_keys.delete_formula(room.caller, made["id"])
    listed = await room.feedback_keys.list_formulas(room.caller, FormulaSearch(session_id=project))
    assert [each["feedback_key"] for each in listed] == ["open", "avg"]


async def test_a_key_has_one_configuration(room):
    def config(key="stars", **fields):
        return FeedbackConfigCreate.model_validate({"feedback_key": key, "feedback_config": {**STARS, **fields}})

    made = await room.feedback_keys.create_config(room.caller, config())
    assert await room.feedback_keys.create_config(room.caller, config()) == made
    with pytest.raises(BadRequestError, match="another configuration"):
        await room.feedback_keys.create_config(room.caller, config(max=10))
    assert await room.feedback_keys.create_config(caller_of(uuid4()), config(max=10))

    patch = FeedbackConfigPatch(feedback_key="stars", is_lower_score_better=True)
    changed = await room.feedback_keys.update_config(room.caller, patch)
    assert (changed["is_lower_score_better"], changed["feedback_config"]) == (True, made["feedback_config"])
    await room.feedback_keys.create_config(room.caller, config("other%"))

    async def keys(**search):
        found = await room.feedback_keys.list_configs(room.caller, FeedbackConfigSearch(**search))
        return [row["feedback_key"] for row in found]

    assert await keys() == ["other%", "stars"]
    assert await keys(sort_by_desc=False, limit=1) == ["stars"]
    assert (await keys(key=["stars"]), await keys(name_contains="%")) == (["stars"], ["other%"])
    await room.feedback_keys.delete_config(room.caller, "stars")
    with pytest.raises(NotFoundError):
        await room.feedback_keys.delete_config(room.caller, "stars")
    with pytest.raises(NotFoundError):
        await room.feedback_keys.update_config(room.caller, patch)


async def test_a_token_is_good_for_one_key_on_one_run(room, run):
    wanted = FeedbackTokenCreate(run_id=run.id, feedback_key="thumbs")
    (token,) = await room.feedback_tokens.create(room.caller, [wanted])
    assert token["url"] == f"http://moorage.test/api/v1/feedback/tokens/{token['id']}"
    (shown,) = await room.feedback_tokens.list(room.caller, FeedbackTokenSearch(run_id=run.id))
    assert shown == token
    assert not await room.feedback_tokens.list(caller_of(uuid4()), FeedbackTokenSearch(run_id=run.id))

    await room.feedback_tokens.redeem(token["id"], FeedbackByToken(score=1, metadata={"page": "x"}))
    await room.feedback_tokens.redeem(token["id"], FeedbackByToken(score=0))
    kept = await listed(room, run=[run.id])
    assert [(row["key"], row["score"]) for row in kept] == [("thumbs", 0.0), ("thumbs", 1.0)]
    assert kept[1]["feedback_source"] == {"type": "api", "metadata": {"page": "x"}}


async def test_a_token_that_names_its_feedback_sets_that_one_each_time(room, run):
    wanted = FeedbackTokenCreate(run_id=run.id, feedback_key="thumbs", id=uuid4())
    (token,) = await room.feedback_tokens.create(room.caller, [wanted])
    for score in (1, 0):
        await room.feedback_tokens.redeem(token["id"], FeedbackByToken(score=score))
    assert [row["score"] for row in await listed(room, run=[run.id])] == [0.0]


async def test_a_token_expires(room, run):
    wanted = FeedbackTokenCreate(run_id=run.id, feedback_key="thumbs")
    (token,) = await room.feedback_tokens.create(room.caller, [wanted])
    await room.postgres.execute("UPDATE feedback_tokens SET expires_at = now() WHERE id = %s", (token["id"],))
    for secret in (token["id"], uuid4()):
        with pytest.raises(NotFoundError, match="not known, or has expired"):
            await room.feedback_tokens.redeem(secret, FeedbackByToken(score=1))
    for wrong in ({"expires_at": NOW - timedelta(days=3650)}, {"expires_in": {"days": 3650}}, {"expires_in": {}}):
        asked = FeedbackTokenCreate.model_validate({"run_id": run.id, "feedback_key": "k", **wrong})
        with pytest.raises(InvalidRequestError, match="within a year"):
            await room.feedback_tokens.create(room.caller, [asked])
