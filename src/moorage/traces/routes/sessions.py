"""`/sessions`: projects. Beside the contract a project shows `stored_runs`, `stored_bytes` and `longlived_ttl_days`.
And `/workspaces/current/…`: how much a workspace holds, and whether its traces are taken.
"""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from moorage.http.access import needs
from moorage.http.operations import operation
from moorage.http.requests import read_json
from moorage.kernel.access import Caller, Scope
from moorage.traces.records.projects import (
    AddressSearch,
    MetadataSearch,
    Project,
    ProjectCreate,
    ProjectPatch,
    ProjectSearch,
    ProjectWithStats,
    ResolvedAddress,
    UsageLimit,
    WorkspaceStats,
)
from moorage.traces.records.words import At
from moorage.traces.routes.answers import json_answer, page_answer
from moorage.traces.routes.rooms import traces

router = APIRouter(prefix="/sessions", tags=["tracer-sessions"])

_REFUSED = (401, 403)
Reader = Annotated[Caller, needs(Scope.PROJECTS_READ)]
Writer = Annotated[Caller, needs(Scope.PROJECTS_WRITE)]
Deleter = Annotated[Caller, needs(Scope.PROJECTS_DELETE)]
Ids = Annotated[list[UUID], Query(min_length=1, max_length=1000)]


@router.post("", **operation(body=ProjectCreate, gives=Project, errors=(*_REFUSED, 409, 422)))
async def create_session(request: Request, caller: Writer, upsert: bool = False) -> Response:
    """Make a project."""
    new = await read_json(request, ProjectCreate)
    return json_answer(await traces(request).projects.create(caller, new, upsert=upsert))


@router.get("", **operation(gives=list[ProjectWithStats], errors=(*_REFUSED, 422)))
async def list_sessions(request: Request, search: Annotated[ProjectSearch, Query()], caller: Reader) -> Response:
    """List projects, with statistics of their runs if asked for."""
    found = await traces(request).projects.list(caller, search)
    return page_answer(found, search.limit, search.offset)


@router.delete("", **operation(errors=(*_REFUSED, 404, 422), status=202))
async def delete_sessions(request: Request, session_ids: Ids, caller: Deleter) -> Response:
    """Delete several projects with their runs and feedback."""
    await traces(request).deletion.delete_projects(caller, session_ids)
    return json_answer({"message": "Tracer sessions deleted; what they held is being removed."}, 202)


# Before `/{session_id}`, which would match its path.
@router.get("/resolutions", **operation(gives=ResolvedAddress, errors=(*_REFUSED, 404, 422)))
async def resolve_address(request: Request, address: Annotated[AddressSearch, Query()], caller: Reader) -> Response:
    """Return the project that an address of newer clients stands for."""
    return json_answer(await traces(request).projects.resolve(caller, address))


@router.get("/{session_id}", **operation(gives=ProjectWithStats, errors=(*_REFUSED, 404, 422)))
async def get_session(
    request: Request,
    session_id: UUID,
    caller: Reader,
    include_stats: bool = False,
    stats_start_time: At | None = None,
) -> Response:
    """Return a project, with statistics of its runs if asked for."""
    asked = ProjectSearch(include_stats=include_stats, facets=include_stats, stats_start_time=stats_start_time)
    return json_answer(await traces(request).projects.get(caller, session_id, asked))


@router.patch("/{session_id}", **operation(body=ProjectPatch, gives=Project, errors=(*_REFUSED, 404, 409, 422)))
async def patch_session(request: Request, session_id: UUID, caller: Writer) -> Response:
    """Change fields of a project."""
    patch = await read_json(request, ProjectPatch)
    return json_answer(await traces(request).projects.update(caller, session_id, patch))


@router.delete("/{session_id}", **operation(errors=(*_REFUSED, 404, 422), status=202))
async def delete_session(request: Request, session_id: UUID, caller: Deleter) -> Response:
    """Delete a project with its runs and feedback."""
    await traces(request).deletion.delete_projects(caller, [session_id])
    return json_answer({"message": "Tracer session deleted; what it held is being removed."}, 202)


@router.get("/{session_id}/metadata", **operation(gives=dict[str, list[str]], errors=(*_REFUSED, 404, 422)))
async def get_session_metadata(
    request: Request, session_id: UUID, search: Annotated[MetadataSearch, Query()], caller: Reader
) -> Response:
    """Return the most frequent values of metadata keys in a project."""
    return json_answer(await traces(request).projects.metadata(caller, session_id, search))


# --- workspaces ---------------------------------------------------------------------------------------------------

workspaces = APIRouter(prefix="/workspaces/current", tags=["workspaces"])


@workspaces.get("/stats", **operation(gives=WorkspaceStats, errors=(401, 403)))
async def read_stats(request: Request, caller: Caller = needs(Scope.WORKSPACES_READ)) -> Response:
    """Count the projects of the workspace."""
    return json_answer(await traces(request).projects.workspace_stats(caller))


@workspaces.get("/usage_limits", **operation(gives=UsageLimit, errors=(401, 403)))
async def read_usage_limits(caller: Caller = needs(Scope.WORKSPACES_READ)) -> Response:
    """Nothing is metered here, so no workspace is ever refused for how much it traced."""
    unlimited: UsageLimit = {"in_reject_set": False, "usage_limit_type": None, "tenant_limit": None}
    return json_answer(unlimited)
