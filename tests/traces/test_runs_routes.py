from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from urllib.parse import quote
from uuid import uuid4

import orjson
import pytest

from tests.traces.naive_filter import Feedback
from tests.traces.trace_data import insert_runs, make_run

pytest_plugins = "tests.traces.reading_fixtures"

ANY_ID = "5b9a4c0e-8a5c-4d0f-9a53-1f0c5d3f7a11"  # fixed, so that each process of the tests sees the same names
NOW = datetime.now(UTC)
QUERY = "/api/v1/runs/query"


@pytest.fixture
def root(workspace):
    return make_run(
        start_time=NOW.replace(microsecond=123456),
        tenant_id=workspace,
        name="agent",
        end_time=NOW + timedelta(seconds=3),
        inputs={"messages": [{"role": "user", "content": "Where is the é?"}]},
        outputs={"messages": [{"type": "ai", "content": "Here."}]},
        metadata={"thread_id": "t 1", "n": 5},
        extra={"runtime": {"sdk": "x"}},
        tags=["prod"],
        events=[{"name": "new_token", "time": "2026-01-01T00:00:00"}],
        thread_id="t 1",
        attachments={"picture": {"key": "a/b", "mime_type": "image/png", "size_bytes": 3}},
        feedback=[Feedback("score", 1.0)],
    )


@pytest.fixture
def llm(root):
    return make_run(
        root,
        name="model",
        run_type="llm",
        end_time=NOW,
        total_tokens=12,
        prompt_tokens=10,
        completion_tokens=2,
        total_cost=Decimal("0.000001"),
        prompt_cost=Decimal("0.1"),
        completion_cost=Decimal(2),
        prompt_token_details={"cache_read": 4},
    )


async def test_a_run_as_the_wire_shows_it(clickhouse, reading_api, root, llm, workspace):
    await insert_runs(clickhouse, [root, llm])
    answer = await reading_api.get(f"/api/v1/runs/{root.id}", params={"include_messages": True})
    assert answer.status_code == 200
    run = answer.json()
    begun = root.start_time.isoformat().replace("+00:00", "Z")
    assert run == {
        "id": str(root.id),
        "name": "agent",
        "run_type": "chain",
        "start_time": begun,
        "end_time": root.end_time.isoformat().replace("+00:00", "Z"),
        "status": "success",
        "error": None,
        "execution_order": 1,
        "session_id": str(root.session_id),
        "trace_id": str(root.id),
        "dotted_order": root.dotted_order,
        "parent_run_id": None,
        "parent_run_ids": [],
        "child_run_ids": [str(llm.id)],
        "direct_child_run_ids": [str(llm.id)],
        "inputs": root.inputs,
        "outputs": root.outputs,
        "extra": {"metadata": {"thread_id": "t 1", "n": 5}, "runtime": {"sdk": "x"}},
        "events": root.events,
        "serialized": None,
        "tags": ["prod"],
        "thread_id": "t 1",
        "messages": [
            {"role": "user", "content": "Where is the é?"},
            {"role": "assistant", "content": "Here."},
        ],
        "s3_urls": {"attachment.picture": {"presigned_url": "/attachments/a/b", "mime_type": "image/png"}},
        "total_tokens": 12,
        "prompt_tokens": 10,
        "completion_tokens": 2,
        "total_cost": "0.000001",
        "prompt_cost": "0.1",
        "completion_cost": "2",
        "prompt_token_details": {"cache_read": 4},
        "completion_token_details": None,
        "prompt_cost_details": None,
        "completion_cost_details": None,
        "feedback_stats": {"score": run["feedback_stats"]["score"]},
        "first_token_time": None,
        "reference_example_id": None,
        "reference_dataset_id": None,
        "in_dataset": False,
        "app_path": run["app_path"],
        "trace_tier": "longlived",
        "trace_upgrade": False,
        "trace_first_received_at": run["trace_first_received_at"],
        "ttl_seconds": None,
        "price_model_id": None,
        "manifest_id": None,
        "manifest_s3_id": None,
        "share_token": None,
        "last_queued_at": None,
    }
    assert run["app_path"].startswith(f"/o/{workspace}/projects/p/{root.session_id}/r/{root.id}?trace_id={root.id}")


