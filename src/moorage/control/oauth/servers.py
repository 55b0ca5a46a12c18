"""Requests to authorization servers: exchange a code or a refresh token for a token, and revoke a token.

Written on our own HTTP client instead of an OAuth client library: a library brings another HTTP client, and the
connection has to go to the address that was checked. Secrets, codes and tokens travel in bodies and headers only, and
no error repeats an answer.
"""

from __future__ import annotations

import base64
from hashlib import sha256
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from moorage.control.records.oauth_tokens import Grant, OAuthClient, read_grant, sent_scopes
from moorage.kernel.encoding import decode
from moorage.kernel.errors import BadRequestError, RemoteError
from moorage.kernel.guarded_http import GuardedHttp
from moorage.kernel.pinned_http import Answer

# Errors that mean that the code or refresh token is no longer valid; the last three are used by GitHub and Slack. Any
# other error, such as a client secret that was changed at the provider, may be corrected, so the token is kept.
_ENDED = frozenset({"invalid_grant", "bad_refresh_token", "bad_verification_code", "invalid_refresh_token"})
_WORDS = _ENDED | {
    "invalid_client",
    "invalid_request",
    "invalid_scope",
    "server_error",
    "slow_down",
    "temporarily_unavailable",
    "unauthorized_client",
    "unsupported_grant_type",
}


class RefusedGrantError(BadRequestError):
    """The authorization server refuses a code or refresh token: it was used before, was revoked or has expired."""

    code = "grant_refused"


def authorization_url(client: OAuthClient, *, redirect_uri: str, state: str, scopes: list[str], verifier: str) -> str:
    """Return the URL of the provider's sign-in page. Keeps parameters of the configured URL, such as `access_type`."""
    separator = "," if client.provider_type == "slack" else " "
    asked = {
        "response_type": "code",
        "client_id": client.client_id,
        "redirect_uri": redirect_uri,
        "state": state,
        "scope": separator.join(sent_scopes(scopes, client.provider_type)),
    }
    if client.proves_itself:
        plain = client.code_challenge_method == "plain"
        asked["code_challenge"] = verifier if plain else _challenge(verifier)
        asked["code_challenge_method"] = client.code_challenge_method
    if client.mcp_server_url:
        asked["resource"] = client.mcp_server_url  # RFC 8707: limits the token to this server
    parts = urlsplit(client.auth_url)
    kept = [(name, value) for name, value in parse_qsl(parts.query, keep_blank_values=True) if name not in asked]
    told = [(name, value) for name, value in asked.items() if value]
    return urlunsplit((*parts[:3], urlencode(kept + told, quote_via=quote), ""))


class AuthorizationServers:
    def __init__(self, http: GuardedHttp) -> None:
        self._http = http

    async def exchange(self, client: OAuthClient, *, code: str, redirect_uri: str, verifier: str) -> Grant:
        """Exchange a code for a grant. Raises RefusedGrantError, RemoteError or BadRequestError, as `refresh` does."""
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": redirect_uri}
        if client.proves_itself:
            form["code_verifier"] = verifier
        return await self._ask_for_token(client, form)

    async def refresh(self, client: OAuthClient, refresh_token: str) -> Grant:
        """Return the new grant, with the earlier refresh token if the server returns no new one."""
        grant = await self._ask_for_token(client, {"grant_type": "refresh_token", "refresh_token": refresh_token})
        return Grant(grant.access_token, grant.refresh_token or refresh_token, grant.scopes, grant.expires_in_s)

    async def revoke(self, client: OAuthClient, token: str, kind: str) -> None:
        """Revoke a token, as in RFC 7009. `kind` is access_token or refresh_token. Raises RemoteError unless the server
        confirms.
        """
        assert client.revocation_url is not None
        answer = await self._post(client, client.revocation_url, {"token": token, "token_type_hint": kind})
        if answer.status != 200:
            raise RemoteError(f"The server of {client.provider_id} answered the revocation with {answer.status}")

    async def _ask_for_token(self, client: OAuthClient, form: dict[str, str]) -> Grant:
        if client.mcp_server_url:
            form = {**form, "resource": client.mcp_server_url}
        answer = await self._post(client, client.token_url, form)
        told = _read(answer)
        word = told.get("error")
        if word in _ENDED and answer.status < 500:
            raise RefusedGrantError(f"The token endpoint of {client.provider_id} refused ({word})")
        if word is not None or told.get("ok") is False or answer.status != 200:
            raise RemoteError(f"The token endpoint of {client.provider_id} answered {answer.status}{_named(word)}")
        try:
            return read_grant(told, client.provider_type)
        except ValueError as error:
            raise RemoteError(f"The token endpoint of {client.provider_id} gave no token: {error}") from None

    async def _post(self, client: OAuthClient, url: str, form: dict[str, str]) -> Answer:
        headers = {"content-type": "application/x-www-form-urlencoded", "accept": "application/json"}
        if client.token_endpoint_auth_method == "client_secret_basic":  # noqa: S105 - a word of the wire
            headers["authorization"] = _basic(client)
        else:
            form = {**form, "client_id": client.client_id}
            if client.token_endpoint_auth_method == "client_secret_post" and client.client_secret:  # noqa: S105 - as above
                form["client_secret"] = client.client_secret
        return await self._http.send("POST", url, headers=headers, content=urlencode(form).encode())


def _challenge(verifier: str) -> str:
    return base64.urlsafe_b64encode(sha256(verifier.encode()).digest()).rstrip(b"=").decode()


def _basic(client: OAuthClient) -> str:
    """Return the header of HTTP Basic. Both halves are form-encoded first: RFC 6749, section 2.3.1."""
    halves = f"{quote(client.client_id, safe='')}:{quote(client.client_secret or '', safe='')}"
    return f"Basic {base64.b64encode(halves.encode()).decode()}"


def _read(answer: Answer) -> dict[str, object]:
    """Parse an answer: JSON, or a form, which GitHub sends unless it is asked for JSON."""
    if answer.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        return dict(parse_qsl(answer.content.decode("ascii", "replace")))
    try:
        told = decode(answer.content)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def _named(word: object) -> str:
    """Return the error code in brackets if it is one of the standard, or no text: other words are untrusted."""
    return f" ({word})" if word in _WORDS else ""
