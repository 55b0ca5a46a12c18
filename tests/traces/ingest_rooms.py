"""Ingest on real engines, with its routes and nothing else of the platform, and helpers that send and read runs."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import httpx
import orjson

from moorage.kernel.access import Caller, Plan, Scope
from moorage.kernel.buckets.bucket import Bucket, directory_bucket
from moorage.kernel.clickhouse import ClickHouse
from moorage.kernel.postgres import Postgres
from moorage.kernel.request_cost import MemoryBudget, RequestCost
from moorage.traces.attachments import Attachments
from moorage.traces.feedback import Feedback
from moorage.traces.ingest import Ingest
from moorage.traces.prices import Prices
from moorage.traces.routes import ingest, prices
from moorage.traces.store.feedback import FeedbackKeyStore, FeedbackStore
from moorage.traces.store.parked_updates import ParkedUpdateStore
from moorage.traces.store.prices import PriceStore
from moorage.traces.store.projects import ProjectStore
from moorage.traces.store.run_writes import RunWrites
from tests.accounts.houses import House, make_house

BOUNDARY = "0123456789abcdef" * 2
MULTIPART = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
NOW = datetime(2026, 6, 15, 12, tzinfo=UTC)


def new_cost() -> RequestCost:
    return RequestCost(MemoryBudget(2**30), 10**6)


class IngestRoom:
    """Ingest alone, built as `wiring` does."""

    def __init__(self, postgres: Postgres, clickhouse: ClickHouse, bucket: Bucket) -> None:
        self.postgres, self.clickhouse, self.bucket = postgres, clickhouse, bucket
        self.projects = ProjectStore(postgres)
        self.writes = RunWrites(clickhouse)
        self.prices = Prices(store=PriceStore(postgres))
        self.attachments = Attachments(bucket=bucket, signing_keys={"new": b"n" * 32, "old": b"o" * 32})
        self.parked = ParkedUpdateStore(postgres)
        feedback = Feedback(FeedbackStore(clickhouse), FeedbackKeyStore(postgres), self.projects, self.writes)
        self.ingest = Ingest(
            writes=self.writes,
            projects=self.projects,
            prices=self.prices,
            attachments=self.attachments,
            parked=self.parked,
            feedback=feedback,
        )

    def serve(self, house: House) -> None:
        house.app.state.traces = SimpleNamespace(ingest=self.ingest, prices=self.prices, attachments=self.attachments)
        for prefix in ("", "/api/v1"):
            house.app.include_router(ingest.router, prefix=prefix)
            house.app.include_router(prices.router, prefix=prefix)


class Sender:
    """A client that sends to the routes as one workspace, and reads what is stored of it."""

    def __init__(self, room: IngestRoom, http: httpx.AsyncClient, workspace_id: UUID) -> None:
        self.room, self.http, self.workspace_id = room, http, workspace_id
        self.caller = Caller(workspace_id, Plan.ENTERPRISE, frozenset(Scope), "test")

    async def multipart(self, *parts: tuple[str, Any], headers: Mapping[str, str] | None = None) -> httpx.Response:
        """Encode parts, each a name and its data: bytes unchanged, other values as JSON."""
        return await self.http.post(
            "/runs/multipart", content=encode_parts(parts), headers={**MULTIPART, **(headers or {})}
        )

    async def post(self, *runs: dict[str, Any]) -> None:
        answer = await self.http.post("/runs/batch", content=orjson.dumps({"post": runs}))
        assert answer.status_code == 202, answer.text

    async def patch(self, *runs: dict[str, Any]) -> None:
        answer = await self.http.post("/runs/batch", content=orjson.dumps({"patch": runs}))
        assert answer.status_code == 202, answer.text

    async def read(self, run_id: str) -> dict[str, Any] | None:
        """Return the run as readers see it, or None when it is not there. Fails when it is there twice."""
        found = await self.room.clickhouse.dicts(
            "SELECT * FROM trace_runs WHERE tenant_id = {t:UUID} AND id = {i:UUID}",
            {"t": self.workspace_id, "i": run_id},
        )
        assert len(found) < 2
        return found[0] if found else None

    async def ids(self) -> list[str]:
        sql = "SELECT id FROM trace_runs WHERE tenant_id = {t:UUID} ORDER BY dotted_order"
        return [str(row[0]) for row in await self.room.clickhouse.rows(sql, {"t": self.workspace_id})]

    async def row_count(self) -> int:
        """Count rows as they were inserted, unless the engine has merged them."""
        sql = "SELECT count() FROM trace_run_rows WHERE tenant_id = {t:UUID}"
        return await self.room.clickhouse.value(sql, {"t": self.workspace_id})

    async def project_names(self) -> dict[UUID, str]:
        rows = await self.room.postgres.fetch(
            "SELECT id, name FROM projects WHERE workspace_id = %s", (self.workspace_id,)
        )
        return {row["id"]: row["name"] for row in rows}


def encode_parts(parts: Sequence[tuple[str, Any]]) -> bytes:
    body = b""
    for name, value in parts:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\nContent-Type: application/json\r\n'
        body += f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data + b"\r\n"
    return body + f"--{BOUNDARY}--\r\n".encode()


def make_run(parent: dict[str, Any] | None = None, *, at: datetime | None = None, **fields: Any) -> dict[str, Any]:
    """Return a run as a client makes it, without payloads unless they are given."""
    run_id = str(uuid4())
    start = at or (datetime.fromisoformat(parent["start_time"]) + timedelta(seconds=1) if parent else NOW)
    segment = f"{start:%Y%m%dT%H%M%S%fZ}{run_id}"
    return {
        "id": run_id,
        "trace_id": parent["trace_id"] if parent else run_id,
        "parent_run_id": parent["id"] if parent else None,
        "dotted_order": f"{parent['dotted_order']}.{segment}" if parent else segment,
        "start_time": start.isoformat(),
        "name": "step",
        "run_type": "chain",
        "session_name": "project",
        **fields,
    }


def update_of(run: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return the update that clients send when a run ends."""
    kept = ("id", "trace_id", "parent_run_id", "dotted_order", "session_name")
    return {**{name: run[name] for name in kept}, **fields}


@asynccontextmanager
async def make_sender(postgres: Postgres, clickhouse: ClickHouse) -> AsyncIterator[Sender]:
    house = make_house(postgres)
    with TemporaryDirectory(prefix="moorage-test-") as folder:
        room = IngestRoom(postgres, clickhouse, directory_bucket(Path(folder)))
        room.serve(house)
        workspace = await house.make_workspace()
        async with house.client(workspace["api_key"]) as http:
            yield Sender(room, http, workspace["id"])
            await room.ingest.stop()
