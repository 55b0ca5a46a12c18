"""SQL of deployments: their settings, and their leases while databases are made or deployments are removed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.errors import UniqueViolation
from psycopg.rows import DictRow
from psycopg.types.json import Jsonb

from moorage.control.records.deployments import DeploymentFilter, StoredDeployment
from moorage.control.records.orders import FollowedBranch, LeasedDeployment
from moorage.control.records.revisions import StoredRevision
from moorage.control.records.secrets import SealedSecrets
from moorage.control.records.states import TERMINAL, RevisionStatus, Source
from moorage.control.store.revisions import NewRevision, insert_revision, interrupt_revisions
from moorage.kernel.errors import ConflictError
from moorage.worker.leases import HELD, MINE, Lease, LeaseStore, proof_of

# To callers, READY means that a revision serves; in the rows, it means that the deployment has its database.
_STATUS = "CASE WHEN d.status = 'READY' AND d.active_revision_id IS NULL THEN 'UNUSED' ELSE d.status END"
# The deployment's own row has the latest revision's source; only its commit and status come from the revision's row.
_COLUMNS = f"""
    d.id, d.workspace_id, d.number, d.name, d.display_name, d.source, {_STATUS} AS status, d.source_config,
    d.source_revision_config, d.secret_names, d.secrets_hash, d.secret_references, d.latest_revision_id,
    d.active_revision_id, d.created_at, d.updated_at, d.host_name, d.certificate_state, d.certificate_message,
    d.certificate_expires_at, r.source AS latest_source, r.status AS latest_status,
    r.repo_commit_sha, (
        SELECT coalesce(a.authentication, b.authentication) FROM revisions a LEFT JOIN revisions b ON b.id = a.build_of
        WHERE a.id = d.active_revision_id
    ) AS authentication,
    (SELECT a.status_message FROM revisions a WHERE a.id = d.active_revision_id) AS active_message
"""
_WITH_LATEST = "deployments d LEFT JOIN revisions r ON r.id = d.latest_revision_id"
_IS_THERE = "d.status <> 'AWAITING_DELETE'"
# Until the agent of a deleted deployment is gone, the name is closed to other workspaces: their requests would reach
# that agent. While its tracing project, which is found by the name, is being deleted, the name is closed to all.
_HOLDS_NAME = f"""
o.name = %(name)s AND (o.{_IS_THERE.removeprefix("d.")} OR o.workspace_id <> %(workspace_id)s OR o.deletes_project)
"""

# The smallest free number. Two concurrent inserts may choose the same one: the caller retries when the name is free.
_INSERT = f"""
INSERT INTO deployments (
    id, workspace_id, number, name, display_name, source, status, source_config, source_revision_config, sealed_secrets,
    secret_names, secrets_hash, secret_references, host_name, actor
)
SELECT %(id)s, %(workspace_id)s, n, %(name)s, %(display_name)s, %(source)s, 'AWAITING_DATABASE', %(source_config)s,
    %(source_revision_config)s, %(sealed_secrets)s, %(secret_names)s, %(secrets_hash)s, %(secret_references)s, %(host_name)s,
    %(actor)s
FROM generate_series(1, (SELECT coalesce(max(number), 0) + 1 FROM deployments)) AS n
WHERE NOT EXISTS (SELECT FROM deployments o WHERE o.number = n)
    AND NOT EXISTS (SELECT FROM deployments o WHERE {_HOLDS_NAME})
