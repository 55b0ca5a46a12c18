"""`/workspaces`, `/api-key`, `/settings`, `/auth`: who calls, and with what. Paths and fields are those that clients know.

What moorage adds: `scopes` of a key, `plan` and `api_key` of a workspace, and the operations of `/auth` and `/master-key`.
"""

from __future__ import annotations

from typing import cast

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from moorage.accounts.records import (
    ApiKey,
    ApiKeyCreate,
    CallerFacts,
    HandleChange,
    ListedWorkspace,
    Login,
    LoginLink,
    Member,
    NewApiKey,
    NewWorkspace,
    RevokedKeys,
    Rotation,
    Settings,
    Token,
    TokenCreate,
    Workspace,
    WorkspaceCreate,
    WorkspacePatch,
)
from moorage.accounts.revocations import WAIT_S_MAX
from moorage.accounts.room import Accounts
from moorage.accounts.sessions import SESSION_LIFE_S
from moorage.http.access import needs
from moorage.http.answers import empty_answer, json_answer
from moorage.http.operations import operation
from moorage.http.requests import UuidText, read_json, read_number, read_uuid
from moorage.http.session_cookie import check_same_origin, forget_session, keep_session
from moorage.kernel.access import Scope

router = APIRouter()
# Served at the root only, beside the pages of the console.
login_router = APIRouter()

_NO_STORE = {"Cache-Control": "no-store"}
_REFUSED = (401, 403)


def _accounts(request: Request) -> Accounts:
    return cast(Accounts, request.app.state.accounts)


# --- workspaces -------------------------------------------------------------------------------------------------------


@router.get("/workspaces", tags=["workspaces"], **operation(gives=list[ListedWorkspace], errors=_REFUSED))
async def list_workspaces(request: Request, caller: Member = needs(Scope.WORKSPACES_READ)) -> Response:
    """List the workspaces that the key opens."""
    return json_answer(await _accounts(request).workspaces.list(caller))


@router.post(
    "/workspaces",
    tags=["workspaces"],
    **operation(body=WorkspaceCreate, gives=NewWorkspace, errors=(*_REFUSED, 409, 422)),
)
async def create_workspace(request: Request, caller: Member = needs(Scope.OPERATOR)) -> Response:
    """Make a workspace. The answer holds its first key, this once."""
    new = await read_json(request, WorkspaceCreate)
    return json_answer(await _accounts(request).workspaces.create(caller, new), headers=_NO_STORE)


@router.patch(
    "/workspaces/{workspace_id}",
    tags=["workspaces"],
    **operation(body=WorkspacePatch, gives=Workspace, errors=(*_REFUSED, 404, 409, 422)),
)
async def patch_workspace(
    request: Request, workspace_id: UuidText, caller: Member = needs(Scope.WORKSPACES_MANAGE)
) -> Response:
    """Change the name that a workspace is shown by."""
    found = read_uuid(workspace_id, "Invalid workspace id: must be a UUID", "path", "workspace_id")
    patch = await read_json(request, WorkspacePatch)
    return json_answer(await _accounts(request).workspaces.update(caller, found, patch))


@router.get("/settings", tags=["settings"], **operation(gives=Settings, errors=_REFUSED))
async def get_settings(request: Request, caller: Member = needs(Scope.WORKSPACES_READ)) -> Response:
    """Return the caller's workspace. The SDKs ask for it to learn where they are."""
    return json_answer(await _accounts(request).workspaces.settings(caller))


@router.post(
    "/settings/handle",
    tags=["settings"],
    **operation(body=HandleChange, gives=Settings, errors=(*_REFUSED, 409, 422)),
)
async def set_handle(request: Request, caller: Member = needs(Scope.WORKSPACES_MANAGE)) -> Response:
    """Give the workspace a handle, a short name that no other workspace has."""
    change = await read_json(request, HandleChange)
    return json_answer(await _accounts(request).workspaces.set_handle(caller, change.tenant_handle))


# --- keys and tokens --------------------------------------------------------------------------------------------------


@router.get("/api-key", tags=["api-key"], **operation(gives=list[ApiKey], errors=_REFUSED))
async def list_api_keys(request: Request, caller: Member = needs(Scope.KEYS_MANAGE)) -> Response:
    """List the API keys of the workspace, without the keys themselves."""
    return json_answer(await _accounts(request).keys.list(caller))


