"""Projects, feedback, deletion and retention over HTTP: codes, limits, scopes, and the official client."""

from uuid import uuid4

import pytest

from moorage.kernel.access import Scope

pytest_plugins = "tests.traces.room_fixtures"


async def made(room_api, name, **fields):
    answer = await room_api.post("/sessions", json={"name": name, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_project_is_made_read_changed_and_deleted(room_api):
    project = await made(room_api, "a", description="d", extra={"metadata": {"k": "v"}})
    assert project["reference_dataset_id"] is None
    assert (await room_api.post("/sessions", json={"name": "a"})).status_code == 409
    assert (await room_api.post("/sessions?upsert=true", json={"name": "a"})).json() == project
    path = f"/sessions/{project['id']}"
    assert (await room_api.get(path)).json()["description"] == "d"
    changed = await room_api.patch(path, json={"name": "b", "description": None})
    assert (changed.json()["name"], changed.json()["description"]) == ("b", "d")
    assert (await room_api.get("/sessions", params={"name": "b", "include_stats": True})).json()[0]["run_count"] == 0
    assert (await room_api.get(f"{path}/metadata")).json() == {}
    assert (await room_api.delete(path)).status_code == 202
    for answer in (await room_api.get(path), await room_api.delete(path), await room_api.patch(path, json={})):
        assert (answer.status_code, answer.json()["detail"]) == (404, f"Session with id {project['id']} not found")


async def test_an_address_of_the_newer_clients_names_a_project(room_api):
    agent, experiment = await made(room_api, "support/production"), await made(room_api, "x")

    async def resolved(**address):
        answer = await room_api.get("/sessions/resolutions", params=address)
        return answer.json().get("session_id", answer.status_code)

    assert await resolved(kind="AGENT", id="support", environment="PRODUCTION") == agent["id"]
    assert await resolved(kind="AGENT", id="support", environment="STAGING") == 404
    assert await resolved(kind="EXPERIMENT", id=experiment["id"]) == experiment["id"]
    assert await resolved(kind="EVALUATOR") == 404
    for wrong in ({"kind": "AGENT", "id": "support"}, {"kind": "EXPERIMENT", "id": "x"}, {"kind": "PLANET"}):
        assert await resolved(**wrong) == 422


async def test_lists_say_whether_there_is_more(room_api):
    ids = [(await made(room_api, name))["id"] for name in "abc"]
    first = await room_api.get("/sessions", params={"limit": 2, "sort_by": "name", "sort_by_desc": False})
    assert [project["name"] for project in first.json()] == ["a", "b"]
    assert (first.headers["x-pagination-total"], first.headers["x-pagination-next"]) == ("3", "2")
    assert len((await room_api.get("/sessions", params={"id": ids[:2]})).json()) == 2
    assert (await room_api.delete("/sessions", params={"session_ids": ids})).status_code == 202
    assert (await room_api.get("/sessions")).json() == []


@pytest.mark.parametrize("at", ["0001-01-01", "1969-12-31T23:00:00", "9999-12-31T23:59:59Z"])
async def test_times_far_away_are_times(room_api, at):
    project = await made(room_api, "a", start_time="1000-01-01T00:00:00Z", end_time="9999-12-31T00:00:00Z")
    for path in ("/sessions", f"/sessions/{project['id']}"):
        assert (await room_api.get(path, params={"include_stats": True, "stats_start_time": at})).status_code == 200
    assert (await room_api.get(f"/sessions/{project['id']}/metadata", params={"start_time": at})).json() == {}
    assert (await room_api.get("/sessions", params={"filter": f'gt(start_time, "{at}")'})).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "place"),
    [
        ("GET", "/sessions?limit=101", None, ["query", "limit"]),
        ("GET", "/sessions?sort_by=shoe_size", None, ["query", "sort_by"]),
        ("GET", "/sessions?metadata=[", None, ["query"]),
        ("GET", "/sessions?filter=eq(", None, ["query"]),
        ("GET", "/sessions/me", None, ["path", "session_id"]),
        ("DELETE", "/sessions", None, ["query", "session_ids"]),
        ("POST", "/sessions", {"name": ""}, ["body", "name"]),
        ("POST", "/sessions", {"name": "x", "start_time": "0001-01-01T00:00:00+05:00"}, ["body", "start_time"]),
        ("POST", "/sessions", {"name": "n\0", "extra": {"a": "\0"}}, ["body"]),
        ("POST", "/sessions", {"name": "x", "longlived_ttl_days": -1}, ["body", "longlived_ttl_days"]),
        ("POST", "/sessions", {"name": "x", "extra": {"n": 10**30}}, ["body"]),
        ("POST", "/feedback", {"key": "k"}, ["body"]),
        ("POST", "/feedback", {"key": "k", "run_id": str(uuid4()), "value": 10**30}, ["body"]),
        ("POST", "/feedback", {"key": "k", "run_id": "x"}, ["body", "run_id"]),
        ("GET", "/feedback?limit=0", None, ["query", "limit"]),
        ("POST", "/feedback/tokens", {"feedback_key": "k"}, None),
        ("POST", "/feedback-configs", {"feedback_key": "k", "feedback_config": {"type": "odd"}}, None),
        ("POST", "/runs/delete", {}, ["body"]),
        ("POST", "/runs/delete", {"trace_ids": [str(uuid4())]}, ["body"]),
        ("POST", "/runs/delete", {"session_id": str(uuid4()), "trace_ids": []}, ["body", "trace_ids"]),
        ("PUT", "/ttl-settings", {"default_trace_tier": "for ever"}, ["body", "default_trace_tier"]),
        ("PUT", "/ttl-settings", {"default_trace_tier": "longlived", "longlived_ttl_days": 0}, None),
    ],
)
async def test_what_has_the_wrong_shape_is_refused_with_its_place(room_api, method, path, body, place):
    answer = await room_api.request(method, path, json=body)
    assert answer.status_code == 422, answer.text
    items = answer.json()["detail"]
    assert all(set(item) == {"loc", "msg", "type"} for item in items)
    if place is not None:
        assert items[0]["loc"] == place


