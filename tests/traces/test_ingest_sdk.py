"""The official tracing client, unmodified: each of its ways to send works without a warning."""

import asyncio
import io
import logging
import threading
from concurrent.futures import Future
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import UUID, uuid4

import pytest
import requests
import uvicorn
from langsmith import Client, traceable
from langsmith.run_helpers import get_current_run_tree, tracing_context
from langsmith.utils import get_env_var

from moorage.kernel.buckets.bucket import directory_bucket
from moorage.kernel.clickhouse import ClickHouse
from moorage.kernel.postgres import Postgres
from moorage.traces.store.projects import ProjectStore
from tests.accounts.houses import make_house
from tests.traces.ingest_rooms import NOW, IngestRoom

pytest_plugins = ("tests.accounts.fixtures", "tests.traces.fixtures")

INFO = {
    "version": "0.18.0",
    "batch_ingest_config": {
        "use_multipart_endpoint": True,
        "scale_up_qsize_trigger": 1000,
        "scale_up_nthreads_limit": 16,
        "scale_down_nempty_trigger": 4,
        "size_limit": 100,
        "size_limit_bytes": 20971520,
    },
    "instance_flags": {"zstd_compression_enabled": True},
}
WAYS = {
    "zstd": INFO,
    "multipart": INFO,
    "batch": {**INFO, "batch_ingest_config": {**INFO["batch_ingest_config"], "use_multipart_endpoint": False}},
}


class Server(uvicorn.Server):
    def __init__(self, app):
        super().__init__(uvicorn.Config(app, port=0, log_config=None, lifespan="off", ws="none"))
        self.port = Future()

    async def startup(self, sockets=None):
        await super().startup(sockets)
        self.port.set_result(self.servers[0].sockets[0].getsockname()[1])


@pytest.fixture(scope="module")
def served(platform_conninfo, clickhouse_url):
    """Serve ingest in a thread with its own event loop, and return the address and a key of a workspace."""
    ready = Future()

    async def serve(bucket):
        postgres, clickhouse = Postgres(platform_conninfo, pool_max=4), ClickHouse(clickhouse_url)
        await postgres.open()
        house, room = make_house(postgres), IngestRoom(postgres, clickhouse, bucket)
        room.serve(house)
        room.ingest.start()
        server = Server(house.app)
        ready.set_result((server, await house.make_workspace(), room))
        await server.serve()
        await room.ingest.stop()
        await clickhouse.close()
        await postgres.close()

    with TemporaryDirectory(prefix="moorage-test-") as folder:
        thread = threading.Thread(target=asyncio.run, args=(serve(directory_bucket(Path(folder))),), daemon=True)
        thread.start()
        server, workspace, room = ready.result(20)
        yield f"http://127.0.0.1:{server.port.result(20)}/api/v1", workspace, room
        server.should_exit = True
        thread.join(20)


@pytest.fixture
def make_client(served, monkeypatch):
    url, workspace, _ = served

    def make(way="multipart"):
        monkeypatch.setenv("LANGSMITH_DISABLE_RUN_COMPRESSION", str(way != "zstd").lower())
        return Client(url, api_key=workspace["api_key"], info=WAYS[way])

    get_env_var.cache_clear()
    yield make
    get_env_var.cache_clear()


@traceable(run_type="llm", metadata={"ls_provider": "openai", "ls_model_name": "gpt-4o-mini"})
def model(question):
    get_current_run_tree().set(usage_metadata={"input_tokens": 1000, "output_tokens": 100, "total_tokens": 1100})
    return {"content": question.upper()}


@traceable(run_type="chain", metadata={"thread_id": "thread"}, tags=["tagged"])
def agent(question):
    return model(question)["content"]


