"""The live tail over HTTP: its events, where it continues, and that it ends with its credentials."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from uuid import uuid4

import httpx
import pytest

from tests.console.runs import make_run, send
from tests.platform.serving import Platform

pytest_plugins = "tests.platform.fixtures"
pytestmark = pytest.mark.timeout(120)

TAIL = "/api/v1/runs/tail"


@pytest.fixture
def project(api: httpx.Client) -> str:
    return str(api.post("/api/v1/sessions", json={"name": f"tailed-{uuid4()}"}).json()["id"])


def events(answer: httpx.Response) -> Iterator[dict[str, str]]:
    event: dict[str, str] = {}
    for line in answer.iter_lines():
        if line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            event[name] = value
        elif event:
            yield event
            event = {}


def test_runs_come_with_ids_from_which_a_tail_goes_on(platform: Platform, api: httpx.Client, project: str) -> None:
    body = {"session": [project], "select": ["id", "name"]}
    first, second = (make_run(project, datetime.now(UTC), name, "chain") for name in ("first", "second"))
    with platform.client() as other, other.stream("POST", TAIL, json=body) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        send(api, first)
        seen = next(events(answer))
    assert (seen["event"], json.loads(seen["data"])["name"]) == ("run", "first")
    send(api, second)
    headers = {"Last-Event-ID": seen["id"]}
    with platform.client() as other, other.stream("POST", TAIL, json=body, headers=headers) as answer:
        names = (json.loads(event["data"])["name"] for event in events(answer))
        assert next(name for name in names if name != "first") == "second"


def test_a_tail_ends_soon_after_its_key(platform: Platform, api: httpx.Client, project: str) -> None:
    made = api.post("/api/v1/api-key", json={"description": "of a tail"}).json()
    headers = {"X-Api-Key": made["key"]}
    with httpx.stream(
        "POST", f"{platform.url}{TAIL}", json={"session": [project]}, headers=headers, timeout=60
    ) as answer:
        api.delete(f"/api/v1/api-key/{made['id']}").raise_for_status()
        [told] = events(answer)
    assert told["event"] == "error"
    assert "key" in json.loads(told["data"])["detail"]


@pytest.mark.parametrize(
    ("body", "headers", "status", "said"),
    [
        ({"filter": "eq("}, {}, 422, "expected"),
        ({}, {"Last-Event-ID": "yesterday"}, 400, "Last-Event-ID"),
        ({}, {"Last-Event-ID": "9" * 40}, 400, "Last-Event-ID"),
    ],
)
def test_what_cannot_be_followed_is_refused(
    api: httpx.Client, body: dict, headers: dict, status: int, said: str
) -> None:
    answer = api.post(TAIL, json=body, headers=headers)
    assert (answer.status_code, said in answer.text) == (status, True), answer.text
