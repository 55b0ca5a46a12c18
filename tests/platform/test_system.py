"""The platform's description of itself, and properties that all of its operations share."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import warnings
from importlib.util import find_spec
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
from langsmith import Client
from langsmith._internal._v2_migration_utils import QueryBackend, get_query_backend

from tests.waiting import until

pytest_plugins = "tests.platform.fixtures"


@pytest.mark.parametrize("prefix", ["", "/api/v1"])
def test_ok_and_info_need_no_key(platform, prefix):
    assert httpx.get(f"{platform.url}{prefix}/ok").json() == {"ok": True, "services": {}}
    assert httpx.get(f"{platform.url}{prefix}/info").json()["version"] == "0.18.0"
    assert 0 < httpx.get(f"{platform.url}{prefix}/info/health").json()["clickhouse_disk_free_pct"] <= 100


def test_the_official_sdk_takes_its_fast_path(platform):
    with warnings.catch_warnings(action="error"):
        client = Client(f"{platform.url}/api/v1", api_key=platform.key, auto_batch_tracing=False)
        info = client.info
        assert client.runs  # would warn below 0.16.0
        assert client.threads
    assert info.batch_ingest_config["use_multipart_endpoint"]
    assert info.instance_flags["zstd_compression_enabled"]
    assert get_query_backend(info.instance_flags) is QueryBackend.DUAL


def test_ok_asks_the_engines_when_it_is_asked_to(platform, api):
    all_well = {"ok": True, "services": {"PostgreSQL": "ok", "ClickHouse": "ok"}}
    assert api.get("/ok", params={"check_db": "true"}).json() == all_well
    store = platform.engines()["clickhouse"]
    os.kill(store, signal.SIGSTOP)
    try:
        answer = api.get("/ok", params={"check_db": "true"})
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
        assert answer.json()["detail"].startswith("ClickHouse does not answer")
        assert api.get("/ok").status_code == 200
        assert 'moorage_engine_up{engine="ClickHouse"} 0.0' in api.get("/metrics").text
    finally:
        os.kill(store, signal.SIGCONT)


def test_metrics_are_for_whoever_may_manage_workspaces(platform, api):
    assert httpx.get(f"{platform.url}/metrics").status_code == 401
    reader = api.post("/api/v1/api-key", json={"description": "reader", "read_only": True}).json()["key"]
    assert httpx.get(f"{platform.url}/metrics", headers={"X-Api-Key": reader}).status_code == 403
    # Prometheus sends credentials this way.
    answer = httpx.get(f"{platform.url}/metrics", headers={"Authorization": f"Bearer {platform.key}"})
    assert answer.headers["Content-Type"].startswith("text/plain")
    text = answer.text
    assert 'moorage_http_requests_total{method="GET",route="/metrics",status="401"}' in text
    assert 'moorage_http_request_seconds_bucket{le="0.1",method="POST",route="/api/v1/api-key"}' in text
    assert 'moorage_engine_up{engine="PostgreSQL"} 1.0' in text
    assert "process_resident_memory_bytes" in text


def test_errors_are_lists_of_exactly_place_message_and_kind_for_a_wrong_request(api):
    answer = api.post("/api/v1/api-key", json={"description": 5, "scopes": ["hunter2"]})
    assert answer.status_code == 422
    assert answer.json()["error"] == "invalid_request"
    items = answer.json()["detail"]
    assert [set(item) for item in items] == [{"loc", "msg", "type"}] * len(items)
    assert ["body", "scopes", 0] in [item["loc"] for item in items]
    assert "hunter2" not in answer.text
    [item] = api.get("/ok", params={"check_db": "maybe"}).json()["detail"]
    assert set(item) == {"loc", "msg", "type"}


def test_other_errors_have_a_text_and_a_code(api):
    answer = api.get("/api/v1/workspaces", headers={"X-Tenant-Id": "00000000-0000-0000-0000-000000000001"})
    assert (answer.status_code, answer.json()["error"]) == (403, "org_scoped_key_requires_workspace")
    assert "requires workspace specification" in answer.json()["detail"]
    assert api.get("/nothing/here").json() == {"detail": "Not Found"}


def test_bodies_over_25_mb_are_413(api):
    answer = api.post("/api/v1/api-key", content=b" " * 25_000_001)
    assert answer.status_code == 413


_FETCH = """
const answer = await fetch(process.argv[1], {method: "POST", body: new Uint8Array(26e6), headers: {"X-Api-Key": process.argv[2]}})
console.log(answer.status, await answer.text())
"""


@pytest.mark.parametrize("path", ["/api/v1/sessions", "/api/v1/otherwise/unknown"])
def test_the_refusal_of_a_large_body_is_readable(platform, api, path, tmp_path):
    """Holds for clients that read while they send and for those that send all of it first, with and
    without the length.
    """
    (tmp_path / "body").write_bytes(b" " * 26_000_000)
    status = 404 if "unknown" in path else 413
    for headers in ([], ["-H", "Transfer-Encoding: chunked"], ["-H", "Expect:"]):
        command = ["curl", "-sS", "-w", " %{http_code}", "-H", f"X-Api-Key: {platform.key}", *headers]
        told = subprocess.run(  # noqa: PLW1510 - its words are checked
            [*command, "--data-binary", f"@{tmp_path / 'body'}", platform.url + path], capture_output=True, text=True
        )
        assert (told.stdout[-3:], told.stderr) == (str(status), "")
    for content in (b" " * 26_000_000, iter([b" " * 1_000_000] * 26)):
        assert api.post(path, content=content).status_code == status
    fetched = subprocess.run(  # noqa: PLW1510 - its words are checked
        ["node", "--input-type=module", "-e", _FETCH, platform.url + path, platform.key], capture_output=True, text=True
    )
    assert fetched.stdout.startswith(f"{status} "), fetched.stderr


async def test_a_request_can_be_found_in_the_log_by_its_id_and_shows_no_secret_there(platform, api):
    answer = api.get("/api/v1/sessions/none", params={"api_key": "in-the-query"}, headers={"X-Request-Id": "find-me.1"})
    assert answer.headers["X-Request-Id"] == "find-me.1"
    made = api.get("/ok", headers={"X-Request-Id": "two words"}).headers["X-Request-Id"]
    assert len(made) == 32
    [line] = await until(lambda: [line for line in platform.log.read_text().splitlines() if "find-me.1" in line])
    assert "route=/api/v1/sessions/{session_id}" in line
    assert "status=422" in line
    text = platform.log.read_text()
    assert "in-the-query" not in text
    assert text.count(platform.key) == 2  # of the first start, for the person who reads it


async def test_what_goes_well_is_not_in_the_log_where_the_first_key_is_read(platform, api):
    assert api.get("/api/v1/workspaces", headers={"X-Request-Id": "all-is-well.1"}).is_success
    assert api.get("/api/v1/sessions/none", headers={"X-Request-Id": "and-then.1"}).status_code == 422
    # The line of a request is written after its answer.
    log = await until(lambda: "and-then.1" in (log := platform.log.read_text()) and log)
    assert "all-is-well.1" not in log
    assert "migration applied" not in log


def test_the_document_shows_each_operation_once_at_the_path_of_the_contract(api):
    paths = api.get("/openapi.json").json()["paths"]
    assert "/api/v1/workspaces" in paths
    assert "/workspaces" not in paths
    elsewhere = {
        path
        for path in paths
        if not path.startswith(("/api/v1/", "/v1/projects", "/v1/integrations/", "/v2/", "/runs"))
    }
    assert elsewhere == {"/metrics", "/docs", "/attachments/{token}", "/login"}
    ids = [operation["operationId"] for path in paths.values() for operation in path.values()]
    assert len(ids) == len(set(ids))


def test_pages_of_other_origins_may_not_call_unless_a_setting_names_them(api):
    """tests/http/test_docs.py shows what a setting opens."""
    asked = {"Origin": "https://app.example", "Access-Control-Request-Method": "GET"}
    assert not api.options("/api/v1/workspaces", headers=asked).is_success
    assert "Access-Control-Allow-Origin" not in api.get("/ok", headers={"Origin": "https://app.example"}).headers


def test_nothing_in_the_platform_imports_pandas_which_is_slow_and_large(platform, api):
    assert find_spec("pandas"), "the test shows something only where it could be imported"
    run = {"id": str(uuid4()), "name": "a", "run_type": "chain", "start_time": "2026-03-04T05:06:07Z"}
    assert api.post("/api/v1/runs", json=run).status_code == 202
    assert api.post("/api/v1/runs/query", json={"id": [run["id"]]}).status_code == 200
    for pid in (platform.pid, platform.engines()["clickhouse"]):
        assert "/pandas/" not in Path(f"/proc/{pid}/maps").read_text()


def test_the_home_is_closed_where_secrets_are(platform):
    for secret in ("secret-key", "postgres/password", "clickhouse/password"):
        assert Path(platform.home, secret).stat().st_mode & 0o077 == 0
    assert json.loads(Path(platform.home, "platform.json").read_text())["url"] == platform.url


def test_what_a_workspace_holds(api: httpx.Client) -> None:
    before = api.get("/api/v1/workspaces/current/stats").json()
    assert api.post("/api/v1/sessions", json={"name": "one more for the count"}).status_code == 200
    after = api.get("/api/v1/workspaces/current/stats").json()
    assert after["tracer_session_count"] == before["tracer_session_count"] + 1
    assert api.get("/api/v1/workspaces/current/usage_limits").json()["in_reject_set"] is False
