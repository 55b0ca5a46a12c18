"""SQL of OAuth tokens and of the agents that use them. Tokens are sealed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast
from uuid import UUID

from psycopg.rows import DictRow

from moorage.control.records.oauth_tokens import AgentConnectionResponse, Grant, LeasedToken, OAuthTokenSummary
from moorage.worker.leases import HELD, MINE, Lease, LeaseStore, proof_of

# Callers see their own tokens, and tokens that they obtained for others.
_SEEN = """
t.workspace_id = %(workspace_id)s AND t.status <> 'revoking' AND (t.user_id = %(own)s OR t.actor = %(actor)s)
"""
_SUMMARY = """
    t.id, p.provider_id, t.provider_account_label, t.scopes, t.expires_at, t.is_default, t.created_at, t.updated_at
"""
_FROM = "FROM oauth_tokens t JOIN oauth_providers p ON p.id = t.provider_row_id"
_READ_ALL = f"""
SELECT {_SUMMARY} {_FROM}
WHERE {_SEEN} AND (%(provider_id)s::text IS NULL OR p.provider_id = %(provider_id)s)
ORDER BY t.created_at DESC, t.id DESC LIMIT %(limit)s
"""
_READ = f"SELECT {_SUMMARY} {_FROM} WHERE {_SEEN} AND t.id = %(id)s"
_USABLE = "(t.status = 'active' AND (t.expires_at IS NULL OR t.expires_at > now() + interval '5 seconds'))"
# An expired token that waits for its refresh counts as refreshable. Some providers rename scopes, so both requested and
# granted scopes count.
_FIND = f"""
SELECT t.id, t.sealed_token, t.scopes, t.expires_at, t.provider_account_label, t.is_default,
    {_USABLE} AS is_usable, t.status = 'active' AND t.refresh_at IS NOT NULL AS is_refreshable,
    (t.scopes || t.asked_scopes) @> %(scopes)s::text[] AS covers,
    EXISTS (
        SELECT FROM oauth_connections c
        WHERE c.workspace_id = t.workspace_id AND c.agent_id = %(agent_id)s AND c.oauth_token_id = t.id
    ) AS is_connected
FROM oauth_tokens t
WHERE t.workspace_id = %(workspace_id)s AND t.provider_row_id = %(provider_row_id)s AND t.user_id = %(user_id)s
    AND t.status <> 'revoking'
ORDER BY {_USABLE} DESC, t.is_default DESC, t.updated_at DESC, t.id LIMIT %(limit)s
"""
_READ_SEALED = "SELECT id, sealed_token FROM oauth_tokens WHERE workspace_id = %s AND id = %s AND status <> 'revoking'"
_CLEAR_DEFAULT = f"""
UPDATE oauth_tokens o SET is_default = false
FROM oauth_tokens t WHERE {_SEEN} AND t.id = %(id)s AND %(is_default)s
    AND o.provider_row_id = t.provider_row_id AND o.user_id = t.user_id AND o.id <> t.id AND o.is_default
"""
_UPDATE = f"""
UPDATE oauth_tokens t SET provider_account_label = coalesce(%(provider_account_label)s, provider_account_label),
    is_default = coalesce(%(is_default)s, is_default), updated_at = now()
WHERE {_SEEN} AND t.id = %(id)s
"""
# Raises `attempt`: a concurrent refresh then no longer writes anything.
_REVOKE = f"""
UPDATE oauth_tokens t SET status = 'revoking', worker = NULL, lease_until = NULL, attempt = attempt + 1, failures = 0,
    not_before = now(), updated_at = now()
FROM oauth_providers p WHERE p.id = t.provider_row_id AND {_SEEN}
    AND (%(id)s::uuid IS NULL OR t.id = %(id)s) AND (%(provider_id)s::text IS NULL OR p.provider_id = %(provider_id)s)
RETURNING t.id
"""
_EXISTS_OF_TYPE = """
SELECT EXISTS (
    SELECT FROM oauth_tokens t JOIN oauth_providers p ON p.id = t.provider_row_id
    WHERE t.workspace_id = %s AND p.provider_type = %s AND t.status <> 'revoking'
) AS found
"""
_REVOKE_OF_TYPE = """
UPDATE oauth_tokens t SET status = 'revoking', worker = NULL, lease_until = NULL, attempt = attempt + 1, failures = 0,
    not_before = now(), updated_at = now()
FROM oauth_providers p WHERE p.id = t.provider_row_id AND t.workspace_id = %s AND p.provider_type = %s
    AND t.status <> 'revoking'
"""

_CONNECTION = """
    c.id, c.agent_id, c.oauth_token_id, p.provider_id, t.provider_account_label, t.scopes, t.expires_at,
    c.actor AS created_by, c.created_at
