"""Routes of sign-ins: `/auth/authenticate`, `/auth/wait`, `/auth/callback` and `/auth/setup`. Agents obtain tokens of
their users here.
"""

from __future__ import annotations

from html import escape
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from moorage.control.records.oauth import ProviderId
from moorage.control.records.oauth_tokens import (
    WAIT_S_MAX,
    AuthAuthenticateRequest,
    AuthAuthenticateResponse,
    AuthWaitResponse,
    OAuthFinalizeRequest,
)
from moorage.control.routes.rooms import REFUSED, control
from moorage.http.access import needs
from moorage.http.answers import json_answer
from moorage.http.operations import operation
from moorage.http.requests import read_json, read_number
from moorage.kernel.access import Caller, Scope
from moorage.kernel.errors import BadRequestError, MoorageError

router = APIRouter(prefix="/auth", tags=["Auth Service (v2)"])

_USE = Scope.OAUTH_TOKENS_USE
_STATE_CHARS_MAX = 512
_CODE_CHARS_MAX = 8192
_PAGE_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",  # the address of the page holds the code
    "x-content-type-options": "nosniff",
}
_TEXT: dict[str, Any] = {"type": "string"}
_HANDED_BACK = {"code": _TEXT, "state": _TEXT, "error": _TEXT, "error_description": _TEXT, "iss": _TEXT}
_SET_UP = {**_HANDED_BACK, "setup_action": _TEXT, "installation_id": {"type": "integer"}}


@router.post(
    "/authenticate",
    **operation(body=AuthAuthenticateRequest, gives=AuthAuthenticateResponse, errors=(*REFUSED, 404, 422, 503)),
)
async def authenticate(request: Request, caller: Caller = needs(_USE)) -> Response:
    """Give the token of a user, or the address where they sign in to bring one."""
    asked = await read_json(request, AuthAuthenticateRequest)
    return _secret(json_answer(await control(request).sign_ins.authenticate(caller, asked)))


@router.get(
    "/wait/{auth_id}",
    **operation(
        gives=AuthWaitResponse,
        errors=(*REFUSED, 422),
        query={"timeout": {"type": "integer", "minimum": 0, "maximum": WAIT_S_MAX, "default": 30}},
    ),
)
async def wait_for_auth_completion(request: Request, auth_id: str, caller: Caller = needs(_USE)) -> Response:
    """Wait until a sign-in has ended, and give its token. `timeout` is in seconds."""
    timeout_s = read_number(request, "timeout", 30, 0, WAIT_S_MAX)
    return _secret(json_answer(await control(request).sign_ins.wait(caller, auth_id, timeout_s)))


@router.get("/callback/{provider_id}", **operation(text=True, errors=(400, 422, 502), query=_HANDED_BACK))
async def oauth_callback_get(request: Request, provider_id: ProviderId) -> Response:
    """End a sign-in in the user's browser, where the provider sends it with a code and the state."""
    return await _page(request, provider_id)


@router.get("/setup/{provider_id}", **operation(text=True, errors=(400, 422, 502), query=_SET_UP))
async def oauth_setup_callback(request: Request, provider_id: ProviderId) -> Response:
    """End the set-up of an app at the provider, and the sign-in that it may bring."""
    if "code" not in request.query_params and request.query_params.get("setup_action"):
        return _shown("The app is set up. You can close this page.", 200)
    return await _page(request, provider_id)


@router.post("/callback/{provider_id}", **operation(body=OAuthFinalizeRequest, errors=(*REFUSED, 400, 422, 502)))
async def oauth_callback(request: Request, provider_id: ProviderId, caller: Caller = needs(_USE)) -> Response:
    """End a sign-in that the same caller began, with the code and state that the provider handed back."""
    told = await read_json(request, OAuthFinalizeRequest)
    await control(request).sign_ins.finish(provider_id, told.state, code=told.code, caller=caller)
    return json_answer({"status": "completed"})


async def _page(request: Request, provider_id: str) -> Response:
    """Finish the sign-in and answer with a page, since a person reads it. The page repeats nothing of the address."""
    told = request.query_params
    code, state = told.get("code"), told.get("state", "")
    try:
        if len(state) > _STATE_CHARS_MAX or len(code or "") > _CODE_CHARS_MAX:
            raise BadRequestError("The provider handed back more than can be read")
        code = None if "error" in told else code
        await control(request).sign_ins.finish(provider_id, state, code=code or None, issuer=told.get("iss"))
    except MoorageError as error:
        return _shown(f"You are not signed in. {error}.", error.status)
    return _shown("You are signed in. You can close this page.", 200)


def _shown(text: str, status: int) -> Response:
    page = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Sign-in</title><p>{escape(text)}</p></html>'
    return HTMLResponse(page, status, _PAGE_HEADERS)


def _secret(answer: Response) -> Response:
    """Forbid caches to keep the answer, since it may contain a token."""
    answer.headers["cache-control"] = "no-store"
    return answer