async def test_what_is_large_may_be_left_out(clickhouse, reading_api, root):
    await insert_runs(clickhouse, [root])
    run = (await reading_api.get(f"/runs/{root.id}?exclude_serialized=true&session_id={root.session_id}")).json()
    assert "serialized" not in run
    assert "inputs" in run
    run = (await reading_api.get(f"/runs/{root.id}?exclude_s3_stored_attributes=true")).json()
    assert not {"inputs", "outputs", "events", "serialized"} & run.keys()


async def test_a_page_has_what_was_selected_and_what_clients_need(clickhouse, reading_api, root, llm):
    await insert_runs(clickhouse, [root, llm])
    search = {"session": [str(root.session_id)], "select": ["total_tokens", "inputs_preview", "outputs_preview"]}
    page = (await reading_api.post(QUERY, json=search)).json()
    assert [run["id"] for run in page["runs"]] == [str(llm.id), str(root.id)]
    assert page["cursors"] == {"next": None, "prev": None}
    always = {"id", "name", "run_type", "start_time", "status", "trace_id", "dotted_order", "session_id", "app_path"}
    assert page["runs"][1].keys() == always | {
        "execution_order",
        "total_tokens",
        "inputs_preview",
        "outputs_preview",
    }
    assert page["runs"][1]["inputs_preview"] == "Where is the é?"
    assert page["runs"][1]["outputs_preview"] == "Here."
    assert page["runs"][1]["total_tokens"] == 12


@pytest.mark.parametrize(
    "select",
    [
        ["inputs_or_signed_url", "manifest", "trace_min_max_start_time", "inserted_at"],
        ["child_run_ids", "s3_urls", "messages", "feedback_stats"],
        [],
    ],
)
async def test_every_selectable_field_can_be_selected(clickhouse, reading_api, root, select):
    await insert_runs(clickhouse, [root])
    answer = await reading_api.post(QUERY, json={"session": [str(root.session_id)], "select": select})
    assert answer.status_code == 200
    if "trace_min_max_start_time" in select:
        assert answer.json()["runs"][0]["trace_min_start_time"] == root.start_time.isoformat().replace("+00:00", "Z")


async def test_tokens_and_costs_bring_their_details(clickhouse, reading_api, root, llm):
    await insert_runs(clickhouse, [root, llm])
    names = ["prompt_tokens", "completion_tokens", "prompt_cost", "completion_cost"]
    search = {"session": [str(root.session_id)], "select": names}
    first = (await reading_api.post(QUERY, json=search)).json()["runs"][0]
    assert first["prompt_token_details"] == {"cache_read": 4}
    assert {"completion_token_details", "prompt_cost_details", "completion_cost_details"} <= first.keys()


async def test_pages_follow_their_cursors(clickhouse, reading_api, workspace):
    session = uuid4()
    runs = [make_run(start_time=NOW - timedelta(minutes=n), tenant_id=workspace, session_id=session) for n in range(5)]
    await insert_runs(clickhouse, runs)
    search = {"session": [str(session)], "limit": 2, "select": ["id"]}
    seen = []
    while True:
        page = (await reading_api.post(QUERY, json=search)).json()
        seen += [run["id"] for run in page["runs"]]
        if not page["cursors"]["next"]:
            break
        search["cursor"] = page["cursors"]["next"]
    assert seen == [str(run.id) for run in runs]
    assert page["cursors"]["prev"]
    page = (await reading_api.post(QUERY, json=search | {"skip_prev_cursor": True})).json()
    assert page["cursors"]["prev"] is None
    page = (await reading_api.post(QUERY, json=search | {"skip_pagination": True, "cursor": None})).json()
    assert page["cursors"] == {"next": None, "prev": None}


