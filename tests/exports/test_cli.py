"""`moorage destinations` and `moorage exports` against a running platform."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import Future
from datetime import UTC, datetime
from types import SimpleNamespace
from uuid import uuid4

import pytest
import typer
import uvicorn
from fastapi import FastAPI
from typer.testing import CliRunner

from moorage.cli import destinations, exports
from moorage.kernel.clickhouse import ClickHouse
from tests.exports.platform import make_platform
from tests.exports.seaweed import BUCKET, EXPORTER, READER, ROLE, TRUSTED
from tests.traces.trace_data import insert_runs, random_runs
from tests.waiting import until

pytest_plugins = "tests.exports.fixtures"

SINCE = datetime(2026, 1, 5, tzinfo=UTC)

app = typer.Typer()
app.add_typer(destinations.app, name="destinations")
app.add_typer(exports.app, name="exports")


@pytest.fixture(scope="module")
def served(platform_conninfo, clickhouse_url, s3, tmp_path_factory):
    """Serve a platform on a port, with a project of some runs."""
    ready, stop = Future(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve():
        clickhouse = ClickHouse(clickhouse_url)
        folder = tmp_path_factory.mktemp("platform")
        async with make_platform(platform_conninfo, clickhouse_url, folder, part_bytes_max=50_000) as platform:
            key, tenant_id = platform.keys.add()
            session_id = uuid4()
            await insert_runs(clickhouse, random_runs(1, 60, tenant_id, session_id, SINCE))
            _serve_projects(platform.app, str(session_id))
            server = uvicorn.Server(uvicorn.Config(platform.app, port=0, log_config=None, lifespan="off", ws="none"))
            task = asyncio.create_task(server.serve())
            await until(lambda: server.started)
            port = server.servers[0].sockets[0].getsockname()[1]
            ready.set_result(SimpleNamespace(url=f"http://127.0.0.1:{port}", key=key, s3=s3.url))
            await stop.wait()
            server.should_exit = True
            await task
        await clickhouse.close()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    yield ready.result(30)
    loop.call_soon_threadsafe(stop.set)
    thread.join(20)
    loop.close()


def _serve_projects(api: FastAPI, session_id: str) -> None:
    """Serve the routes of projects that finding a project by its name needs."""

    @api.get("/api/v1/sessions")
    def list_sessions(name: str):
        return [{"id": session_id, "name": "shop"}] if name == "shop" else []


@pytest.fixture
def moorage(served):
    def run(*arguments, credentials=EXPORTER):
        environment = {
            "MOORAGE_URL": served.url,
            "MOORAGE_API_KEY": served.key,
            "AWS_ACCESS_KEY_ID": credentials and credentials.access_key_id,
            "AWS_SECRET_ACCESS_KEY": credentials and credentials.secret_access_key,
            "AWS_SESSION_TOKEN": None,
            "LANGSMITH_TENANT_ID": None,
            "LANGSMITH_WORKSPACE_ID": None,
        }
        return CliRunner().invoke(app, arguments, env=environment)

    return run


@pytest.fixture
def bucket(moorage, served):
    """Create a destination, and return its name."""
    name = f"bucket {uuid4().hex[:8]}"
    where = ("--bucket", BUCKET, "--prefix", uuid4().hex, "--endpoint-url", served.s3)
    made = moorage("destinations", "create", name, *where)
    assert made.exit_code == 0, made.output
    return name


def test_a_destination_is_made_shown_rotated_and_deleted(moorage, bucket, served):
    shown = moorage("destinations", "show", bucket)
    assert "abort multipart upload, delete object, get object, put object" in shown.stdout
    assert "export-secret" not in shown.output
    assert bucket in moorage("destinations", "list").stdout
    refused = moorage("destinations", "rotate", bucket, credentials=READER)
    assert (refused.exit_code, "Access denied" in refused.stderr) == (1, True)
    rotated = moorage("destinations", "rotate", bucket, "-o", "json")
    assert json.loads(rotated.stdout)["display_name"] == bucket
    assert moorage("destinations", "delete", bucket, "--yes").exit_code == 0
    assert moorage("destinations", "show", bucket).exit_code == 3


def test_a_role_is_shown_and_stays_when_credentials_rotate(moorage, served):
    where = ("--bucket", BUCKET, "--endpoint-url", served.s3, "--role-arn", ROLE)
    refused = moorage("destinations", "create", "by role", *where, credentials=READER)
    assert (refused.exit_code, "Access denied" in refused.stderr) == (1, True)
    made = moorage("destinations", "create", "by role", *where, credentials=TRUSTED)
    assert made.exit_code == 0, made.output
    assert moorage("destinations", "rotate", "by role", credentials=TRUSTED).exit_code == 0
    assert ROLE in moorage("destinations", "show", "by role").stdout


def test_credentials_come_from_the_environment_or_not_at_all(moorage, served):
    where = ("--bucket", BUCKET, "--endpoint-url", served.s3)
    refused = moorage("destinations", "create", "x", *where, credentials=None)
    assert (refused.exit_code, "AWS_ACCESS_KEY_ID" in refused.stderr) == (2, True)
    made = moorage("destinations", "create", "files", "--type", "local", "--bucket", "files", credentials=None)
    assert made.exit_code == 0, made.output


def test_an_export_is_ordered_watched_listed_and_verified(moorage, bucket):
    days = ("--start", "2026-01-05", "--end", "2026-01-08")
    counted = moorage("exports", "create", "shop", "--to", bucket, *days, "--dry-run", "-o", "json")
    estimate = json.loads(counted.stdout)
    assert (estimate["export_runs"], estimate["rows"] > 0) == (3, True)
    made = moorage("exports", "create", "shop", "--to", bucket, *days, "--fields", "id, name", "-o", "json")
    assert made.exit_code == 0, made.output
    export = json.loads(made.stdout)
    assert (export["format_version"], export["export_fields"]) == ("v2_beta", ["id", "name"])
    watched = moorage("exports", "watch", export["id"], "--timeout", "60")
    assert watched.exit_code == 0, watched.output
    assert f"Completed: {estimate['rows']} rows" in watched.stdout
    assert "2026-01-06" in watched.stdout
    shown = moorage("exports", "show", export["id"])
    assert "_manifests" in shown.stdout
    assert export["id"] in moorage("exports", "list").stdout
    proved = moorage("exports", "verify", export["id"])
    assert (proved.exit_code, "they match the manifest" in proved.stdout) == (0, True)
    again = moorage("exports", "create", "shop", "--to", bucket, *days, "--changed-since", export["id"], "--dry-run")
    assert "0 rows in 0 export runs" in again.stderr
    cancelled = moorage("exports", "cancel", export["id"])
    assert (cancelled.exit_code, "Completed already" in cancelled.stderr) == (1, True)


def test_verify_and_watch_tell_by_their_exit_code_that_something_is_wrong(moorage, bucket, s3):
    days = ("--start", "2026-01-05", "--end", "2026-01-06")
    made = moorage("exports", "create", "shop", "--to", bucket, *days, "--watch", "-o", "json")
    assert made.exit_code == 0, made.output
    assert json.loads(made.stdout.splitlines()[-1])["status"] == "Completed"
    [newest] = json.loads(moorage("exports", "list", "-o", "json").stdout)[:1]
    runs = json.loads(moorage("exports", "show", newest["id"], "-o", "json").stdout)["runs"]
    s3.remove(runs[0]["metadata"]["result"]["exported_files"][0])
    proved = moorage("exports", "verify", newest["id"])
    assert (proved.exit_code, "missing" in proved.stdout) == (1, True)
    scheduled = moorage("exports", "schedule", "shop", "--to", bucket, "--every-hours", "24", "-o", "json")
    schedule = json.loads(scheduled.stdout)
    assert schedule["status"] == "IntervalScheduled"
    waited = moorage("exports", "watch", schedule["id"], "--timeout", "0.1")
    assert (waited.exit_code, "IntervalScheduled" in waited.stderr) == (6, True)
    assert moorage("exports", "cancel", schedule["id"]).exit_code == 0
    assert moorage("exports", "watch", schedule["id"]).exit_code == 1


def test_what_does_not_exist_or_makes_no_sense_says_so(moorage, bucket):
    assert moorage("exports", "show", str(uuid4())).exit_code == 3
    assert moorage("exports", "show", "nonsense").exit_code == 2
    assert moorage("exports", "create", "nobody", "--to", bucket, "--start", "2026-01-05").exit_code == 3
    assert moorage("exports", "create", "shop", "--to", "nowhere", "--start", "2026-01-05").exit_code == 3
    assert moorage("exports", "create", "shop", "--to", bucket, "--start", "soon").exit_code == 2
    wrong = moorage("exports", "create", "shop", "--to", bucket, "--start", "2026-01-05", "--filter", "eq(")
    assert (wrong.exit_code, "filter" in wrong.stderr) == (2, True)
