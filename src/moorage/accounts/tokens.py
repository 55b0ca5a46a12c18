"""Bearer tokens: those that the installation issues for a key, and those of an identity provider that it trusts.

Both are JWTs, and the algorithm in the header tells them apart: ours are HS256 with keys derived from the master key;
an identity provider's are verified with a public key of its JWKS. Neither kind is ever verified with the keys of the
other.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import httpx
import structlog
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet, OctKey

from moorage.accounts.records import KeyToken, Token, TokenCreate
from moorage.kernel.access import Caller, Scope, covers, known_scopes
from moorage.kernel.crypto import MasterKeys
from moorage.kernel.encoding import decode
from moorage.kernel.errors import ForbiddenError, StartupError, UnauthenticatedError, UnavailableError

log = structlog.get_logger(__name__)

_OURS = "HS256"
# Asymmetric algorithms only: if a public key were accepted as an HMAC secret, anyone who reads the JWKS could sign.
_THEIRS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519")
_ISSUER = "moorage"
_AUDIENCE = "moorage"
_CLOCK_SKEW_S = 30
_TOKEN_CHARS_MAX = 16_384
_SUBJECT_CHARS_MAX = 200
_REASON_CHARS_MAX = 200

_JWKS_TIMEOUT_S = 5.0
_JWKS_FRESH_S = 600.0
# An unknown key id causes another fetch, but at most one in this time, so that invented tokens cause no load.
_JWKS_PAUSE_S = 10.0


@dataclass(frozen=True)
class IdentityProvider:
    """An issuer of JWTs, and the claims that hold workspaces (ids) and scopes (words or a list of them)."""

    jwks_url: str
    issuer: str
    audience: str
    workspaces_claim: str = "workspaces"
    scopes_claim: str = "scope"


def identity_provider(
    jwks_url: str | None, issuer: str | None, audience: str | None, workspaces_claim: str, scopes_claim: str
) -> IdentityProvider | None:
    """Return the identity provider, or None if none is set. Raises StartupError for incomplete settings."""
    if not jwks_url and not issuer and not audience:
        return None
    if not jwks_url or not issuer or not audience:
        raise StartupError(
            "MOORAGE_JWKS_URL, MOORAGE_JWT_ISSUER and MOORAGE_JWT_AUDIENCE belong together: set all three, or none"
        )
    return IdentityProvider(jwks_url, issuer, audience, workspaces_claim, scopes_claim)


@dataclass(frozen=True)
class UserToken:
    """A bearer token of the identity provider."""

    subject: str
    workspace_ids: tuple[UUID, ...]
    scopes: frozenset[str]
    expires_in_s: float


class Tokens:
    def __init__(self, master_keys: MasterKeys, provider: IdentityProvider | None) -> None:
        derived = master_keys.derive("bearer tokens").items()
        self._own_keys = KeySet([OctKey.import_key(key, {"kid": key_id, "use": "sig"}) for key_id, key in derived])
        self._newest_id = master_keys.ids[0]
        self._provider = provider
        self._jwks = _Jwks(provider.jwks_url) if provider else None

    def exchange(self, caller: Caller, wanted: TokenCreate) -> Token:
        """Issue a token for the caller's key. Raises ForbiddenError for a caller without a key, for one that already
        uses a token, and for scopes beyond the caller's.
        """
        kind, _, key_id = caller.actor.partition(":")
        if kind != "key":
            raise ForbiddenError("Only an API key can be exchanged for a token")
        scopes = caller.scopes if wanted.scopes is None else frozenset(wanted.scopes)
        if beyond := {scope for scope in scopes if not covers(caller.scopes, scope)}:
            raise ForbiddenError(f"You do not hold {', '.join(sorted(beyond))} yourself, so no token of yours can")
        return {
            "access_token": self.issue(UUID(key_id), scopes, wanted.expires_in),
            "token_type": "bearer",
            "expires_in": wanted.expires_in,
            "scope": " ".join(sorted(scopes)),
        }

    def issue(self, key_id: UUID, scopes: frozenset[str], life_s: int) -> str:
        now = int(time.time())
        header = {"alg": _OURS, "kid": self._newest_id}
        claims = {
            "iss": _ISSUER,
            "aud": _AUDIENCE,
            "sub": str(key_id),
            "scope": " ".join(sorted(scopes)),
            "iat": now,
            "exp": now + life_s,
        }
        return jwt.encode(header, claims, self._own_keys, algorithms=[_OURS])

    async def read(self, token: str) -> KeyToken | UserToken:
        """Verify the token. Raises UnauthenticatedError with the reason, and UnavailableError when the identity
        provider does not answer.
        """
        header = _header_of(token)
        try:
            if header.get("alg") == _OURS:
                return self._read_own(token)
            return await self._read_theirs(token, header)
        except (JoseError, ValueError, TypeError) as error:  # joserfc raises both for malformed parts
            raise UnauthenticatedError(f"The bearer token is not accepted: {_reason(error)}") from error

    def _read_own(self, token: str) -> KeyToken:
        claims = jwt.decode(token, self._own_keys, algorithms=[_OURS]).claims
        _registry(_ISSUER, _AUDIENCE).validate(claims)
        return KeyToken(UUID(claims["sub"]), known_scopes(claims["scope"].split()), claims["exp"] - time.time())

    async def _read_theirs(self, token: str, header: Mapping[str, Any]) -> UserToken:
        if self._provider is None or self._jwks is None:
            raise UnauthenticatedError(
                "This installation trusts no identity provider (MOORAGE_JWKS_URL); use an API key, or a token of /auth/token"
            )
        keys = await self._jwks.keys_for(header.get("kid"))
        claims = jwt.decode(token, keys, algorithms=_THEIRS).claims
        _registry(self._provider.issuer, self._provider.audience).validate(claims)
        return UserToken(
            str(claims["sub"])[:_SUBJECT_CHARS_MAX],
            tuple(UUID(word) for word in _words(claims.get(self._provider.workspaces_claim))),
            # Only a key can be an operator's: other programs of the identity provider may use that word in another
            # sense.
            known_scopes(_words(claims.get(self._provider.scopes_claim))) - {Scope.OPERATOR},
            claims["exp"] - time.time(),
        )


class _Jwks:
    """The identity provider's public keys. They are fetched again now and then, and when a token names an
    unknown key.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._keys: KeySet | None = None
        self._fresh_until = 0.0
        self._pause_until = 0.0
        self._fetching = asyncio.Lock()

    async def keys_for(self, key_id: Any) -> KeySet:
        if self._is_due(key_id):
            async with self._fetching:
                if self._is_due(key_id):  # or another request has fetched the keys while this one waited
                    await self._fetch()
        if self._keys is None:
            raise UnavailableError("The keys of the identity provider cannot be read; try again, or use an API key")
        return self._keys

    def _is_due(self, key_id: Any) -> bool:
        now = time.monotonic()
        if now < self._pause_until:
            return False
        return now > self._fresh_until or self._keys is None or key_id not in {key.kid for key in self._keys}

    async def _fetch(self) -> None:
        """Fetch the keys. On failure the old ones stay, so that an outage of the identity provider locks nobody out."""
        try:
            async with httpx.AsyncClient(timeout=_JWKS_TIMEOUT_S) as client:
                answer = await client.get(self._url, headers={"Accept": "application/json"})
            answer.raise_for_status()
            self._keys = KeySet.import_key_set(answer.json())
            self._fresh_until = time.monotonic() + _JWKS_FRESH_S
        except (httpx.HTTPError, JoseError, ValueError, TypeError, KeyError) as error:
            log.warning("the keys of the identity provider cannot be read", url=self._url, error=repr(error))
        finally:  # set last: requests that come meanwhile wait for the result
            self._pause_until = time.monotonic() + _JWKS_PAUSE_S


