"""A stand-in for the control loop: it builds and runs nothing, but moves rows as the control loop would."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from uuid import UUID

from moorage.control.checkouts import unpack
from moorage.control.records.logs import LogKind, LogLevel, LogLine
from moorage.control.records.orders import LeasedDeployment, LeasedRevision, Order
from moorage.control.records.states import RevisionStatus as S
from moorage.control.records.states import Source
from moorage.control.store.deployments import DeploymentStore
from moorage.control.store.logs import LogStore
from moorage.control.store.revisions import RevisionStore
from moorage.control.uploads import Uploads
from moorage.worker.leases import Lease, Worker

_POLL_S = 0.05


class Chores:
    """Databases that exist at once, and deployments that leave nothing behind."""

    def __init__(self, store: DeploymentStore) -> None:
        self._store = store
        self.claim, self.beat, self.reap, self.hand_back = store.claim, store.beat, store.reap, store.hand_back

    async def execute(self, row: LeasedDeployment) -> bool:
        waits_for_database = row.status == "AWAITING_DATABASE"
        return await (self._store.set_ready if waits_for_database else self._store.remove)(row.lease)


class Builds:
    """Builds that fail for sources with a file `broken.py`, and succeed for all others."""

    def __init__(self, store: RevisionStore, logs: LogStore, uploads: Uploads, folder: Path) -> None:
        self._store = store
        self._logs = logs
        self._uploads = uploads
        self._folder = folder
        self._positions = count()
        self.claim, self.hand_back = store.claim, store.hand_back

    async def beat(self, leases: Collection[Lease], lease_s: float) -> list[UUID]:
        return await self._store.beat(leases, lease_s)

    async def reap(self) -> int:
        return await self._store.reap(3)

    async def execute(self, row: LeasedRevision) -> bool:
        lease, order = row.lease, row.order
        if order.status is S.AWAITING_BUILD:
            await self._store.move(lease, S.AWAITING_BUILD, S.BUILDING)
            names = await self._fetched(order)
            await self._print(order, LogKind.BUILD, [f"found {name}" for name in names])
            if "broken.py" in names:
                await self._print(order, LogKind.BUILD, ["no solution found"], LogLevel.ERROR)
                return await self._store.finish(
                    lease, S.BUILDING, S.BUILD_FAILED, "no solution found\nThe whole log: …"
                )
            await self._store.move(lease, S.BUILDING, S.AWAITING_DEPLOY)
        await self._store.move(lease, S.AWAITING_DEPLOY, S.DEPLOYING)
        await self._print(order, LogKind.DEPLOY, [f"revision {order.number} started"])
        return await self._store.finish(lease, S.DEPLOYING, S.DEPLOYED)

    async def _fetched(self, order: Order) -> list[str]:
        if order.source is not Source.INTERNAL_SOURCE:
            return []
        archive, into = self._folder / f"{order.revision_id}.tar.gz", self._folder / str(order.revision_id)
        await self._uploads.fetch(order.source_revision_config["source_tarball_path"], archive)
        unpack(archive, into)
        return sorted(path.relative_to(into).as_posix() for path in into.rglob("*") if path.is_file())

    async def _print(self, order: Order, kind: LogKind, texts: list[str], level: LogLevel = LogLevel.INFO) -> None:
        await self._logs.insert(
            [
                LogLine(
                    order.workspace_id,
                    order.deployment_id,
                    order.revision_id,
                    kind,
                    datetime.now(UTC),
                    next(self._positions),
                    level,
                    text,
                )
                for text in texts
            ]
        )


def workers(chores: Chores, builds: Builds) -> tuple[Worker[LeasedDeployment], Worker[LeasedRevision]]:
    return (
        Worker(chores, name="chores", slots=4, lease_s=30, poll_s=_POLL_S),
        Worker(builds, name="builds", slots=4, lease_s=30, poll_s=_POLL_S),
    )
