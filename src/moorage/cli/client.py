"""Client of the platform's HTTP API for commands: its address, its key and its errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pydantic import AliasChoices, Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from moorage.kernel.errors import (
    BadRequestError,
    BodyTooLargeError,
    ConflictError,
    ForbiddenError,
    InvalidRequestError,
    MoorageError,
    NotFoundError,
    UnauthenticatedError,
    UnavailableError,
)

if TYPE_CHECKING:
    import httpx
    from langgraph_sdk.schema import StreamPart

_TIMEOUT_S = 60.0
_CONNECT_TIMEOUT_S = 5.0
_PAGE_MAX = 100
# Suffixes of the SDKs' variable. The part before them is the origin, to which commands add whole paths.
_API_SUFFIXES = ("/api/v1", "/api/v2", "/api")
_ERRORS: Mapping[int, type[MoorageError]] = {
    error.status: error
    for error in (
        BadRequestError,
        UnauthenticatedError,
        ForbiddenError,
        NotFoundError,
        ConflictError,
        BodyTooLargeError,
        InvalidRequestError,
        UnavailableError,
    )
}
_NO_KEY = (
    "no API key is set: set MOORAGE_API_KEY. The first start of `moorage up` prints a key; `moorage keys recover` "
    "makes another on the platform's machine"
)
_START_PLATFORM = "start the platform with `moorage up`, or set MOORAGE_URL to its address"
_ASK_FOR_KEY = "set MOORAGE_API_KEY to a key from `moorage keys create`, or ask your operator for one"


class UnreachableError(MoorageError):
    """Nothing answers at the address of the platform."""

    status = 503
    code = "unreachable"


class WaitedTooLongError(MoorageError):
    """The awaited event did not happen in the given time."""

    status = 504
    code = "waited_too_long"


class ClientSettings(BaseSettings):
    """Settings of the commands that call a platform."""

    model_config = SettingsConfigDict(extra="ignore", env_ignore_empty=True, use_attribute_docstrings=True)

    url: str = Field("http://127.0.0.1:8080", validation_alias=AliasChoices("MOORAGE_URL", "LANGSMITH_ENDPOINT"))
    """Address of the platform that commands call, with or without /api/v1."""

    api_key: SecretStr | None = Field(None, validation_alias=AliasChoices("MOORAGE_API_KEY", "LANGSMITH_API_KEY"))
    """API key that commands send."""

    agent_url: str = Field("http://127.0.0.1:2024", validation_alias="MOORAGE_AGENT_URL")
    """Address of the agent server that commands about threads, runs, crons and assistants call."""

    workspace_id: str | None = Field(
        None, validation_alias=AliasChoices("LANGSMITH_WORKSPACE_ID", "LANGSMITH_TENANT_ID")
    )
    """Workspace that commands act in. Default: the workspace of the key."""


class Client:
    """Client of the API that takes whole paths and returns JSON: `client.get("/api/v1/sessions", limit=20)`.

    Every call raises the error of `kernel/errors.py` with the status of the answer and the server's own message, or
    UnreachableError when there is no answer. A query value of None is left out; a list is repeated.
    """

    def __init__(self, http: httpx.Client, *, has_key: bool, start_hint: str = _START_PLATFORM) -> None:
        """Make a client. `start_hint` says how to start the server if it does not answer."""
        self._http = http
        self._has_key = has_key
        self._start_hint = start_hint

    def get(self, path: str, **query: Any) -> Any:
        return self.send("GET", path, query=query)

    def post(self, path: str, body: Any = None, **query: Any) -> Any:
        return self.send("POST", path, body, query)

    def patch(self, path: str, body: Any, **query: Any) -> Any:
        return self.send("PATCH", path, body, query)

    def delete(self, path: str, **query: Any) -> Any:
        return self.send("DELETE", path, query=query)

    def pages(self, path: str, **query: Any) -> Iterator[Any]:
        """Yield the items of a list that pages by limit and offset, at most one page ahead of the caller."""
        offset = 0
        while True:
            page = self.get(path, **query, limit=_PAGE_MAX, offset=offset)
            yield from page
            offset += len(page)
            if len(page) < _PAGE_MAX:
                return

    def send(self, method: str, path: str, body: Any = None, query: Mapping[str, Any] | None = None) -> Any:
        """Send a request, and return the answer's JSON, or None when it has no body."""
        import httpx  # slow to import, and not needed to start a server

        given = {name: value for name, value in (query or {}).items() if value is not None}
        try:
            answer = self._http.request(method, path, json=body, params=given)
        except httpx.TimeoutException as error:
            raise WaitedTooLongError(
                f"{self._http.base_url} did not answer in time; try again, or see its log"
            ) from error
        except httpx.TransportError as error:
            raise UnreachableError(self._why_unreachable(error)) from error
        if answer.is_success:
            return _json(answer) if answer.content else None
        raise self._error(answer)

    def events(
        self, method: str, path: str, body: Any = None, *, last_event: str | None = None, **query: Any
    ) -> Iterator[StreamPart]:
        """Yield the events of a stream until it ends, from the one after `last_event` on. Raises as
        the other calls do.
        """
        import httpx  # as above
        from langgraph_sdk.sse import SSEDecoder, iter_lines_raw

        timeout, decoder = httpx.Timeout(None, connect=_CONNECT_TIMEOUT_S), SSEDecoder()
        headers = {"Last-Event-ID": last_event} if last_event else {}
        try:
            with self._http.stream(method, path, json=body, params=query, headers=headers, timeout=timeout) as answer:
                if not answer.is_success:
                    answer.read()
                    raise self._error(answer)
                for line in iter_lines_raw(answer):
                    if (part := decoder.decode(bytes(line))) is not None:
                        yield part
        except httpx.TransportError as error:
            raise UnreachableError(self._why_unreachable(error)) from error

    def _why_unreachable(self, error: Exception) -> str:
        return f"nothing answers at {self._http.base_url} ({error}); {self._start_hint}"

    def _error(self, answer: httpx.Response) -> MoorageError:
        told = _complaint(answer)
        if answer.status_code == UnauthenticatedError.status:
            told = f"{told}; {_ASK_FOR_KEY}" if self._has_key else _NO_KEY
        kind = _ERRORS.get(answer.status_code)
        return kind(told) if kind else MoorageError(f"{told} (HTTP {answer.status_code})")


