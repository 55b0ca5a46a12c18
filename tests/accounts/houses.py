"""The room of accounts on a real PostgreSQL, without the rest of the platform."""

from __future__ import annotations

from dataclasses import dataclass

import httpx
from fastapi import FastAPI

from moorage.accounts import routes
from moorage.accounts.access import Access
from moorage.accounts.keys import Keys
from moorage.accounts.master_key import MasterKeyRotation
from moorage.accounts.records import Member, NewWorkspace, WorkspaceCreate
from moorage.accounts.revocations import Revocations
from moorage.accounts.room import Accounts
from moorage.accounts.sessions import Sessions
from moorage.accounts.store import AccountStore
from moorage.accounts.tokens import IdentityProvider, Tokens
from moorage.accounts.workspaces import Workspaces
from moorage.http.answers import PLATFORM_ERRORS
from moorage.http.application import make_application
from moorage.http.request_limits import RequestLimits
from moorage.kernel.access import Plan, Scope
from moorage.kernel.crypto import KEY_BYTES, MasterKeys, SealedColumn
from moorage.kernel.ids import uuid7
from moorage.kernel.postgres import Postgres

MASTER_KEYS = MasterKeys([bytes(KEY_BYTES)])
# Short, so that a test can wait until it has passed.
REMEMBER_S = 0.2


@dataclass(frozen=True)
class House:
    app: FastAPI
    accounts: Accounts
    access: Access
    store: AccountStore

    def client(self, key: str | None = None, **headers: str) -> httpx.AsyncClient:
        """Return a client of the application that sends this key."""
        if key is not None:
            headers["X-Api-Key"] = key
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app, raise_app_exceptions=False),
            base_url="http://moorage.test",
            headers={name.replace("_", "-"): value for name, value in headers.items()},
        )

    async def make_workspace(self, name: str = "A workspace", plan: Plan | None = None) -> NewWorkspace:
        """Create a workspace. Its `api_key` has all rights except to read secrets."""
        creator = Member(uuid7(), Plan.ENTERPRISE, frozenset(Scope), "test", ())
        return await self.accounts.workspaces.create(creator, WorkspaceCreate(display_name=name, plan=plan))

    async def make_operator(self) -> str:
        """Create a key with every right, in a workspace of its own."""
        return await self.make_key(await self.make_workspace("Operator"), *Scope)

    async def make_key(self, workspace: NewWorkspace, *scopes: str) -> str:
        """Create a key of the workspace with exactly these scopes."""
        made = await self.accounts.keys.insert(workspace["id"], "test", frozenset(scopes), None, "test")
        return made["key"]


def make_house(
    postgres: Postgres,
    *,
    master_keys: MasterKeys = MASTER_KEYS,
    provider: IdentityProvider | None = None,
    columns: tuple[SealedColumn, ...] = (),
    plan: Plan = Plan.ENTERPRISE,
    remember_s: float = REMEMBER_S,
) -> House:
    """Build the room of accounts alone, as `wiring` does."""
    store, tokens = AccountStore(postgres, plan), Tokens(master_keys, provider)
    keys, revocations = Keys(store), Revocations(store)
    rotation = MasterKeyRotation(store, master_keys, columns)
    sessions = Sessions(store, master_keys, "http://testserver")
    accounts = Accounts(Workspaces(store, keys), keys, tokens, sessions, rotation, revocations)
    access = Access(store, tokens, sessions, revoked=revocations.actors, remember_s=remember_s)
    app = make_application(title="accounts", limits=RequestLimits(2**20), cors_origins=["*"], errors=PLATFORM_ERRORS)
    app.state.accounts, app.state.access = accounts, access
    for prefix in ("", "/api/v1"):
        app.include_router(routes.router, prefix=prefix)
    return House(app, accounts, access, store)
