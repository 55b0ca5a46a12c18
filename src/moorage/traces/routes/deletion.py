"""`/runs/delete`: traces, by id or by metadata. Unseen at once, removed soon after; hence 202. And `/ttl-settings`: how
long a workspace keeps runs. `shortlived_ttl_days` is ours; a project's own days are set on it.
"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from moorage.http.access import needs
from moorage.http.audit import name_resources
from moorage.http.operations import operation
from moorage.http.requests import read_json
from moorage.kernel.access import Caller, Scope
from moorage.traces.records.deletion import TracesDelete, TracesDeleteById, TtlSettings, TtlSettingsWrite
from moorage.traces.routes.answers import json_answer
from moorage.traces.routes.rooms import traces

router = APIRouter(prefix="/runs/delete", tags=["run"])

_ACCEPTED = {"message": "The traces are being deleted."}


@router.post("", **operation(body=TracesDelete, errors=(400, 401, 403, 404, 422), status=202))
async def delete_runs(request: Request, caller: Caller = needs(Scope.RUNS_DELETE)) -> Response:
    """Delete traces by their ids, or all with some metadata. They are gone for readers at once."""
    wanted = await read_json(request, TracesDelete)
    deletion = traces(request).deletion
    name_resources(request, [*filter(None, [wanted.session_id]), *(wanted.trace_ids or ())])
    if wanted.metadata is not None:
        await deletion.delete_with_metadata(caller, wanted.metadata)
    elif wanted.session_id is not None and wanted.trace_ids is not None:
        await deletion.delete_traces(caller, wanted.session_id, wanted.trace_ids)
    return json_answer(_ACCEPTED, 202)


@router.post("/traces", **operation(body=TracesDeleteById, errors=(400, 401, 403, 404, 422), status=202))
async def delete_traces(request: Request, caller: Caller = needs(Scope.RUNS_DELETE)) -> Response:
    """Delete traces of a project by their ids. They are gone for readers at once."""
    wanted = await read_json(request, TracesDeleteById)
    name_resources(request, [wanted.session_id, *wanted.trace_ids])
    await traces(request).deletion.delete_traces(caller, wanted.session_id, wanted.trace_ids)
    return json_answer(_ACCEPTED, 202)


# --- retention ----------------------------------------------------------------------------------------------------

retention = APIRouter(prefix="/ttl-settings", tags=["ttl-settings"])


@retention.get("", **operation(gives=list[TtlSettings], errors=(401, 403)))
async def list_ttl_settings(request: Request, caller: Caller = needs(Scope.PROJECTS_READ)) -> Response:
    """List how long the workspace and its projects keep runs."""
    return json_answer(await traces(request).retention.list_settings(caller))


@retention.put("", **operation(body=TtlSettingsWrite, gives=TtlSettings, errors=(401, 403, 404, 422)))
async def put_ttl_settings(request: Request, caller: Caller = needs(Scope.WORKSPACES_MANAGE)) -> Response:
    """Set how long the workspace or a project keeps runs."""
    wanted = await read_json(request, TtlSettingsWrite)
    return json_answer(await traces(request).retention.write_settings(caller, wanted))
