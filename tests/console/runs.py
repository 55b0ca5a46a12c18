"""Traces for tests of the console, and the addresses of its pages."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import httpx

from tests.platform.serving import Platform

HOSTILE = (
    '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>\x1b[31mred\u202egnp.exe '
    "[look](javascript:window.hacked=1) javascript:window.hacked=1"
)


def make_run(
    project: str,
    begun: datetime,
    name: str,
    kind: str,
    error: str | None = None,
    parent: dict | None = None,
    **more: Any,
) -> dict:
    run_id = uuid4()
    order = f"{begun:%Y%m%dT%H%M%S%f}Z{run_id}"
    return {
        "id": str(run_id),
        "trace_id": parent["trace_id"] if parent else str(run_id),
        "parent_run_id": parent["id"] if parent else None,
        "dotted_order": f"{parent['dotted_order']}.{order}" if parent else order,
        "name": name,
        "run_type": kind,
        "session_id": project,
        "start_time": begun.isoformat(),
        "end_time": (begun + timedelta(milliseconds=200)).isoformat(),
        "inputs": {"messages": [{"role": "user", "content": f"which berth? {HOSTILE}"}]},
        "outputs": {"answer": "berth 4"},
        "error": error,
        "extra": {"metadata": {"ship": "Gudrun"}},
        "tags": ["console"],
        **more,
    }


def send(api: httpx.Client, *runs: dict) -> None:
    answer = api.post("/api/v1/runs/batch", json={"post": runs, "patch": []})
    assert answer.status_code == 202, answer.text


def wait_for_runs(api: httpx.Client, **search: Any) -> None:
    """Wait until the search finds something."""
    deadline = time.monotonic() + 30
    while not api.post("/api/v1/runs/query", json=search).json()["runs"]:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def place(platform: Platform, path: str = "") -> str:
    return f"{platform.url}/o/{platform.workspace_id}{path}"
