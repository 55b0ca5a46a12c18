"""Answers: JSON bodies, pages, and the error bodies of the two families of APIs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from moorage.http.operations import ErrorBody, PlatformErrorBody
from moorage.http.validation import ErrorItem, InvalidFieldsError
from moorage.kernel.encoding import encode
from moorage.kernel.errors import InvalidRequestError, MoorageError


def json_answer(
    value: Any,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    encode: Callable[[Any], bytes] = encode,
) -> Response:
    return Response(encode(value), status, headers, "application/json")


def page_answer(rows: Sequence[Any], limit: int, offset: int, encode: Callable[[Any], bytes] = encode) -> Response:
    """Return a bare array of up to `limit` rows out of `limit + 1` read. The headers tell whether there are more.

    `x-pagination-total` is offset + rows, plus one if there are more: the value that current clients expect, not a full
    count.
    """
    shown = rows[:limit]
    more = len(rows) > limit
    headers = {"x-pagination-total": str(offset + len(shown) + more)}
    if more:
        headers["x-pagination-next"] = str(offset + limit)
    return json_answer(shown, headers=headers, encode=encode)


@dataclass(frozen=True)
class ErrorForm:
    """The error body of a family of APIs, and its schema."""

    body: Callable[[MoorageError], Mapping[str, Any]]
    schema: type


def _agent_body(error: MoorageError) -> Mapping[str, Any]:
    """Return the error's own `detail`, never a list of items: clients of agent servers show it unchanged."""
    return {"detail": error.detail}


def _platform_body(error: MoorageError) -> Mapping[str, Any]:
    """Return a string, or a list of items for a request of the wrong shape. Clients compare the code in `error`."""
    return {"detail": _items(error) if isinstance(error, InvalidRequestError) else str(error), "error": error.code}


def _items(error: InvalidRequestError) -> list[ErrorItem]:
    if isinstance(error, InvalidFieldsError):
        return error.items
    return [{"loc": list(error.place or ("body",)), "msg": str(error), "type": "value_error"}]


AGENT_ERRORS = ErrorForm(_agent_body, ErrorBody)
PLATFORM_ERRORS = ErrorForm(_platform_body, PlatformErrorBody)


def error_answer(error: MoorageError, form: ErrorForm) -> Response:
    headers = error.headers or ({"Retry-After": "1"} if error.status == 503 else None)
    return json_answer(form.body(error), error.status, headers)


EMPTY = b""


def empty_answer(status: int = 204) -> Response:
    return Response(EMPTY, status)
