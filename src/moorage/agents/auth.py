"""Custom authentication: the `langgraph_sdk.Auth` of a project. It decides who sends a request, and what the sender may
do.

It fails closed: a handler that raises, hangs or returns an invalid answer fails the request.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, cast

import structlog
from langgraph_sdk import Auth

from moorage.agents.imports import cause_of, import_variable
from moorage.agents.langgraph_json import AuthCache
from moorage.agents.principals import Principal, Resource
from moorage.agents.records.filters import EVERYTHING, Filter, read_filter
from moorage.agents.records.users import user_of
from moorage.agents.records.words import JsonObject
from moorage.http.authentication import PARAMETERS
from moorage.kernel.errors import (
    AuthHandlerError,
    ForbiddenError,
    MoorageError,
    RefusedError,
    StartupError,
    UnauthenticatedError,
    UnavailableError,
)
from moorage.kernel.memory import Memory

log = structlog.get_logger(__name__)

# The authentication scheme by which Studio marks a key of the platform.
_STUDIO_SCHEME = "langsmith"
_DEVELOPER = "langgraph-studio-user"
_BEARER = "bearer "
_FAILED = "The authentication of this application failed; its log says why"


def load_auth(path: str, folder: Path) -> Auth:
    """Load the project's `Auth`. Raises StartupError if there is none, or if it has no `authenticate` handler."""
    try:
        auth = import_variable(path, folder)
    except (Exception, SystemExit) as error:
        raise StartupError(f"auth.path of langgraph.json ({path}) cannot be loaded: {cause_of(error)}") from error
    if not isinstance(auth, Auth):
        raise StartupError(f"auth.path of langgraph.json ({path}) is a {type(auth).__name__}, not a langgraph_sdk.Auth")
    if auth._authenticate_handler is None:  # noqa: SLF001 - langgraph-sdk keeps these names for servers
        raise StartupError(f"auth.path of langgraph.json ({path}) has no handler: decorate one with @auth.authenticate")
    return auth


class Studio(Protocol):
    """The check of the keys that Studio sends."""

    async def admit(self, api_key: str | None, bearer: str | None) -> None: ...


