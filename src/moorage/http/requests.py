"""Reading and validating requests: bodies within their limit, identifiers, query parameters."""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar
from uuid import UUID

from fastapi import Path
from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from moorage.http.request_limits import cost_of, limits_of
from moorage.http.validation import InvalidFieldsError, describe, items_of
from moorage.kernel.encoding import decode
from moorage.kernel.errors import BodyTooLargeError, InvalidRequestError
from moorage.kernel.request_cost import parse

Model = TypeVar("Model", bound=BaseModel)
# An identifier in a path. The document describes its format, and `read_uuid` checks it.
UuidText = Annotated[str, Path(json_schema_extra={"format": "uuid"})]

# Further errors of one body are counted but not listed, since each takes more memory than the value that it concerns.
_ERRORS_MAX = 1000


async def read_body(request: Request) -> bytearray:
    """Return the whole body, counted in the memory budget.

    The body grows in place: joining chunks would take twice the memory. Raises BodyTooLargeError as soon as the
    application's `body_bytes_max` is exceeded, OverloadedError when the server holds too many bodies, and
    SlowBodyError.
    """
    limit = limits_of(request).body_bytes_max
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > limit:
        raise BodyTooLargeError(f"The request body is larger than the limit of {limit} bytes")
    body, cost = bytearray(), cost_of(request)
    async for chunk in request.stream():
        if len(body) + len(chunk) > limit:
            raise BodyTooLargeError(f"The request body is larger than the limit of {limit} bytes")
        cost.take(len(chunk))
        body += chunk
    return body


async def read_json(request: Request, model: type[Model]) -> Model:
    """Parse the body as `model`. The content type is ignored, since some clients send JSON as text/plain.

    Raises as `read_body` does, and BodyTooLargeError for more JSON values than a request may hold.
    """
    body = await read_body(request)
    await cost_of(request).take_json(body)
    return await parse(lambda: _parsed(body, model), len(body))


def _parsed(body: bytearray, model: type[Model]) -> Model:
    if b"NaN" in body or b"Infinity" in body:
        _refuse_non_numbers(body)
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        if error.error_count() > _ERRORS_MAX:
            raise InvalidRequestError(f"{error.error_count()} fields of the request are wrong") from None
        raise InvalidFieldsError(describe(error), items_of(error.errors(), "body")) from error


def _refuse_non_numbers(body: bytearray) -> None:
    """Refuse NaN and infinities. JSON has none, but pydantic reads them, and they would be stored as null without
    notice.
    """
    try:
        decode(body)
    except ValueError:
        raise InvalidRequestError("Invalid JSON in request body") from None


def read_uuid(value: str, complaint: str, *place: str) -> UUID:
    """Parse the identifier at `place`, such as ("path", "run_id"). Raises InvalidRequestError with the complaint."""
    try:
        return UUID(value)
    except ValueError:
        raise InvalidRequestError(complaint, *(place or ("path",))) from None


def read_flag(request: Request, name: str) -> bool:
    """Return a boolean query parameter: true, false, 1 or 0."""
    value = request.query_params.get(name)
    if value is None:
        return False
    if value.lower() in ("true", "1"):
        return True
    if value.lower() in ("false", "0"):
        return False
    raise InvalidRequestError(f"Invalid {name} value: expected true or false", "query", name)


def read_words(request: Request, name: str) -> list[str]:
    """Return a query parameter's list of words: repeated (Python SDK), with commas, or as JSON (JavaScript SDK)."""
    return [word for value in request.query_params.getlist(name) for word in re.findall(r"[\w.-]+", value)]


def read_number(request: Request, name: str, default: int, least: int, most: int) -> int:
    """Return an integer query parameter within bounds."""
    value = request.query_params.get(name)
    if value is None:
        return default
    try:
        number = int(value)
    except ValueError:
        number = least - 1
    if not least <= number <= most:
        raise InvalidRequestError(f"Invalid {name} value: expected an integer from {least} to {most}", "query", name)
    return number


def read_choice(request: Request, name: str, choices: tuple[str, ...], default: Any) -> Any:
    """Return a query parameter that must be one of the choices."""
    value = request.query_params.get(name)
    if value is None:
        return default
    if value not in choices:
        raise InvalidRequestError(f"Invalid {name} value: expected one of {', '.join(choices)}", "query", name)
    return value