@pytest.mark.parametrize(
    ("search", "status", "detail"),
    [
        ({"limit": 101}, 400, "Limit exceeds maximum allowed value of 100"),
        ({"session": None}, 400, "At least one of 'session', 'id', 'parent_run', 'trace'"),
        ({"cursor": "nonsense"}, 400, "Invalid cursor"),
        ({"cursor": "bnVsbA"}, 400, "Invalid cursor"),
        ({"limit": 0}, 422, ["body", "limit"]),
        ({"session": ["x"]}, 422, ["body", "session", 0]),
        ({"select": ["nothing"]}, 422, ["body", "select", 0]),
        ({"run_type": "nothing"}, 422, ["body", "run_type"]),
        ({"start_time": "soon"}, 422, ["body", "start_time"]),
        ({"order": "up"}, 422, ["body", "order"]),
        ({"filter": "eq(name)"}, 422, ["body", "filter"]),
        ({"tree_filter": "eq(name,"}, 422, ["body", "tree_filter"]),
        ({"id": [str(uuid4())] * 1001}, 422, ["body", "id"]),
    ],
)
async def test_what_is_wrong_with_a_search_is_told(reading_api, search, status, detail):
    answer = await reading_api.post(QUERY, json={"session": [str(uuid4())]} | search)
    assert answer.status_code == status
    told = answer.json()["detail"]
    if isinstance(detail, str):
        assert detail in told
    else:
        assert told[0]["loc"] == detail
        assert told[0].keys() == {"loc", "msg", "type"}


async def test_a_wrong_filter_is_told_by_its_character(reading_api):
    answer = await reading_api.post(
        QUERY, json={"session": [str(uuid4())], "filter": 'and(eq(name, "x"), gt(latency, "fast"))'}
    )
    assert answer.json()["detail"] == [
        {
            "loc": ["body", "filter"],
            "msg": 'Invalid filter at character 32: expected seconds as a number, or a duration such as "5s" or "250ms"',
            "type": "invalid_filter",
        }
    ]


async def test_filters_can_be_validated_without_a_search(reading_api):
    url = "/api/v1/runs/query/validate"
    assert (await reading_api.post(url, json={"filter": 'eq(name, "x")'})).json() == {"valid": True, "errors": []}
    found = (await reading_api.post(url, json={"filter": "eq(", "trace_filter": "eq("})).json()
    assert not found["valid"]
    assert [error["field"] for error in found["errors"]] == ["filter", "trace_filter"]


async def test_what_is_not_the_callers_is_not_there(clickhouse, reading_api, root):
    foreign = make_run(start_time=NOW)
    await insert_runs(clickhouse, [root, foreign])
    assert (await reading_api.get(f"/runs/{foreign.id}")).status_code == 404
    assert (await reading_api.get(f"/runs/{uuid4()}")).json()["detail"].endswith("not found")
    assert (await reading_api.get(f"/runs/{root.id}?session_id={uuid4()}")).status_code == 404
    assert (await reading_api.get("/runs/nothing")).status_code == 422
    for where in ({"session": [str(foreign.session_id)]}, {"id": [str(foreign.id)]}, {"trace": str(foreign.id)}):
        assert (await reading_api.post(QUERY, json=where)).json()["runs"] == []
    stats = (await reading_api.post("/runs/stats", json={"session": [str(foreign.session_id)]})).json()
    assert stats["run_count"] == 0
    assert (await reading_api.get(f"/runs/threads/t?session_id={foreign.session_id}")).status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/runs/query", {}),
        ("POST", "/runs/query/validate", {}),
        ("GET", f"/runs/{ANY_ID}", None),
        ("POST", "/runs/stats", {}),
        ("POST", "/runs/group", {}),
        ("POST", "/runs/group/stats", {}),
        ("GET", f"/runs/threads/t?session_id={ANY_ID}", None),
    ],
)
async def test_every_route_asks_who_calls(reading_api, workspace, method, path, body):
    reading_api.headers.pop("X-Api-Key")
    assert (await reading_api.request(method, path, json=body)).status_code == 401
    answer = await reading_api.request(method, path, json=body, headers={"X-Api-Key": f"{workspace}-none"})
    assert answer.status_code == 403