"""
_CONNECT = f"""
INSERT INTO oauth_connections (id, workspace_id, agent_id, oauth_token_id, actor)
SELECT %(connection_id)s, t.workspace_id, %(agent_id)s, t.id, %(actor)s FROM oauth_tokens t
WHERE {_SEEN} AND t.id = %(id)s
ON CONFLICT (workspace_id, agent_id, oauth_token_id) DO NOTHING
"""
_CONNECTIONS = f"""
SELECT {_CONNECTION} FROM oauth_connections c JOIN oauth_tokens t ON t.id = c.oauth_token_id
JOIN oauth_providers p ON p.id = t.provider_row_id
WHERE {_SEEN} AND c.agent_id = %(agent_id)s AND (%(id)s::uuid IS NULL OR t.id = %(id)s)
ORDER BY c.created_at DESC, c.id DESC LIMIT %(limit)s
"""
_DISCONNECT = f"""
DELETE FROM oauth_connections c USING oauth_tokens t
WHERE t.id = c.oauth_token_id AND {_SEEN} AND c.agent_id = %(agent_id)s AND c.id = %(connection_id)s
"""

# Tokens to refresh, or to revoke at their providers.
_DUE = "(status = 'revoking' OR (status = 'active' AND refresh_at <= now()))"
_CLAIM = f"""
WITH picked AS MATERIALIZED (
    SELECT id FROM oauth_tokens WHERE worker IS NULL AND {_DUE} AND not_before <= now()
    ORDER BY not_before FOR UPDATE SKIP LOCKED LIMIT %(slots)s
)
UPDATE oauth_tokens t SET worker = %(worker)s, attempt = attempt + 1,
    lease_until = now() + %(lease_s)s * interval '1 second'
FROM picked, oauth_providers p WHERE t.id = picked.id AND p.id = t.provider_row_id AND t.worker IS NULL
RETURNING t.id, t.worker, t.attempt, t.workspace_id, p.provider_id, t.status, t.sealed_token, t.failures
"""
_REAP = "UPDATE oauth_tokens SET worker = NULL, lease_until = NULL WHERE worker IS NOT NULL AND lease_until < now()"
_REFRESHED = f"""
UPDATE oauth_tokens SET sealed_token = %(sealed_token)s, scopes = coalesce(%(scopes)s, scopes),
    expires_at = %(expires_at)s, refresh_at = %(refresh_at)s, worker = NULL, lease_until = NULL, failures = 0,
    not_before = now(), updated_at = now()
WHERE {MINE}
"""
_POSTPONE = f"""
UPDATE oauth_tokens SET worker = NULL, lease_until = NULL, failures = failures + 1,
    not_before = now() + %(delay_s)s * interval '1 second'