@contextmanager
def connect(settings: ClientSettings | None = None) -> Iterator[Client]:
    """Connect to the platform that the environment names. Raises BadRequestError when the address is invalid."""
    settings = settings or ClientSettings()
    with connect_to(origin_of(settings.url), settings, _START_PLATFORM) as client:
        yield client


@contextmanager
def connect_to(address: str, settings: ClientSettings, start_hint: str) -> Iterator[Client]:
    """Connect to a server with the key and the workspace of the settings. Paths are relative to the address."""
    import httpx  # slow to import, and not needed to start a server

    headers = {}
    if settings.api_key:
        headers["X-Api-Key"] = _header(settings.api_key.get_secret_value(), "MOORAGE_API_KEY")
    if settings.workspace_id:
        headers["X-Tenant-Id"] = _header(settings.workspace_id, "LANGSMITH_WORKSPACE_ID")
    timeout = httpx.Timeout(_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S)
    with httpx.Client(base_url=address, headers=headers, timeout=timeout) as http:
        yield Client(http, has_key=settings.api_key is not None, start_hint=start_hint)


def _header(value: str, variable: str) -> str:
    """Return the value without white space around it. Refuses the rest: the HTTP client's errors would print the key."""
    value = value.strip()
    if not (value.isascii() and value.isprintable()):
        raise UnauthenticatedError(f"{variable} holds characters that cannot be part of it; copy the value again")
    return value


def origin_of(url: str) -> str:
    """Return the address that all paths of the API are relative to: `https://host` for `https://host/api/v1`."""
    origin = url.strip().rstrip("/")
    for suffix in _API_SUFFIXES:
        if origin.endswith(suffix):
            origin = origin.removesuffix(suffix)
            break
    try:
        parts = urlsplit(origin)
        is_address = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets that do not close, a port above 65535
        is_address = False
    if not is_address:
        raise BadRequestError(f"MOORAGE_URL must be an address such as http://127.0.0.1:8080, not {url!r}")
    return origin


def _json(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError as error:
        raise MoorageError(f"{answer.url} did not answer with JSON; is it the address of a moorage server?") from error


def _complaint(answer: httpx.Response) -> str:
    """Return the error message of an answer, in any of the forms that the API families use."""
    try:
        body = answer.json()
    except ValueError:
        body = None
    if not isinstance(body, dict):
        return f"{answer.request.method} {answer.request.url.path} failed: {answer.reason_phrase}"
    told = body.get("detail") or body.get("details") or body.get("error") or body.get("title")
    if isinstance(told, list):
        return "; ".join(_complaint_about_field(item) for item in told)
    return str(told or body)


def _complaint_about_field(item: Any) -> str:
    if not isinstance(item, dict):
        return str(item)
    place = ".".join(str(step) for step in item.get("loc", ()) if step not in {"body", "query", "path"})
    told = str(item.get("msg")).removeprefix("Value error, ")  # pydantic's own words
    return f"{place}: {told}" if place else told