async def test_hostile_texts_in_a_search_are_only_texts(clickhouse, reading_api, root):
    await insert_runs(clickhouse, [root])
    for text in ("'; DROP TABLE trace_run_rows --", '") OR 1=1 --', "\\", "\0", "\ud83d", "%" * 1000, "{a:String}"):
        for name in ("filter", "trace_filter", "query", "search_filter", "cursor"):
            answer = await reading_api.post(
                QUERY,
                content=json.dumps({"session": [str(root.session_id)], name: text}),
            )
            assert answer.status_code in {200, 400, 422}, (name, text)
    assert (await reading_api.get(f"/runs/{root.id}")).status_code == 200


async def test_a_thread_as_texts(clickhouse, reading_api, workspace):
    session, thread = uuid4(), "a/b ünd 'c'"
    said = [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]
    said += [{"role": "user", "content": "3"}, {"role": "assistant", "content": "4", "tool_calls": [{"name": "x"}]}]
    at = {"tenant_id": workspace, "session_id": session, "thread_id": thread}
    turns = [
        make_run(
            start_time=NOW - timedelta(days=40), inputs={"messages": said[:1]}, outputs={"messages": said[:2]}, **at
        ),
        make_run(start_time=NOW, inputs={"messages": said[2:3]}, outputs={"messages": said}, **at),
    ]
    await insert_runs(clickhouse, turns)
    # The tool that reads threads calls without a prefix, and splits the text at empty lines.
    answer = await reading_api.get(f"/runs/threads/{quote(thread, safe='')}", params={"session_id": str(session)})
    previews = answer.json()["previews"]
    assert [orjson.loads(text) for text in previews["all_messages"].split("\n\n")] == said
    assert [orjson.loads(text) for text in previews["first_human_last_ai"].split("\n\n")] == [said[0], said[3]]
    answer = await reading_api.get(
        f"/runs/threads/{thread}", params={"session_id": str(session), "select": "human_ai_pairs"}
    )
    assert answer.json()["previews"].keys() == {"human_ai_pairs"}


async def test_runs_grouped_by_conversation(clickhouse, reading_api, workspace):
    session = uuid4()
    at = {"tenant_id": workspace, "session_id": session}
    roots = [
        make_run(start_time=NOW - timedelta(minutes=9), thread_id="old", inputs={"q": "first"}, total_tokens=1, **at),
        make_run(start_time=NOW - timedelta(minutes=5), thread_id="new", error="boom", **at),
        make_run(start_time=NOW, thread_id="new", outputs={"a": "last"}, end_time=NOW + timedelta(seconds=2), **at),
        make_run(start_time=NOW, **at),
    ]
    child = make_run(roots[2], total_tokens=5, thread_id="new", total_cost=Decimal("0.5"))
    roots[2].feedback = [Feedback("score", 1.0)]
    await insert_runs(clickhouse, [*roots, child])
    body = {"session_id": str(session), "group_by": "conversation"}
    found = (await reading_api.post("/runs/group", json=body)).json()
    assert found["total"] == 2
    new, old = found["groups"]
    assert new["group_key"] == "new"
    assert new["filter"] == 'eq(thread_id, "new")'
    assert (new["count"], new["total_tokens"], new["total_cost"], new["num_errored_turns"]) == (2, 5, 0.5, 1)
    assert (new["last_error"], new["last_outputs"], new["latency_p50"]) == ("boom", "last", 2.0)
    assert new["feedback_stats"]["score"]["n"] == 1
    assert (old["first_inputs"], old["total_tokens"], old["first_trace_id"]) == ("first", 1, str(roots[0].id))
    assert (await reading_api.post("/runs/group", json=body | {"offset": 1})).json()["groups"] == [old]
    stats = (await reading_api.post("/runs/group/stats", json=body)).json()
    assert (stats["group_count"], stats["run_count"], stats["total_tokens"]) == (2, 3, 6)
    assert (await reading_api.post("/runs/group", json=body | {"filter": "eq("})).status_code == 422
    assert (await reading_api.post("/runs/group", json=body | {"group_by": "x"})).status_code == 422
