"""The authentication dependency: which credentials a request brings, and what it must hold to be served."""

from __future__ import annotations

from typing import Annotated, Any, Protocol, cast

from fastapi import Depends
from fastapi.security import APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer
from starlette.requests import Request

from moorage.kernel.access import Caller, Scope

# Three alternative schemes, as the control plane's contract declares them.
_API_KEY = APIKeyHeader(name="X-API-Key", scheme_name="API Key", auto_error=False)
_TENANT_ID = APIKeyHeader(name="X-Tenant-Id", scheme_name="Tenant ID", auto_error=False)
_BEARER = HTTPBearer(scheme_name="Bearer Auth", auto_error=False)


class Access(Protocol):
    async def admit(
        self, *, api_key: str | None, bearer: str | None, tenant_id: str | None, scope: Scope | None
    ) -> Caller:
        """Raises UnauthenticatedError (401) or ForbiddenError (403)."""


def needs(scope: Scope | None) -> Any:
    """Return the default of a route's parameter `caller`, which admits the request. None: any valid credential."""

    async def caller(
        request: Request,
        api_key: Annotated[str | None, Depends(_API_KEY)],
        tenant_id: Annotated[str | None, Depends(_TENANT_ID)],
        bearer: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)],
    ) -> Caller:
        access = cast(Access, request.app.state.access)
        token = bearer.credentials if bearer else None
        return await access.admit(api_key=api_key, bearer=token, tenant_id=tenant_id, scope=scope)

    caller.scope = scope  # type: ignore[attr-defined] # read by the test that walks every route with every scope
    return Depends(caller)
