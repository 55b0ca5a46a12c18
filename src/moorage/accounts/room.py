"""The room of accounts: the objects that its routes use, put together by `wiring`."""

from __future__ import annotations

from dataclasses import dataclass

from moorage.accounts.keys import Keys
from moorage.accounts.master_key import MasterKeyRotation
from moorage.accounts.revocations import Revocations
from moorage.accounts.sessions import Sessions
from moorage.accounts.tokens import Tokens
from moorage.accounts.workspaces import Workspaces


@dataclass(frozen=True)
class Accounts:
    workspaces: Workspaces
    keys: Keys
    tokens: Tokens
    sessions: Sessions
    rotation: MasterKeyRotation
    revocations: Revocations
