"""Tokens for agents: an existing token is returned at once, otherwise the user signs in at the provider.

The `state` of a sign-in is a secret; only its digest is stored. It is valid for one use, for a quarter of an hour, and
only while the provider stays unchanged. The code that the provider returns with it is exchanged together with the PKCE
verifier, which never leaves this server.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal
from uuid import UUID, uuid4

from moorage.control.oauth.clients import Clients
from moorage.control.oauth.servers import AuthorizationServers, authorization_url
from moorage.control.oauth.users import acting_user, is_own
from moorage.control.records.oauth_tokens import (
    SEALED_TOKEN,
    SEALED_VERIFIER,
    AuthAuthenticateRequest,
    AuthAuthenticateResponse,
    AuthWaitResponse,
    OAuthClient,
)
from moorage.control.store.oauth_sign_ins import NewSignIn, OAuthSignInStore, TakenSignIn
from moorage.control.store.oauth_tokens import FoundToken, OAuthTokenStore
from moorage.kernel.access import Caller
from moorage.kernel.crypto import MasterKeys
from moorage.kernel.encoding import decode, encode
from moorage.kernel.errors import BadRequestError, MoorageError, NotFoundError, UnavailableError
from moorage.kernel.ids import uuid7

_GOOD_FOR_S = 900
_KEPT = 20  # the newest sign-ins of one user at one provider
_LOOK_EVERY_S = 0.5
_REFRESH_WAIT_S = 15.0
_UNKNOWN = (
    "This sign-in is not known here: it has ended, was used before, or belongs to another provider or caller. "
    "Begin it again where you came from"
)

_Lack = Literal["pending", "connection_required", "token_expired"]


@dataclass(frozen=True)
class SignIns:
    store: OAuthSignInStore
    tokens: OAuthTokenStore
    clients: Clients
    servers: AuthorizationServers
    keys: MasterKeys
    public_url: str
    wake_upkeep: Callable[[], None]

    async def authenticate(self, caller: Caller, asked: AuthAuthenticateRequest) -> AuthAuthenticateResponse:
        """Return the user's token, or the URL at which the user signs in to get one.

        An agent that is connected to tokens of the user uses only those tokens. Raises NotFoundError for an unknown
        provider or `token_id`, ForbiddenError for a user that the caller may not act for.
        """
        user_id = acting_user(caller, asked.user_id or asked.ls_user_id)
        client = await self.clients.open(caller.workspace_id, asked.provider)
        found = await self._find(caller.workspace_id, client, user_id, asked)
        chosen = next((token for token in found if token.covers and (token.is_usable or token.is_refreshable)), None)
        if chosen is not None and not asked.force_new:
            if not chosen.is_usable:
                chosen = await self._refreshed(caller.workspace_id, client, user_id, asked, chosen.id)
            if chosen is not None:
                return self._given(chosen, user_id)
        renewed = None if asked.force_new else next((token for token in found if token.covers), None)
        lacks: _Lack = "token_expired" if renewed else "pending"
        if renewed is None and any(token.is_connected for token in found):
            lacks = "connection_required"
        return await self._begin(caller, client, user_id, asked, renewed, lacks)

    async def _find(
        self, workspace_id: UUID, client: OAuthClient, user_id: str, asked: AuthAuthenticateRequest
    ) -> list[FoundToken]:
        """Find the user's tokens that may be used, the best first."""
        found = await self.tokens.find(workspace_id, client.row_id, user_id, asked.scopes, asked.agent_id)
        if asked.token_id is not None:
            named = [token for token in found if token.id == asked.token_id]
            if not named:
                raise NotFoundError(f"OAuth token {asked.token_id} not found")
            return named
        return [token for token in found if token.is_connected] or found

    async def _refreshed(
        self, workspace_id: UUID, client: OAuthClient, user_id: str, asked: AuthAuthenticateRequest, token_id: UUID
    ) -> FoundToken | None:
        """Wait for the job that refreshes the token, and return the new token, or None when its provider refuses.
        Raises UnavailableError.
        """
        self.wake_upkeep()
        give_up_at = time.monotonic() + _REFRESH_WAIT_S
        while time.monotonic() < give_up_at:
            found = await self._find(workspace_id, client, user_id, asked)
            now = next((token for token in found if token.id == token_id), None)
            if now is None or now.is_usable:
                return now
            if not now.is_refreshable:
                return None
            await asyncio.sleep(_LOOK_EVERY_S)
        raise UnavailableError(f"The token of {client.provider_id} has ended and its server does not answer; try again")

    def _given(self, token: FoundToken, user_id: str) -> AuthAuthenticateResponse:
        metadata = {
            "token_id": str(token.id),
            "scopes": token.scopes,
            "expires_at": token.expires_at.isoformat() if token.expires_at else None,
            "provider_account_label": token.provider_account_label,
            "is_default": token.is_default,
        }
        secret = self._opened(token.id, token.sealed_token)
        return {
            "status": "completed",
            "url": None,
            "auth_id": None,
            "token": secret,
            "user_id": user_id,
            "metadata": metadata,
        }

    async def _begin(
        self,
        caller: Caller,
        client: OAuthClient,
        user_id: str,
        asked: AuthAuthenticateRequest,
        renewed: FoundToken | None,
        lacks: _Lack,
    ) -> AuthAuthenticateResponse:
        sign_in_id, secret, verifier = uuid4(), secrets.token_urlsafe(32), secrets.token_urlsafe(64)
        new = NewSignIn(
            id=sign_in_id,
            workspace_id=caller.workspace_id,
            provider_row_id=client.row_id,
            provider_changed_at=client.changed_at,
            user_id=user_id,
            agent_id=asked.agent_id if lacks == "connection_required" else None,
            state_digest=_digest(secret),
            sealed_verifier=self.keys.seal(verifier.encode(), SEALED_VERIFIER.place(sign_in_id)),
            scopes=asked.scopes,
            is_default=asked.is_default,
            renews=renewed.id if renewed else None,
            actor=caller.actor,
        )
        await self.store.insert(new, good_for_s=_GOOD_FOR_S, kept=_KEPT)
        url = authorization_url(
            client,
            redirect_uri=self._redirect_uri(client),
            state=f"{sign_in_id}.{secret}",
            scopes=asked.scopes,
            verifier=verifier,
        )
        return {
            "status": lacks,
            "url": url,
            "auth_id": str(sign_in_id),
            "token": None,
            "user_id": user_id,
            "metadata": None,
        }

    async def finish(
        self, provider_id: str, state: str, *, code: str | None, issuer: str | None = None, caller: Caller | None = None
    ) -> None:
        """Exchange the code that the provider returned, once. Without a code the sign-in has failed.

        `caller`, if given, must have begun the sign-in. Raises BadRequestError, RefusedGrantError and RemoteError; then
        the user has to sign in again.
        """
        taken = await self._take(provider_id, state, caller)
        try:
            if code is None:
                raise BadRequestError("The provider did not grant access")
            client = await self.clients.open(taken.workspace_id, provider_id)
            # RFC 9207: refuse a code that another server than the requested one has returned.
            if issuer is not None and client.issuer is not None and issuer != client.issuer:
                raise BadRequestError("The answer comes from another server than the one that was asked")
            await self._complete(taken, client, code)
        except MoorageError:
            await self.store.fail(taken.id)
            raise

    async def _take(self, provider_id: str, state: str, caller: Caller | None) -> TakenSignIn:
        text, _, secret = state.partition(".")
        try:
            sign_in_id = UUID(text)
        except ValueError:
            raise BadRequestError(_UNKNOWN) from None
        bound = {"actor": caller.actor, "workspace_id": caller.workspace_id} if caller else {}
        taken = await self.store.take(sign_in_id, _digest(secret), provider_id, **bound)  # type: ignore[arg-type]
        if taken is None:
            raise BadRequestError(_UNKNOWN)
        return taken

    async def _complete(self, taken: TakenSignIn, client: OAuthClient, code: str) -> None:
        verifier = self.keys.open(taken.sealed_verifier, SEALED_VERIFIER.place(taken.id)).decode()
        grant = await self.servers.exchange(
            client, code=code, redirect_uri=self._redirect_uri(client), verifier=verifier
        )
        token_id = taken.renews or uuid7()
        sealed = seal_token(self.keys, token_id, grant.access_token, grant.refresh_token)
        await self.store.complete(taken, client.row_id, token_id, sealed, grant, uuid7())

    async def wait(self, caller: Caller, auth_id: str, timeout_s: float) -> AuthWaitResponse:
        """Wait until the sign-in has ended, or until the time-out, and return its state. A failed
        sign-in is not found.
        """
        try:
            sign_in_id = UUID(auth_id)
        except ValueError:
            return {"status": "not_found", "token": None}
        give_up_at = time.monotonic() + timeout_s
        while True:
            state = await self.store.read(caller.workspace_id, sign_in_id)
            if state is None or state.status == "failed" or not is_own(caller, state.user_id, state.actor):
                return {"status": "not_found", "token": None}
            if state.token_id is not None:
                return await self._waited(caller.workspace_id, state.token_id)
            left_s = give_up_at - time.monotonic()
            if left_s <= 0:
                return {"status": "timeout", "token": None}
            await asyncio.sleep(min(_LOOK_EVERY_S, left_s))

    async def _waited(self, workspace_id: UUID, token_id: UUID) -> AuthWaitResponse:
        sealed = await self.tokens.read_sealed(workspace_id, token_id)
        if sealed is None:  # revoked meanwhile
            return {"status": "not_found", "token": None}
        return {"status": "completed", "token": self._opened(token_id, sealed)}

    def _opened(self, token_id: UUID, sealed: bytes) -> str:
        return open_token(self.keys, token_id, sealed)[0]

    def _redirect_uri(self, client: OAuthClient) -> str:
        """Return the provider's own redirect URI, so that no provider's answer is taken for another's."""
        return callback_url(self.public_url, client.provider_id)


def callback_url(public_url: str, provider_id: str) -> str:
    return f"{public_url}/v2/auth/callback/{provider_id}"


def seal_token(keys: MasterKeys, token_id: UUID, access_token: str, refresh_token: str | None) -> bytes:
    return keys.seal(encode([access_token, refresh_token]), SEALED_TOKEN.place(token_id))


def open_token(keys: MasterKeys, token_id: UUID, sealed: bytes) -> tuple[str, str | None]:
    """Return the access token and the refresh token. Raises UnsealError."""
    access_token, refresh_token = decode(keys.open(sealed, SEALED_TOKEN.place(token_id)))
    return access_token, refresh_token


def _digest(secret: str) -> bytes:
    return sha256(secret.encode()).digest()
