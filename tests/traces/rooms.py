"""Projects, feedback, deletion and retention on real engines, without the rest of the platform."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

from moorage.kernel.access import Caller, Plan, Scope
from moorage.kernel.buckets.bucket import directory_bucket
from moorage.kernel.clickhouse import ClickHouse
from moorage.kernel.postgres import Postgres
from moorage.traces.attachments import Attachments, SentAttachment
from moorage.traces.deletion import Deletion, DeletionQueue, Housekeeping, Retention
from moorage.traces.feedback import Feedback, FeedbackKeys, FeedbackTokens
from moorage.traces.projects import Projects
from moorage.traces.routes import deletion, feedback, sessions
from moorage.traces.statistics import Statistics
from moorage.traces.store.deletions import DeletionStore, RetentionStore, TombstoneStore
from moorage.traces.store.feedback import FeedbackKeyStore, FeedbackStore
from moorage.traces.store.project_stats import ProjectStatsStore
from moorage.traces.store.projects import ProjectStore
from moorage.traces.store.run_writes import RunWrites
from moorage.traces.store.unfinished_inserts import UnfinishedInserts
from tests.traces.naive_filter import StoredRun
from tests.traces.trace_data import insert_runs, make_run

ROUTERS = (sessions.router, feedback.router, deletion.router, deletion.retention)
NOW = datetime(2026, 6, 15, 12, tzinfo=UTC)


def caller_of(workspace_id: UUID) -> Caller:
    return Caller(workspace_id, Plan.ENTERPRISE, frozenset(Scope), "test")


class Room:
    """Projects, feedback, deletion and retention alone, built as `wiring` does. `caller` is of a workspace of this
    test.
    """

    def __init__(self, postgres: Postgres, clickhouse: ClickHouse, bucket: Path) -> None:
        self.postgres, self.clickhouse = postgres, clickhouse
        self.store = ProjectStore(postgres)
        self.feedback_store = FeedbackStore(clickhouse)
        self.tombstones = TombstoneStore(clickhouse)
        self.orders = DeletionStore(postgres)
        self.inserts = UnfinishedInserts(clickhouse)
        self.bucket = directory_bucket(bucket)
        self.attachments = Attachments(bucket=self.bucket, signing_keys={"k": b"secret"})
        self.wakes = 0
        key_store, settings = FeedbackKeyStore(postgres), RetentionStore(postgres)
        self.deletion = Deletion(self.orders, self.tombstones, self.store, wake=self._wake, wait_s=0)
        self.queue = DeletionQueue(postgres, self.tombstones, self.attachments, wait_s=0)
        stats = ProjectStatsStore(clickhouse)
        statistics = Statistics(clickhouse, self.feedback_store)
        self.projects = Projects(self.store, stats, statistics, self.feedback_store, key_store)
        self.feedback = Feedback(self.feedback_store, key_store, self.store, RunWrites(clickhouse))
        self.feedback_keys = FeedbackKeys(key_store)
        self.feedback_tokens = FeedbackTokens(key_store, self.feedback, public_url="http://moorage.test")
        self.retention = Retention(settings)
        self.now = NOW
        self.housekeeping = Housekeeping(
            settings,
            self.orders,
            self.tombstones,
            self.attachments,
            self.feedback,
            key_store,
            self.inserts,
            clock=lambda: self.now,
        )
        self.caller = caller_of(uuid4())

    def _wake(self) -> None:
        self.wakes += 1

    async def work(self, worker: str = "test") -> int:
        """Execute the orders that may run now, and return how many."""
        done = 0
        while orders := await self.queue.claim(worker, 10, 60):
            await asyncio.gather(*map(self.queue.execute, orders))
            done += len(orders)
        return done

    def run(self, project_id: UUID, parent: StoredRun | None = None, **fields: object) -> StoredRun:
        """Return an ended run of the test's workspace."""
        at = fields.pop("start_time", None) or (parent.start_time + timedelta(seconds=1) if parent else NOW)
        fields.setdefault("end_time", at + timedelta(seconds=2))
        return make_run(parent, start_time=at, tenant_id=self.caller.workspace_id, session_id=project_id, **fields)

    async def keep(self, *runs: StoredRun) -> None:
        await insert_runs(self.clickhouse, runs)

    async def attach(self, run: StoredRun) -> None:
        sent = SentAttachment(str(run.id), "a", "text/plain", b"hello")
        run.attachments = dict(await self.attachments.put(run.tenant_id, str(run.trace_id), [sent]))

    async def attached(self) -> set[UUID]:
        """Return the traces of the test's workspace that have something in the bucket."""
        prefix = f"attachments/{self.caller.workspace_id}/"
        return {UUID(found.key.split("/")[2]) async for found in self.bucket.list(prefix)}

    async def seen(self, project_id: UUID) -> set[UUID]:
        """Return the ids of the runs that readers see."""
        sql = "SELECT id FROM trace_runs WHERE tenant_id = {t:UUID} AND session_id = {s:UUID}"
        rows = await self.clickhouse.rows(sql, {"t": self.caller.workspace_id, "s": project_id})
        return {row[0] for row in rows}

    async def left(self, project_id: UUID) -> dict[str, int]:
        """Count, for each table of the trace store, the project's runs or pieces of feedback that still have rows."""
        tables = ("trace_run_rows", "trace_run_keys", "trace_keys", "feedback_rows")
        found = {}
        for table in tables:
            sql = f"SELECT uniqExact(id) FROM {table} WHERE tenant_id = {{t:UUID}} AND session_id = {{s:UUID}}"
            found[table] = await self.clickhouse.value(sql, {"t": self.caller.workspace_id, "s": project_id})
        return found