class CustomAuth:
    """The handlers of an `Auth`. Each call times out after `patience_s`."""

    def __init__(
        self, auth: Auth, patience_s: float, studio: Studio | None = None, cache: AuthCache | None = None
    ) -> None:
        self._authenticate = cast(Callable[..., Awaitable[Any]], auth._authenticate_handler)  # noqa: SLF001
        self._handlers = auth._handlers  # noqa: SLF001
        self._global = auth._global_handlers  # noqa: SLF001
        self._patience_s = patience_s
        self._studio = studio
        self._cache = cache
        # Cached users by the values of the headers that identify them.
        self._users = Memory[tuple[str | None, ...], Principal](cache.max_size if cache else 0)
        self.takes = _parameters_of(self._authenticate)
        self._blocks = not _is_async(self._authenticate)

    async def principal(self, headers: Mapping[str, str], arguments: Mapping[str, Any]) -> Principal:
        """Authenticate a request by its headers and the parameters of `authenticate`.

        Raises the handler's refusal, UnauthenticatedError or AuthHandlerError.
        """
        if self._studio is not None and headers.get("x-auth-scheme", "").startswith(_STUDIO_SCHEME):
            return await self._developer(self._studio, headers)
        if self._cache is None or not any(key := tuple(headers.get(name) for name in self._cache.cache_keys)):
            return await self._ask(arguments)
        principal = self._users.recall(key)
        if principal is None:
            principal = await self._ask(arguments)
            self._users.keep(key, principal, self._cache.ttl_seconds)
        return principal

    async def _ask(self, arguments: Mapping[str, Any]) -> Principal:
        try:
            found = await self._answer(self._authenticate, arguments, blocks=self._blocks)
        except AssertionError as error:
            raise UnauthenticatedError(str(error) or "Unauthorized") from error
        if found is None:
            raise UnauthenticatedError("Unauthorized")
        try:
            user = user_of(found)
        except (TypeError, ValueError) as error:
            raise _failed("authenticate", error) from error
        if not user.is_authenticated:
            raise UnauthenticatedError("Unauthorized")
        return Principal(user, self)

    async def _developer(self, studio: Studio, headers: Mapping[str, str]) -> Principal:
        """Authenticate Studio by its key of the platform. The principal is a developer of this deployment, not one of
        its users.
        """
        authorization = headers.get("authorization", "")
        bearer = authorization[len(_BEARER) :] if authorization.lower().startswith(_BEARER) else None
        await studio.admit(headers.get("x-api-key"), bearer)
        developer = Auth.types.StudioUser(_DEVELOPER, is_authenticated=True)
        return Principal(user_of({**_as_fields(developer), "kind": "StudioUser"}), self, developer)

    async def decide(self, user: Any, resource: Resource, action: str, value: JsonObject) -> Filter:
        handler = self._handler(resource, action)
        if handler is None:
            return EVERYTHING
        permissions = user.permissions
        context = Auth.types.AuthContext(permissions=permissions, user=user, resource=resource, action=action)  # type: ignore[arg-type]
        try:
            decision = await self._answer(handler, {"ctx": context, "value": value})
        except AssertionError as error:
            raise ForbiddenError(str(error) or "Forbidden") from error
        if decision is False:
            raise ForbiddenError("Forbidden")
        try:
            _check_metadata(value)
            return EVERYTHING if decision is None or decision is True else read_filter(decision)
        except (TypeError, ValueError) as error:
            raise _failed(f"{resource}.{action}", error) from error

    def _handler(self, resource: str, action: str) -> Callable[..., Awaitable[Any]] | None:
        """Return the most specific handler: for this action, the resource, the action on any resource, or everything."""
        for key in ((resource, action), (resource, "*"), ("*", action)):
            if found := self._handlers.get(key):
                return found[-1]
        return self._global[-1] if self._global else None

    async def _answer(self, handler: Callable[..., Any], arguments: Mapping[str, Any], *, blocks: bool = False) -> Any:
        """Call the handler and return its answer. A synchronous handler may block, so it runs in a thread."""
        try:
            async with asyncio.timeout(self._patience_s):
                answer = await asyncio.to_thread(handler, **arguments) if blocks else handler(**arguments)
                return await answer if inspect.isawaitable(answer) else answer
        except (AssertionError, MoorageError):
            raise
        except TimeoutError as error:
            log.error("a handler of auth did not answer", handler=_name(handler), patience_s=self._patience_s)
            raise UnavailableError("The authentication of this application did not answer in time") from error
        except Exception as error:
            raise _refused(error) or _failed(_name(handler), error) from error


def _refused(error: Any) -> RefusedError | None:
    """Return the refusal that an HTTPException holds, of langgraph-sdk or of the project's web framework; None for
    other errors.
    """
    status = getattr(error, "status_code", None)
    if not isinstance(status, int) or not 400 <= status < 600 or not hasattr(error, "detail"):
        return None
    return RefusedError(error.detail, status, dict(getattr(error, "headers", None) or {}))


def _as_fields(user: Any) -> JsonObject:
    return {name: getattr(user, name) for name in ("identity", "display_name", "is_authenticated", "permissions")}


def _failed(handler: str, error: Exception) -> AuthHandlerError:
    log.error("a handler of auth failed", handler=handler, error=str(error), exc_info=error)
    return AuthHandlerError(_FAILED)


def _check_metadata(value: JsonObject) -> None:
    if not isinstance(value.get("metadata", {}), dict):
        raise TypeError("the handler has set metadata to something else than a dictionary")


def _name(handler: Callable[..., Any]) -> str:
    return getattr(handler, "__qualname__", type(handler).__name__)


def _is_async(handler: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


def _parameters_of(handler: Callable[..., Any]) -> frozenset[str]:
    """Return the known parameters of the handler. Raises StartupError for an unknown parameter without a default."""
    parameters = inspect.signature(handler).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return PARAMETERS
    unknown = [p.name for p in parameters if p.name not in PARAMETERS and p.default is p.empty]
    if unknown:
        raise StartupError(
            f"The handler of @auth.authenticate takes {', '.join(unknown)}, and there is no such thing: it may take "
            f"{', '.join(sorted(PARAMETERS))}"
        )
    return frozenset(parameter.name for parameter in parameters if parameter.name in PARAMETERS)
