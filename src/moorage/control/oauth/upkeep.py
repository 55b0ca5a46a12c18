"""Upkeep of tokens, as rows with leases: refreshes tokens before they expire, and tells providers of revocations."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from uuid import UUID

import structlog

from moorage.control.oauth.clients import Clients
from moorage.control.oauth.servers import AuthorizationServers, RefusedGrantError
from moorage.control.oauth.sign_ins import open_token, seal_token
from moorage.control.records.oauth_tokens import LeasedToken
from moorage.control.store.oauth_sign_ins import OAuthSignInStore
from moorage.control.store.oauth_tokens import OAuthTokenStore
from moorage.kernel.crypto import MasterKeys
from moorage.kernel.errors import BadRequestError, NotFoundError, RemoteError
from moorage.worker.leases import Lease

log = structlog.get_logger(__name__)

SLOTS = 8
LEASE_S = 60.0  # longer than any exchange with a provider takes
POLL_S = 2.0
_DELAYS_S = (2, 10, 30, 60, 120, 300)  # Pauses after the first, second, … failure; the last value repeats.
_REVOCATIONS_MAX = 6


@dataclass(frozen=True)
class TokenUpkeep:
    """Upkeep of leased tokens; implements `Leased`. A request to a server that is away is retried; a refusal ends the
    token.
    """

    store: OAuthTokenStore
    sign_ins: OAuthSignInStore
    clients: Clients
    servers: AuthorizationServers
    keys: MasterKeys

    async def claim(self, worker: str, slots: int, lease_s: float) -> Sequence[LeasedToken]:
        return await self.store.claim(worker, slots, lease_s)

    async def beat(self, leases: Collection[Lease], lease_s: float) -> Collection[UUID]:
        return await self.store.beat(leases, lease_s)

    async def reap(self) -> int:
        await self.sign_ins.sweep()
        return await self.store.reap()

    async def hand_back(self, leases: Collection[Lease]) -> None:
        await self.store.hand_back(leases)

    async def execute(self, row: LeasedToken) -> bool:
        work = self._revoke if row.status == "revoking" else self._refresh
        told = log.bind(token_id=str(row.lease.key), provider=row.provider_id, status=row.status)
        try:
            await work(row)
        except RefusedGrantError as error:
            await self.store.expire(row.lease)
            told.warning("an OAuth token was not refreshed; its user has to sign in again", error=str(error))
        except (RemoteError, BadRequestError) as error:
            delay_s = _DELAYS_S[min(row.failures, len(_DELAYS_S) - 1)]
            await self.store.postpone(row.lease, delay_s)
            told.warning("an OAuth provider was asked in vain", error=str(error), again_in_s=delay_s)
        except NotFoundError:  # the provider was deleted meanwhile, and the token with it
            await self.store.remove(row.lease)
        return False

    async def _refresh(self, row: LeasedToken) -> None:
        client = await self.clients.open(row.workspace_id, row.provider_id)
        _, refresh_token = open_token(self.keys, row.lease.key, row.sealed_token)
        assert refresh_token is not None  # or the row has no refresh_at
        grant = await self.servers.refresh(client, refresh_token)
        sealed = seal_token(self.keys, row.lease.key, grant.access_token, grant.refresh_token)
        await self.store.write_refreshed(row.lease, grant, sealed)

    async def _revoke(self, row: LeasedToken) -> None:
        """Tell the provider, if it has a revocation endpoint, and forget the token."""
        client = await self.clients.open(row.workspace_id, row.provider_id)
        if client.revocation_url is not None and row.failures < _REVOCATIONS_MAX:
            access_token, refresh_token = open_token(self.keys, row.lease.key, row.sealed_token)
            if refresh_token is not None:
                await self.servers.revoke(client, refresh_token, "refresh_token")
            await self.servers.revoke(client, access_token, "access_token")
        await self.store.remove(row.lease)
