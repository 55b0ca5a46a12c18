"""Finds the authorization server of an MCP server as the MCP specification says, and registers there as a client.

RFC 9728 (which server protects the resource), RFC 8414 (its endpoints), RFC 7591 (registration). All answers are
untrusted: addresses go through the guarded HTTP client, and each server must identify itself as the server that was
asked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from pydantic import TypeAdapter, ValidationError

from moorage.control.oauth.providers import OAuthProviders
from moorage.control.oauth.sign_ins import callback_url
from moorage.control.records.oauth import (
    ClientId,
    ClientSecret,
    Discovered,
    MCPOAuthProviderCreateRequest,
    OAuthProvider,
    OAuthProviderCreate,
)
from moorage.control.records.urls import Url
from moorage.kernel.access import Caller
from moorage.kernel.encoding import decode, encode
from moorage.kernel.errors import BadRequestError
from moorage.kernel.guarded_http import GuardedHttp

_METADATA_URL = re.compile(r'resource_metadata="([^"]{1,2048})"')
_URL: TypeAdapter[str] = TypeAdapter(Url)
_CLIENT_ID: TypeAdapter[str] = TypeAdapter(ClientId)
_SECRET: TypeAdapter[str] = TypeAdapter(ClientSecret)
_METHODS = ("none", "client_secret_post", "client_secret_basic")


class Discovery:
    def __init__(self, http: GuardedHttp, providers: OAuthProviders, public_url: str) -> None:
        self._http = http
        self._providers = providers
        self._public_url = public_url

    async def create(self, caller: Caller, asked: MCPOAuthProviderCreateRequest) -> OAuthProvider:
        """Create the provider that protects the MCP server.

        Raises ConflictError for a provider id that is taken, before any request is sent; BadRequestError and
        RemoteError when the server cannot be found, does not register clients, or names addresses that are not allowed.
        """
        await self._providers.check_free(caller, asked.provider_id)
        issuer = await self._issuer(asked.mcp_server_url)
        server = await self._metadata(issuer)
        if "S256" not in _words(server, "code_challenge_methods_supported"):
            raise BadRequestError("The authorization server does not support PKCE with S256")
        registered = await self._register(server, asked.provider_id)
        new = OAuthProviderCreate(
            provider_id=asked.provider_id,
            name=asked.name,
            client_id=_checked(_CLIENT_ID, registered, "client_id"),
            client_secret=_checked(_SECRET, registered, "client_secret") if registered.get("client_secret") else None,
            auth_url=_checked(_URL, server, "authorization_endpoint"),
            token_url=_checked(_URL, server, "token_endpoint"),
            uses_pkce=True,
            token_endpoint_auth_method=registered["token_endpoint_auth_method"],
            revocation_url=_checked(_URL, server, "revocation_endpoint") if server.get("revocation_endpoint") else None,
        )
        return await self._providers.create(caller, new, Discovered(asked.mcp_server_url, issuer))

    async def _issuer(self, server_url: str) -> str:
        """Return the authorization server of the resource. An older MCP server is its own authorization server."""
        answer = await self._http.send("GET", server_url, headers={"accept": "application/json, text/event-stream"})
        named = _METADATA_URL.search(answer.headers.get("www-authenticate", ""))
        parts = urlsplit(server_url)
        origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
        well_known = f"{origin}/.well-known/oauth-protected-resource"
        for url in [named[1]] if named else dict.fromkeys([well_known + path, well_known]):
            resource = await self._read(url)
            if resource is not None:
                return self._issuer_of(resource, server_url)
        return origin

    def _issuer_of(self, resource: Mapping[str, Any], server_url: str) -> str:
        """Read the issuer. RFC 9728, section 3.3: metadata of another resource must not be used."""
        told = resource.get("resource")
        if not isinstance(told, str) or not _is_within(server_url, told):
            raise BadRequestError("The MCP server's metadata describes another resource")
        issuers = _words(resource, "authorization_servers")
        if not issuers:
            raise BadRequestError("The MCP server's metadata names no authorization server")
        return _checked(_URL, {"issuer": issuers[0]}, "issuer")

    async def _metadata(self, issuer: str) -> Mapping[str, Any]:
        parts = urlsplit(issuer)
        origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
        for url in dict.fromkeys(
            (
                f"{origin}/.well-known/oauth-authorization-server{path}",
                f"{origin}/.well-known/openid-configuration{path}",
                f"{origin}{path}/.well-known/openid-configuration",
            )
        ):
            server = await self._read(url)
            if server is not None:
                if str(server.get("issuer", "")).rstrip("/") != issuer.rstrip("/"):
                    raise BadRequestError("The authorization server names another issuer than the one that was asked")
                return server
        raise BadRequestError("The authorization server publishes no metadata: make the provider by its addresses")

    async def _register(self, server: Mapping[str, Any], provider_id: str) -> dict[str, Any]:
        if not server.get("registration_endpoint"):
            raise BadRequestError("The authorization server registers no clients: make the provider by its addresses")
        offered = _words(server, "token_endpoint_auth_methods_supported") or ["client_secret_basic"]
        method = next((method for method in _METHODS if method in offered), None)
        if method is None:
            raise BadRequestError("The authorization server knows no client authentication that is served here")
        wanted = {
            "client_name": "moorage",
            "redirect_uris": [callback_url(self._public_url, provider_id)],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "token_endpoint_auth_method": method,
        }
        url = _checked(_URL, server, "registration_endpoint")
        headers = {"content-type": "application/json", "accept": "application/json"}
        answer = await self._http.send("POST", url, headers=headers, content=encode(wanted))
        registered = _object(answer.content)
        if answer.status not in {200, 201} or registered is None:
            raise BadRequestError(f"The authorization server refused to register a client ({answer.status})")
        told = registered.get("token_endpoint_auth_method", method)
        if told not in _METHODS:
            raise BadRequestError("The authorization server registered a client authentication that is not served here")
        return {**registered, "token_endpoint_auth_method": told}

    async def _read(self, url: str) -> Mapping[str, Any] | None:
        """Return the JSON object at an address, or None if there is none."""
        answer = await self._http.send("GET", url, headers={"accept": "application/json"})
        return _object(answer.content) if answer.status == 200 else None


def _object(content: bytes) -> Mapping[str, Any] | None:
    try:
        told = decode(content)
    except ValueError:
        return None
    return told if isinstance(told, dict) else None


def _words(told: Mapping[str, Any], name: str) -> list[str]:
    value = told.get(name)
    return [word for word in value if isinstance(word, str)] if isinstance(value, list) else []


def _is_within(url: str, resource: str) -> bool:
    """Return True if a resource covers a URL: the same origin, and a path at or above it."""
    asked, told = urlsplit(url), urlsplit(resource)
    above, below = told.path.rstrip("/"), asked.path.rstrip("/")
    same = (asked.scheme, asked.netloc.lower()) == (told.scheme, told.netloc.lower())
    return same and (below == above or below.startswith(f"{above}/"))


def _checked(adapter: TypeAdapter[str], told: Mapping[str, Any], name: str) -> str:
    """Validate a field of a server's answer in the same way as a caller's input."""
    try:
        return adapter.validate_python(told.get(name))
    except ValidationError:
        raise BadRequestError(f"The authorization server's {name} is missing or cannot be used") from None
