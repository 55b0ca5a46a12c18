"""Logs of deployments, by revision and by deployment."""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Query
from starlette.requests import Request
from starlette.responses import Response

from moorage.control.records.logs import PAGE_MAX, DeploymentLogs, Level, LogKind, LogPage, LogQuery, Moment
from moorage.control.routes.rooms import REFUSED, control
from moorage.http.access import needs
from moorage.http.answers import json_answer
from moorage.http.operations import operation
from moorage.kernel.access import Caller, Scope

router = APIRouter(tags=["Deployments (v2)"])

Order = Literal["asc", "desc"]
Cursor = Annotated[str | None, Query(max_length=200)]
Sought = Annotated[str | None, Query(max_length=1000)]
RunId = Annotated[str | None, Query(max_length=64)]


def _conditions(
    start_time: Moment | None = None,
    end_time: Moment | None = None,
    query: Sought = None,
    level: Level | None = None,
    run_id: RunId = None,
) -> LogQuery:
    """Return the conditions in the parameters that both operations have in common."""
    return LogQuery(start_time=start_time, end_time=end_time, query=query, level=level, run_id=run_id)


Conditions = Annotated[LogQuery, Depends(_conditions)]


@router.get(
    "/deployments/{deployment_id}/revisions/{revision_id}/logs", **operation(gives=LogPage, errors=(*REFUSED, 404, 422))
)
async def list_revision_logs(
    request: Request,
    conditions: Conditions,
    deployment_id: UUID,
    revision_id: UUID,
    log_type: Annotated[LogKind, Query(alias="type")],
    order: Order = "asc",
    limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 50,
    offset: Cursor = None,
    caller: Caller = needs(Scope.DEPLOYMENTS_READ),
) -> Response:
    """List the log lines of a revision. `level` means this level and worse."""
    wanted = conditions.model_copy(update={"order": order, "limit": limit, "offset": offset})
    return json_answer(await control(request).logs.page(caller, deployment_id, revision_id, log_type, wanted))


@router.get("/deployment-logs", **operation(gives=DeploymentLogs, errors=(*REFUSED, 404, 422)))
async def list_deployment_logs(
    request: Request,
    conditions: Conditions,
    deployment_id: UUID,
    revision_id: UUID | None = None,
    log_type: Literal["BUILD", "DEPLOY"] = "DEPLOY",
    sort_order: Order = "asc",
    page_size: Annotated[int, Query(ge=1, le=100)] = 20,
    cursor: Cursor = None,
    caller: Caller = needs(Scope.DEPLOYMENTS_READ),
) -> Response:
    """List the lines of all revisions of a deployment. Order, page size and cursor have names of their own here."""
    wanted = conditions.model_copy(update={"order": sort_order, "limit": page_size, "offset": cursor})
    page = await control(request).logs.page(caller, deployment_id, revision_id, LogKind(log_type.lower()), wanted)
    return json_answer({"items": page["logs"], "next_cursor": page["next_offset"]})
