"""Exports and schedules: create, list and cancel them, and estimate an export in advance."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol
from uuid import UUID

from moorage.exports.destinations import Destinations
from moorage.exports.notify import Webhooks
from moorage.exports.partitions import partitions_of, place_of
from moorage.exports.records.exports import (
    Compression,
    Estimate,
    Export,
    ExportCreate,
    ExportStatus,
    PartitionEstimate,
    WebhookGiven,
    warnings_of,
)
from moorage.exports.records.runs import ExportLocation, Partition, Window
from moorage.exports.store.exports import ExportStore, NewExport
from moorage.kernel.access import Caller
from moorage.kernel.errors import BadRequestError, InvalidRequestError, NotFoundError
from moorage.kernel.ids import uuid7
from moorage.traces.exported_runs import ExportedRuns, ExportSelection, RunCondition, export_condition

_EXPERIMENTS_MAX = 250
_PARTITIONS_MAX = 10_000


class KnownProjects(Protocol):
    """The part of the trace store's projects that exports need."""

    async def known(self, workspace_id: UUID, ids: Sequence[UUID]) -> set[UUID]:
        """Return the ids that are projects of the workspace."""

    async def experiments(self, workspace_id: UUID) -> list[UUID]:
        """List projects of the workspace that are experiments on a dataset."""


@dataclass(frozen=True)
class Exports:
    store: ExportStore
    pages: ExportedRuns
    destinations: Destinations
    projects: KnownProjects
    webhooks: Webhooks
    default_compression: Compression
    wake: Callable[[], None]

    async def create(self, caller: Caller, new: ExportCreate) -> Export | Estimate:
        """Create an export or a schedule. With `dry_run`, create nothing and estimate what the export would write.

        Raises NotFoundError for a destination or project that is not the workspace's, InvalidRequestError for a filter
        that cannot be parsed.
        """
        destination = await self.destinations.get(caller, new.bulk_export_destination_id)
        sessions = await self._sessions(caller, new)
        condition = export_condition(new.filter) if new.filter is not None else None
        if new.webhook is not None:
            await self.webhooks.check(new.webhook.url)
        window = Window(new.start_time, new.end_time) if new.end_time is not None else None
        partitions = partitions_of(window, sessions) if window is not None else []
        if len(partitions) > _PARTITIONS_MAX:
            raise InvalidRequestError(
                f"This would take {len(partitions)} export runs, one for each day of each project; {_PARTITIONS_MAX} is "
                "the most"
            )
        if window is not None and new.changed_since is not None:
            partitions = await self._changed(caller, window, partitions, new.changed_since)
        if window is not None and new.dry_run:
            return await self._estimate(caller, window, partitions, condition)
        return await self._insert(caller, new, window, partitions, place_of(destination["config"]))

    async def _insert(
        self,
        caller: Caller,
        new: ExportCreate,
        window: Window | None,
        partitions: list[Partition],
        place: ExportLocation,
    ) -> Export:
        export_id = uuid7()
        secret = _secret_of(new.webhook)
        made = await self.store.insert(
            NewExport(
                id=export_id,
                workspace_id=caller.workspace_id,
                destination_id=new.bulk_export_destination_id,
                place=place,
                session_id=new.session_id,
                window=window,
                start_at=new.start_time,
                filter=new.filter,
                format_version=new.format_version,
                compression=new.compression or self.default_compression,
                export_fields=new.export_fields,
                changed_since=new.changed_since,
                interval_hours=new.interval_hours,
                webhook_url=new.webhook.url if new.webhook else None,
                webhook_secret=self.webhooks.seal(secret, export_id) if secret else None,
                actor=caller.actor,
                partitions=partitions,
            )
        )
        self.wake()
        if secret is not None and new.webhook is not None and new.webhook.secret is None:
            made["webhook_secret"] = secret
        return made

    async def get(self, caller: Caller, export_id: UUID) -> Export:
        found = await self.store.read(caller.workspace_id, export_id)
        if found is None:
            raise NotFoundError(f"Bulk export {export_id} not found")
        return found

    async def cancel(self, caller: Caller, export_id: UUID) -> Export:
        """Cancel an export or a schedule. Raises BadRequestError if it has already ended in another way.

        The runs of an export stop within the current part. A schedule spawns no more exports; those already spawned go
        on.
        """
        cancelled = await self.store.cancel(caller.workspace_id, export_id)
        if cancelled is not None:
            self.wake()
            return cancelled
        found = await self.get(caller, export_id)
        if found["status"] is ExportStatus.CANCELLED:
            return found
        raise BadRequestError(f"Bulk export {export_id} is {found['status']} already and cannot be cancelled")

    # --- what an export covers ----------------------------------------------------------------------------------------

    async def _sessions(self, caller: Caller, new: ExportCreate) -> list[UUID]:
        if new.session_id is not None:
            if not await self.projects.known(caller.workspace_id, [new.session_id]):
                raise NotFoundError(f"Project {new.session_id} not found")
            return [new.session_id]
        found = await self.projects.experiments(caller.workspace_id)
        if len(found) > _EXPERIMENTS_MAX:
            raise InvalidRequestError(
                f"The workspace has more than {_EXPERIMENTS_MAX} experiments; export them one by one"
            )
        return found

    async def _changed(
        self, caller: Caller, window: Window, partitions: list[Partition], since: datetime
    ) -> list[Partition]:
        days = {
            session_id: await self.pages.changed(_selection(caller, session_id, window, None), since)
            for session_id in {partition.session_id for partition in partitions}
        }
        return [partition for partition in partitions if partition.window.start_at.date() in days[partition.session_id]]

    async def _estimate(
        self, caller: Caller, window: Window, partitions: list[Partition], condition: RunCondition | None
    ) -> Estimate:
        rows = {
            (session_id, day): count
            for session_id in {partition.session_id for partition in partitions}
            for day, count in (await self.pages.count(_selection(caller, session_id, window, condition))).items()
        }
        estimates: list[PartitionEstimate] = [
            {
                "session_id": partition.session_id,
                "start_time": partition.window.start_at,
                "end_time": partition.window.end_at,
                "rows": rows.get((partition.session_id, partition.window.start_at.date()), 0),
            }
            for partition in partitions
        ]
        return {
            "dry_run": True,
            "rows": sum(estimate["rows"] for estimate in estimates),
            "export_runs": len(estimates),
            "partitions": estimates,
            "warnings": warnings_of(window.end_at, datetime.now(UTC)),
        }

    async def list(self, caller: Caller, *, limit: int, offset: int) -> list[Export]:
        return await self.store.page(caller.workspace_id, limit=limit, offset=offset)


def _selection(caller: Caller, session_id: UUID, window: Window, condition: RunCondition | None) -> ExportSelection:
    return ExportSelection(
        caller.workspace_id, session_id, window.start_at, window.end_at, datetime.now(UTC), condition
    )


def _secret_of(webhook: WebhookGiven | None) -> str | None:
    if webhook is None:
        return None
    return webhook.secret or f"whsec_{base64.b64encode(os.urandom(24)).decode()}"
