"""`/workspaces/current/…`: how much a workspace holds, and whether its traces are taken."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from moorage.http.access import needs
from moorage.http.operations import operation
from moorage.kernel.access import Caller, Scope
from moorage.traces.records.workspaces import UsageLimit, WorkspaceStats
from moorage.traces.routes.answers import json_answer
from moorage.traces.routes.rooms import traces

router = APIRouter(prefix="/workspaces/current", tags=["workspaces"])


@router.get("/stats", **operation(gives=WorkspaceStats, errors=(401, 403)))
async def read_stats(request: Request, caller: Caller = needs(Scope.WORKSPACES_READ)) -> Response:
    """Count the projects of the workspace."""
    return json_answer(await traces(request).projects.workspace_stats(caller))


@router.get("/usage_limits", **operation(gives=UsageLimit, errors=(401, 403)))
async def read_usage_limits(caller: Caller = needs(Scope.WORKSPACES_READ)) -> Response:
    """Nothing is metered here, so no workspace is ever refused for how much it traced."""
    unlimited: UsageLimit = {"in_reject_set": False, "usage_limit_type": None, "tenant_limit": None}
    return json_answer(unlimited)
