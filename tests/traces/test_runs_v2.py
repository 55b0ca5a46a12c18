from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import uuid4

import pytest
import uvicorn
from fastapi import FastAPI
from langsmith import Client
from langsmith._client import Langsmith

from tests.traces.naive_filter import Feedback
from tests.traces.trace_data import insert_runs, make_run

pytest_plugins = "tests.traces.reading_fixtures"

ANY_ID = "5b9a4c0e-8a5c-4d0f-9a53-1f0c5d3f7a11"  # fixed, so that each process of the tests sees the same names
NOW = datetime.now(UTC)


@pytest.fixture
def root(workspace):
    return make_run(
        start_time=NOW - timedelta(minutes=5),
        end_time=NOW - timedelta(minutes=4),
        tenant_id=workspace,
        name="agent",
        inputs={"question": "Where?"},
        outputs={"answer": "Here."},
        metadata={"thread_id": "t"},
        extra={"runtime": {"sdk": "x"}},
        events=[{"name": "end", "time": "2026-01-01T00:00:00"}],
        thread_id="t",
        tags=["prod"],
        error="boom" * 200,
        attachments={"picture": {"key": "a/b", "mime_type": "image/png"}},
        feedback=[Feedback("score", 1.0)],
    )


@pytest.fixture
def llm(root):
    return make_run(
        root,
        run_type="llm",
        first_token_time=NOW,
        total_tokens=12,
        prompt_tokens=10,
        total_cost=Decimal("0.5"),
        prompt_token_details={"cache_read": 4},
    )


async def test_a_run_has_what_was_selected_and_is_known(clickhouse, reading_api, root, llm):
    await insert_runs(clickhouse, [root, llm])
    where = {"project_id": str(root.session_id)}
    assert (await reading_api.get(f"/api/v2/runs/{root.id}", params=where)).json() == {"id": str(root.id)}
    selects = ["ID", "RUN_TYPE", "STATUS", "LATENCY_SECONDS", "ERROR_PREVIEW", "METADATA", "EXTRA", "PROJECT_ID"]
    selects += ["IS_ROOT", "TOTAL_TOKENS", "TOTAL_COST", "PROMPT_TOKEN_DETAILS", "ATTACHMENTS", "FEEDBACK_STATS"]
    selects += ["PARENT_RUN_IDS", "MANIFEST", "SHARE_URL", "EVENTS", "INPUTS_PREVIEW", "TAGS"]
    run = (await reading_api.get(f"/v2/runs/{root.id}", params={**where, "selects": selects})).json()
    assert run == {
        "id": str(root.id),
        "run_type": "CHAIN",
        "status": "ERROR",
        "latency_seconds": 60.0,
        "error_preview": root.error[:500],
        "metadata": {"thread_id": "t"},
        "extra": {"metadata": {"thread_id": "t"}, "runtime": {"sdk": "x"}},
        "project_id": str(root.session_id),
        "is_root": True,
        "total_tokens": 12,
        "total_cost": 0.5,
        "prompt_token_details": {"raw": {"cache_read": 4}},
        "attachments": {"picture": "/attachments/a/b"},
        "feedback_stats": run["feedback_stats"],
        "parent_run_ids": [],
        "events": root.events,
        "inputs_preview": "Where?",
        "tags": ["prod"],
    }
    run = (
        await reading_api.get(f"/v2/runs/{llm.id}", params={**where, "selects": ["STATUS", "END_TIME", "ERROR"]})
    ).json()
    assert run == {"status": "PENDING", "end_time": None}


async def test_a_query_looks_at_the_last_day_unless_told_otherwise(clickhouse, reading_api, workspace):
    session = uuid4()
    old, new = (
        make_run(start_time=NOW - timedelta(hours=hours), tenant_id=workspace, session_id=session) for hours in (30, 1)
    )
    await insert_runs(clickhouse, [old, new])

    async def found(**search):
        answer = await reading_api.post("/api/v2/runs/query", json={"project_ids": [str(session)]} | search)
        return [run["id"] for run in answer.json()["items"]]

    assert await found() == [str(new.id)]
    since = (NOW - timedelta(days=2)).isoformat()
    assert await found(min_start_time=since) == [str(new.id), str(old.id)]
    assert await found(min_start_time=since, sort_order="ASC") == [str(old.id), str(new.id)]
    assert await found(min_start_time=since, ids=[str(old.id)]) == [str(old.id)]
    assert await found(min_start_time=since, max_start_time=old.start_time.isoformat()) == [str(old.id)]
    assert await found(has_error=True) == []
    assert await found(run_type="LLM") == []
    assert await found(filter='eq(run_type, "chain")', is_root=True) == [str(new.id)]