ORDER BY n LIMIT 1
ON CONFLICT DO NOTHING
RETURNING id
"""
_FIND_NAME = f"SELECT o.status FROM deployments o WHERE {_HOLDS_NAME} ORDER BY o.status = 'AWAITING_DELETE' LIMIT 1"
_FIND_HOST_NAME = "SELECT FROM deployments d WHERE d.host_name = %s AND d.status <> 'AWAITING_DELETE'"
_READ = f"SELECT {_COLUMNS} FROM {_WITH_LATEST} WHERE d.workspace_id = %s AND d.id = %s AND {_IS_THERE}"
_PAGE = f"""
SELECT {_COLUMNS} FROM {_WITH_LATEST}
WHERE d.workspace_id = %(workspace_id)s AND {_IS_THERE}
    AND (%(name)s::text IS NULL OR d.name = %(name)s)
    AND (%(name_contains)s::text IS NULL OR strpos(d.name, lower(%(name_contains)s)) > 0)
    AND (%(status)s::text IS NULL OR {_STATUS} = %(status)s)
    AND (%(deployment_type)s::text IS NULL OR d.source_config->>'deployment_type' = %(deployment_type)s)
    AND (%(ids)s::uuid[] IS NULL OR d.id = ANY(%(ids)s))
ORDER BY d.created_at DESC, d.id DESC LIMIT %(limit)s OFFSET %(offset)s
"""
_COUNT_TYPES = """
SELECT count(*) AS n FROM deployments d
WHERE d.workspace_id = %s AND d.status <> 'AWAITING_DELETE' AND d.source_config->>'deployment_type' = ANY(%s)
"""
_READ_SECRETS = """
SELECT id, sealed_secrets, secret_names, secrets_hash FROM deployments d WHERE d.id = ANY(%s)
"""
# Two statements, since a statement that waited for a lock still sees other tables as they were before the wait.
_LOCK = f"SELECT d.id FROM deployments d WHERE d.workspace_id = %s AND d.id = %s AND {_IS_THERE} FOR UPDATE"
# A new host name resets the facts about the certificate.
_UPDATE = """
UPDATE deployments SET source_config = %(source_config)s, host_name = %(host_name)s, display_name = %(display_name)s,
    certificate_state = CASE WHEN host_name = %(host_name)s THEN certificate_state END,
    certificate_message = CASE WHEN host_name = %(host_name)s THEN certificate_message END,
    certificate_expires_at = CASE WHEN host_name = %(host_name)s THEN certificate_expires_at END,
    certificate_look_at = CASE WHEN host_name = %(host_name)s THEN certificate_look_at END,
    secret_references = %(secret_references)s, updated_at = now(), actor = %(actor)s
WHERE id = %(id)s
"""
_SET_SECRETS = """
UPDATE deployments SET sealed_secrets = %(sealed)s, secret_names = %(names)s, secrets_hash = %(hash)s, updated_at = now()
WHERE id = %(id)s
"""
_READ_BUILD = "SELECT id FROM revisions WHERE deployment_id = %s AND id = %s AND is_built"
_UNENDED = """
SELECT id, lease_until FROM revisions WHERE deployment_id = %s AND status = ANY(%s) ORDER BY number FOR UPDATE
"""
# Holders of leases on the deployment or its revisions notice at their next beat; the removal begins when all have
# stopped.
_SET_DELETED = """
UPDATE deployments SET status = 'AWAITING_DELETE', deletes_project = %(deletes_project)s, updated_at = now(),
    actor = %(actor)s, worker = NULL, lease_until = NULL, attempt = 0,
    not_before = greatest(now(), lease_until, %(lease_until)s::timestamptz)
WHERE id = %(id)s
"""

_LEASED = (
    "id AS deployment_id, workspace_id, name, number, status, deletes_project, worker, attempt, "
    "source_config->>'listener_id' AS listener_id"
)
_WAITS = "status IN ('AWAITING_DATABASE', 'AWAITING_DELETE')"
_CLAIM = f"""
WITH picked AS MATERIALIZED (
    SELECT id FROM deployments WHERE worker IS NULL AND {_WAITS} AND not_before <= now()
    ORDER BY not_before FOR UPDATE SKIP LOCKED LIMIT %(slots)s
)
UPDATE deployments d SET worker = %(worker)s, attempt = attempt + 1,
    lease_until = now() + %(lease_s)s * interval '1 second'
