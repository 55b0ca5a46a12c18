"""The file `langgraph.json`: the graphs and settings of a project."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal

import structlog
from dotenv import dotenv_values
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from moorage.kernel import project_keys
from moorage.kernel.encoding import decode
from moorage.kernel.errors import StartupError

log = structlog.get_logger(__name__)

# Set by the platform that deploys a revision; it identifies the revision.
_REVISION = "LANGSMITH_HOST_REVISION_ID"


_CONFIG_VARIABLE = "LANGGRAPH_CONFIG"


class GraphSpec(BaseModel):
    """Location of a graph: `./file.py:variable` or `package.module:variable`."""

    path: str
    description: str | None = None


class WebhookRules(BaseModel):
    """Addresses that webhooks may call."""

    allowed_domains: list[str] = []  # empty: every public host
    allowed_ports: list[int] = []  # empty: every port
    max_url_length: int = Field(65536, ge=1)
    require_https: bool = True
    disable_loopback: bool = True


class WebhookConfig(BaseModel):
    """Settings of webhooks. `headers` go with every delivery and may name variables that begin with `env_prefix`."""

    env_prefix: str = Field("LG_WEBHOOK_", min_length=1)
    headers: dict[str, str] = {}
    url: WebhookRules = WebhookRules()


class AssistantDefaults(BaseModel):
    """Default configuration of a graph's system assistant. `context` is another name of `configurable`."""

    model_config = ConfigDict(extra="forbid")

    tags: list[str] | None = None
    metadata: dict[str, Any] | None = None
    recursion_limit: int | None = Field(None, ge=1)
    configurable: dict[str, Any] | None = None
    context: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _one_name(self) -> AssistantDefaults:
        if self.configurable and self.context:
            raise ValueError("give configurable or context, not both")
        return self

    @property
    def config(self) -> dict[str, Any]:
        return self.model_dump(exclude={"context"}, exclude_none=True)


class SecurityDescription(BaseModel):
    """Description of authentication for OpenAPI: schemes, the requirement for all operations, and for single ones."""

    securitySchemes: dict[str, dict[str, Any]] = {}  # noqa: N815 - the word of OpenAPI
    security: list[dict[str, list[str]]] = []
    paths: dict[str, dict[str, list[dict[str, list[str]]]]] = {}  # path, method, requirements


class AuthCache(BaseModel):
    """Cache of users: how long the values of the headers `cache_keys` identify a user without a call of
    `authenticate`.
    """

    cache_keys: list[str] = Field(min_length=1)
    ttl_seconds: float = Field(60, gt=0)
    max_size: int = Field(1000, ge=1)


class AuthConfig(BaseModel):
    """Custom authentication. `path` names a `langgraph_sdk.Auth`: `./file.py:variable` or `package.module:variable`."""

    path: str
    disable_studio_auth: bool = False
    openapi: SecurityDescription = SecurityDescription()
    cache: AuthCache | None = None


class StoreIndex(BaseModel):
    """Index for finding items by meaning."""

    dims: int = Field(description="Dimensions of the vectors.")
    embed: str = Field(description="`file.py:function`, `package.module:function` or `provider:model`.")
    fields: list[str] | None = None  # paths in a value; None: the whole value


class StoreTtl(BaseModel):
    """Time to live of items, in minutes."""

    default_ttl: float | None = Field(None, gt=0)  # None: for ever
    refresh_on_read: bool = True
    sweep_interval_minutes: float = Field(5, gt=0)


class StoreConfig(BaseModel):
    index: StoreIndex | None = None
    ttl: StoreTtl = StoreTtl()


class CheckpointerTtl(BaseModel):
    """Time to live of threads that are created without one, in minutes, and the strategy when it ends."""

    strategy: Literal["delete", "keep_latest"] = "delete"
    default_ttl: float | None = Field(None, gt=0)  # None: they are kept
    sweep_interval_minutes: float = Field(5, gt=0)
    sweep_limit: int = Field(1000, ge=1)


class CheckpointerConfig(BaseModel):
    ttl: CheckpointerTtl = CheckpointerTtl()