@pytest.mark.parametrize(
    ("body", "status", "detail"),
    [
        ({}, 422, "exactly one of project_ids and reference_dataset_id"),
        ({"project_ids": [str(uuid4())], "reference_dataset_id": str(uuid4())}, 422, "exactly one"),
        ({"reference_dataset_id": str(uuid4())}, 404, "not found"),
        ({"project_ids": ["x"]}, 422, "project_ids.0: "),
        ({"project_ids": [str(uuid4())], "page_size": 1001}, 422, "page_size: "),
        ({"project_ids": [str(uuid4())], "selects": ["id"]}, 422, "selects.0: "),
        ({"project_ids": [str(uuid4())], "filter": "eq("}, 422, "character 4"),
        ({"project_ids": [str(uuid4())], "cursor": "x"}, 400, "Invalid cursor"),
        ({"project_ids": [str(uuid4())], "ai_search": "slow ones"}, 400, "plain language"),
    ],
)
async def test_a_problem_says_what_is_wrong_and_what_to_do(reading_api, body, status, detail):
    answer = await reading_api.post("/api/v2/runs/query", json=body)
    problem = answer.json()
    assert answer.status_code == problem["status"] == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem.keys() == {"type", "title", "status", "detail", "instance", "remedy"}
    assert detail in problem["detail"]
    assert problem["instance"] == "/api/v2/runs/query"
    assert problem["remedy"]


_PATHS = [
    ("POST", "/api/v2/runs/query"),
    ("GET", f"/api/v2/runs/{ANY_ID}?project_id={ANY_ID}"),
    ("GET", f"/api/v2/runs/{ANY_ID}/url?project_id={ANY_ID}&trace_id={ANY_ID}"),
    ("POST", "/api/v2/traces/query"),
    ("GET", f"/api/v2/traces/{ANY_ID}/runs?project_id={ANY_ID}"),
    ("POST", "/api/v2/threads/query"),
    ("POST", "/api/v2/threads/stats"),
    ("GET", f"/api/v2/threads/t/traces?project_id={ANY_ID}"),
    ("GET", f"/api/v2/threads/t/stats?session_id={ANY_ID}&selects=TURNS"),
]


@pytest.mark.parametrize(("method", "path"), _PATHS)
async def test_every_route_asks_who_calls(reading_api, workspace, method, path):
    reading_api.headers.pop("X-Api-Key")
    answer = await reading_api.request(method, path, json={})
    assert (answer.status_code, answer.json()["title"]) == (401, "Unauthorized")
    answer = await reading_api.request(method, path, json={}, headers={"X-Api-Key": f"{workspace}-none"})
    assert (answer.status_code, answer.json()["title"]) == (403, "Forbidden")


async def test_what_is_not_the_callers_is_not_there(clickhouse, reading_api):
    foreign = make_run(start_time=NOW, thread_id="t")
    await insert_runs(clickhouse, [foreign])
    project = str(foreign.session_id)
    for path in (
        f"/v2/runs/{foreign.id}?project_id={project}",
        f"/v2/threads/t/stats?session_id={project}&selects=TURNS",
    ):
        assert (await reading_api.get(path)).status_code == 404
    for path, body in (
        ("runs", {"project_ids": [project]}),
        ("traces", {"project_id": project}),
        ("threads", {"project_id": project}),
    ):
        assert (await reading_api.post(f"/v2/{path}/query", json=body)).json()["items"] == []
    for path in (f"/v2/traces/{foreign.id}/runs?project_id={project}", f"/v2/threads/t/traces?project_id={project}"):
        assert (await reading_api.get(path)).json()["items"] == []


# The official client against a server of its own: its requests, and how it reads the answers.