def _header_of(token: str) -> dict[str, Any]:
    """Return the header of an unverified token. Use it to choose keys only."""
    if len(token) > _TOKEN_CHARS_MAX:
        raise UnauthenticatedError("The bearer token is too long")
    try:
        part = token.partition(".")[0]
        header = decode(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except ValueError:
        header = None
    if not isinstance(header, dict):
        raise UnauthenticatedError("The bearer token is neither an API key nor a JWT")
    return header


def _registry(issuer: str, audience: str) -> jwt.JWTClaimsRegistry:
    return jwt.JWTClaimsRegistry(
        leeway=_CLOCK_SKEW_S,
        iss={"essential": True, "value": issuer},
        aud={"essential": True, "value": audience},
        sub={"essential": True},
        exp={"essential": True},
    )


def _reason(error: Exception) -> str:
    """Return the reason of a refusal. Messages of joserfc name the failed check; other errors may quote the token, so
    they show their kind.
    """
    return (error.description or error.error)[:_REASON_CHARS_MAX] if isinstance(error, JoseError) else "it is malformed"


def _words(claim: Any) -> list[str]:
    """Split a claim that is a list of words, or one string of words separated by blanks."""
    if isinstance(claim, str):
        return claim.split()
    return [word for word in claim if isinstance(word, str)] if isinstance(claim, list) else []