class HeaderRules(BaseModel):
    """Patterns such as `x-*` that choose headers of a request. Exclusions win."""

    includes: list[str] | None = None
    excludes: list[str] | None = None

    def takes(self, name: str, usual: str) -> bool:
        """Return True if the header is chosen. `usual` is the pattern if the rules include nothing. Headers that hold
        secrets must be named in full.
        """
        included = [usual] if self.includes is None else self.includes
        if not _matches(name, included) or _matches(name, self.excludes or []):
            return False
        return not _matches(name, _SECRET_HEADERS) or name in {pattern.lower() for pattern in included}


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern.lower()) for pattern in patterns)


# Never matched by a pattern: credentials, and headers that front doors add.
_SECRET_HEADERS = (
    "authorization",
    "cookie",
    "proxy-authorization",
    "x-api-key",
    "x-auth-scheme",
    "x-forwarded-*",
    "x-service-key",
    "x-tenant-id",
)


class CorsRules(BaseModel):
    """Rules for calls from web pages. Fields that are not set keep the defaults of a file without the section."""

    model_config = ConfigDict(extra="forbid")

    allow_origins: list[str] | None = None
    allow_methods: list[str] | None = None
    allow_headers: list[str] | None = None
    allow_credentials: bool | None = None
    allow_origin_regex: str | None = None
    expose_headers: list[str] | None = None
    max_age: int | None = Field(None, ge=0)


class HttpConfig(BaseModel):
    """Settings of the web server: an application of the project's own, and which of the server's routes are served."""

    app: str | None = None
    disable_assistants: bool = False
    disable_threads: bool = False
    disable_runs: bool = False
    disable_store: bool = False
    disable_mcp: bool = False
    disable_a2a: bool = False
    disable_meta: bool = False
    disable_ui: bool = False
    disable_webhooks: bool = False
    cors: CorsRules | None = None
    configurable_headers: HeaderRules | None = None
    logging_headers: HeaderRules | None = None
    middleware_order: Literal["auth_first", "middleware_first"] | None = None
    enable_custom_route_auth: bool = False
    mount_prefix: str | None = Field(None, pattern=r"^(/[\w.~-]+)*/?$")

    @model_validator(mode="before")
    @classmethod
    def _without_empty(cls, section: Any) -> Any:
        """Drop null, false and empty values, which ask for nothing, except where an empty list has a meaning."""
        if not isinstance(section, dict):
            return section
        return {key: value for key, value in section.items() if value or isinstance(value, list)}

    def configurable(self, headers: Iterable[tuple[str, str]]) -> dict[str, str]:
        """Return the headers of a request that go into the configuration of its run."""
        rules = self.configurable_headers or HeaderRules()
        return {name: value for name, value in headers if rules.takes(name, "x-*")}


class LanggraphJson(BaseModel):
    """The keys that the agent server reads. `kernel/project_keys.py` decides about all others."""

    model_config = ConfigDict(extra="ignore")

    graphs: dict[str, str | GraphSpec] = Field(min_length=1)
    dependencies: list[str] = []
    env: dict[str, Any] | str = {}
    python_version: str | None = None
    webhooks: WebhookConfig = WebhookConfig()
    http: Annotated[HttpConfig, BeforeValidator(lambda value: value or {})] = HttpConfig()
    auth: Annotated[AuthConfig | None, BeforeValidator(lambda value: value or None)] = None
    checkpointer: Annotated[CheckpointerConfig, BeforeValidator(lambda given: given or {})] = CheckpointerConfig()
    store: Annotated[StoreConfig, BeforeValidator(lambda given: given or {})] = StoreConfig()
    _assistants: dict[str, AssistantDefaults] = PrivateAttr(default_factory=dict)

    @property
    def assistants(self) -> dict[str, AssistantDefaults]:
        """Return the defaults of system assistants by graph, from the variable LANGGRAPH_CONFIG."""
        return self._assistants

    def graph_specs(self) -> dict[str, GraphSpec]:
        return {
            graph_id: spec if isinstance(spec, GraphSpec) else GraphSpec(path=spec)
            for graph_id, spec in self.graphs.items()
        }


_DEFAULTS = TypeAdapter(dict[str, AssistantDefaults])


