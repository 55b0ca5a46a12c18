"""The job for exports as a whole: manifests, webhooks, deadlines, and spawning from schedules."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from uuid import UUID

import structlog

from moorage.exports.destinations import DestinationGoneError, Destinations, text_of
from moorage.exports.manifests import encode_manifest, manifest_of
from moorage.exports.notify import Webhooks
from moorage.exports.records.exports import ExportStatus
from moorage.exports.spawn import Spawner
from moorage.exports.store.exports import ExportStore, LeasedExport
from moorage.exports.store.runs import ExportRunStore
from moorage.kernel.buckets.faults import BucketError, BucketFault
from moorage.kernel.errors import BadRequestError
from moorage.worker.leases import Lease

log = structlog.get_logger(__name__)

_WEBHOOK_DELAYS_S = (1, 10, 60, 300)  # after the first, second, ... failed attempt
_WEBHOOK_ATTEMPTS_MAX = len(_WEBHOOK_DELAYS_S) + 1


@dataclass(frozen=True)
class FinishRules:
    retries_max: int
    retry_delay_s: float


@dataclass(frozen=True)
class ExportQueue:
    """Exports of the database as rows with leases: those with only complete runs, and those with a webhook to call."""

    exports: ExportStore
    runs: ExportRunStore
    destinations: Destinations
    webhooks: Webhooks
    spawner: Spawner
    rules: FinishRules
    wake_runs: Callable[[], None]

    async def claim(self, worker: str, slots: int, lease_s: float) -> list[LeasedExport]:
        return await self.exports.claim(worker, slots, lease_s)

    async def beat(self, leases: Collection[Lease], lease_s: float) -> Collection[UUID]:
        return await self.exports.beat(leases, lease_s)

    async def reap(self) -> int:
        """Reap leases, end exports that took too long, and spawn exports of schedules that are due."""
        if await self.spawner.spawn():
            self.wake_runs()
        return await self.exports.time_out() + await self.exports.reap()

    async def hand_back(self, leases: Collection[Lease]) -> None:
        await self.exports.hand_back(leases)

    async def execute(self, row: LeasedExport) -> bool:
        """Call the webhook of an export that has ended; else write the manifest. True if another run may start."""
        if row.export["status"] is not ExportStatus.RUNNING:
            await self._tell(row)
            return False
        try:
            await self._complete(row)
        except (BucketError, BadRequestError, DestinationGoneError) as error:
            await self._not_complete(row, error)
        self.wake_runs()
        return True

    async def _complete(self, row: LeasedExport) -> None:
        export = row.export
        runs = await self.runs.read_all(export["tenant_id"], export["id"])
        manifest = manifest_of(export, row.place, [(run.id, file) for run in runs for file in run.files])
        key, data = row.place.manifest(export["id"]), encode_manifest(manifest)
        destination = await self.destinations.open(export["tenant_id"], export["bulk_export_destination_id"])
        await destination.bucket.put(key, data)
        if destination.permissions["get_object"]:
            found = await destination.bucket.head(key)
            if found is None or found.size_bytes != len(data):
                raise BucketError(BucketFault.TRANSIENT, "the manifest is not there, or not whole")
        if await self.exports.complete(row.lease, row.place.reported(key)):
            log.info(
                "export complete", export_id=str(export["id"]), files=len(manifest["files"]), rows=manifest["rows"]
            )

    async def _not_complete(
        self, row: LeasedExport, error: BucketError | BadRequestError | DestinationGoneError
    ) -> None:
        text = text_of(error) if isinstance(error, BucketError) else str(error)
        passes = isinstance(error, BucketError) and not error.fault.stays
        if passes and row.retry_number < self.rules.retries_max:
            log.warning("manifest not written, will be tried again", export_id=str(row.lease.key), error=text)
            await self.exports.retry(row.lease, text, self.rules.retry_delay_s)
        else:
            log.error("export failed", export_id=str(row.lease.key), error=text)
            await self.exports.fail(row.lease, f"The manifest could not be written: {text}")

    async def _tell(self, row: LeasedExport) -> None:
        told = log.bind(export_id=str(row.lease.key), attempt=row.webhook_attempts + 1)
        url, sealed = row.export["webhook_url"], row.webhook_secret
        assert url is not None
        assert sealed is not None
        trouble = await self.webhooks.tell(url, sealed, row.export)
        if trouble is None:
            await self.exports.move_webhook(row.lease, "delivered")
            told.info("webhook of an export delivered")
        elif row.webhook_attempts + 1 < _WEBHOOK_ATTEMPTS_MAX:
            delay_s = _WEBHOOK_DELAYS_S[row.webhook_attempts]
            await self.exports.move_webhook(row.lease, "pending", delay_s)
            told.warning("webhook of an export not delivered", trouble=trouble, again_in_s=delay_s)
        else:
            await self.exports.move_webhook(row.lease, "failed")
            told.error("webhook of an export given up", trouble=trouble)
