"""Errors of v2 of the wire: RFC 7807, with a `remedy` that says what the caller can do."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from moorage.http.validation import ErrorItem, InvalidFieldsError, items_of
from moorage.kernel.encoding import encode
from moorage.kernel.errors import MoorageError

_REMEDIES = {
    400: "Change the request as the detail says.",
    401: "Send an API key of this installation as X-API-Key.",
    403: "Use a key of this workspace that holds the scope which the operation needs.",
    404: "Check the id, and that it belongs to the workspace of the key.",
    413: "Send a smaller body.",
    422: "Change the fields that the detail names.",
    503: "Try again in a moment.",
}


class ProblemRoute(APIRoute):
    """A route whose errors have that form."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def answer_or_problem(request: Request) -> Response:
            try:
                return await answer(request)
            except RequestValidationError as error:
                return _problem(request, 422, _places(items_of(error.errors())))
            except InvalidFieldsError as error:
                return _problem(request, error.status, _places(error.items))
            except MoorageError as error:
                return _problem(request, error.status, str(error))

        return answer_or_problem


def _problem(request: Request, status: int, detail: str) -> Response:
    problem = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "instance": request.url.path,
        "remedy": _REMEDIES.get(status, "Report this if it stays."),
    }
    headers = {"Retry-After": "1"} if status == 503 else None
    return Response(encode(problem), status, headers, "application/problem+json")


def _places(items: list[ErrorItem]) -> str:
    return "; ".join(f"{'.'.join(map(str, item['loc'][1:]))}: {item['msg']}" for item in items)
