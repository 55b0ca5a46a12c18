"""`/ok` and `/info`: is the server well, and what can it do."""

from __future__ import annotations

import os
from importlib.metadata import version

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from moorage.agents.records.system import Health, Info
from moorage.agents.routes.access import agents, http_rules
from moorage.agents.routes.missing import NOT_SERVED
from moorage.http.answers import json_answer
from moorage.http.operations import operation
from moorage.http.requests import read_flag

router = APIRouter(tags=["System"])

# The version of the wire that this server speaks. Studio and the frontend hooks switch features on by it.
WIRE_VERSION = "0.7.30"


@router.get("/ok", **operation(gives=Health, errors=(422, 503), query={"check_db": {"type": "boolean"}}))
async def ok(request: Request) -> Response:
    """Raises UnavailableError (503) when asked to check the database and it is away."""
    if read_flag(request, "check_db") and not http_rules(request).disable_meta:
        await agents(request).postgres.fetch_one("SELECT 1")
    failures = agents(request).graphs.failures if request.app.state.development else {}
    if failures:
        faults = {graph_id: fault.for_owner() for graph_id, fault in failures.items()}
        return json_answer({"ok": False, "services": {}, "graphs": faults})
    return json_answer({"ok": True, "services": {}})


@router.get("/", include_in_schema=False)
async def root(request: Request) -> Response:
    return await ok(request)


@router.get("/info", **operation(gives=Info))
async def info(request: Request) -> Response:
    return json_answer(
        {
            "version": WIRE_VERSION,
            "langgraph_py_version": version("langgraph"),
            "moorage_version": version("moorage"),
            "not_served": sorted(NOT_SERVED),
            "flags": {
                "assistants": True,
                "crons": True,
                "langsmith": False,
                "langsmith_tracing_replicas": False,
                "langsmith_tracing_session_on_runs": False,
            },
            "host": {
                "kind": "self-hosted",
                "project_id": os.environ.get("LANGSMITH_HOST_PROJECT_ID"),
                "host_revision_id": os.environ.get("LANGSMITH_HOST_REVISION_ID"),
                "revision_id": os.environ.get("LANGSMITH_LANGGRAPH_REVISION_ID"),
                "tenant_id": os.environ.get("LANGSMITH_TENANT_ID"),
            },
            "metadata": {},
        }
    )