FROM picked WHERE d.id = picked.id AND d.worker IS NULL AND d.{_WAITS}
RETURNING d.{_LEASED.replace(", ", ", d.")}
"""
# Making and removing a database is retried without a limit: giving up would leave things behind.
_REAP = f"""
UPDATE deployments SET worker = NULL, lease_until = NULL WHERE worker IS NOT NULL AND lease_until < now() AND {_WAITS}
"""
_POSTPONE = f"""
UPDATE deployments SET worker = NULL, lease_until = NULL, not_before = now() + %(delay_s)s * interval '1 second'
WHERE {MINE} AND {_WAITS}
"""
_SET_READY = f"""
UPDATE deployments SET status = 'READY', worker = NULL, lease_until = NULL, attempt = 0, updated_at = now()
WHERE {MINE} AND status = 'AWAITING_DATABASE'
"""
_REMOVE = f"DELETE FROM deployments WHERE {MINE} AND status = 'AWAITING_DELETE'"
_READ_NUMBERS = "SELECT number, id FROM deployments"


# The time is set before the repository is asked, so that several processes share the branches.
_TAKE_FOLLOWED = """
WITH picked AS MATERIALIZED (
    SELECT id FROM deployments
    WHERE source = 'github' AND status = 'READY' AND source_config @> '{"build_on_push": true}'
        AND (pushes_looked_at IS NULL OR pushes_looked_at <= now() - %(every_s)s * interval '1 second')
    ORDER BY pushes_looked_at NULLS FIRST FOR UPDATE SKIP LOCKED LIMIT %(limit)s
)
UPDATE deployments d SET pushes_looked_at = now() FROM picked WHERE d.id = picked.id
RETURNING d.id AS deployment_id, d.workspace_id, d.number, d.source_config,
    d.source_revision_config->>'repo_ref' AS repo_ref, d.pushed_commit_sha
"""
_NOTE_PUSH = """
UPDATE deployments SET pushed_commit_sha = %s WHERE id = %s AND pushed_commit_sha IS DISTINCT FROM %s RETURNING id
"""


@dataclass(frozen=True)
class NewDeployment:
    id: UUID
    name: str
    display_name: str | None
    source: Source
    source_config: dict[str, Any]
    source_revision_config: dict[str, Any]
    secrets: SealedSecrets
    secret_references: list[dict[str, str]]
    host_name: str | None = None


class LockedDeployment:
    """A deployment that is locked, with its queue of revisions: nobody else can change it until the
    transaction ends.
    """

    def __init__(self, connection: AsyncConnection[DictRow], deployment: StoredDeployment) -> None:
        self._connection = connection
        self.deployment = deployment

    async def update(
        self,
        source_config: dict[str, Any],
        host_name: str | None,
        display_name: str | None,
        secret_references: list[dict[str, str]],
        actor: str,
    ) -> None:
        """Change the deployment. Raises ConflictError when another deployment has the host name; that ends the
        transaction.
        """
        values = {"source_config": Jsonb(source_config), "secret_references": Jsonb(secret_references), "actor": actor}
        values |= {"host_name": host_name, "display_name": display_name, "id": self.deployment["id"]}
        try:
            await self._connection.execute(_UPDATE, values)
        except UniqueViolation as error:
            raise _host_name_taken(host_name) from error

    async def read_secrets(self) -> SealedSecrets:
        row = await (await self._connection.execute(_READ_SECRETS, ([self.deployment["id"]],))).fetchone()
        assert row, "the deployment is locked by this transaction"
        return _sealed(row)

    async def set_secrets(self, secrets: SealedSecrets) -> None:
        values = {"sealed": secrets.sealed, "names": list(secrets.names), "hash": secrets.hash}
        await self._connection.execute(_SET_SECRETS, {**values, "id": self.deployment["id"]})

    async def insert_revision(self, new: NewRevision, actor: str) -> StoredRevision:
        """Insert the deployment's latest revision. It is QUEUED while another one is being built or deployed."""
        return await insert_revision(self._connection, self.deployment["id"], new, actor)

    async def note_push(self, commit: str) -> bool:
        """Store the newest commit of the branch. Returns False when it is stored already."""
        noted = await self._connection.execute(_NOTE_PUSH, (commit, self.deployment["id"], commit))
        return await noted.fetchone() is not None

    async def has_build(self, revision_id: UUID) -> bool:
        """Return True if the revision's build still exists. It cannot be removed while the deployment is locked."""
        found = await self._connection.execute(_READ_BUILD, (self.deployment["id"], revision_id))
        return await found.fetchone() is not None

    async def interrupt(self, revision_id: UUID, message: str, actor: str) -> StoredRevision | None:
        """End the revision and let the next one in the queue go on. Returns None when it has ended already."""
        ended = await interrupt_revisions(self._connection, self.deployment["id"], [revision_id], message, actor)
        return ended[0] if ended else None

    async def set_deleted(self, *, deletes_project: bool, actor: str) -> None:
        """Hide the deployment from callers. The control loop removes what belongs to it, and then its row."""
        deployment_id = self.deployment["id"]
        unended = [status.value for status in set(RevisionStatus) - TERMINAL]
        rows = await (await self._connection.execute(_UNENDED, (deployment_id, unended))).fetchall()
        held = [row["lease_until"] for row in rows if row["lease_until"]]
        await interrupt_revisions(
            self._connection, deployment_id, [row["id"] for row in rows], "The deployment was deleted", actor
        )
        values = {"deletes_project": deletes_project, "lease_until": max(held, default=None)}
        await self._connection.execute(_SET_DELETED, {**values, "id": deployment_id, "actor": actor})


