"""Rows to begin with: a workspace, and deployments and revisions in it, made directly by the stores."""

from __future__ import annotations

from uuid import UUID

from moorage.accounts.store import AccountStore
from moorage.control.records.orders import LeasedRevision
from moorage.control.records.revisions import StoredRevision
from moorage.control.records.secrets import SealedSecrets
from moorage.control.records.states import RevisionStatus, Source
from moorage.control.store.deployments import DeploymentStore, NewDeployment
from moorage.control.store.revisions import NewRevision, RevisionStore
from moorage.kernel.access import Plan
from moorage.kernel.ids import uuid7
from moorage.kernel.postgres import Postgres

S = RevisionStatus
NO_SECRETS = SealedSecrets(b"", (), "")


class Rows:
    """The stores of one test, with its own workspace. Names are made unique, since they must be in the installation."""

    def __init__(self, postgres: Postgres, workspace_id: UUID) -> None:
        self.postgres = postgres
        self.workspace_id = workspace_id
        self.deployments = DeploymentStore(postgres)
        self.revisions = RevisionStore(postgres)

    async def deploy(self, source: Source = Source.GITHUB, *, ready: bool = True) -> tuple[UUID, UUID]:
        """Insert a deployment with its first revision."""
        new = NewDeployment(uuid7(), f"d-{uuid7().hex[-12:]}", None, source, {}, {}, NO_SECRETS, [])
        first = new_revision(source)
        assert await self.deployments.insert(self.workspace_id, new, first, "test") is None
        if ready:
            await self.postgres.execute("UPDATE deployments SET status = 'READY' WHERE id = %s", (new.id,))
        return new.id, first.id

    async def push(self, deployment_id: UUID, new: NewRevision | None = None) -> StoredRevision:
        async with self.deployments.locked(self.workspace_id, deployment_id) as locked:
            assert locked
            return await locked.insert_revision(new or new_revision(), "test")

    async def status(self, deployment_id: UUID, revision_id: UUID) -> RevisionStatus:
        row = await self.revisions.read(self.workspace_id, deployment_id, revision_id)
        assert row
        return RevisionStatus(row["status"])

    async def claim(self, deployment_id: UUID, *, lease_s: float = 60, worker: str = "w") -> LeasedRevision:
        """Claim the revision of this deployment. Rows of other tests are handed back."""
        rows = await self.revisions.claim(worker, 100, lease_s)
        await self.revisions.hand_back([row.lease for row in rows if row.order.deployment_id != deployment_id])
        return next(row for row in rows if row.order.deployment_id == deployment_id)

    async def build(self, held: LeasedRevision) -> None:
        assert await self.revisions.move(held.lease, S.AWAITING_BUILD, S.BUILDING)
        assert await self.revisions.move(held.lease, S.BUILDING, S.AWAITING_DEPLOY)

    async def roll_out(self, deployment_id: UUID) -> UUID:
        """Move the revision that is at work all the way to DEPLOYED."""
        held = await self.claim(deployment_id)
        if held.order.status is S.AWAITING_BUILD:
            await self.build(held)
        assert await self.revisions.move(held.lease, S.AWAITING_DEPLOY, S.DEPLOYING)
        assert await self.revisions.finish(held.lease, S.DEPLOYING, S.DEPLOYED)
        return held.order.revision_id

    async def run_out(self, revision_id: UUID) -> None:
        """Let the lease run out, as if its holder had been killed a while ago."""
        await self.postgres.execute(
            "UPDATE revisions SET lease_until = now() - interval '1 s' WHERE id = %s", (revision_id,)
        )


def new_revision(source: Source = Source.GITHUB, *, build_of: UUID | None = None) -> NewRevision:
    return NewRevision(uuid7(), source, {}, {}, build_of=build_of)


async def make_rows(postgres: Postgres) -> Rows:
    workspace_id = uuid7()
    await AccountStore(postgres, Plan.ENTERPRISE).insert_workspace(workspace_id, "A workspace", None, None, "test")
    return Rows(postgres, workspace_id)
