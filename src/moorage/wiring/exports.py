"""From engines and rules to the room of exports, and its workers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from moorage.exports.destinations import DestinationRules, Destinations
from moorage.exports.exports import Exports, KnownProjects
from moorage.exports.finish import ExportQueue, FinishRules
from moorage.exports.notify import Webhooks
from moorage.exports.records.exports import Compression
from moorage.exports.room import ExportRoom
from moorage.exports.runs import ExportRuns
from moorage.exports.spawn import Spawner
from moorage.exports.store.destinations import DestinationStore
from moorage.exports.store.exports import ExportStore, LeasedExport
from moorage.exports.store.runs import ClaimLimits, ExportRunStore, LeasedExportRun
from moorage.exports.verify import Verifier
from moorage.exports.write_partition import PartitionQueue, WriteRules
from moorage.kernel.aws_signature import Credentials
from moorage.kernel.clickhouse import ClickHouse
from moorage.kernel.crypto import MasterKeys
from moorage.kernel.postgres import Postgres
from moorage.settings.platform import PlatformSettings
from moorage.traces.exported_runs import ExportedRuns
from moorage.worker.leases import Worker

_FINISHING_SLOTS = 4


@dataclass(frozen=True)
class ExportOptions:
    """Settings of exports."""

    spool: Path
    local_root: Path | None
    allow_private_endpoints: bool = False
    allow_environment_credentials: bool = False
    lent: Credentials | None = None
    default_compression: Compression = Compression.ZSTANDARD
    slots: int = 2
    runs_of_export_max: int = 45
    exports_of_workspace_max: int = 15
    export_timeout_s: float = 72 * 3600
    run_timeout_s: float = 4 * 3600
    retries_max: int = 20
    retry_delay_s: float = 30
    part_bytes_max: int = 64 * 2**20
    bucket_patience_s: float = 120
    lease_s: float = 15
    poll_s: float = 1


def export_options(settings: PlatformSettings, home: Path) -> ExportOptions:
    local = settings.is_local
    return ExportOptions(
        spool=home / "spool" / "exports",
        local_root=settings.export_directory or (home / "exports" if local else None),
        allow_private_endpoints=settings.allows_private_endpoints,
        allow_environment_credentials=settings.export_environment_credentials,
        lent=_lent(os.environ) if settings.export_environment_credentials else None,
        default_compression=Compression(settings.export_compression),
        slots=settings.export_slots,
        runs_of_export_max=settings.export_runs_max,
        exports_of_workspace_max=settings.exports_max,
        export_timeout_s=settings.export_timeout_s,
        run_timeout_s=settings.export_run_timeout_s,
        retries_max=settings.export_retries_max,
        retry_delay_s=settings.export_retry_delay_s,
        part_bytes_max=settings.export_part_bytes_max,
        lease_s=settings.export_lease_s,
    )


def _lent(environment: Mapping[str, str]) -> Credentials | None:
    """Return the AWS keys in the environment, from the variables that AWS's own programs read."""
    key_id, secret = environment.get("AWS_ACCESS_KEY_ID"), environment.get("AWS_SECRET_ACCESS_KEY")
    return Credentials(key_id, secret, environment.get("AWS_SESSION_TOKEN")) if key_id and secret else None


@dataclass(frozen=True)
class ExportParts:
    """The room for the routes, and its workers for the processes that run them."""

    room: ExportRoom
    runs: Worker[LeasedExportRun]
    exports: Worker[LeasedExport]

    def start(self) -> None:
        self.runs.start()
        self.exports.start()

    async def stop(self) -> None:
        await self.runs.stop()
        await self.exports.stop()


def export_parts(
    options: ExportOptions,
    *,
    worker_name: str,
    postgres: Postgres,
    clickhouse: ClickHouse,
    keys: MasterKeys,
    projects: KnownProjects,
) -> ExportParts:
    store, run_store, pages = ExportStore(postgres), ExportRunStore(postgres), ExportedRuns(clickhouse)
    destinations = Destinations(
        DestinationStore(postgres),
        keys,
        DestinationRules(
            allow_private_endpoints=options.allow_private_endpoints,
            allow_environment_credentials=options.allow_environment_credentials,
            local_root=options.local_root,
            lent=options.lent,
            patience_s=options.bucket_patience_s,
        ),
    )
    webhooks = Webhooks(keys, allow_private=options.allow_private_endpoints)
    # The two wake each other: the end of an export run may complete its export, and the end of an export lets another
    # one begin.
    finisher = ExportQueue(
        exports=store,
        runs=run_store,
        destinations=destinations,
        webhooks=webhooks,
        spawner=Spawner(store, webhooks, projects.experiments),
        rules=FinishRules(options.retries_max, options.retry_delay_s),
        wake_runs=lambda: runs.wake(),  # noqa: PLW0108 - made below
    )
    exports = Worker[LeasedExport](
        finisher, name=worker_name, slots=_FINISHING_SLOTS, lease_s=options.lease_s, poll_s=options.poll_s
    )
    writer = PartitionQueue(
        runs=run_store,
        pages=pages,
        destinations=destinations,
        rules=_write_rules(options),
        spool=options.spool,
        wake_exports=exports.wake,
    )
    runs = Worker[LeasedExportRun](
        writer, name=worker_name, slots=options.slots, lease_s=options.lease_s, poll_s=options.poll_s
    )
    verbs = Exports(
        store=store,
        pages=pages,
        destinations=destinations,
        projects=projects,
        webhooks=webhooks,
        default_compression=options.default_compression,
        wake=runs.wake,
    )
    verifier = Verifier(exports=verbs, store=store, runs=run_store, pages=pages, destinations=destinations)
    return ExportParts(ExportRoom(destinations, verbs, ExportRuns(run_store, store), verifier), runs, exports)


def _write_rules(options: ExportOptions) -> WriteRules:
    return WriteRules(
        limits=ClaimLimits(options.runs_of_export_max, options.exports_of_workspace_max, options.export_timeout_s),
        run_timeout_s=options.run_timeout_s,
        retries_max=options.retries_max,
        retry_delay_s=options.retry_delay_s,
        part_bytes_max=options.part_bytes_max,
    )
