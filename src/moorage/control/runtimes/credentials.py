"""Credentials of a deployment's agents: a role in PostgreSQL, and an API key of the workspace."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from moorage.control.places import Place
from moorage.control.records.orders import LeasedDeployment
from moorage.control.runtimes.rules import AgentKey
from moorage.control.store.agent_databases import AgentDatabases
from moorage.embedded import processes
from moorage.kernel.encoding import decode, encode


class AgentCredentials(NamedTuple):
    """Credentials of an agent. `database` is a URI that includes the password, `key` an API key."""

    database: str
    key: str


class DeploymentCredentials:
    """Makes and removes the credentials of deployments. `make_key` and `revoke_key` are functions of accounts."""

    def __init__(
        self,
        databases: AgentDatabases,
        make_key: Callable[[UUID, str], Awaitable[AgentKey]],
        revoke_key: Callable[[UUID, UUID], Awaitable[None]],
    ) -> None:
        self._databases = databases
        self._make_key = make_key
        self._revoke_key = revoke_key

    async def create(self, place: Place, deployment: LeasedDeployment) -> None:
        """Make the key, and the database with its role. Idempotent."""
        file = _file_of(place)
        if not file.exists():
            made = await self._make_key(deployment.workspace_id, f"deployment {deployment.name}")
            credentials = {"database_password": secrets.token_urlsafe(32), "key": made.key, "key_id": str(made.id)}
            await asyncio.to_thread(processes.write_private, file, encode(credentials))
        await self._databases.create(database_name(place.number), decode(file.read_bytes())["database_password"])

    def read(self, place: Place) -> AgentCredentials:
        known = decode(_file_of(place).read_bytes())
        uri = self._databases.uri(database_name(place.number), known["database_password"])
        return AgentCredentials(uri, known["key"])

    async def remove(self, place: Place, deployment: LeasedDeployment) -> None:
        """Remove the database with its role, and revoke the key. Idempotent."""
        await self._databases.remove(database_name(place.number))
        file = _file_of(place)
        if file.exists():
            await self._revoke_key(deployment.workspace_id, UUID(decode(file.read_bytes())["key_id"]))


def database_name(number: int) -> str:
    """Return the name of the database, and of its role, for the deployment with this number."""
    return f"moorage_agent_{number}"


def _file_of(place: Place) -> Path:
    return place.run / "credentials.json"
