"""From settings to the room of traces and its loops."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from moorage.kernel.buckets.bucket import Bucket
from moorage.kernel.clickhouse import ClickHouse
from moorage.kernel.postgres import Postgres
from moorage.traces.attachments import Attachments
from moorage.traces.deletion import Deletion, DeletionQueue, Housekeeping, Retention
from moorage.traces.feedback import Feedback, FeedbackKeys, FeedbackTokens
from moorage.traces.ingest import Ingest
from moorage.traces.prices import Prices
from moorage.traces.projects import Projects
from moorage.traces.reading import Reading
from moorage.traces.room import Traces
from moorage.traces.statistics import Statistics
from moorage.traces.store.deletions import DeletionStore, RemovalOrder, RetentionStore, TombstoneStore
from moorage.traces.store.feedback import FeedbackKeyStore, FeedbackStore
from moorage.traces.store.parked_updates import ParkedUpdateStore
from moorage.traces.store.prices import PriceStore
from moorage.traces.store.project_stats import ProjectStatsStore
from moorage.traces.store.projects import ProjectStore
from moorage.traces.store.run_writes import RunWrites
from moorage.traces.store.unfinished_inserts import UnfinishedInserts
from moorage.traces.tailing import Tailing
from moorage.traces.threads import TraceThreads
from moorage.worker.leases import Worker, worker_name
from moorage.worker.ticker import Ticker

_DELETION_SLOTS = 20  # waiting orders are removed together, so more slots would cost nothing
_DELETION_LEASE_S = 60
_DELETION_POLL_S = 5
_HOUSEKEEPING_EVERY_S = 60


@dataclass(frozen=True)
class TracesAtWork:
    """The room of traces, and how to stop its loops before the connections are closed."""

    room: Traces
    stop_work: Callable[[], Awaitable[None]]


@asynccontextmanager
async def traces_at_work(
    postgres: Postgres,
    clickhouse: ClickHouse,
    bucket: Bucket,
    *,
    signing_keys: Mapping[str, bytes],
    public_url: str,
) -> AsyncIterator[TracesAtWork]:
    projects, writes = ProjectStore(postgres), RunWrites(clickhouse)
    feedback_store, keys = FeedbackStore(clickhouse), FeedbackKeyStore(postgres)
    orders, tombstones, retention = DeletionStore(postgres), TombstoneStore(clickhouse), RetentionStore(postgres)
    attachments = Attachments(bucket=bucket, signing_keys=signing_keys)
    prices = Prices(store=PriceStore(postgres))
    feedback = Feedback(feedback_store, keys, projects, writes)
    removals = Worker[RemovalOrder](
        DeletionQueue(postgres, tombstones, attachments),
        name=worker_name(),
        slots=_DELETION_SLOTS,
        lease_s=_DELETION_LEASE_S,
        poll_s=_DELETION_POLL_S,
    )
    deletion = Deletion(orders, tombstones, projects, wake=removals.wake)
    ingest = Ingest(
        writes=writes,
        projects=projects,
        prices=prices,
        attachments=attachments,
        parked=ParkedUpdateStore(postgres),
        feedback=feedback,
    )
    statistics = Statistics(clickhouse, feedback_store)
    reading = Reading(clickhouse, feedback_store)
    room = Traces(
        reading=reading,
        tailing=Tailing(clickhouse, reading),
        statistics=statistics,
        threads=TraceThreads(clickhouse, feedback_store),
        ingest=ingest,
        prices=prices,
        attachments=attachments,
        projects=Projects(projects, ProjectStatsStore(clickhouse), statistics, feedback_store, keys),
        feedback=feedback,
        feedback_keys=FeedbackKeys(keys),
        feedback_tokens=FeedbackTokens(keys, feedback, public_url=public_url),
        deletion=deletion,
        retention=Retention(retention),
    )
    inserts = UnfinishedInserts(clickhouse)
    chores = Housekeeping(retention, orders, tombstones, attachments, feedback, keys, inserts)
    housekeeping = Ticker("housekeeping of traces", chores.tick, every_s=_HOUSEKEEPING_EVERY_S)
    ingest.start()
    removals.start()
    housekeeping.start()

    async def stop_work() -> None:
        await housekeeping.stop()
        await removals.stop()

    try:
        yield TracesAtWork(room, stop_work)
    finally:
        await stop_work()
        await ingest.stop()  # last: data of open connections is written before they get their answers
