"""HTTPS at the front door: the part of Caddy's configuration that controls certificates.

A given certificate covers the names in it. For any other name of the platform or of a deployment, Caddy obtains a
certificate by ACME at the first handshake for that name, so a new name changes nothing in the configuration. Before
each such handshake, Caddy asks a loopback address of its own whether the name may have a certificate. The answer
depends on the files of `front/`: it needs no running platform, and uses nothing that a client could forge.
"""

from __future__ import annotations

import hashlib
import json
import ssl
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moorage.kernel.errors import EngineError

TLS_FOLDER = "tls"
HTTPS_FD = "MOORAGE_FRONT_HTTPS_FD"
PERMISSION_FD = "MOORAGE_PERMISSION_FD"
PERMISSION_PORT = "MOORAGE_PERMISSION_PORT"

_LOG_BYTES_READ = 256 * 1024
_FAILURE_LENGTH_MAX = 500
_ASKED = "{http.request.uri.query.domain}"
_EVERYWHERE = ("", "0.0.0.0", "::")  # noqa: S104 - nothing is bound here


@dataclass(frozen=True)
class Https:
    """HTTPS with given certificates, with certificates of an ACME server, or with both.

    `host`, `port` and `http_port` are where the front door listens; `names` are the platform's own, at `public_url`.
    """

    host: str
    port: int
    http_port: int
    names: tuple[str, ...] = ()
    public_url: str = ""
    acme_ca: str | None = None
    acme_email: str | None = None
    acme_roots: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def files(self) -> dict[str, bytes]:
        """Return the files that Caddy reads, by names that change with their content. Raises EngineError."""
        found: dict[str, bytes] = {}
        if self.certificate and self.key:
            _check_pair(self.certificate, self.key)
            found |= {
                _named(self.certificate, "certificate"): _read(self.certificate),
                _named(self.key, "key"): _read(self.key),
            }
        if self.acme_roots:
            found[_named(self.acme_roots, "roots")] = _read(self.acme_roots)
        return found


def tls_config(https: Https) -> dict[str, Any]:
    """Return Caddy's application `tls`. Raises EngineError for a file that cannot be read."""
    config: dict[str, Any] = {}
    if https.certificate and https.key:
        pair = {"certificate": _path(https.certificate, "certificate"), "key": _path(https.key, "key")}
        config["certificates"] = {"load_files": [pair]}
    if https.acme_ca:
        endpoint = f"http://127.0.0.1:{{env.{PERMISSION_PORT}}}/"
        config["automation"] = {
            "policies": [{"on_demand": True, "issuers": [_issuer(https, https.acme_ca)]}],
            "on_demand": {"permission": {"module": "http", "endpoint": endpoint}},
        }
    return config


def pages_to_https(https: Https, host_pattern: str) -> list[dict[str, Any]]:
    """Return the routes that redirect pages from HTTP to HTTPS, at names of the platform and of deployments that have
    HTTPS.
    """
    host = "{http.request.host}"
    marked = {
        "file": {"root": "front", "try_files": [f"s-{host}"]},
        "header_regexp": {"Host": {"pattern": host_pattern}},
    }
    deployments = _page_to_https(marked, f"https://{host}")
    return (
        [_page_to_https({"host": list(https.names)}, https.public_url), deployments] if https.names else [deployments]
    )


def _page_to_https(at: dict[str, Any], origin: str) -> dict[str, Any]:
    """Redirect pages only. Programs get their answer by HTTP: they have sent their key already, and many follow no
    redirects.

    Requests of a proxy that terminates HTTPS itself are answered by HTTP too.
    """
    page = {**at, "method": ["GET", "HEAD"], "header": {"Accept": ["*text/html*"]}}
    other = [{"path": ["/.well-known/acme-challenge/*"]}, {"header": {"X-Forwarded-Proto": ["https"]}}]
    location = {"Location": [f"{origin}{{http.request.uri}}"]}
    return {
        "match": [{**page, "not": other}],
        "terminal": True,
        "handle": [{"handler": "static_response", "status_code": "308", "headers": location}],
    }


def permission_server(https: Https, name_pattern: str) -> dict[str, Any]:
    """Return Caddy's server that decides which names may have a certificate: 200 for these, 404 for others."""
    known = {
        "vars_regexp": {_ASKED: {"pattern": name_pattern}},
        "file": {"root": "front", "try_files": [f"h-{_ASKED}"]},
    }
    own = [{"query": {"domain": list(https.names)}}] if https.names else []
    return {
        "listen": [f"fd/{{env.{PERMISSION_FD}}}"],
        "automatic_https": {"disable": True},
        "protocols": ["h1"],
        "routes": [
            {
                "match": [*own, known],
                "terminal": True,
                "handle": [{"handler": "static_response", "status_code": "200"}],
            },
            {"handle": [{"handler": "static_response", "status_code": "404"}]},
        ],
    }


def last_failure(log: Path, name: str) -> str | None:
    """Return Caddy's last logged reason why it got no certificate for `name`; None without one."""
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_BYTES_READ))
        for line in reversed(file.read().splitlines()):
            with suppress(ValueError, TypeError, KeyError):
                told = json.loads(line)
                if told["level"] == "error" and told["identifier"] == name:
                    return str(told["error"])[:_FAILURE_LENGTH_MAX]
    return None


def _issuer(https: Https, ca: str) -> dict[str, Any]:
    """Configure ACME. Challenges arrive at the front door's own ports, whichever ports are public."""
    challenges: dict[str, Any] = {
        "http": {"alternate_port": https.http_port},
        "tls-alpn": {"alternate_port": https.port},
    }
    if https.host not in _EVERYWHERE:
        challenges["bind_host"] = https.host
    issuer: dict[str, Any] = {"module": "acme", "ca": ca, "challenges": challenges}
    if https.acme_email:
        issuer["email"] = https.acme_email
    if https.acme_roots:
        issuer["trusted_roots_pem_files"] = [_path(https.acme_roots, "roots")]
    return issuer


def _path(file: Path, kind: str) -> str:
    return f"{TLS_FOLDER}/{_named(file, kind)}"


def _named(file: Path, kind: str) -> str:
    return f"{kind}-{hashlib.sha256(_read(file)).hexdigest()[:16]}.pem"


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise EngineError(f"{file}, which the settings name for HTTPS, cannot be read: {error.strerror}") from error


def _check_pair(certificate: Path, key: Path) -> None:
    """Raise EngineError for a key that does not match its certificate: Caddy would not start with it."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, ValueError, OSError) as error:
        raise EngineError(
            f"MOORAGE_TLS_CERTIFICATE and MOORAGE_TLS_KEY do not make a pair: {certificate} must hold a certificate and its "
            f"chain, {key} its key without a password, both in PEM"
        ) from error