WHERE {MINE}
"""
_EXPIRE = f"""
UPDATE oauth_tokens SET status = 'expired', refresh_at = NULL, worker = NULL, lease_until = NULL, updated_at = now()
WHERE {MINE}
"""
_REMOVE = f"DELETE FROM oauth_tokens WHERE {MINE}"
_FOUND_MAX = 100


@dataclass(frozen=True)
class Seer:
    """The tokens that a statement may touch: those of the user `own`, and those that `actor` obtained."""

    workspace_id: UUID
    own: str
    actor: str

    @property
    def values(self) -> dict[str, Any]:
        return {"workspace_id": self.workspace_id, "own": self.own, "actor": self.actor}


@dataclass(frozen=True)
class FoundToken:
    """A token of one user at one provider, and how well it fits the request."""

    id: UUID
    sealed_token: bytes
    scopes: list[str]
    expires_at: datetime | None
    provider_account_label: str | None
    is_default: bool
    is_usable: bool
    is_refreshable: bool
    covers: bool
    is_connected: bool


class OAuthTokenStore(LeaseStore):
    BEAT = f"UPDATE oauth_tokens SET lease_until = now() + %(lease_s)s * interval '1 second' {HELD} RETURNING id"
    HAND_BACK = f"UPDATE oauth_tokens SET worker = NULL, lease_until = NULL {HELD}"

    async def read_all(self, seer: Seer, provider_id: str | None, limit: int) -> list[OAuthTokenSummary]:
        """Return the tokens, newest first."""
        rows = await self._postgres.fetch(_READ_ALL, {**seer.values, "provider_id": provider_id, "limit": limit})
        return cast(list[OAuthTokenSummary], rows)

    async def find(
        self, workspace_id: UUID, provider_row_id: UUID, user_id: str, scopes: list[str], agent_id: str | None
    ) -> list[FoundToken]:
        """Return the user's tokens at the provider, the best first."""
        values = {"workspace_id": workspace_id, "provider_row_id": provider_row_id, "user_id": user_id}
        values |= {"scopes": scopes, "agent_id": agent_id, "limit": _FOUND_MAX}
        rows = await self._postgres.fetch(_FIND, values)
        return [FoundToken(**{**row, "sealed_token": bytes(row["sealed_token"])}) for row in rows]

    async def read_sealed(self, workspace_id: UUID, token_id: UUID) -> bytes | None:
        row = await self._postgres.fetch_one(_READ_SEALED, (workspace_id, token_id))
        return bytes(row["sealed_token"]) if row else None

    async def update(
        self, seer: Seer, token_id: UUID, label: str | None, *, is_default: bool | None
    ) -> OAuthTokenSummary | None:
        """Change the token. Returns None when the caller sees no such token. A new default replaces the earlier one."""
        values = {**seer.values, "id": token_id, "provider_account_label": label, "is_default": is_default}
        await self._postgres.execute_all([(_CLEAR_DEFAULT, [values]), (_UPDATE, [values])])
        return cast(OAuthTokenSummary | None, await self._postgres.fetch_one(_READ, {**seer.values, "id": token_id}))

    async def revoke(self, seer: Seer, *, token_id: UUID | None = None, provider_id: str | None = None) -> int:
        """Mark tokens as revoked, for the job that tells their providers, and return how many."""
        return await self._postgres.execute(_REVOKE, {**seer.values, "id": token_id, "provider_id": provider_id})

    async def exists_of_type(self, workspace_id: UUID, provider_type: str) -> bool:
        row = await self._postgres.fetch_one(_EXISTS_OF_TYPE, (workspace_id, provider_type))
        return bool(row and row["found"])

    async def revoke_of_type(self, workspace_id: UUID, provider_type: str) -> int:
        return await self._postgres.execute(_REVOKE_OF_TYPE, (workspace_id, provider_type))

    # --- connections ---

    async def connect(self, seer: Seer, agent_id: str, token_id: UUID, new_id: UUID) -> AgentConnectionResponse | None:
        """Connect the agent, or return the existing connection. Returns None when the caller sees no such token."""
        values = {**seer.values, "agent_id": agent_id, "id": token_id, "connection_id": new_id, "limit": 1}
        await self._postgres.execute(_CONNECT, values)
        return cast(AgentConnectionResponse | None, await self._postgres.fetch_one(_CONNECTIONS, values))

    async def read_connections(self, seer: Seer, agent_id: str, limit: int) -> list[AgentConnectionResponse]:
        """Return the connections, newest first."""
        values = {**seer.values, "agent_id": agent_id, "id": None, "limit": limit}
        return cast(list[AgentConnectionResponse], await self._postgres.fetch(_CONNECTIONS, values))

    async def disconnect(self, seer: Seer, agent_id: str, connection_id: UUID) -> bool:
        values = {**seer.values, "agent_id": agent_id, "connection_id": connection_id}
        return bool(await self._postgres.execute(_DISCONNECT, values))

    # --- rows with leases ---

    async def claim(self, worker: str, slots: int, lease_s: float) -> list[LeasedToken]:
        rows = await self._postgres.fetch(_CLAIM, {"worker": worker, "slots": slots, "lease_s": lease_s})
        return [_leased(row) for row in rows]

    async def reap(self) -> int:
        return await self._postgres.execute(_REAP)

    async def write_refreshed(self, lease: Lease, grant: Grant, sealed_token: bytes) -> bool:
        """Store the refreshed token. Returns False when the lease was lost, as the next methods do."""
        values = {**proof_of(lease), "sealed_token": sealed_token, "scopes": grant.scopes}
        values |= {"expires_at": grant.expires_at, "refresh_at": grant.refresh_at}
        return bool(await self._postgres.execute(_REFRESHED, values))

    async def postpone(self, lease: Lease, delay_s: float) -> bool:
        return bool(await self._postgres.execute(_POSTPONE, {**proof_of(lease), "delay_s": delay_s}))

    async def expire(self, lease: Lease) -> bool:
        return bool(await self._postgres.execute(_EXPIRE, proof_of(lease)))

    async def remove(self, lease: Lease) -> bool:
        return bool(await self._postgres.execute(_REMOVE, proof_of(lease)))


def _leased(row: DictRow) -> LeasedToken:
    lease = Lease(row["id"], row["worker"], row["attempt"])
    sealed = bytes(row["sealed_token"])
    return LeasedToken(lease, row["workspace_id"], row["provider_id"], row["status"], sealed, row["failures"])
