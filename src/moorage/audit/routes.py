"""`/audit-logs`: who changed what, from where and when."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, cast
from uuid import UUID

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from moorage.audit.log import AuditLog
from moorage.audit.records import AuditPage
from moorage.http.access import needs
from moorage.http.answers import json_answer
from moorage.http.operations import operation
from moorage.kernel.access import Caller, Scope

router = APIRouter(prefix="/audit-logs", tags=["audit-logs"])

OperationName = Annotated[str, Query(pattern="^[a-z0-9_]{1,64}$")]


@router.get("", **operation(gives=AuditPage, errors=(401, 403, 422)))
async def get_audit_logs(
    request: Request,
    start_time: datetime,
    end_time: datetime,
    limit: Annotated[int, Query(ge=1, le=100)] = 10,
    cursor: Annotated[str | None, Query(max_length=500)] = None,
    workspace_id: UUID | None = None,
    operations: Annotated[list[OperationName] | None, Query(max_length=100)] = None,
    caller: Caller = needs(Scope.WORKSPACES_MANAGE),
) -> Response:
    """List the changes of the workspace, newest first, in OCSF's form. An operator's key lists those of all workspaces."""
    page = await cast(AuditLog, request.app.state.audit).page(
        caller,
        _zoned(start_time),
        _zoned(end_time),
        workspace_id=workspace_id,
        operations=operations,
        cursor=cursor,
        limit=limit,
    )
    return json_answer(page)


def _zoned(moment: datetime) -> datetime:
    """Return the time with a zone. A time without one is UTC."""
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
