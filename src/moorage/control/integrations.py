"""Integrations: created, read, deleted, and used to reach private repositories."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from moorage.control.checkouts import Credential
from moorage.control.deploy_keys import NEEDS_KEY, DeployKey, make_key_pair, read_host_keys
from moorage.control.forges import Forges, credential_of
from moorage.control.github_apps import GithubInstallation, InstallationTokens, check_private_key
from moorage.control.push_events import is_signed, pushed_repository
from moorage.control.records.integrations import (
    SEALED_FORGE_TOKEN,
    SEALED_PUSH_SECRET,
    Branch,
    CommitStatus,
    GithubIntegration,
    GithubRepository,
    Integration,
    IntegrationCreate,
    IntegrationCreated,
    OpenForge,
    StoredIntegration,
    lies_at,
    repository_name,
)
from moorage.control.store.integrations import IntegrationStore, NewIntegration
from moorage.kernel.access import Caller
from moorage.kernel.crypto import MasterKeys
from moorage.kernel.errors import (
    BadRequestError,
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    UnauthenticatedError,
)
from moorage.kernel.ids import uuid7

# The API's lists have no pages.
_LISTED_MAX = 1000
# A random secret that nobody knows. Signatures are checked against it when the integration does not exist.
_NOBODYS = secrets.token_urlsafe(32)


class Integrations:
    """Verbs of integrations. `look_at_pushes` is called when a webhook reports a push."""

    def __init__(
        self,
        store: IntegrationStore,
        keys: MasterKeys,
        forges: Forges,
        public_url: str,
        look_at_pushes: Callable[[], None],
    ) -> None:
        self._look_at_pushes = look_at_pushes
        self._store = store
        self._keys = keys
        self._forges = forges
        self._installation_tokens = InstallationTokens(forges)
        self._public_url = public_url

    async def create(self, caller: Caller, new: IntegrationCreate) -> IntegrationCreated:
        """Create an integration. Raises ConflictError when the workspace has one of that name, InvalidRequestError for
        invalid keys.
        """
        row_id, webhook_secret = uuid7(), secrets.token_urlsafe(32)
        token, public_key = await asyncio.to_thread(_proof_of, new)
        made = await self._store.insert(
            NewIntegration(
                row_id,
                caller.workspace_id,
                new.kind,
                new.name,
                new.address,
                self._keys.seal(token.encode(), SEALED_FORGE_TOKEN.place(row_id)),
                self._keys.seal(webhook_secret.encode(), SEALED_PUSH_SECRET.place(row_id)),
                new.app.app_id if new.app else None,
                new.app.installation_id if new.app else None,
                public_key,
                _host_keys_of(new),
                caller.actor,
            )
        )
        if made is None:
            raise ConflictError(f"There is an integration named {new.name} already: delete it, or use another name")
        return {**self._shown(made), "webhook_secret": None if new.kind == "ssh" else webhook_secret}

    async def list(self, caller: Caller) -> Sequence[Integration]:
        """List the integrations, newest first."""
        return [self._shown(row) for row in await self._store.read_all(caller.workspace_id, _LISTED_MAX)]

    async def list_github(self, caller: Caller) -> Sequence[GithubIntegration]:
        """List the integrations of GitHub, newest first."""
        rows = await self._store.read_all(caller.workspace_id, _LISTED_MAX)
        return [
            {"id": row.id, "installation_id": row.installation_id or row.number, "name": row.name}
            for row in rows
            if row.kind == "github"
        ]

    async def get(self, caller: Caller, integration_id: UUID) -> Integration:
        """Return the integration. Raises NotFoundError, as does every method that takes an integration's id."""
        return self._shown((await self._read(caller.workspace_id, integration_id))[0])

    async def delete(self, caller: Caller, integration_id: UUID) -> None:
        if not await self._store.remove(caller.workspace_id, integration_id):
            raise _not_found(integration_id)

    async def repositories(
        self, caller: Caller, integration_id: UUID, *, of_github: bool = False
    ) -> Sequence[GithubRepository]:
        """List the repositories that the integration reaches. Raises as `Forges.repositories` does. With `of_github`,
        an integration of another forge is not found.
        """
        forge = await self._forge(caller.workspace_id, integration_id)
        if of_github and forge.kind != "github":
            raise _not_found(integration_id)
        return await self._forges.repositories(forge, integration_id)

    async def branches(self, caller: Caller, integration_id: UUID, repository: str) -> Sequence[Branch]:
        """List the branches of a repository. Raises as `Forges.branches` does."""
        return await self._forges.branches(await self._forge(caller.workspace_id, integration_id), repository)

    async def check(self, workspace_id: UUID, source_config: Mapping[str, Any]) -> None:
        """Check a deployment's integration. Raises BadRequestError when it does not exist, or is of another forge than
        the repository.
        """
        named, repo_url = source_config.get("integration_id"), source_config.get("repo_url")
        if not named:
            if repo_url and repo_url.startswith("ssh:"):
                raise BadRequestError(f"source_config.repo_url: a repository over SSH {NEEDS_KEY}")
            return
        found = await self._named(workspace_id, named)
        if found is None:
            raise BadRequestError(
                f"source_config.integration_id: there is no integration {named!r} in this workspace. Make one, or leave the "
                "field out for a public repository"
            )
        base_url = found[0].base_url
        if repo_url and not lies_at(repo_url, base_url):
            raise BadRequestError(f"source_config.repo_url must lie below {base_url}, as its integration does")

    async def credential(self, workspace_id: UUID, source_config: Mapping[str, Any]) -> Credential | DeployKey | None:
        """Return the credential for the repository of a deployment, or None when its integration was deleted or is of
        another forge. For a GitHub app it raises as `Forges.installation_token` does.
        """
        named, repo_url = source_config.get("integration_id"), source_config.get("repo_url")
        found = await self._named(workspace_id, named) if named else None
        if not (found and repo_url and lies_at(repo_url, found[0].base_url)):
            return None
        opened = await self._open(*found)
        return opened if isinstance(opened, DeployKey) else credential_of(opened)

    async def tell_status(self, workspace_id: UUID, integration_id: UUID, repo_url: str, status: CommitStatus) -> None:
        """Write the status of a commit to the forge. Raises as `Forges.tell_status` does."""
        forge = await self._forge(workspace_id, integration_id)
        if not lies_at(repo_url, forge.base_url):
            raise BadRequestError(f"The repository does not lie below {forge.base_url}")
        await self._forges.tell_status(forge, repository_name(repo_url, forge.base_url), status)

    async def take_push(self, integration_id: UUID, headers: Mapping[str, str], body: bytes) -> int:
        """Make the branches of a pushed repository due for a look at once; return how many deployments follow one.

        The commit is read from the repository and not from the webhook, so a webhook that comes twice, late or out of
        order changes nothing. Raises UnauthenticatedError, with one text for a missing integration and a wrong
        signature, and BadRequestError.
        """
        found = await self._store.read_push_secret(integration_id)
        workspace_id, kind, sealed = found or (integration_id, "github", None)
        secret = self._keys.open(sealed, SEALED_PUSH_SECRET.place(integration_id)).decode() if sealed else _NOBODYS
        if not is_signed(kind, secret, headers, body) or found is None:
            raise UnauthenticatedError("The webhook is not signed with the secret of an integration")
        urls = [url.lower().removesuffix("/").removesuffix(".git") for url in pushed_repository(kind, headers, body)]
        due = await self._store.make_due(workspace_id, integration_id, urls) if urls else 0
        if due:
            self._look_at_pushes()
        return due

    async def _named(self, workspace_id: UUID, named: str) -> tuple[StoredIntegration, bytes] | None:
        try:
            return await self._store.read(workspace_id, UUID(named))
        except ValueError:
            return None

    async def _forge(self, workspace_id: UUID, integration_id: UUID) -> OpenForge:
        """Return the forge of an integration. Raises BadRequestError for the kind ssh."""
        found = await self._open(*await self._read(workspace_id, integration_id))
        if isinstance(found, DeployKey):
            raise BadRequestError("A deploy key opens repositories and no forge: there is nothing that could list them")
        return found

    async def _open(self, row: StoredIntegration, sealed: bytes) -> OpenForge | DeployKey:
        token = self._keys.open(sealed, SEALED_FORGE_TOKEN.place(row.id)).decode()
        if row.kind == "ssh":
            return DeployKey(row.base_url, token, row.host_keys)
        if row.app_id and row.installation_id:
            app = GithubInstallation(row.base_url, row.app_id, row.installation_id, token)
            return await self._installation_tokens.open(row.id, app)
        return OpenForge(row.kind, row.base_url, token)

    async def _read(self, workspace_id: UUID, integration_id: UUID) -> tuple[StoredIntegration, bytes]:
        found = await self._store.read(workspace_id, integration_id)
        if found is None:
            raise _not_found(integration_id)
        return found

    def _shown(self, row: StoredIntegration) -> Integration:
        return {
            "id": row.id,
            "organization_id": row.workspace_id,
            "kind": row.kind,
            "name": row.name,
            "base_url": row.base_url,
            "webhook_url": None if row.kind == "ssh" else f"{self._public_url}/v2/integrations/{row.id}/pushes",
            "app_id": row.app_id,
            "installation_id": row.installation_id,
            "public_key": row.public_key,
            "host_keys": row.host_keys,
            "created_at": row.created_at,
        }


def _proof_of(new: IntegrationCreate) -> tuple[str, str | None]:
    """Return the secret to seal, and the public key of a deploy key. Raises InvalidRequestError."""
    if new.app:
        try:
            check_private_key(new.app.private_key)
        except ValueError as error:
            raise InvalidRequestError(f"app.private_key {error}", "body", "app", "private_key") from None
        return new.app.private_key, None
    return (new.token, None) if new.token else make_key_pair(f"moorage {new.name}")


def _host_keys_of(new: IntegrationCreate) -> list[str]:
    try:
        return read_host_keys(new.host_keys) if new.host_keys else []
    except ValueError as error:
        raise InvalidRequestError(f"host_keys {error}", "body", "host_keys") from None


def _not_found(integration_id: UUID) -> NotFoundError:
    return NotFoundError(f"Integration {integration_id} not found")
