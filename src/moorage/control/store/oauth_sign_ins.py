"""SQL of sign-ins at OAuth providers. A sign-in is taken once, by a compare-and-set on its state."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from moorage.control.records.oauth_tokens import Grant
from moorage.kernel.postgres import Postgres

_INSERT = """
INSERT INTO oauth_sign_ins (
    id, workspace_id, provider_row_id, provider_changed_at, user_id, agent_id, state_digest, sealed_verifier, scopes,
    is_default, renews, expires_at, actor
)
VALUES (
    %(id)s, %(workspace_id)s, %(provider_row_id)s, %(provider_changed_at)s, %(user_id)s, %(agent_id)s, %(state_digest)s,
    %(sealed_verifier)s, %(scopes)s, %(is_default)s, %(renews)s, now() + %(good_for_s)s * interval '1 second', %(actor)s
)
"""
# An agent that asks repeatedly begins a sign-in each time, so only a user's newest ones are kept.
_FORGET_OLDER = """
DELETE FROM oauth_sign_ins WHERE id IN (
    SELECT id FROM oauth_sign_ins
    WHERE workspace_id = %(workspace_id)s AND provider_row_id = %(provider_row_id)s AND user_id = %(user_id)s
    ORDER BY created_at DESC, id DESC OFFSET %(kept)s
)
"""
_READ = """
SELECT status, token_id, user_id, actor FROM oauth_sign_ins
WHERE workspace_id = %s AND id = %s AND expires_at > now()
"""
# Valid only while the provider is unchanged and, if the caller is known, only for the actor who began it.
_TAKE = """
UPDATE oauth_sign_ins s SET status = 'exchanging'
FROM oauth_providers p
WHERE s.id = %(id)s AND s.state_digest = %(state_digest)s AND s.status = 'pending' AND s.expires_at > now()
    AND p.id = s.provider_row_id AND p.provider_id = %(provider_id)s AND p.updated_at = s.provider_changed_at
    AND (%(actor)s::text IS NULL OR (s.actor = %(actor)s AND s.workspace_id = %(workspace_id)s))
RETURNING s.id, s.workspace_id, s.user_id, s.agent_id, s.sealed_verifier, s.scopes, s.is_default, s.renews, s.actor
"""
_FAIL = "UPDATE oauth_sign_ins SET status = 'failed' WHERE id = %s AND status = 'exchanging'"
_CLEAR_DEFAULT = """
UPDATE oauth_tokens SET is_default = false
WHERE %(is_default)s AND provider_row_id = %(provider_row_id)s AND user_id = %(user_id)s AND is_default
    AND workspace_id = %(workspace_id)s
"""
# Raises `attempt`: a concurrent refresh of the renewed token then no longer writes anything.
_STORE_GRANT = """
INSERT INTO oauth_tokens (
    id, workspace_id, provider_row_id, user_id, sealed_token, scopes, asked_scopes, is_default, expires_at, refresh_at, actor
)
VALUES (
    %(token_id)s, %(workspace_id)s, %(provider_row_id)s, %(user_id)s, %(sealed_token)s, %(granted)s, %(scopes)s,
    %(is_default)s, %(expires_at)s, %(refresh_at)s, %(actor)s
)
ON CONFLICT (id) DO UPDATE SET
    sealed_token = excluded.sealed_token, scopes = excluded.scopes, asked_scopes = excluded.asked_scopes,
    is_default = oauth_tokens.is_default OR excluded.is_default, expires_at = excluded.expires_at,
    refresh_at = excluded.refresh_at, actor = excluded.actor, status = 'active', worker = NULL, lease_until = NULL,
    attempt = oauth_tokens.attempt + 1, failures = 0, not_before = now(), updated_at = now()
