"""Answers: JSON bodies, pages, and the one body that errors have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import Response

from moorage.kernel.encoding import encode
from moorage.kernel.errors import MoorageError


def json_answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(encode(value), status, headers, "application/json")


def page_answer(rows: Sequence[Any], limit: int, offset: int) -> Response:
    """A bare array of up to `limit` rows out of `limit + 1` read; the headers tell whether there are more.

    `x-pagination-total` is offset + rows, plus one when there is more: what current clients see, not a full count.
    """
    shown = rows[:limit]
    more = len(rows) > limit
    headers = {"x-pagination-total": str(offset + len(shown) + more)}
    if more:
        headers["x-pagination-next"] = str(offset + limit)
    return json_answer(shown, headers=headers)


def error_answer(error: MoorageError) -> Response:
    headers = {"Retry-After": "1"} if error.status == 503 else None
    return json_answer({"detail": str(error)}, error.status, headers)


EMPTY = b""


def empty_answer(status: int = 204) -> Response:
    return Response(EMPTY, status)
