"""The authentication dependency: reads a request's credentials, and checks the scope that its route needs."""

from __future__ import annotations

from typing import Annotated, Any, Protocol, cast

from fastapi import Depends
from fastapi.security import APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer
from starlette.requests import HTTPConnection, Request

from moorage.http.audit import READING_METHODS, Trail, begin_change
from moorage.http.rate_limit import RateLimit
from moorage.http.session_cookie import session_of
from moorage.kernel.access import Caller, Scope

# Three alternative security schemes, as in the control plane's OpenAPI document.
_API_KEY = APIKeyHeader(name="X-API-Key", scheme_name="API Key", auto_error=False)
_TENANT_ID = APIKeyHeader(name="X-Tenant-Id", scheme_name="Tenant ID", auto_error=False)
_BEARER = HTTPBearer(scheme_name="Bearer Auth", auto_error=False)


class AccessCheck(Protocol):
    async def admit(
        self, *, api_key: str | None, bearer: str | None, tenant_id: str | None, scope: Scope | None
    ) -> Caller:
        """Return the caller. Raises UnauthenticatedError (401) or ForbiddenError (403)."""


async def admitted(connection: HTTPConnection, scope: Scope) -> Caller:
    """Admit a long-lived request, at its beginning or again later.

    A WebSocket needs a key, since any page could open one with its visitor's session. Raises UnauthenticatedError or
    ForbiddenError.
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
    """Return the default of a route's parameter `caller`, which admits the request. With the scope None, any valid
    credential is enough.

    A request that may change something gets a row in the audit log before its route runs, and is refused if that fails.
    `audited` overrides the default: every method except reading ones, unless the scope only reads.
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