@pytest.fixture
def server(application: FastAPI) -> Iterator[str]:
    """Serve the application over HTTP in a thread, and return its address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(application, log_level="error", lifespan="off", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join(5)


@pytest.fixture
def v2(server, workspace) -> Iterator[Langsmith]:
    with Langsmith(api_key=str(workspace), base_url=server) as client:
        yield client


async def test_the_official_client_reads_runs_traces_and_threads(clickhouse, v2, root, llm):
    turns = [
        make_run(
            start_time=NOW - timedelta(minutes=n), tenant_id=root.tenant_id, session_id=root.session_id, thread_id="u"
        )
        for n in range(3)
    ]
    await insert_runs(clickhouse, [root, llm, *turns])
    project = str(root.session_id)

    runs = list(v2.runs.query_v2(project_ids=[project], page_size=2, selects=["ID", "NAME", "START_TIME"]))
    assert [run.id for run in runs] == [str(run.id) for run in sorted([root, llm, *turns], key=lambda r: r.start_time)][
        ::-1
    ]
    run = v2.runs.retrieve_v2(str(root.id), project_id=project, selects=["FEEDBACK_STATS", "TOTAL_COST", "EVENTS"])
    assert (run.feedback_stats["score"].n, run.total_cost, run.events[0].name) == (1, 0.5, "end")
    assert f"/r/{root.id}" in v2.runs.get_url(str(root.id), project_id=project, trace_id=str(root.id)).url

    found = v2.traces.list_runs(str(root.id), project_id=project, selects=["ID"])
    assert [run.id for run in found.items] == [str(root.id), str(llm.id)]
    traces = list(
        v2.traces.query(
            project_id=project,
            page_size=1,
            tree_filter='eq(run_type, "llm")',
            selects=["NAME", "TOTAL_TOKENS", "FIRST_TOKEN_TIME"],
        )
    )
    assert [trace.root_run.name for trace in traces] == ["agent"]
    assert traces[0].trace_aggregates.total_tokens == 12
    assert traces[0].trace_aggregates.first_token_time == llm.first_token_time
    assert {trace.root_run.id for trace in v2.traces.query(project_id=project, trace_ids=[str(root.id)])} == {
        str(root.id)
    }

    threads = list(v2.threads.query(project_id=project, page_size=1))
    assert [(thread.thread_id, thread.count) for thread in threads] == [("u", 3), ("t", 1)]
    assert (threads[1].total_tokens, threads[1].first_inputs, threads[1].num_errored_turns) == (12, "Where?", 1)
    in_thread = list(
        v2.threads.list_traces("u", project_id=project, page_size=2, selects=["TURN_NUMBER", "OP", "START_TIME"])
    )
    assert [trace.turn_number for trace in in_thread] == [3, 2, 1]
    assert [trace.trace_id for trace in in_thread] == [str(turn.id) for turn in turns]
    stats = v2.threads.stats("t", session_id=project, selects=["TURNS", "TOTAL_COST", "LATENCY_P50", "FEEDBACK_STATS"])
    assert (stats.turns, stats.total_cost, stats.latency_p50_seconds) == (1, 0.5, 60.0)
    assert stats.feedback_stats["score"].avg == 1.0
    select = ["THREAD_COUNT", "TRACE_COUNT", "TOTAL_TOKENS", "LATENCY_P50", "THREAD_FEEDBACK_STATS"]
    whole = v2.threads.aggregate_stats(project_id=project, select=select)
    assert (whole.thread_count, whole.trace_count, whole.total_tokens, whole.latency_p50_seconds) == (2, 4, 12, 60.0)
    assert whole.thread_feedback_stats["score"].n == 1


async def test_the_official_client_reads_streams_of_patches(clickhouse, v2, workspace):
    session = uuid4()
    runs = [
        make_run(start_time=NOW - timedelta(seconds=n), tenant_id=workspace, session_id=session, thread_id=str(n))
        for n in range(7)
    ]
    await insert_runs(clickhouse, runs)
    ids = [str(run.id) for run in runs]
    assert [run.id for run in v2.runs.streaming.query_v2_items(project_ids=[str(session)], page_size=3)] == ids
    traces = v2.traces.streaming.query_items(project_id=str(session), page_size=3)
    assert [trace.root_run.id for trace in traces] == ids
    threads = v2.threads.streaming.query_items(project_id=str(session), page_size=3)
    assert [thread.thread_id for thread in threads] == [str(n) for n in range(7)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # these methods go in 2027, and are used until then
async def test_the_official_client_reads_v1(clickhouse, server, workspace, root, llm):
    root.attachments = None
    await insert_runs(clickhouse, [root, llm])
    with closing(Client(f"{server}/api/v1", api_key=str(workspace), info={}, auto_batch_tracing=False)) as client:
        run = client.read_run(root.id, load_child_runs=True)
        assert (run.name, run.total_tokens, run.total_cost) == ("agent", 12, Decimal("0.5"))
        assert run.metadata["thread_id"] == "t"
        assert [child.id for child in run.child_runs] == [llm.id]
        found = list(client.list_runs(project_id=root.session_id, filter='eq(run_type, "llm")'))
        assert [each.id for each in found] == [llm.id]
        assert [each.id for each in client.read_thread(thread_id="t", project_id=root.session_id)] == [root.id]
        assert client.get_run_stats(project_ids=[root.session_id], is_root=True)["total_tokens"] == 12
        assert [thread["thread_id"] for thread in client.list_threads(project_id=root.session_id)] == ["t"]
