"""The web application without routes: error bodies, CORS, limits, start and stop. It imports nothing of the rooms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Match

from moorage import __version__
from moorage.http import docs
from moorage.http.answers import AGENT_ERRORS, ErrorForm, error_answer, json_answer
from moorage.http.missing import NOTHING, Missing
from moorage.http.operations import describe_operations
from moorage.http.request_limits import LimitRequests, RequestLimits
from moorage.http.validation import InvalidFieldsError, items_of
from moorage.kernel.errors import InvalidRequestError, MoorageError, NotServedError
from moorage.kernel.request_cost import MemoryBudget

log = structlog.get_logger(__name__)

# Response headers that clients in browsers may read.
_EXPOSED = ["Location", "Content-Location", "x-pagination-total", "x-pagination-next", "x-request-id"]
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
_METHODS_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})


# The status that web servers log for a client that has disconnected. Nobody reads the answer.
_CLIENT_LEFT = 499


def make_application(
    *,
    title: str,
    limits: RequestLimits,
    cors_origins: list[str],
    cors: Mapping[str, Any] | None = None,
    missing: Missing = NOTHING,
    errors: ErrorForm = AGENT_ERRORS,
) -> FastAPI:
    """Make the application. `cors` are further arguments of Starlette's CORSMiddleware, which override the usual ones.

    Without `cors` and `cors_origins`, browsers may not call from other origins.
    """
    # FastAPI's own documentation pages load scripts from another origin.
    app = FastAPI(title=title, version=__version__, redirect_slashes=False, openapi_url=None)
    app.state.limits, app.state.budget = limits, MemoryBudget(limits.held_bytes_max)
    app.state.errors = errors
    app.state.cors_origins = frozenset((cors or {}).get("allow_origins", cors_origins))
    app.state.missing = missing
    app.state.rate_limit = None
    app.state.audit = None
    if cors_origins or cors:
        usual = {"allow_origins": cors_origins, "allow_methods": ["*"], "allow_headers": ["*"], "max_age": 600}
        app.add_middleware(CORSMiddleware, **{**usual, "expose_headers": _EXPOSED, **(cors or {})})
    app.add_middleware(LimitRequests, limits=limits, budget=app.state.budget, errors=errors)
    app.add_exception_handler(MoorageError, _on_own_error)  # type: ignore[arg-type]
    app.add_exception_handler(RequestValidationError, _on_invalid_parameters)  # type: ignore[arg-type]
    app.add_exception_handler(ClientDisconnect, _on_client_left)
    app.add_exception_handler(HTTPException, _on_http_error)  # type: ignore[arg-type]
    app.add_exception_handler(Exception, _on_crash)
    describe_operations(app, errors.schema)
    app.include_router(docs.router)
    return app


async def _on_own_error(request: Request, error: MoorageError) -> Response:
    if error.status >= 500:
        log.error("request failed", method=request.method, path=request.url.path, error=str(error))
    if isinstance(error, InvalidRequestError) and not error.place and request.method not in _METHODS_WITH_BODY:
        error.place = ("query",)  # the verb that raised it does not know where its argument came from
    return error_answer(error, request.app.state.errors)


async def _on_invalid_parameters(request: Request, error: RequestValidationError) -> Response:
    """Answer parameters that FastAPI refused. FastAPI's own answer would echo the values that were sent."""
    found = InvalidFieldsError(str(error.errors()[0]["msg"]), items_of(error.errors()))
    return error_answer(found, request.app.state.errors)


async def _on_client_left(request: Request, error: Exception) -> Response:
    return Response(status_code=_CLIENT_LEFT)


async def _on_http_error(request: Request, error: HTTPException) -> Response:
    headers = error.headers
    if error.status_code in {404, 405} and (what := request.app.state.missing.find(request.method, request.url.path)):
        return error_answer(
            NotServedError(f"This version of moorage does not serve {what} yet"), request.app.state.errors
        )
    if error.status_code == 405:  # Starlette lists only the methods of the first route with this path
        headers = {"Allow": ", ".join(method for method in _METHODS if _serves(request, method))}
    return json_answer({"detail": error.detail}, error.status_code, headers)


def _serves(request: Request, method: str) -> bool:
    scope = {**request.scope, "method": method}
    return any(route.matches(scope)[0] is Match.FULL for route in request.app.routes)


async def _on_crash(request: Request, error: Exception) -> Response:
    """Answer without details. Starlette raises the error again, which logs the traceback."""
    # Starlette raises the error again after this answer, and uvicorn drops the connection, so the client must not reuse
    # it.
    return PlainTextResponse("Internal Server Error", 500, {"Connection": "close"})