class DeploymentStore(LeaseStore):
    BEAT = f"UPDATE deployments SET lease_until = now() + %(lease_s)s * interval '1 second' {HELD} AND {_WAITS} RETURNING id"
    HAND_BACK = f"UPDATE deployments SET worker = NULL, lease_until = NULL, attempt = attempt - 1 {HELD} AND {_WAITS}"

    async def insert(
        self, workspace_id: UUID, new: NewDeployment, revision: NewRevision | None, actor: str
    ) -> str | None:
        """Insert the deployment, with its first revision if given. Returns None, or the status of the deployment that
        already has the name.

        Raises ConflictError when another deployment has the host name.
        """
        values = {
            "id": new.id,
            "workspace_id": workspace_id,
            "name": new.name,
            "display_name": new.display_name,
            "source": new.source.value,
            "source_config": Jsonb(new.source_config),
            "source_revision_config": Jsonb(new.source_revision_config),
            "sealed_secrets": new.secrets.sealed,
            "secret_names": list(new.secrets.names),
            "secrets_hash": new.secrets.hash,
            "secret_references": Jsonb(new.secret_references),
            "host_name": new.host_name,
            "actor": actor,
        }
        while not await self._insert(values, revision, actor):
            taken = await self._postgres.fetch_one(_FIND_NAME, {"name": new.name, "workspace_id": workspace_id})
            if taken is not None:
                return str(taken["status"])
            if await self._postgres.fetch_one(_FIND_HOST_NAME, (new.host_name,)) is not None:
                raise _host_name_taken(new.host_name)
        return None

    async def _insert(self, values: dict[str, Any], revision: NewRevision | None, actor: str) -> bool:
        async with self._postgres.connection() as connection, connection.transaction():
            made = await (await connection.execute(_INSERT, values)).fetchone()
            if made is not None and revision is not None:
                await insert_revision(connection, values["id"], revision, actor)
            return made is not None

    async def read(self, workspace_id: UUID, deployment_id: UUID) -> StoredDeployment | None:
        """Return the deployment, or None when it does not exist or is deleted."""
        return cast(StoredDeployment | None, await self._postgres.fetch_one(_READ, (workspace_id, deployment_id)))

    async def page(
        self, workspace_id: UUID, wanted: DeploymentFilter, limit: int, offset: int
    ) -> list[StoredDeployment]:
        """Return a page of deployments, newest first."""
        values = {
            "workspace_id": workspace_id,
            "name": wanted.name,
            "name_contains": wanted.name_contains,
            "status": wanted.status,
            "deployment_type": wanted.deployment_type,
            "ids": wanted.ids,
            "limit": limit,
            "offset": offset,
        }
        return cast(list[StoredDeployment], await self._postgres.fetch(_PAGE, values))

    async def count_of_types(self, workspace_id: UUID, types: Collection[str]) -> int:
        row = await self._postgres.fetch_one(_COUNT_TYPES, (workspace_id, list(types)))
        return int(row["n"]) if row else 0

    async def read_secrets(self, deployment_ids: Sequence[UUID]) -> dict[UUID, SealedSecrets]:
        rows = await self._postgres.fetch(_READ_SECRETS, (list(deployment_ids),))
        return {row["id"]: _sealed(row) for row in rows}

    @asynccontextmanager
    async def locked(self, workspace_id: UUID, deployment_id: UUID) -> AsyncIterator[LockedDeployment | None]:
        """Open a transaction that locks one deployment, and yield it; None when it does not exist."""
        async with self._postgres.connection() as connection, connection.transaction():
            await connection.execute(_LOCK, (workspace_id, deployment_id))
            row = await (await connection.execute(_READ, (workspace_id, deployment_id))).fetchone()
            yield LockedDeployment(connection, cast(StoredDeployment, row)) if row else None

    async def take_followed(self, every_s: float, limit: int) -> list[FollowedBranch]:
        """Take branches whose pushes make revisions and that were not asked for `every_s`, the longest ago first."""
        rows = await self._postgres.fetch(_TAKE_FOLLOWED, {"every_s": every_s, "limit": limit})
        return [FollowedBranch(**row) for row in rows if row["source_config"].get("repo_url") and row["repo_ref"]]

    # --- leases: databases to be made, and deployments to be removed --------------------------------------------------

    async def claim(self, worker: str, slots: int, lease_s: float) -> list[LeasedDeployment]:
        rows = await self._postgres.fetch(_CLAIM, {"worker": worker, "slots": slots, "lease_s": lease_s})
        return [_leased(row) for row in rows]

    async def reap(self) -> int:
        return await self._postgres.execute(_REAP)

    async def postpone(self, lease: Lease, delay_s: float) -> bool:
        """Put the deployment back into the queue for a while. Returns False when the lease was lost."""
        return bool(await self._postgres.execute(_POSTPONE, {**proof_of(lease), "delay_s": delay_s}))

    async def set_ready(self, lease: Lease) -> bool:
        """Record that its database exists. Returns False when the lease was lost."""
        return bool(await self._postgres.execute(_SET_READY, proof_of(lease)))

    async def remove(self, lease: Lease) -> bool:
        """Delete the row with its revisions and uploads, when nothing else is left. Its name and
        number are then free.
        """
        return bool(await self._postgres.execute(_REMOVE, proof_of(lease)))

    async def read_numbers(self) -> dict[int, UUID]:
        """Return all numbers in use, with the deployments' ids. Folders and databases with other
        numbers are leftovers.
        """
        return {row["number"]: row["id"] for row in await self._postgres.fetch(_READ_NUMBERS)}


def _host_name_taken(name: str | None) -> ConflictError:
    """Return the error. It does not say which deployment has the name: that deployment may be another workspace's."""
    return ConflictError(f"The host name {name} is taken: a host name leads to one deployment of the installation")


def _sealed(row: DictRow) -> SealedSecrets:
    return SealedSecrets(bytes(row["sealed_secrets"]), tuple(row["secret_names"]), row["secrets_hash"])


def _leased(row: DictRow) -> LeasedDeployment:
    lease = Lease(row["deployment_id"], row.pop("worker"), row.pop("attempt"))
    listener_id = row.pop("listener_id")
    return LeasedDeployment(lease, **row, listener_id=UUID(listener_id) if listener_id else None)
