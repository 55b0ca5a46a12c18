"""The configuration of Caddy: routes of requests, limits of bodies, and the answers when no server is there.

The configuration never changes while Caddy runs, because every change of it costs requests that are under way. What
does change lies in the file system, relative to the directory that Caddy runs in:

    platform/platform.sock    where the platform listens
    front/d-NAME.sock         link to the socket of the deployment NAME, served at /d/NAME/
    front/h-HOST              marks a host name that is a deployment's own, and no name of the platform
    front/l-HOST              link to the link of that deployment
    front/s-HOST              marks such a name that has HTTPS: a page that is opened there by plain HTTP leads to it

A link is switched by a rename. Names below the directory are dialled by their relative path, so that the length of the
state directory's path does not count: the kernel takes 107 bytes for the path of a socket.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from moorage.embedded.front_tls import HTTPS_FD, Https, pages_to_https, permission_server, tls_config

PLATFORM_SOCKET = "platform/platform.sock"
ADMIN_SOCKET = "caddy/admin.sock"
LISTENING_FD = "MOORAGE_FRONT_FD"
# How long Caddy keeps an idle connection to the platform. The platform must keep its end longer, or a request could be
# sent on a connection that is just being closed.
PLATFORM_IDLE_S = 30
# Clients that give up after five seconds, such as httpx by default, get to read why.
AWAY_WAIT_S = 4

_DEPLOYMENT = "^/d/([a-z0-9][a-z0-9-]{0,62})(?:/|$)"
_HOST = "^[a-z0-9][a-z0-9.-]{0,252}(?::[0-9]+)?$"
_NAME = "^[a-z0-9][a-z0-9.-]{0,252}$"
# Where traces come in: these may be larger than other requests.
_INGEST = "^(?:/api/v1)?(?:/runs(?:/batch|/multipart|/[0-9A-Fa-f-]{32,36})?|/otel/v1/traces)$"
_UPLOAD = "^(?:/api-host)?/v2/uploads/"
_BLOB = "^/v2/images/[0-9a-f-]{36}/blobs/uploads/"

# The console's session is the platform's alone: the code of an agent must not see it, nor put another in its place, in which
# whoever looks at the agent would go on working. A cookie without a name counts by its value in some browsers.
_WITHOUT_SESSION = {
    "handler": "headers",
    "request": {"replace": {"Cookie": [{"search_regexp": r"moorage_session=[^;]*(;\s*)?", "replace": ""}]}},
    "response": {
        "deferred": True,
        "replace": {"Set-Cookie": [{"search_regexp": r"^[\s=]*moorage_session\s*(=.*)?$", "replace": ""}]},
    },
}
# Agents below /d/ share the origin of the console. A page of theirs has an origin of its own, so that its scripts cannot
# use the session of whoever looks at it.
_APART = {
    "handler": "headers",
    "response": {
        "deferred": True,
        "add": {"Content-Security-Policy": ["sandbox allow-scripts allow-forms allow-popups allow-downloads"]},
    },
}

# A request that was sent and not answered may have done its work: none of these is sent again.
_NO_REQUEST = {"method": ["NONE"]}

_DEPLOYMENT_AWAY = "The deployment is not running"
_PLATFORM_AWAY = "The platform is starting or being restarted; try again in a moment"
_TOO_LARGE = "The request body is larger than this address takes"


@dataclass(frozen=True)
class BodyLimits:
    """Size limits of request bodies on the wire."""

    ingest_bytes_max: int = 64 * 2**20
    upload_bytes_max: int = 209_715_200
    images_bytes_max: int = 10 * 2**30
    else_bytes_max: int = 25_000_000
    # Let through on top: servers read this much of a body over their limit, so that the client gets to read the 413.
    drained_bytes_max: int = 64 * 2**20


def front_door_config(address: str, limits: BodyLimits, https: Https | None = None) -> dict[str, Any]:
    """Caddy's configuration. `address` is not where Caddy listens, since it gets open sockets: it only tells one front
    door from another. Raises EngineError when a file that is named for HTTPS cannot be read.
    """
    servers = {"front": {"@id": address, **_server(limits, LISTENING_FD), "protocols": ["h1", "h2c"]}}
    apps: dict[str, Any] = {"http": {"servers": servers}}
    if https is not None:
        secure = {"@id": f"{address} and {https.port}", "tls_connection_policies": [{}], "protocols": ["h1", "h2"]}
        servers["secure"] = _server(limits, HTTPS_FD) | secure
        servers["front"]["routes"][:0] = pages_to_https(https, _HOST)
        apps["tls"] = tls_config(https)
        if https.acme_ca:
            servers["permission"] = permission_server(https, _NAME)
    return {"admin": {"listen": f"unix/{ADMIN_SOCKET}|0600"}, "logging": {"logs": {"default": _log()}}, "apps": apps}


def _server(limits: BodyLimits, listening_fd: str) -> dict[str, Any]:
    return {
        "listen": [f"fd/{{env.{listening_fd}}}"],
        "automatic_https": {"disable": True},
        "read_header_timeout": "10s",
        "idle_timeout": "2m",
        "max_header_bytes": 2**16,
        "routes": _routes(limits),
        "errors": {"routes": _errors()},
    }


def _log() -> dict[str, Any]:
    """Warnings only, and of a request nothing: its headers hold keys. Failed requests are not logged at all: with the
    platform away there is one for each request.
    """
    return {
        "level": "WARN",
        "exclude": ["http.log.error"],
        "encoder": {"format": "filter", "wrap": {"format": "json"}, "fields": {"request": {"filter": "delete"}}},
    }


def _routes(limits: BodyLimits) -> list[dict[str, Any]]:
    # The client's word for its own address would reach the platform unchanged.
    distrust = {"handler": "headers", "request": {"delete": ["X-Real-Ip"]}}
    # Of the routes of one group only the first that matches is taken.
    return [
        {"handle": [distrust]},
        _deployment_by_host(limits),  # first: all paths of its own name are the agent's
        _deployment_by_path(limits),
        {"group": "limit", "match": [_path(_INGEST)], "handle": [_at_most(limits.ingest_bytes_max, limits)]},
        {"group": "limit", "match": [_path(_UPLOAD)], "handle": [_at_most(limits.upload_bytes_max, limits)]},
        {"group": "limit", "match": [_path(_BLOB)], "handle": [_at_most(limits.images_bytes_max, limits)]},
        {"group": "limit", "handle": [_at_most(limits.else_bytes_max, limits)]},
        _platform(),
    ]


def _deployment_by_path(limits: BodyLimits) -> dict[str, Any]:
    name = "{http.regexp.deployment.1}"
    return {
        "match": [{"path_regexp": {"name": "deployment", "pattern": _DEPLOYMENT}}],
        "terminal": True,
        "handle": [
            {"handler": "rewrite", "strip_path_prefix": f"/d/{name}"},
            _APART,
            *_to_deployment(f"front/d-{name}.sock", limits),
        ],
    }


def _deployment_by_host(limits: BodyLimits) -> dict[str, Any]:
    host = "{http.request.host}"
    # The mark is a plain file: Caddy opens what it looks for, and a socket cannot be opened.
    is_known = {"file": {"root": "front", "try_files": [f"h-{host}"]}, "header_regexp": {"Host": {"pattern": _HOST}}}
    return {"match": [is_known], "terminal": True, "handle": _to_deployment(f"front/l-{host}", limits)}


def _to_deployment(socket: str, limits: BodyLimits) -> list[dict[str, Any]]:
    """Without connections that are kept: one to the old revision would go on answering after a switch."""
    transport = {"protocol": "http", "keep_alive": {"enabled": False}, "dial_timeout": "2s"}
    return [
        _when_away("502", _DEPLOYMENT_AWAY),
        _WITHOUT_SESSION,
        _at_most(limits.else_bytes_max, limits),
        _proxy(socket, transport),
    ]


def _platform() -> dict[str, Any]:
    keep_alive = {"enabled": True, "idle_timeout": f"{PLATFORM_IDLE_S}s", "max_idle_conns_per_host": 256}
    transport = {"protocol": "http", "keep_alive": keep_alive, "dial_timeout": "2s"}
    return {"handle": [_when_away("503", _PLATFORM_AWAY), _proxy(PLATFORM_SOCKET, transport)]}


def _proxy(socket: str, transport: dict[str, Any]) -> dict[str, Any]:
    """A request waits for a platform that is just being restarted, which is also the way to agents of listeners. Only what
    was never sent is tried again.
    """
    waits = {"try_duration": f"{AWAY_WAIT_S}s", "try_interval": "50ms", "retry_match": [_NO_REQUEST]}
    upstreams = [{"dial": f"unix/{socket}"}]
    return {"handler": "reverse_proxy", "upstreams": upstreams, "transport": transport, "load_balancing": waits}


def _errors() -> list[dict[str, Any]]:
    away = _answer("{http.vars.away_status}", '{"detail":"{http.vars.away}"}') | {
        "headers": _JSON | {"Retry-After": ["1"]}
    }
    too_large = _answer("413", f'{{"detail":"{_TOO_LARGE}"}}')
    return [
        {"match": [{"expression": "{http.error.status_code} in [502, 503, 504]"}], "handle": [away]},
        {"match": [{"expression": "{http.error.status_code} == 413"}], "handle": [too_large]},
    ]


_JSON = {"Content-Type": ["application/json"]}


def _answer(status: str, body: str) -> dict[str, Any]:
    return {"handler": "static_response", "status_code": status, "headers": _JSON, "body": body}


def _when_away(status: str, words: str) -> dict[str, Any]:
    """Status and words for when the socket does not answer."""
    return {"handler": "vars", "away": words, "away_status": status}


def _at_most(size_bytes_max: int, limits: BodyLimits) -> dict[str, Any]:
    return {"handler": "request_body", "max_size": size_bytes_max + limits.drained_bytes_max}


def _path(pattern: str) -> dict[str, Any]:
    return {"path_regexp": {"pattern": pattern}}