async def test_feedback_is_given_read_changed_and_deleted(room_api, room):
    project = await made(room_api, "a")
    run = room.run(project["id"])
    await room.keep(run)
    for path in ("/feedback", "/feedback/eager"):
        sent = {"key": "score", "run_id": str(run.id), "score": 0.5, "extend_trace_retention": True}
        feedback = (await room_api.post(path, json=sent)).json()
        assert (feedback["session_id"], feedback["is_root"]) == (project["id"], True)
    path = f"/feedback/{feedback['id']}"
    assert (await room_api.get(path)).json() == feedback
    assert (await room_api.patch(path, json={"score": 1})).json()["score"] == 1.0
    listed = await room_api.get("/feedback", params={"run": [str(run.id)], "key": ["score"], "has_score": True})
    assert len(listed.json()) == 2
    assert (await room_api.delete(path)).status_code == 200
    assert (await room_api.get(path)).status_code == 404


async def test_a_token_opens_one_door_without_a_key(room_api, room, house):
    run = room.run((await made(room_api, "a"))["id"])
    await room.keep(run)
    wanted = {"run_id": str(run.id), "feedback_key": "thumbs", "expires_in": {"hours": 1}}
    token = (await room_api.post("/feedback/tokens", json=wanted)).json()
    several = (await room_api.post("/feedback/tokens", json=[wanted, wanted])).json()
    assert len(several) == 2
    listed = (await room_api.get("/feedback/tokens", params={"run_id": str(run.id)})).json()
    assert {each["id"] for each in listed} == {token["id"], *(each["id"] for each in several)}
    async with house.client() as anyone:
        assert (await anyone.get(token["url"], params={"score": 1, "comment": "by link"})).status_code == 200
        assert (await anyone.post(token["url"], json={"score": 0})).status_code == 200
        assert (await anyone.post(token["url"].replace(token["id"], str(uuid4())), json={})).status_code == 404
        assert (await anyone.get("/api/v1/feedback/tokens", params={"run_id": str(run.id)})).status_code == 401
    found = (await room_api.get("/feedback", params={"run": str(run.id)})).json()
    assert [(each["key"], each["score"], each["comment"]) for each in found] == [
        ("thumbs", 0.0, None),
        ("thumbs", 1.0, "by link"),
    ]


async def test_keys_are_configured(room_api):
    config = {"feedback_key": "stars", "feedback_config": {"type": "continuous", "min": 0, "max": 5}}
    made = (await room_api.post("/feedback-configs", json=config)).json()
    assert (await room_api.post("/feedback-configs", json=config)).json() == made
    other = {**config, "feedback_config": {"type": "freeform"}}
    assert (await room_api.post("/feedback-configs", json=other)).status_code == 400
    assert (await room_api.patch("/feedback-configs", json=other)).json()["feedback_config"]["type"] == "freeform"
    assert len((await room_api.get("/feedback-configs", params={"key": ["stars"], "limit": 1})).json()) == 1
    assert (await room_api.delete("/feedback-configs", params={"feedback_key": "stars"})).status_code == 204
    assert (await room_api.delete("/feedback-configs", params={"feedback_key": "stars"})).status_code == 404


