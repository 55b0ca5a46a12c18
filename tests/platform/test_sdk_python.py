"""The official tracing SDK for Python, unmodified, against a real platform: it reads back what it writes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, TypeVar
from uuid import UUID, uuid4

import pytest
from langsmith import Client, traceable, tracing_context
from langsmith.run_trees import RunTree
from langsmith.schemas import Run
from langsmith.utils import LangSmithConflictError, LangSmithError, LangSmithNotFoundError

from tests.platform.serving import Platform
from tests.waiting import wait_until

pytest_plugins = "tests.platform.fixtures"

# The methods of version one are tested, since most users call them.
pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed after Jan 31, 2027")

T = TypeVar("T")


@pytest.fixture
def client(platform: Platform) -> Iterator[Client]:
    made = Client(api_url=f"{platform.url}/api/v1", api_key=platform.key, auto_batch_tracing=True)
    yield made
    made.cleanup()


@pytest.fixture
def project() -> str:
    return f"sdk-{uuid4().hex[:8]}"


def soon(find: Callable[[], T | None], bound_s: float = 10) -> T:
    """Return the result once it is found, within the time limit: the SDK sends in the background."""

    def found() -> T | None:
        with suppress(LangSmithNotFoundError):
            return find()
        return None

    return wait_until(found, bound_s)


def runs_of(client: Client, project: str, count: int, **filters: Any) -> list[Run]:
    """Return all runs in the order of their start, once there are this many and all have ended."""

    def find() -> list[Run] | None:
        found = list(client.list_runs(project_name=project, **filters))
        return found if len(found) == count and all(run.end_time for run in found) else None

    return sorted(soon(find), key=lambda run: run.dotted_order)


def traced(client: Client, project: str) -> dict[str, UUID]:
    """Trace a small agent, and return the ids of its runs by name."""
    ids: dict[str, UUID] = {}

    @traceable(run_type="llm", metadata={"ls_provider": "openai", "ls_model_name": "gpt-4o-mini"})
    def model(messages: list[dict[str, str]]) -> dict[str, Any]:
        return {
            "choices": [{"message": {"role": "assistant", "content": "4 knots"}}],
            "usage_metadata": {"input_tokens": 10, "output_tokens": 20, "total_tokens": 30},
        }

    @traceable(run_type="tool", tags=["risky"])
    def broken(text: str) -> str:
        raise ValueError(f"no wind for {text}")

    @traceable(run_type="chain", tags=["prod"], metadata={"thread_id": "thread-7", "user_id": "u-1"})
    def agent(question: str) -> str:
        answer = model([{"role": "user", "content": question}])
        with pytest.raises(ValueError, match="no wind"):
            broken(question)
        return str(answer["choices"][0]["message"]["content"])

    with tracing_context(enabled=True, client=client, project_name=project):
        agent("how fast", langsmith_extra={"on_end": lambda run: ids.setdefault(run.name, run.id)})
    client.flush()
    return ids


def test_a_trace_is_read_back_whole(client: Client, project: str) -> None:
    root_id = traced(client, project)["agent"]
    agent, model, broken = runs_of(client, project, 3)
    assert (agent.id, agent.name, agent.run_type, agent.status) == (root_id, "agent", "chain", "success")
    assert agent.inputs == {"question": "how fast"}
    assert agent.outputs == {"output": "4 knots"}
    assert agent.tags == ["prod"]
    assert agent.metadata["user_id"] == "u-1"
    assert [model.parent_run_id, broken.parent_run_id] == [root_id, root_id]
    assert {model.trace_id, broken.trace_id} == {root_id}
    assert (broken.status, "no wind for how fast" in (broken.error or "")) == ("error", True)
    assert (model.prompt_tokens, model.completion_tokens, model.total_tokens) == (10, 20, 30)
    assert agent.total_tokens == 30  # a parent counts its children
    assert agent.total_cost == model.total_cost
    assert model.total_cost is not None
    assert model.total_cost > 0


def test_one_run_by_its_id_with_its_children(client: Client, project: str) -> None:
    root_id = traced(client, project)["agent"]
    runs_of(client, project, 3)
    run = soon(lambda: client.read_run(root_id, load_child_runs=True))
    assert [child.name for child in run.child_runs or []] == ["model", "broken"]
    with pytest.raises(LangSmithNotFoundError):
        client.read_run(uuid4())


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        ({"is_root": True}, {"agent"}),
        ({"run_type": "llm"}, {"model"}),
        ({"error": True}, {"broken"}),
        ({"filter": 'eq(name, "model")'}, {"model"}),
        ({"filter": 'and(eq(metadata_key, "user_id"), eq(metadata_value, "u-1"))', "is_root": True}, {"agent"}),
        ({"filter": 'and(eq(metadata_key, "user_id"), eq(metadata_value, "u-2"))'}, set()),
        ({"filter": 'has(tags, "risky")'}, {"broken"}),
        ({"filter": "gt(total_tokens, 29)", "run_type": "llm"}, {"model"}),
        ({"filter": 'search("knots")', "run_type": "llm"}, {"model"}),
        ({"filter": 'eq(run_type, "llm")', "trace_filter": 'has(tags, "prod")'}, {"model"}),
        ({"is_root": True, "tree_filter": 'eq(name, "broken")'}, {"agent"}),
        ({"filter": 'eq(name, "nobody")'}, set()),
    ],
)
def test_runs_are_found(client: Client, filters: dict[str, Any], names: set[str], found_in: str) -> None:
    found = soon(lambda: [run.name for run in client.list_runs(project_name=found_in, **filters)] or ["-"])
    assert set(found) - {"-"} == names


@pytest.fixture(scope="module")
def found_in(platform: Platform) -> Iterator[str]:
    """Create a project with one trace that is not changed any more."""
    client = Client(api_url=f"{platform.url}/api/v1", api_key=platform.key)
    name = f"found-{uuid4().hex[:8]}"
    traced(client, name)
    runs_of(client, name, 3)
    yield name
    client.cleanup()


def test_create_and_update_in_either_order(client: Client, project: str) -> None:
    now = datetime.now(UTC)
    for update_first in (False, True):
        run_id = uuid4()
        dotted = f"{now:%Y%m%dT%H%M%S%fZ}{run_id}"
        ids = {"trace_id": run_id, "dotted_order": dotted}

        def create(run_id: UUID = run_id, ids: dict[str, Any] = ids) -> None:
            client.create_run("both", {"x": 1}, "chain", id=run_id, project_name=project, start_time=now, **ids)

        def update(run_id: UUID = run_id, ids: dict[str, Any] = ids) -> None:
            client.update_run(run_id, outputs={"y": 2}, end_time=now + timedelta(seconds=1), **ids)

        for write in (update, create) if update_first else (create, update):
            write()
            client.flush()
        run = soon(lambda: ended(client.read_run(run_id)))  # noqa: B023 - called at once
        assert (run.inputs, run.outputs, run.status) == ({"x": 1}, {"y": 2}, "success")


def ended(run: Run) -> Run | None:
    return run if run.end_time and run.inputs else None


def test_costs_that_are_given_win_and_are_exact(client: Client, project: str) -> None:
    tree = RunTree(name="model", run_type="llm", inputs={}, project_name=project, ls_client=client)
    usage = {"input_tokens": 10, "output_tokens": 1, "total_tokens": 11, "input_cost": 1e-6, "output_cost": 2e-6}
    tree.add_metadata({"usage_metadata": {**usage, "total_cost": 3e-6}})
    tree.end(outputs={"text": "x"})
    tree.post()
    client.flush()
    (run,) = runs_of(client, project, 1)
    assert (run.prompt_cost, run.completion_cost, run.total_cost) == (Decimal("1e-6"), Decimal("2e-6"), Decimal("3e-6"))


def test_attachments_come_back(client: Client, project: str) -> None:
    picture = bytes(range(256)) * 40
    tree = RunTree(
        name="seen", inputs={}, project_name=project, ls_client=client, attachments={"picture": ("image/png", picture)}
    )
    tree.end(outputs={})
    tree.post()
    client.flush()
    runs_of(client, project, 1)
    run = soon(lambda: client.read_run(tree.id))
    reader = run.attachments["picture"]
    assert reader["mime_type"] == "image/png"
    assert reader["reader"].read() == picture


def test_projects(client: Client, project: str) -> None:
    made = client.create_project(project, description="tides", metadata={"team": "harbour"})
    assert client.read_project(project_name=project).id == made.id
    assert client.has_project(project)
    with pytest.raises(LangSmithConflictError):
        client.create_project(project)
    assert [found.id for found in client.list_projects(name_contains=project)] == [made.id]
    assert client.update_project(made.id, description="ebb").description == "ebb"
    client.delete_project(project_name=project)
    assert not client.has_project(project)


def test_a_project_starts_with_its_first_run_in_utc(client: Client, project: str) -> None:
    root_id = traced(client, project)["agent"]
    root = runs_of(client, project, 3)[0]
    found = client.read_project(project_name=project)
    assert (root.id, root.start_time) == (root_id, found.start_time)
    assert found.start_time.tzinfo is not None


def test_every_time_ends_in_z(platform: Platform, client: Client, project: str) -> None:
    """JavaScript reads a time without a suffix as local, and texts with other offsets cannot be compared."""
    root_id = traced(client, project)["agent"]
    root = runs_of(client, project, 3)[0]
    client.create_feedback(root_id, "helpful", score=1, trace_id=root_id, session_id=root.session_id)
    client.flush()
    soon(lambda: list(client.list_feedback(run_ids=[root_id])))
    session = str(root.session_id)
    v2 = {"project_ids": [session], "min_start_time": root.start_time.isoformat()}
    asked: list[tuple[str, str, Any]] = [
        ("GET", f"/api/v1/runs/{root_id}", None),
        ("POST", "/api/v1/runs/query", {"session": [session]}),
        ("POST", "/api/v1/runs/stats", {"session": [session]}),
        ("POST", "/api/v1/runs/group", {"session_id": session, "group_by": "conversation"}),
        ("POST", "/api/v1/runs/group/stats", {"session_id": session, "group_by": "conversation"}),
        ("GET", f"/api/v1/sessions?id={session}&include_stats=true&facets=true", None),
        ("GET", f"/api/v1/sessions/{session}?include_stats=true", None),
        ("PATCH", f"/api/v1/sessions/{session}", {"description": "x"}),
        ("GET", f"/api/v1/feedback?run={root_id}", None),
        ("POST", "/api/v2/runs/query", {**v2, "selects": ["ID", "START_TIME", "END_TIME"]}),
    ]
    for method, path, body in asked:
        with platform.client() as http:
            answer = http.request(method, path, json=body)
        assert answer.is_success, answer.text
        times = re.findall(r'"\d{4}-\d\d-\d\dT[\d:.]+[^"]*"', answer.text)
        assert all(time.endswith('Z"') for time in times), (path, times)
        assert times, path


def test_the_default_select_has_details_of_tokens_and_costs(client: Client, project: str) -> None:
    usage = {
        "input_tokens": 10,
        "output_tokens": 5,
        "total_tokens": 15,
        "input_token_details": {"cache_read": 4},
        "input_cost": 0.5,
        "input_cost_details": {"cache_read": 0.125},
    }
    extra = {"metadata": {"usage_metadata": usage}}
    tree = RunTree(name="model", run_type="llm", ls_client=client, session_name=project, extra=extra)
    tree.post()
    tree.end(outputs={})
    tree.patch()
    client.flush()
    [run] = runs_of(client, project, 1)
    assert run.prompt_token_details is not None
    assert run.prompt_token_details["cache_read"] == 4
    assert run.prompt_cost_details == {"cache_read": Decimal("0.125")}


def test_a_projects_statistics(client: Client, project: str) -> None:
    traced(client, project)
    runs_of(client, project, 3)
    found = client.read_project(project_name=project, include_stats=True)
    assert found.run_count == 1
    assert found.total_tokens == 30


def test_feedback(client: Client, project: str) -> None:
    root_id = traced(client, project)["agent"]
    session_id = runs_of(client, project, 3)[0].session_id
    given = {"score": 1, "comment": "quick", "trace_id": root_id, "session_id": session_id}
    made = client.create_feedback(root_id, "helpful", **given)
    client.flush()
    feedback = soon(lambda: list(client.list_feedback(run_ids=[root_id])))
    assert [(item.id, item.key, item.score, item.comment) for item in feedback] == [(made.id, "helpful", 1, "quick")]
    client.update_feedback(made.id, score=0)
    assert client.read_feedback(made.id).score == 0
    stats = soon(lambda: client.read_run(root_id).feedback_stats)
    assert stats["helpful"]["n"] == 1
    found = client.list_runs(project_name=project, filter='and(eq(feedback_key, "helpful"), lt(feedback_score, 1))')
    assert [run.id for run in found] == [root_id]
    client.delete_feedback(made.id)
    assert not list(client.list_feedback(run_ids=[root_id]))


def test_statistics_of_runs(client: Client, found_in: str) -> None:
    stats = client.get_run_stats(project_names=[found_in])
    assert stats["run_count"] == 3
    assert stats["total_tokens"] == 30


def test_a_wrong_run_type_is_refused_once_and_harms_no_other(
    client: Client, project: str, caplog: pytest.LogCaptureFixture
) -> None:
    run_id = uuid4()
    dotted = f"{datetime.now(UTC):%Y%m%dT%H%M%S%fZ}{run_id}"
    client.create_run(
        "wrong", {}, "no-such-type", id=run_id, trace_id=run_id, dotted_order=dotted, project_name=project
    )
    client.flush()
    refusals = [record for record in caplog.records if "422" in record.getMessage()]
    assert len(refusals) == 1
    traced(client, project)
    runs_of(client, project, 3)


def test_a_wrong_key_is_told_apart_from_a_wrong_workspace(platform: Platform) -> None:
    with pytest.raises(LangSmithError, match=r"401|403|Authentication"):
        list(Client(api_url=f"{platform.url}/api/v1", api_key="lsv2_pt_wrong").list_projects())
    foreign = Client(api_url=f"{platform.url}/api/v1", api_key=platform.key, workspace_id=str(uuid4()))
    with pytest.raises(LangSmithError, match="requires workspace specification"):
        list(foreign.list_projects())


async def test_the_newest_methods_read_runs_traces_and_threads(client: Client, project: str) -> None:
    root_id = traced(client, project)["agent"]
    runs_of(client, project, 3)
    project_id = str(client.read_project(project_name=project).id)
    found = [run async for run in client.runs.query_v2(project_ids=[project_id], selects=["ID", "NAME", "STATUS"])]
    assert {run.name for run in found} == {"agent", "model", "broken"}
    one = await client.runs.retrieve_v2(str(root_id), project_id=project_id, selects=["NAME", "OUTPUTS"])
    assert (one.name, one.outputs) == ("agent", {"output": "4 knots"})
    traces = [trace async for trace in client.traces.query(project_id=project_id)]
    assert len(traces) == 1
    threads = [thread async for thread in client.threads.query(project_id=project_id)]
    assert [thread.thread_id for thread in threads] == ["thread-7"]
    await client.runs._client.close()  # the SDK leaves it open until the process ends
