"""OAuth tokens, and the agents that use them: listed, labelled, connected and revoked. No answer contains a token."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from moorage.control.oauth.users import seer
from moorage.control.records.oauth_tokens import (
    AgentConnectionListResponse,
    AgentConnectionResponse,
    OAuthTokenSummary,
    OAuthTokenUpdateRequest,
)
from moorage.control.store.oauth_tokens import OAuthTokenStore
from moorage.kernel.access import Caller
from moorage.kernel.errors import NotFoundError
from moorage.kernel.ids import uuid7

# The API's lists have no pages.
_LISTED_MAX = 1000
_SLACK = "slack"


class OAuthTokens:
    def __init__(self, store: OAuthTokenStore, wake: Callable[[], None]) -> None:
        """Make the verbs of tokens. `wake` starts the job that tells providers of revoked tokens at once."""
        self._store = store
        self._wake = wake

    async def list(self, caller: Caller, provider_id: str | None) -> list[OAuthTokenSummary]:
        """List the caller's tokens and those that the caller obtained for users, newest first."""
        return await self._store.read_all(seer(caller), provider_id, _LISTED_MAX)

    async def exists(self, caller: Caller, provider_id: str) -> bool:
        return bool(await self._store.read_all(seer(caller), provider_id, 1))

    async def update(self, caller: Caller, token_id: UUID, new: OAuthTokenUpdateRequest) -> OAuthTokenSummary:
        """Change a token's label or make it the default. Raises NotFoundError."""
        label, is_default = new.provider_account_label, new.is_default
        updated = await self._store.update(seer(caller), token_id, label, is_default=is_default)
        if updated is None:
            raise _not_found(token_id)
        return updated

    async def revoke(self, caller: Caller, token_id: UUID) -> None:
        """Revoke the token. From now on no agent gets it; its provider is told soon. Raises NotFoundError."""
        if not await self._store.revoke(seer(caller), token_id=token_id):
            raise _not_found(token_id)
        self._wake()

    async def revoke_all(self, caller: Caller, provider_id: str) -> int:
        """Revoke the caller's tokens of the provider, and return how many there were."""
        count = await self._store.revoke(seer(caller), provider_id=provider_id)
        self._wake()
        return count

    async def slack_exists(self, caller: Caller) -> bool:
        """Return True if anybody in the workspace has a token of Slack."""
        return await self._store.exists_of_type(caller.workspace_id, _SLACK)

    async def revoke_slack(self, caller: Caller) -> int:
        """Revoke all Slack tokens of the workspace, and return how many there were."""
        count = await self._store.revoke_of_type(caller.workspace_id, _SLACK)
        self._wake()
        return count

    async def connections(self, caller: Caller, agent_id: str) -> AgentConnectionListResponse:
        return {"data": await self._store.read_connections(seer(caller), agent_id, _LISTED_MAX)}

    async def connect(self, caller: Caller, agent_id: str, token_id: UUID) -> AgentConnectionResponse:
        """Let the agent use this token of its user. It can then use no unconnected tokens. Raises NotFoundError."""
        connection = await self._store.connect(seer(caller), agent_id, token_id, uuid7())
        if connection is None:
            raise _not_found(token_id)
        return connection

    async def disconnect(self, caller: Caller, agent_id: str, connection_id: UUID) -> None:
        """End the agent's use of the token. Raises NotFoundError."""
        if not await self._store.disconnect(seer(caller), agent_id, connection_id):
            raise NotFoundError(f"Connection {connection_id} not found")


def _not_found(token_id: UUID) -> NotFoundError:
    return NotFoundError(f"OAuth token {token_id} not found")
