"""Less common calls of the official client for projects, feedback, its configurations and tokens."""

from __future__ import annotations

import urllib.request
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from langsmith import Client
from langsmith.utils import LangSmithConflictError, LangSmithError, LangSmithNotFoundError

from tests.waiting import wait_until

pytest_plugins = "tests.platform.fixtures"


@pytest.fixture
def client(platform):
    made = Client(api_url=f"{platform.url}/api/v1", api_key=platform.key, auto_batch_tracing=False)
    yield made
    made.cleanup()


@pytest.fixture
def name():
    return f"feedback-{uuid4().hex[:8]}"


@pytest.fixture
def run_id(client, name):
    run_id = uuid4()
    client.create_run(name, {"a": 1}, "chain", id=run_id, project_name=name, outputs={}, end_time=datetime.now(UTC))
    wait_until(lambda: client.has_project(name), 10)
    return run_id


def test_a_project_is_upserted_and_found_by_its_metadata(client, name):
    made = client.create_project(name, metadata={"name": name, "n": 1})
    again = client.create_project(name, description="second", upsert=True)
    assert (again.id, again.description, again.metadata) == (made.id, "second", {"name": name, "n": 1})
    assert [each.id for each in client.list_projects(metadata={"name": name})] == [made.id]
    assert [each.id for each in client.list_projects(project_ids=[made.id], include_stats=True)] == [made.id]
    changed = client.update_project(made.id, metadata={"b": 2}, end_time=datetime.now(UTC))
    assert (changed.metadata, changed.end_time is not None) == ({"b": 2}, True)
    client.create_project(f"{name}-2")
    with pytest.raises(LangSmithConflictError):
        client.update_project(made.id, name=f"{name}-2")
    client.delete_project(project_id=made.id)
    with pytest.raises(LangSmithNotFoundError):
        client.delete_project(project_id=made.id)


def test_feedback_on_a_project_and_by_a_model(client, name, run_id):
    project = client.read_project(project_name=name)
    client.create_feedback(project_id=project.id, key="overall", score=0.5)
    made = client.create_feedback(
        run_id, "judged", value={"label": "good"}, feedback_source_type="model", source_info={"model": "m"},
        source_run_id=uuid4(), correction={"a": "b"}, extra={"x": 1}, session_id=project.id,
    )  # fmt: skip
    found = client.read_feedback(made.id)
    assert (found.value, found.correction, found.extra) == ({"label": "good"}, {"a": "b"}, {"x": 1})
    assert (found.feedback_source.type, found.feedback_source.metadata["model"]) == ("model", "m")
    assert [each.id for each in client.list_feedback(run_ids=[run_id], feedback_source_type=["model"])] == [made.id]
    stats = client.read_project(project_name=name, include_stats=True)
    assert (stats.session_feedback_stats["overall"]["avg"], stats.feedback_stats["judged"]["n"]) == (0.5, 1)


def test_a_presigned_token_takes_feedback_from_anyone(client, run_id):
    token = client.create_presigned_feedback_token(run_id, "thumbs", expiration=timedelta(hours=1))
    assert [each.id for each in client.list_presigned_feedback_tokens(run_id)] == [token.id]
    assert urllib.request.urlopen(f"{token.url}?score=1&comment=hi").status == 200
    client.create_feedback_from_token(token.id, score=0, value="down", metadata={"page": "x"})
    (kept,) = client.list_feedback(run_ids=[run_id])
    assert (kept.key, kept.score, kept.value) == ("thumbs", 0.0, "down")
    assert len(client.create_presigned_feedback_tokens(run_id, ["a", "b"])) == 2
    with pytest.raises(LangSmithError):
        client.create_presigned_feedback_token(run_id, "thumbs", expiration=timedelta(days=-1))


def test_keys_are_configured(client, name):
    config = {"type": "categorical", "categories": [{"value": 1, "label": "good"}, {"value": 0}]}
    made = client.create_feedback_config(name, feedback_config=config)
    assert client.create_feedback_config(name, feedback_config=config).modified_at == made.modified_at
    with pytest.raises(LangSmithError):
        client.create_feedback_config(name, feedback_config={"type": "freeform"})
    assert client.update_feedback_config(name, is_lower_score_better=True).is_lower_score_better
    assert [each.feedback_key for each in client.list_feedback_configs(name_contains=name)] == [name]
    client.delete_feedback_config(name)
    assert not list(client.list_feedback_configs(feedback_key=[name]))
