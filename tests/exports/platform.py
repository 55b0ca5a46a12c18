"""A platform of exports alone: the real room on real engines, its routes behind keys that the test makes."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
from fastapi import FastAPI

from moorage.exports.routes import router
from moorage.http.answers import PLATFORM_ERRORS
from moorage.http.application import make_application
from moorage.http.request_limits import RequestLimits
from moorage.kernel.access import Caller, Plan, Scope
from moorage.kernel.clickhouse import ClickHouse
from moorage.kernel.crypto import MasterKeys
from moorage.kernel.errors import ForbiddenError, UnauthenticatedError
from moorage.kernel.postgres import Postgres
from moorage.wiring.exports import ExportOptions, ExportParts, export_parts
from moorage.worker.leases import worker_name
from tests.waiting import until

ENDED = ("Completed", "Failed", "Cancelled", "TimedOut")
QUICK = {"retry_delay_s": 0.2, "lease_s": 2.0, "poll_s": 0.05, "bucket_patience_s": 2.0}


class KnownKeys:
    """An access that admits the keys that it was given, as a platform's accounts do."""

    def __init__(self) -> None:
        self.callers: dict[str, Caller] = {}

    def add(self, plan: Plan = Plan.PLUS, scopes: Sequence[Scope] = tuple(Scope)) -> tuple[str, UUID]:
        workspace_id, key = uuid4(), uuid4().hex
        self.callers[key] = Caller(workspace_id, plan, frozenset(scopes), f"key:{key[:4]}")
        return key, workspace_id

    async def admit(self, *, api_key: str | None, bearer: str | None, tenant_id: str | None, scope: Scope) -> Caller:
        caller = self.callers.get(api_key or "")
        if caller is None:
            raise UnauthenticatedError("no such key")
        if scope not in caller.scopes:
            raise ForbiddenError(f"the key lacks {scope}")
        return caller


@dataclass
class KnownProjects:
    """Projects of which every one exists, except those that were denied."""

    denied: set[UUID] = field(default_factory=set)
    of_experiments: list[UUID] = field(default_factory=list)

    async def known(self, workspace_id: UUID, ids: Sequence[UUID]) -> set[UUID]:
        return set(ids) - self.denied

    async def experiments(self, workspace_id: UUID) -> list[UUID]:
        return self.of_experiments


@dataclass
class Platform:
    parts: ExportParts
    app: FastAPI
    keys: KnownKeys
    projects: KnownProjects
    postgres: Postgres
    options: ExportOptions

    def client(self, key: str) -> Client:
        transport = httpx.ASGITransport(self.app)
        return Client(httpx.AsyncClient(transport=transport, base_url="http://platform", headers={"X-Api-Key": key}))


@dataclass
class Client:
    """A client of one workspace."""

    http: httpx.AsyncClient

    async def post(self, path: str, body: Any) -> httpx.Response:
        return await self.http.post(f"/api/v1/bulk-exports{path}", json=body, timeout=60)

    async def get(self, path: str, **query: Any) -> httpx.Response:
        return await self.http.get(f"/api/v1/bulk-exports{path}", params=query)

    async def patch(self, path: str, body: Any) -> httpx.Response:
        return await self.http.patch(f"/api/v1/bulk-exports{path}", json=body, timeout=60)

    async def delete(self, path: str) -> httpx.Response:
        return await self.http.delete(f"/api/v1/bulk-exports{path}")

    async def make_destination(self, config: dict[str, Any], credentials: Any = None, **more: Any) -> str:
        answer = await self.post(
            "/destinations", {"display_name": "d", "config": config, "credentials": credentials, **more}
        )
        assert answer.status_code == 200, answer.text
        return answer.json()["id"]

    async def make_export(self, destination_id: str, session_id: UUID, start: str, end: str | None, **more: Any) -> Any:
        body = {
            "bulk_export_destination_id": destination_id,
            "session_id": str(session_id),
            "start_time": start,
            "end_time": end,
            **more,
        }
        answer = await self.post("", body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def ended(self, export_id: str, timeout_s: float = 60) -> Any:
        """Wait until the export has ended, and return it."""
        return await self.when(export_id, lambda export: export["status"] in ENDED, timeout_s)

    async def when(self, export_id: str, so: Callable[[Any], bool], timeout_s: float = 60) -> Any:
        async def looked() -> Any:
            export = (await self.get(f"/{export_id}")).json()
            return export if so(export) else None

        try:
            return await until(looked, timeout_s)
        except AssertionError as error:
            raise TimeoutError((await self.get(f"/{export_id}/runs")).text) from error

    async def runs(self, export_id: str) -> list[Any]:
        return (await self.get(f"/{export_id}/runs")).json()


@asynccontextmanager
async def make_platform(
    conninfo: str,
    clickhouse_url: str,
    folder: Path,
    *,
    works: bool = True,
    keys: MasterKeys | None = None,
    **changed: Any,
) -> AsyncIterator[Platform]:
    options = ExportOptions(spool=folder / "spool", local_root=folder / "files", allow_private_endpoints=True, slots=4)
    options = replace(options, **{**QUICK, **changed})
    postgres, clickhouse = Postgres(conninfo, pool_max=8), ClickHouse(clickhouse_url)
    await postgres.open()
    projects, known = KnownProjects(), KnownKeys()
    parts = export_parts(
        options,
        worker_name=worker_name(),
        postgres=postgres,
        clickhouse=clickhouse,
        keys=keys or MasterKeys([os.urandom(32)]),
        projects=projects,
    )
    app = make_application(title="exports", limits=RequestLimits(10**6), cors_origins=["*"], errors=PLATFORM_ERRORS)
    app.state.access, app.state.exports = known, parts.room
    app.include_router(router, prefix="/api/v1")
    try:
        if works:
            parts.start()
        yield Platform(parts, app, known, projects, postgres, options)
    finally:
        if works:
            await parts.stop()
        await clickhouse.close()
        await postgres.close()