WHERE oauth_tokens.workspace_id = excluded.workspace_id AND oauth_tokens.user_id = excluded.user_id
"""
_CONNECT = """
INSERT INTO oauth_connections (id, workspace_id, agent_id, oauth_token_id, actor)
SELECT %(connection_id)s, %(workspace_id)s, %(agent_id)s, %(token_id)s, %(actor)s WHERE %(agent_id)s::text IS NOT NULL
ON CONFLICT (workspace_id, agent_id, oauth_token_id) DO NOTHING
"""
_COMPLETE = "UPDATE oauth_sign_ins SET status = 'completed', token_id = %(token_id)s WHERE id = %(id)s AND status = 'exchanging'"
_SWEEP = "DELETE FROM oauth_sign_ins WHERE expires_at < now()"


@dataclass(frozen=True)
class NewSignIn:
    """A sign-in to begin. `agent_id` is the agent that the new token is connected to, `renews` the token that it
    replaces.
    """

    id: UUID
    workspace_id: UUID
    provider_row_id: UUID
    provider_changed_at: datetime
    user_id: str
    agent_id: str | None
    state_digest: bytes
    sealed_verifier: bytes
    scopes: list[str]
    is_default: bool
    renews: UUID | None
    actor: str


@dataclass(frozen=True)
class TakenSignIn:
    """A sign-in that was taken: only its taker may exchange it for a token."""

    id: UUID
    workspace_id: UUID
    user_id: str
    agent_id: str | None
    sealed_verifier: bytes
    scopes: list[str]
    is_default: bool
    renews: UUID | None
    actor: str


@dataclass(frozen=True)
class SignInState:
    status: str
    token_id: UUID | None
    user_id: str
    actor: str


class OAuthSignInStore:
    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres

    async def insert(self, new: NewSignIn, *, good_for_s: float, kept: int) -> None:
        values = {**vars(new), "good_for_s": good_for_s, "kept": kept}
        await self._postgres.execute_all([(_INSERT, [values]), (_FORGET_OLDER, [values])])

    async def read(self, workspace_id: UUID, sign_in_id: UUID) -> SignInState | None:
        """Return the state of a sign-in, or None when it does not exist or has expired."""
        row = await self._postgres.fetch_one(_READ, (workspace_id, sign_in_id))
        return SignInState(**row) if row else None

    async def take(
        self,
        sign_in_id: UUID,
        state_digest: bytes,
        provider_id: str,
        *,
        actor: str | None = None,
        workspace_id: UUID | None = None,
    ) -> TakenSignIn | None:
        """Take the sign-in. Returns None when there is none, it was taken, or it belongs to another
        provider or actor.
        """
        values = {"id": sign_in_id, "state_digest": state_digest, "provider_id": provider_id}
        row = await self._postgres.fetch_one(_TAKE, {**values, "actor": actor, "workspace_id": workspace_id})
        return TakenSignIn(**{**row, "sealed_verifier": bytes(row["sealed_verifier"])}) if row else None

    async def fail(self, sign_in_id: UUID) -> None:
        await self._postgres.execute(_FAIL, (sign_in_id,))

    async def complete(
        self, taken: TakenSignIn, provider_row_id: UUID, token_id: UUID, sealed_token: bytes, grant: Grant, new_id: UUID
    ) -> None:
        """Write the token, connect it and end the sign-in, in one transaction. `new_id` is the id of the connection."""
        values: dict[str, Any] = {
            **vars(taken),
            "provider_row_id": provider_row_id,
            "token_id": token_id,
            "sealed_token": sealed_token,
            "granted": taken.scopes if grant.scopes is None else grant.scopes,
            "expires_at": grant.expires_at,
            "refresh_at": grant.refresh_at,
            "connection_id": new_id,
        }
        statements = (_CLEAR_DEFAULT, _STORE_GRANT, _CONNECT, _COMPLETE)
        await self._postgres.execute_all([(statement, [values]) for statement in statements])

    async def sweep(self) -> int:
        return await self._postgres.execute(_SWEEP)