def load_langgraph_json(path: Path) -> LanggraphJson:
    """Read the file and set the variables of its `env`. Sections given by variables replace sections of the file.

    Raises StartupError that says what is wrong, or names the settings of the project that are not served.
    """
    keys = _read(path)
    _set_environment(_parsed(keys, path).env, path.resolve().parent)
    keys |= _sections_of(os.environ)
    if refused := [*project_keys.refusals(keys), *project_keys.variable_refusals(os.environ)]:
        raise StartupError(" ".join(refused))
    config = _parsed(keys, path)
    config._assistants = _assistant_defaults(os.environ, config.graphs)  # noqa: SLF001 - a variable, not a key of the file
    for text in (*project_keys.warnings(keys), *project_keys.variable_warnings(os.environ), *_python_warning(config)):
        log.warning(text)
    return config


def _read(path: Path) -> dict[str, Any]:
    try:
        keys = decode(path.read_bytes())
    except FileNotFoundError as error:
        raise StartupError(f"There is no {path}. Write one, or name it with --config.") from error
    except (OSError, ValueError) as error:
        raise StartupError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(keys, dict):
        raise StartupError(f"{path} is not a valid langgraph.json: file: must hold an object")
    return keys


def _parsed(keys: dict[str, Any], path: Path) -> LanggraphJson:
    try:
        return LanggraphJson.model_validate(keys)
    except ValidationError as error:
        raise StartupError(f"{path} is not a valid langgraph.json: {_wrong(error)}") from error


def _sections_of(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the sections that variables hold as JSON. An empty variable or `null` gives no section."""
    sections = {}
    for name, key in project_keys.SECTION_VARIABLES.items():
        try:
            value = decode(environ.get(name) or b"null")
        except ValueError as error:
            raise StartupError(f"{name} must hold the section {key!r} of a langgraph.json as JSON: {error}") from error
        if value is not None:
            sections[key] = value
    return sections


def _assistant_defaults(environ: Mapping[str, str], graphs: Collection[str]) -> dict[str, AssistantDefaults]:
    """Parse LANGGRAPH_CONFIG, JSON that maps graphs to the config of their system assistants. Raises StartupError."""
    try:
        found = _DEFAULTS.validate_json(environ.get(_CONFIG_VARIABLE) or "{}")
    except ValidationError as error:
        raise StartupError(f"{_CONFIG_VARIABLE} is not valid: {_wrong(error)}") from error
    if unknown := sorted(found.keys() - set(graphs)):
        raise StartupError(f"{_CONFIG_VARIABLE} configures {', '.join(unknown)}, which langgraph.json does not serve")
    return found


def _wrong(error: ValidationError) -> str:
    return "; ".join(f"{'.'.join(map(str, item['loc'])) or 'file'}: {item['msg']}" for item in error.errors())


def _python_warning(config: LanggraphJson) -> list[str]:
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    if config.python_version in (None, running):
        return []
    return [f"langgraph.json asks for Python {config.python_version}, and this server runs on {running}"]


def _set_environment(env: dict[str, Any] | str, folder: Path) -> None:
    """Set the variables of `env`, a map or the path of a .env file. Variables of the process win.

    Raises StartupError when the file does not exist. A deployed revision starts without it: files with secrets are
    usually not in the repository, and the deployment has secrets of its own.
    """
    if isinstance(env, str):
        file = folder / env
        if not file.is_file():
            if _REVISION in os.environ:
                log.warning("the environment file of langgraph.json is not in the source", file=env)
                return
            raise StartupError(f"langgraph.json names the environment file {env}, which does not exist.")
        values: dict[str, Any] = dotenv_values(file)
    else:
        values = env
    for name, value in values.items():
        if value is not None:
            os.environ.setdefault(name, str(value))


def extend_import_path(config: LanggraphJson, folder: Path) -> None:
    """Make local folders of `dependencies` importable. The user installs packages that are given by name."""
    for dependency in reversed([entry for entry in config.dependencies if entry.startswith(".")] or ["."]):
        local = (folder / dependency).resolve()
        if not local.is_dir():
            raise StartupError(f"langgraph.json names the dependency {dependency}, which is not a folder.")
        for place in (local / "src", local):
            if place.is_dir() and str(place) not in sys.path:
                sys.path.insert(0, str(place))