@router.post(
    "/api-key", tags=["api-key"], **operation(body=ApiKeyCreate, gives=NewApiKey, errors=(*_REFUSED, 404, 422))
)
async def create_api_key(request: Request, caller: Member = needs(Scope.KEYS_MANAGE)) -> Response:
    """Make an API key. The answer holds the key itself, this once."""
    new = await read_json(request, ApiKeyCreate)
    return json_answer(await _accounts(request).keys.create(caller, new), headers=_NO_STORE)


@router.delete("/api-key/{api_key_id}", tags=["api-key"], **operation(gives=ApiKey, errors=(*_REFUSED, 404, 422)))
async def revoke_api_key(request: Request, api_key_id: UuidText, caller: Member = needs(Scope.KEYS_MANAGE)) -> Response:
    """Revoke an API key. It stops working within 2 seconds, on deployed agents too."""
    found = read_uuid(api_key_id, "Invalid API key id: must be a UUID", "path", "api_key_id")
    return json_answer(await _accounts(request).keys.revoke(caller, found))


@router.get("/auth", tags=["auth"], **operation(gives=CallerFacts, errors=_REFUSED))
async def get_caller(caller: Member = needs(None)) -> Response:
    """Return the caller, its rights and their end. Deployed agents ask this about their own callers."""
    facts: CallerFacts = {
        "workspace_id": caller.workspace_id,
        "actor": caller.actor,
        "scopes": sorted(caller.scopes),
        "expires_at": caller.expires_at,
    }
    return json_answer(facts, headers=_NO_STORE)


@router.get(
    "/auth/revocations",
    tags=["auth"],
    **operation(
        gives=RevokedKeys,
        errors=(*_REFUSED, 422),
        query={"after": {"type": "string"}, "wait_seconds": {"type": "integer", "minimum": 0, "maximum": WAIT_S_MAX}},
    ),
)
async def list_revocations(request: Request, caller: Member = needs(None)) -> Response:
    """List the keys of the workspace that were revoked after the cursor `after`; without one, in the last hour.

    While there are none, the answer waits for up to `wait_seconds`. Deployed agents follow this.
    """
    wait_s = read_number(request, "wait_seconds", 0, 0, WAIT_S_MAX)
    cursor = request.query_params.get("after", "")
    page = await _accounts(request).revocations.page(caller.workspace_id, cursor, wait_s)
    return json_answer(page, headers=_NO_STORE)


@router.post("/auth/token", tags=["auth"], **operation(body=TokenCreate, gives=Token, errors=(*_REFUSED, 422)))
async def create_token(request: Request, caller: Member = needs(Scope.WORKSPACES_READ, audited=True)) -> Response:
    """Make a bearer token that stands for the caller's API key for a while, with all of its scopes or fewer."""
    wanted = await read_json(request, TokenCreate)
    return json_answer(_accounts(request).tokens.exchange(caller, wanted), headers=_NO_STORE)


@router.post("/master-key/rotate", tags=["auth"], **operation(gives=Rotation, errors=_REFUSED))
async def rotate_master_key(request: Request, caller: Member = needs(Scope.OPERATOR)) -> Response:
    """Encrypt with the newest master key what older ones encrypted, in all workspaces. Shows no secret."""
    return json_answer(await _accounts(request).rotation.rotate())


# --- the console's session --------------------------------------------------------------------------------------------


@router.post("/auth/login-link", tags=["auth"], **operation(gives=LoginLink, errors=_REFUSED))
async def create_login_link(request: Request, caller: Member = needs(None)) -> Response:
    """Make a link that opens the console once, within an hour, with the rights of the caller's key."""
    return json_answer(await _accounts(request).sessions.link(caller), headers=_NO_STORE)


@login_router.post("/login", tags=["auth"], **operation(body=Login, errors=(*_REFUSED, 422), status=204))
async def sign_in(request: Request) -> Response:
    """Open a session of the console with an API key or a link: the answer sets its cookie. Only for pages of this server."""
    check_same_origin(request)
    login, accounts = await read_json(request, Login), _accounts(request)
    if login.code is not None:
        session = await accounts.sessions.open_by_code(login.code)
    else:
        caller = await request.app.state.access.admit(api_key=login.api_key, bearer=None, tenant_id=None, scope=None)
        session = accounts.sessions.open(caller)
    answer = empty_answer()
    keep_session(answer, session, SESSION_LIFE_S, is_https=request.url.scheme == "https")
    return answer


@login_router.delete("/login", tags=["auth"], **operation(errors=(403,), status=204))
async def sign_out(request: Request) -> Response:
    """Forget the session: the answer removes its cookie. Only for pages of this server."""
    check_same_origin(request)
    answer = empty_answer()
    forget_session(answer)
    return answer
