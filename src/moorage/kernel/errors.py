"""The one error tree.

Each class says in its docstring when it happens. `status` is its HTTP status and `code` its stable name for machines
and logs. The text given to the constructor is shown to the caller: it says what was wrong and what to do, and never
holds a secret, a stack trace or a path of the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

T = TypeVar("T")


class MoorageError(Exception):
    """Base of every error that moorage raises on purpose."""

    status: int = 500
    code: ClassVar[str] = "internal_error"
    headers: Mapping[str, str] | None = None

    @property
    def detail(self) -> Any:
        """Return the text that the caller reads."""
        return str(self)


class BadRequestError(MoorageError):
    """The request is well formed but asks for something that cannot be done as asked."""

    status = 400
    code = "bad_request"


class UnauthenticatedError(MoorageError):
    """The request brings no key or token, or one that is unknown, expired or revoked."""

    status = 401
    code = "unauthenticated"


class ForbiddenError(MoorageError):
    """The key is known but does not open this workspace, or its rights or the plan do not include this operation."""

    status = 403
    code = "forbidden"


class NotFoundError(MoorageError):
    """The resource does not exist, or the caller may not see it."""

    status = 404
    code = "not_found"


class ConflictError(MoorageError):
    """The resource exists already, or is in a state that does not allow the request."""

    status = 409
    code = "conflict"


class BodyTooLargeError(MoorageError):
    """The request body is over the configured limit."""

    status = 413
    code = "body_too_large"


class InvalidRequestError(MoorageError):
    """The request does not have the shape that the operation requires.

    `place` is the location in the request, such as ("query", "limit"); empty if the code that raises the error does not
    know it.
    """

    status = 422
    code = "invalid_request"

    def __init__(self, text: str, *place: str) -> None:
        super().__init__(text)
        self.place = place


class TooManyRequestsError(MoorageError):
    """The key exceeds its rate limit. `Retry-After` says when the next request is accepted."""

    status = 429
    code = "too_many_requests"

    def __init__(self, detail: str, retry_after_s: int) -> None:
        super().__init__(detail)
        self.headers = {"Retry-After": str(retry_after_s)}


class NotServedError(MoorageError):
    """The operation belongs to the API, and this version of moorage does not serve it yet."""

    status = 501
    code = "not_served"


class SlowBodyError(MoorageError):
    """The request body arrives more slowly than the server allows."""

    status = 408
    code = "slow_body"
    headers = MappingProxyType({"Connection": "close"})


class OverloadedError(MoorageError):
    """The server, or one client, has reached its limit of requests; the same request may succeed later."""

    status = 429
    code = "overloaded"
    headers = MappingProxyType({"Retry-After": "1"})


class UnavailableError(MoorageError):
    """An engine that the request needs is away; the same request may succeed later."""

    status = 503
    code = "unavailable"


class RemoteError(MoorageError):
    """A server of another party that the request needs does not answer, or gives an invalid answer."""

    status = 502
    code = "remote_failed"


class EmbeddingError(MoorageError):
    """The embedding function of `store.index` failed, took too long, or returned vectors of unexpected dimensions."""

    status = 502
    code = "embedding_failed"


class StartupError(MoorageError):
    """The server cannot start as configured. The text is printed to the person at the terminal."""

    code = "startup_failed"


class GraphLoadError(MoorageError):
    """A graph of langgraph.json could not be imported. Names graph, file and cause; other graphs are not affected."""

    code = "graph_load_failed"


class RefusedError(MoorageError):
    """The project's own authentication refuses the request, with a text and status of its own."""

    code = "refused"

    def __init__(self, detail: Any, status: int, headers: Mapping[str, str]) -> None:
        super().__init__(detail)
        self.status = status
        self.headers = headers

    @property
    def detail(self) -> Any:
        return self.args[0]


class AuthHandlerError(MoorageError):
    """The project's own authentication failed, so nobody is admitted. The agent's log has the cause."""

    code = "auth_handler_failed"


class EngineError(MoorageError):
    """An embedded engine did not start, answer or stop. Says which one, why, and what to do."""

    code = "engine_failed"


def existing(found: T | None, complaint: str) -> T:
    """Return `found`. Raises NotFoundError with the complaint when it is None."""
    if found is None:
        raise NotFoundError(complaint)
    return found
