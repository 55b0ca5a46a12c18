"""The configuration of Caddy: routes of requests, limits of bodies, and the answers when no server is there.

The configuration never changes while Caddy runs, because every change would cut requests that are under way. All that
changes is in the file system, relative to the directory that Caddy runs in:

    platform/platform.sock    where the platform listens
    front/d-NAME.sock         link to the socket of the deployment NAME, served at /d/NAME/
    front/h-HOST              marks a host name that is a deployment's own, and no name of the platform
    front/l-HOST              link to the link of that deployment
    front/s-HOST              marks such a name that has HTTPS: pages opened there by plain HTTP are redirected to HTTPS

A link is switched by a rename. Caddy connects to sockets by relative paths, because the kernel allows 107 bytes for the
path of a socket and the state directory's path may be long.
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
# Less than five seconds, the default time-out of httpx, so that clients with this time-out still get the reason.
AWAY_WAIT_S = 4

_DEPLOYMENT = "^/d/([a-z0-9][a-z0-9-]{0,62})(?:/|$)"
_HOST = "^[a-z0-9][a-z0-9.-]{0,252}(?::[0-9]+)?$"
_NAME = "^[a-z0-9][a-z0-9.-]{0,252}$"
# Addresses that receive traces: their requests may be larger than others.
_INGEST = "^(?:/api/v1)?(?:/runs(?:/batch|/multipart|/[0-9A-Fa-f-]{32,36})?|/otel/v1/traces)$"
_UPLOAD = "^(?:/api-host)?/v2/uploads/"
_BLOB = "^/v2/images/[0-9a-f-]{36}/blobs/uploads/"

# The console's session belongs to the platform. An agent's code must neither read the cookie nor replace it: the user
# would then continue working in another session. Some browsers take a cookie without a name by its value.
_WITHOUT_SESSION = {
    "handler": "headers",
    "request": {"replace": {"Cookie": [{"search_regexp": r"moorage_session=[^;]*(;\s*)?", "replace": ""}]}},
    "response": {
        "deferred": True,
        "replace": {"Set-Cookie": [{"search_regexp": r"^[\s=]*moorage_session\s*(=.*)?$", "replace": ""}]},
    },
}
# Agents below /d/ share the origin of the console. The sandbox gives their pages an origin of their own, so that their
# scripts cannot use the session of the user who looks at them.
_APART = {
    "handler": "headers",
    "response": {
        "deferred": True,
        "add": {"Content-Security-Policy": ["sandbox allow-scripts allow-forms allow-popups allow-downloads"]},
    },
}

# A request that was sent but not answered may have taken effect, so no request is sent twice.
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
    # Added to each limit: servers read this much of a body above their limit, so that the client can read the 413.
    drained_bytes_max: int = 64 * 2**20


def front_door_config(address: str, limits: BodyLimits, https: Https | None = None) -> dict[str, Any]:
    """Return Caddy's configuration. `address` only distinguishes front doors: Caddy does not bind it, since it gets
    open sockets. Raises EngineError when a file that is named for HTTPS cannot be read.
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
    """Configure the log: warnings only, without requests, since their headers hold keys. Failed requests are not
    logged, since each request fails while the platform is away.
    """
    return {
        "level": "WARN",
        "exclude": ["http.log.error"],
        "encoder": {"format": "filter", "wrap": {"format": "json"}, "fields": {"request": {"filter": "delete"}}},
    }


def _routes(limits: BodyLimits) -> list[dict[str, Any]]:
    # Otherwise a client could claim any address as its own.
    distrust = {"handler": "headers", "request": {"delete": ["X-Real-Ip"]}}
    # Of the routes of a group, only the first match is used.
    return [
        {"handle": [distrust]},
        _deployment_by_host(limits),  # first: at its own host name, all paths are the agent's
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
    # The mark is a plain file: Caddy opens the files that it looks for, and a socket cannot be opened.
    is_known = {"file": {"root": "front", "try_files": [f"h-{host}"]}, "header_regexp": {"Host": {"pattern": _HOST}}}
    return {"match": [is_known], "terminal": True, "handle": _to_deployment(f"front/l-{host}", limits)}


def _to_deployment(socket: str, limits: BodyLimits) -> list[dict[str, Any]]:
    """Route to a deployment without keep-alive: a kept connection would go on reaching the old
    revision after a switch.
    """
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
    """Route to a socket.

    Requests wait for a restarting platform, also those to agents of listeners, which go through the platform. A request
    is retried only if it was never sent.
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
    """Set the status and text of the answer when the socket does not answer."""
    return {"handler": "vars", "away": words, "away_status": status}


def _at_most(size_bytes_max: int, limits: BodyLimits) -> dict[str, Any]:
    return {"handler": "request_body", "max_size": size_bytes_max + limits.drained_bytes_max}


def _path(pattern: str) -> dict[str, Any]:
    return {"path_regexp": {"pattern": pattern}}
