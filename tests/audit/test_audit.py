"""The audit log on a whole platform: every change leaves a row, and each workspace sees its own."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from jsonschema import Draft202012Validator

from moorage.http.audit import READING_METHODS
from moorage.wiring.platform import mount_all
from tests.accounts.matrix import operations
from tests.platform.serving import Platform, moorage
from tests.serving import ROOT

pytest_plugins = "tests.platform.fixtures"

CONTRACT = ROOT / os.environ.get("MOORAGE_CONTRACTS", "../shared/contracts") / "traces.json"
# Operations that may write and leave no row, by the names of their functions, each with its reason.
_DATA = "data of runs, thousands a second; who sent it is not part of what is changed"
_READS = "answers a question; its scope only reads, and the law of scopes is that such a scope changes nothing"
EXEMPT = {
    **dict.fromkeys(("ingest_multipart", "ingest_batch", "create_run", "update_run"), _DATA),
    "create_feedback": _DATA,
    **dict.fromkeys(
        ("query_runs", "tail_runs", "validate_query", "get_stats", "get_series", "group_runs", "get_group_stats"),
        _READS,
    ),
    **dict.fromkeys(("query_traces", "query_threads", "get_threads_stats"), _READS),
    **dict.fromkeys(("list_build_logs", "list_revision_deploy_logs"), _READS),
    **dict.fromkeys(("list_deploy_logs", "verify_export"), _READS),
    **dict.fromkeys(
        ("take_push",),
        "only lets a branch be asked for sooner than its timer would; a revision of a push names its maker",
    ),
    **dict.fromkeys(
        ("sign_in", "sign_out"), "changes nothing that is stored: what its cookie does has rows, as the key's"
    ),
    "redeem_token": "one feedback of somebody without a key, by a link; the making of the link has its row",
    **dict.fromkeys(
        ("begin_blob", "append_to_blob", "finish_blob", "put_manifest"),
        "the making of the token for it has a row, as has the revision made of the image",
    ),
    "receive_upload": "its address is a secret, and its making has a row, as has the revision made of the upload",
}


def names() -> dict[tuple[str, str], str]:
    """Return the function names of operations that may change something."""
    app = FastAPI(openapi_url=None)
    mount_all(app)
    named = {
        (method, route.path): getattr(route, "name", "")
        for route in iter_route_contexts(app.routes)
        for method in (getattr(route, "methods", None) or ())
    }
    return {
        operation: named[operation.method, operation.path]
        for operation in operations(app)
        if operation.method not in {*READING_METHODS, "WEBSOCKET"}  # the one of listeners changes nothing
    }


def events(api: httpx.Client, since: datetime, **query: Any) -> list[dict[str, Any]]:
    """Return all events, page by page, newest first."""
    window = {"start_time": since.isoformat(), "end_time": (datetime.now(UTC) + timedelta(minutes=5)).isoformat()}
    found: list[dict[str, Any]] = []
    cursor: dict[str, str] = {}
    while True:
        answer = api.get("/api/v1/audit-logs", params=window | {"limit": 100} | query | cursor)
        assert answer.status_code == 200, answer.text
        found += answer.json()["items"]
        if answer.json()["cursor"] is None:
            return found
        cursor = {"cursor": answer.json()["cursor"]}


@pytest.fixture
def since() -> datetime:
    return datetime.now(UTC) - timedelta(seconds=1)


def new_key(api: httpx.Client, **body: Any) -> dict[str, Any]:
    answer = api.post("/api/v1/api-key", json={"description": "audit"} | body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_every_operation_that_may_change_something_leaves_a_row(api: httpx.Client, since: datetime) -> None:
    """The requests have ids of nothing and no bodies: the row is written before the request is looked at."""
    named = names()
    assert len(named) > 100  # otherwise the walk has missed the routers
    asked = {(operation.method, operation.url): name for operation, name in named.items()}
    for method, path in asked:
        assert api.request(method, path).status_code < 500, (method, path)
    rows = {(row["http_request"]["http_method"], row["http_request"]["url"]["path"]) for row in events(api, since)}
    assert {name for request, name in asked.items() if request not in rows} == set(EXEMPT)
    assert not {name for request, name in asked.items() if request in rows} & set(EXEMPT)


def test_a_row_says_who_did_what_to_what_from_where_and_how_it_went(api: httpx.Client, since: datetime) -> None:
    made = new_key(api)
    api.delete(f"/api/v1/api-key/{made['id']}")
    api.delete(f"/api/v1/api-key/{made['id']}")
    again, revoked, created = events(api, since)[:3]
    key_id = created["actor"]["user"]["credential_uid"]
    assert key_id in {key["id"] for key in api.get("/api/v1/api-key").json()}
    for event, operation, status, code in (
        (created, "create_api_key", "Success", 200),
        (revoked, "delete_api_key", "Success", 200),
        (again, "delete_api_key", "Failure", 404),
    ):
        log = event["unmapped"]["original_audit_log"]
        assert (event["api"]["operation"], event["status"], event["http_response"]["code"]) == (operation, status, code)
        assert made["id"] in log["enrichments"]["resource_ids"]
        assert event["src_endpoint"]["ip"] == "127.0.0.1"
        assert (log["actor"], log["workspace_id"]) == (f"key:{key_id}", str(api.get("/api/v1/settings").json()["id"]))
        assert abs(event["time"] / 1000 - datetime.now(UTC).timestamp()) < 120


def test_nobody_says_where_they_come_from(api: httpx.Client, since: datetime) -> None:
    api.delete(f"/api/v1/api-key/{uuid4()}", headers={"X-Forwarded-For": "8.8.8.8", "X-Real-Ip": "8.8.8.8"})
    assert "8.8.8.8" not in json.dumps(events(api, since)[:1])


def test_no_secret_is_in_a_row(api: httpx.Client, since: datetime) -> None:
    made = new_key(api, description="hidden-description")
    api.post(
        "/v2/deployments?token=hidden-query", json={"name": "x", "secrets": [{"name": "A", "value": "hidden-body"}]}
    )
    told = json.dumps(events(api, since))
    assert "create_deployment" in told
    assert not [secret for secret in ("hidden", made["key"], api.headers["X-Api-Key"]) if secret in told]


def test_traces_that_are_deleted_are_named(api: httpx.Client, since: datetime) -> None:
    trace_id, session_id = str(uuid4()), str(uuid4())
    api.post("/api/v1/runs/delete", json={"session_id": session_id, "trace_ids": [trace_id]})
    [event, *_] = events(api, since, operations="delete_runs")
    assert {trace_id, session_id} <= {resource["uid"] for resource in event["resources"]}


def test_a_resource_that_path_and_answer_name_is_in_the_row_once(api: httpx.Client, since: datetime) -> None:
    made = api.post("/api/v1/sessions", json={"name": f"audited-{uuid4()}"}).json()
    api.patch(f"/api/v1/sessions/{made['id']}", json={"description": "changed"})
    event, *_ = events(api, since, operations="update_tracer_session")
    assert event["resources"] == [{"uid": made["id"]}]


def test_a_workspace_sees_its_own_rows_and_an_operator_all(
    platform: Platform, api: httpx.Client, since: datetime
) -> None:
    made = api.post("/api/v1/workspaces", json={"display_name": "audited"}).json()
    with httpx.Client(base_url=platform.url, headers={"X-Api-Key": made["api_key"]}, timeout=30) as other:
        new_key(other)
        new_key(api)
        seen = {event["unmapped"]["original_audit_log"]["workspace_id"] for event in events(other, since)}
        assert seen == {made["id"]}
        window = {"start_time": since.isoformat(), "end_time": since.isoformat()}
        foreign = other.get("/api/v1/audit-logs", params=window | {"workspace_id": str(platform.workspace_id)})
        assert (foreign.status_code, "operator" in foreign.text) == (403, True)
        reader = new_key(other, read_only=True)["key"]
        refused = httpx.get(f"{platform.url}/api/v1/audit-logs", params=window, headers={"X-Api-Key": reader})
        assert refused.status_code == 403
    workspaces = {event["unmapped"]["original_audit_log"]["workspace_id"] for event in events(api, since)}
    assert workspaces >= {made["id"], str(platform.workspace_id)}
    only = {
        event["unmapped"]["original_audit_log"]["workspace_id"] for event in events(api, since, workspace_id=made["id"])
    }
    assert only == {made["id"]}


def test_pages_meet_without_a_gap(api: httpx.Client, since: datetime) -> None:
    for _ in range(5):
        api.delete(f"/api/v1/api-key/{uuid4()}")
    pages, whole = events(api, since, limit=2), events(api, since)
    assert [event["metadata"]["uid"] for event in pages] == [event["metadata"]["uid"] for event in whole]


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"start_time": "yesterday"},
        {"limit": 0},
        {"limit": 101},
        {"cursor": "e30="},
        {"cursor": "%"},
        {"operations": "A;"},
    ],
)
def test_wrong_queries_are_422(api: httpx.Client, query: dict[str, Any]) -> None:
    window = {"start_time": "2026-01-01T00:00:00Z", "end_time": "2026-01-02T00:00:00Z"} if query else {}
    assert api.get("/api/v1/audit-logs", params=window | query).status_code == 422


def test_a_page_has_the_shape_of_the_contract(api: httpx.Client, since: datetime) -> None:
    new_key(api)
    window = {"start_time": since.isoformat(), "end_time": (datetime.now(UTC) + timedelta(minutes=1)).isoformat()}
    page = api.get("/api/v1/audit-logs", params=window | {"operations": "create_api_key"}).json()
    if not CONTRACT.exists():
        pytest.skip("the contract is not beside the repository")
    components = json.loads(CONTRACT.read_text())["components"]
    schema = {"$ref": "#/components/schemas/ListAuditLogsOCSFResponse", "components": components}
    assert page["items"]
    Draft202012Validator(schema).validate(page)


def test_the_command_shows_the_rows(platform: Platform, api: httpx.Client, since: datetime) -> None:
    made = new_key(api)
    environment = {"MOORAGE_URL": platform.url, "MOORAGE_API_KEY": platform.key}
    code, shown, complaint = moorage("audit", "--since", "1h", "--operation", "create_api_key", **environment)
    assert code == 0, complaint
    line = next(line for line in shown.splitlines() if made["id"] in line)
    assert all(part in line for part in ("create_api_key", "Success", "127.0.0.1", "key:"))
    code, shown, complaint = moorage("audit", "--since", "1h", "--limit", "3", "-o", "json", **environment)
    assert (code, len(json.loads(shown))) == (0, 3), complaint
    assert moorage("audit", "--since", "soon", **environment)[0] == 2
