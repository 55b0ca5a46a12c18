"""OAuth for agents: the verbs, and the worker that refreshes tokens."""

from __future__ import annotations

from dataclasses import dataclass

from moorage.control.oauth.clients import Clients
from moorage.control.oauth.discovery import Discovery
from moorage.control.oauth.providers import OAuthProviders
from moorage.control.oauth.servers import AuthorizationServers
from moorage.control.oauth.sign_ins import SignIns
from moorage.control.oauth.tokens import OAuthTokens
from moorage.control.oauth.upkeep import LEASE_S, POLL_S, SLOTS, TokenUpkeep
from moorage.control.records.oauth_tokens import LeasedToken
from moorage.control.store.oauth import OAuthProviderStore
from moorage.control.store.oauth_sign_ins import OAuthSignInStore
from moorage.control.store.oauth_tokens import OAuthTokenStore
from moorage.kernel.crypto import MasterKeys
from moorage.kernel.guarded_http import GuardedHttp
from moorage.kernel.postgres import Postgres
from moorage.worker.leases import Worker, worker_name


@dataclass(frozen=True)
class AuthService:
    providers: OAuthProviders
    discovery: Discovery
    sign_ins: SignIns
    tokens: OAuthTokens
    upkeep: Worker[LeasedToken]


def auth_service(postgres: Postgres, keys: MasterKeys, public_url: str, http: GuardedHttp) -> AuthService:
    provider_store, sign_in_store, token_store = (
        OAuthProviderStore(postgres),
        OAuthSignInStore(postgres),
        OAuthTokenStore(postgres),
    )
    clients, servers = Clients(provider_store, keys), AuthorizationServers(http)
    upkeep = Worker[LeasedToken](
        TokenUpkeep(token_store, sign_in_store, clients, servers, keys),
        name=worker_name(),
        slots=SLOTS,
        lease_s=LEASE_S,
        poll_s=POLL_S,
    )
    providers = OAuthProviders(provider_store, keys)
    return AuthService(
        providers,
        Discovery(http, providers, public_url),
        SignIns(sign_in_store, token_store, clients, servers, keys, public_url, upkeep.wake),
        OAuthTokens(token_store, upkeep.wake),
        upkeep,
    )
