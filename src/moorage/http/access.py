"""The authentication dependency: which credentials a request brings, and what it must hold to be served."""

from __future__ import annotations

from typing import Annotated, Any, Protocol, cast

from fastapi import Depends
from fastapi.security import APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer
from starlette.requests import HTTPConnection, Request

from moorage.http.audit import READING_METHODS, Trail, begin_change
from moorage.http.rate_limit import RateLimit
from moorage.http.session_cookie import session_of
from moorage.kernel.access import Caller, Scope

# Three alternative schemes, as the control plane's contract declares them.
_API_KEY = APIKeyHeader(name="X-API-Key", scheme_name="API Key", auto_error=False)
_TENANT_ID = APIKeyHeader(name="X-Tenant-Id", scheme_name="Tenant ID", auto_error=False)
_BEARER = HTTPBearer(scheme_name="Bearer Auth", auto_error=False)


class AccessCheck(Protocol):
    async def admit(
        self, *, api_key: str | None, bearer: str | None, tenant_id: str | None, scope: Scope | None
    ) -> Caller:
        """Raises UnauthenticatedError (401) or ForbiddenError (403)."""


async def admitted(connection: HTTPConnection, scope: Scope) -> Caller:
    """Admit a request that stays open, at its beginning or again later. A WebSocket needs a key: any page may open one with
    the session of its visitor. Raises UnauthenticatedError or ForbiddenError.
    """
    kind, _, token = connection.headers.get("authorization", "").partition(" ")
    bearer = token.strip() if kind.lower() == "bearer" else None
    api_key = connection.headers.get("x-api-key")
    if not api_key and not bearer and isinstance(connection, Request):
        bearer = session_of(connection)
    access = cast(AccessCheck, connection.app.state.access)
    tenant_id = connection.headers.get("x-tenant-id")
    return await access.admit(api_key=api_key, bearer=bearer, tenant_id=tenant_id, scope=scope)


def needs(scope: Scope | None, *, audited: bool | None = None) -> Any:
    """Return the default of a route's parameter `caller`, which admits the request. None: any valid credential.

    A request that may change something has its row in the audit log before the route runs, and is refused without one.
    `audited`: by default all methods but those that read, unless the scope only reads.
    """
    changes = not (scope or "").endswith(":read") if audited is None else audited

    async def caller(
        request: Request,
        api_key: Annotated[str | None, Depends(_API_KEY)],
        tenant_id: Annotated[str | None, Depends(_TENANT_ID)],
        bearer: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)],
    ) -> Caller:
        access = cast(AccessCheck, request.app.state.access)
        token = bearer.credentials if bearer else None
        if not api_key and not token:
            token = session_of(request)
        admitted = await access.admit(api_key=api_key, bearer=token, tenant_id=tenant_id, scope=scope)
        if limit := cast(RateLimit | None, request.app.state.rate_limit):
            limit.take(admitted.actor)
        trail = cast(Trail | None, request.app.state.audit)
        if trail and changes and request.method not in READING_METHODS:
            await begin_change(request, admitted, trail)
        return admitted

    caller.scope = scope  # type: ignore[attr-defined] # read by the test that walks every route with every scope
    return Depends(caller)