async def test_formulas_are_kept(room_api):
    part = {"part_type": "weighted_key", "weight": 1.5, "key": "a"}
    formula = {"feedback_key": "sum", "aggregation_type": "sum", "formula_parts": [part], "session_id": str(uuid4())}
    made = (await room_api.post("/feedback/formulas", json=formula)).json()
    path = f"/feedback/formulas/{made['id']}"
    assert (await room_api.get(path)).json() == made
    assert (await room_api.put(path, json={**formula, "aggregation_type": "avg"})).json()["aggregation_type"] == "avg"
    listed = await room_api.get("/feedback/formulas", params={"session_id": formula["session_id"]})
    assert [each["id"] for each in listed.json()] == [made["id"]]
    assert (await room_api.delete(path)).status_code == 200
    assert (await room_api.get(path)).status_code == 404


async def test_traces_are_deleted_by_either_route(room_api, room):
    project = (await made(room_api, "a"))["id"]
    runs = [room.run(project) for _ in range(3)]
    await room.keep(*runs)
    for path, run in (("/runs/delete", runs[0]), ("/runs/delete/traces", runs[1])):
        answer = await room_api.post(path, json={"session_id": project, "trace_ids": [str(run.id)]})
        assert answer.status_code == 202
    assert await room.seen(project) == {runs[2].id}
    assert (await room_api.post("/runs/delete", json={"metadata": {"k": "v"}})).status_code == 202
    foreign = {"session_id": str(uuid4()), "trace_ids": [str(runs[2].id)]}
    assert (await room_api.post("/runs/delete", json=foreign)).status_code == 404


async def test_a_workspace_says_how_long_it_keeps_runs(room_api):
    assert (await room_api.get("/ttl-settings")).json() == []
    answer = await room_api.put("/ttl-settings", json={"default_trace_tier": "shortlived", "longlived_ttl_days": 90})
    assert (answer.json()["default_trace_tier"], answer.json()["longlived_ttl_days"]) == ("shortlived", 90)
    assert (await room_api.get("/ttl-settings")).json() == [answer.json()]


async def test_each_operation_needs_its_scope(room_api, house, room):
    workspace = {"id": room.caller.workspace_id}
    project = (await made(room_api, "a"))["id"]
    run = str(uuid4())
    allowed = {
        Scope.PROJECTS_READ: [("GET", "/sessions"), ("GET", f"/sessions/{project}"), ("GET", "/ttl-settings")],
        Scope.PROJECTS_WRITE: [("POST", "/sessions"), ("PATCH", f"/sessions/{project}")],
        Scope.PROJECTS_DELETE: [("DELETE", f"/sessions/{uuid4()}"), ("DELETE", f"/sessions?session_ids={uuid4()}")],
        Scope.RUNS_DELETE: [("POST", "/runs/delete"), ("POST", "/runs/delete/traces")],
        Scope.FEEDBACK_READ: [("GET", "/feedback"), ("GET", "/feedback-configs"), ("GET", "/feedback/formulas")],
        Scope.FEEDBACK_WRITE: [("POST", "/feedback"), ("GET", f"/feedback/tokens?run_id={run}")],
        Scope.WORKSPACES_MANAGE: [("PUT", "/ttl-settings")],
    }
    for scope in allowed:
        key = await house.make_key(workspace, scope)
        for needed, operations in allowed.items():
            for method, path in operations:
                answer = await room_api.request(method, path, headers={"X-Api-Key": key}, json={})
                assert (answer.status_code == 403) == (needed != scope), (scope, method, path, answer.text)


async def test_a_key_of_another_workspace_sees_nothing(room_api, house, room):
    project = await made(room_api, "a")
    run = room.run(project["id"])
    await room.keep(run)
    feedback = (await room_api.post("/feedback", json={"key": "k", "run_id": str(run.id)})).json()
    other = (await house.make_workspace())["api_key"]
    for method, path in (
        ("GET", f"/sessions/{project['id']}"),
        ("PATCH", f"/sessions/{project['id']}"),
        ("DELETE", f"/sessions/{project['id']}"),
        ("GET", f"/sessions/{project['id']}/metadata"),
        ("GET", f"/feedback/{feedback['id']}"),
        ("PATCH", f"/feedback/{feedback['id']}"),
        ("DELETE", f"/feedback/{feedback['id']}"),
    ):
        answer = await room_api.request(method, path, headers={"X-Api-Key": other}, json={})
        assert answer.status_code == 404, (method, path)
    for path in ("/sessions", "/feedback", f"/feedback/tokens?run_id={run.id}"):
        assert (await room_api.get(path, headers={"X-Api-Key": other})).json() == []