@pytest.mark.parametrize("way", WAYS)
async def test_a_traced_function_is_stored(served, make_client, clickhouse, caplog, way):
    _, workspace, _ = served
    client = make_client(way)
    root_id = uuid4()
    with caplog.at_level(logging.WARNING, "langsmith"), tracing_context(enabled=True, client=client):
        await asyncio.to_thread(agent, "why?", langsmith_extra={"run_id": root_id, "project_name": way})
        await asyncio.to_thread(client.flush)
    await asyncio.to_thread(client.cleanup)
    assert not caplog.records
    sql = "SELECT * FROM trace_runs WHERE tenant_id = {t:UUID} AND trace_id = {r:UUID} ORDER BY dotted_order"
    root, call = await clickhouse.dicts(sql, {"t": workspace["id"], "r": root_id})
    assert (root["name"], root["inputs"], root["outputs"]) == ("agent", '{"question":"why?"}', '{"output":"WHY?"}')
    assert (root["status"], root["tags"], root["thread_id"]) == ("success", ["tagged"], "thread")
    assert (call["run_type"], call["parent_run_ids"], call["total_tokens"]) == ("llm", [root_id], 1100)
    assert str(call["total_cost"].normalize()) == "0.00021"
    assert root["total_tokens"] is None


@pytest.mark.parametrize("way", ["multipart", "zstd"])
async def test_attachments_and_feedback_of_the_client_are_stored(
    served, make_client, platform_postgres, clickhouse, way
):
    url, workspace, room = served
    client = make_client(way)
    run_id, feedback_id = uuid4(), uuid4()
    order = f"20260615T120000000000Z{run_id}"
    project_id = (await ProjectStore(platform_postgres).ensure(workspace["id"], {"default": NOW}))["default"]

    def send():
        attachments = {"file": ("text/plain", b"attached")}
        client.create_run(
            "run", {"i": 1}, "chain", id=run_id, trace_id=run_id, dotted_order=order, attachments=attachments
        )
        client.update_run(run_id, trace_id=run_id, dotted_order=order, outputs={"o": 1})
        client.create_feedback(
            run_id, "quality", score=1, trace_id=run_id, session_id=project_id, feedback_id=feedback_id
        )
        client.flush()
        client.cleanup()

    await asyncio.to_thread(send)
    found = {"t": workspace["id"], "r": run_id}
    run = (await clickhouse.dicts("SELECT * FROM trace_runs WHERE tenant_id = {t:UUID} AND id = {r:UUID}", found))[0]
    assert run["outputs"] == '{"o":1}'
    key = run["attachments"].partition('"key":"')[2].partition('"')[0]
    answer = await asyncio.to_thread(requests.get, url + room.attachments.url(key, "text/plain"), timeout=10)
    assert io.BytesIO(answer.content).read() == b"attached"
    sql = "SELECT id FROM feedback WHERE tenant_id = {t:UUID} AND run_id = {r:UUID}"
    assert await clickhouse.value(sql, found) == feedback_id


async def test_runs_without_an_order_are_sent_one_by_one(served, make_client, clickhouse):
    _, workspace, _ = served
    client = make_client()
    run_id = uuid4()

    def send():
        client.create_run("run", {"i": 1}, "chain", id=run_id, project_name="single")
        client.update_run(run_id, outputs={"o": 1}, error="broke")
        client.cleanup()

    await asyncio.to_thread(send)
    found = {"t": workspace["id"], "r": run_id}
    run = (await clickhouse.dicts("SELECT * FROM trace_runs WHERE tenant_id = {t:UUID} AND id = {r:UUID}", found))[0]
    assert (run["outputs"], run["status"], run["trace_id"]) == ('{"o":1}', "error", UUID(str(run_id)))


async def test_a_wrong_run_type_gives_one_warning_and_no_second_try(make_client, caplog):
    client = make_client()
    run_id = uuid4()
    order = f"20260615T120000000000Z{run_id}"

    def send():
        client.create_run("run", {}, "agent", id=run_id, trace_id=run_id, dotted_order=order)
        client.flush()
        client.cleanup()

    with caplog.at_level(logging.WARNING, "langsmith"):
        await asyncio.to_thread(send)
    assert len(caplog.records) == 1
    assert "run_type must be one of" in caplog.text
    assert "422" in caplog.text
