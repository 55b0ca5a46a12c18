"""`/ttl-settings`: how long a workspace keeps runs. `shortlived_ttl_days` is ours; a project's own days are set on it."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from moorage.http.access import needs
from moorage.http.operations import operation
from moorage.http.requests import read_json
from moorage.kernel.access import Caller, Scope
from moorage.traces.records.retention import TtlSettings, TtlSettingsWrite
from moorage.traces.routes.answers import json_answer
from moorage.traces.routes.rooms import traces

router = APIRouter(prefix="/ttl-settings", tags=["ttl-settings"])


@router.get("", **operation(gives=list[TtlSettings], errors=(401, 403)))
async def list_ttl_settings(request: Request, caller: Caller = needs(Scope.PROJECTS_READ)) -> Response:
    """List how long the workspace and its projects keep runs."""
    return json_answer(await traces(request).retention.list_settings(caller))


@router.put("", **operation(body=TtlSettingsWrite, gives=TtlSettings, errors=(401, 403, 404, 422)))
async def put_ttl_settings(request: Request, caller: Caller = needs(Scope.WORKSPACES_MANAGE)) -> Response:
    """Set how long the workspace or a project keeps runs."""
    wanted = await read_json(request, TtlSettingsWrite)
    return json_answer(await traces(request).retention.write_settings(caller, wanted))
