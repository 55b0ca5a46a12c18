"""Host names of deployments: how a `custom_url` is checked, and the state of a name's certificate."""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass
from datetime import datetime
from ipaddress import ip_address
from typing import Literal
from urllib.parse import urlsplit

from typing_extensions import TypedDict

from moorage.kernel.errors import BadRequestError

# The front door dials a unix socket by a path that holds the name, and the kernel limits such a path to 107 bytes.
_LENGTH_MAX = 90
_LABEL = "[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
# The last label begins with a letter: a name that ends in a number is some spelling of an address.
_NAME = re.compile(rf"(?:{_LABEL}\.)+[a-z](?:[a-z0-9-]{{0,61}}[a-z0-9])")
# These names mean this machine or its network, or nothing at all (RFC 6761, RFC 6762).
_NEVER_PUBLIC = ("localhost", "local", "invalid", "arpa")


CertificateState = Literal["none", "pending", "issued", "failed"]


class HostName(TypedDict):
    """A host name with the state of its certificate. `none`: the front door serves no HTTPS, or the address is plain
    HTTP. `pending`: it has not been seen yet. `failed`: it could not be had, for the reason in `message`.
    """

    name: str
    certificate: CertificateState
    message: str | None
    expires_at: datetime | None


@dataclass(frozen=True)
class ServedName:
    """A host name at which the front door serves a deployment. `has_https` tells that its address is https and its
    certificate was seen.
    """

    host_name: str
    deployment_name: str
    has_https: bool


def host_name_of(url: str | None) -> str | None:
    """Return the host name in a URL that `checked_url` has returned."""
    return urlsplit(url).hostname if url else None


def checked_url(url: str, taken: Container[str]) -> str:
    """Return `url` reduced to scheme, host name and port, such as `https://chat.example.com`. `taken` are names of the
    platform.

    Raises BadRequestError when the agent cannot be served at it.
    """
    parts = urlsplit(url)
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise _refused(
            url, "the agent is served at the root of a host name, so it has no path, such as https://chat.example.com"
        )
    name = parts.hostname or ""
    _check_name(url, name)
    if name in taken:
        raise _refused(url, "the platform itself is served at this name")
    return f"{parts.scheme}://{name}" + (f":{parts.port}" if parts.port else "")


def _check_name(url: str, name: str) -> None:
    if "*" in name:
        raise _refused(url, "a wildcard is not one host name; name the one that the agent is served at")
    if _is_address(name):
        raise _refused(url, "an IP address is not a host name")
    if not name.isascii():
        raise _refused(url, "write an international name in its ASCII form, which begins with xn--")
    if len(name) > _LENGTH_MAX:
        raise _refused(url, f"a host name is {_LENGTH_MAX} characters long at most")
    if not _NAME.fullmatch(name) or name.rpartition(".")[2] in _NEVER_PUBLIC:
        raise _refused(url, "it must have a public host name of several parts, such as chat.example.com")


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return name.rpartition(".")[2].isdigit()
    return True


def _refused(url: str, reason: str) -> BadRequestError:
    return BadRequestError(f"source_config.custom_url cannot be {url!r}: {reason}")
