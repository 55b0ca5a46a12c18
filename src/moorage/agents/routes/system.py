"""`/ok`, `/info` and `/metrics`: health, capabilities and metrics of the server."""

from __future__ import annotations

import os
from importlib.metadata import version
from urllib.parse import urlsplit

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from moorage.agents.records.system import Health, Info, Truncation
from moorage.agents.records.words import JsonObject
from moorage.agents.routes.missing import NOT_SERVED
from moorage.agents.routes.rooms import agents, http_rules
from moorage.agents.truncation import truncate
from moorage.http import console
from moorage.http.answers import json_answer
from moorage.http.metrics import CONTENT_TYPE
from moorage.http.operations import operation
from moorage.http.requests import read_choice, read_flag, read_json
from moorage.kernel.errors import ForbiddenError

# Under `dev` only.
development_router = APIRouter(include_in_schema=False)
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_FORMATS = ("prometheus", "json")
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
    """The playground for browsers, under `dev`; `/ok` for everyone else."""
    if request.app.state.has_console and "text/html" in request.headers.get("accept", ""):
        return await console.page()
    return await ok(request)


@router.get(
    "/metrics",
    **operation(gives=JsonObject, text=True, errors=(422, 503), query={"format": {"enum": list(_FORMATS)}}),
)
async def metrics(request: Request) -> Response:
    """Return metrics for Prometheus, or as JSON. The queue covers all processes; other metrics cover the answering process."""
    if read_choice(request, "format", _FORMATS, "prometheus") == "json":
        return json_answer(await agents(request).metrics.json())
    return Response(await agents(request).metrics.text(), media_type=CONTENT_TYPE)


@router.get("/info", **operation(gives=Info))
async def info(request: Request) -> Response:
    """Return versions of the server and what it can do."""
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


@development_router.post("/internal/truncate")
async def truncate_all(request: Request) -> Response:
    """Remove all rows of a development server, for tests of clients. Refused to web pages, which any browser may have
    open.
    """
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).hostname not in _LOOPBACK:
        raise ForbiddenError("Web pages may not truncate a development server")
    room = agents(request)
    await truncate(room.postgres, room.assistants, room.runs, await read_json(request, Truncation))
    return json_answer({"ok": True})
