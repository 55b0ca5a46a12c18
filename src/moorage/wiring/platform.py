"""From PlatformSettings to a running platform."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from fastapi import APIRouter, FastAPI
from pydantic import SecretStr

from moorage.accounts import routes as accounts_routes
from moorage.accounts.access import Access
from moorage.accounts.keys import Keys
from moorage.accounts.master_key import MasterKeyRotation
from moorage.accounts.revocations import Revocations
from moorage.accounts.room import Accounts
from moorage.accounts.sessions import Sessions
from moorage.accounts.store import AccountStore
from moorage.accounts.tokens import Tokens, identity_provider
from moorage.accounts.workspaces import FirstStart, Workspaces
from moorage.audit import routes as audit_routes
from moorage.audit.log import AuditLog
from moorage.audit.store import AuditStore
from moorage.control import routes as control_routes
from moorage.control.isolation import Isolation
from moorage.control.records.integrations import SEALED_FORGE_TOKEN, SEALED_PUSH_SECRET
from moorage.control.records.oauth import SEALED_CLIENT_SECRET
from moorage.control.records.oauth_tokens import SEALED_TOKEN, SEALED_VERIFIER
from moorage.control.records.secrets import SEALED_SECRETS
from moorage.control.routes import missing as control_missing
from moorage.exports import routes as exports_routes
from moorage.exports.records.destinations import SEALED_CREDENTIALS
from moorage.exports.records.exports import SEALED_WEBHOOK_SECRET
from moorage.http import console, system
from moorage.http.answers import PLATFORM_ERRORS
from moorage.http.application import make_application
from moorage.http.audit import ChangeOutcomes
from moorage.http.metrics import Metrics
from moorage.http.missing import Missing
from moorage.http.rate_limit import RateLimit
from moorage.http.request_log import RequestLog
from moorage.kernel.access import Plan
from moorage.kernel.buckets.bucket import Bucket, directory_bucket, url_bucket
from moorage.kernel.clickhouse import ClickHouse
from moorage.kernel.crypto import MasterKeys, SealedColumn, read_master_keys
from moorage.kernel.migrations import migrate
from moorage.kernel.postgres import Postgres
from moorage.kernel.request_cost import MemoryBudget
from moorage.settings.platform import PlatformSettings
from moorage.traces.ingest import Ingest
from moorage.traces.routes import (
    deletion,
    feedback,
    ingest,
    prices,
    runs,
    runs_v2,
    sessions,
)
from moorage.traces.routes import missing as traces_missing
from moorage.traces.store.projects import ProjectStore
from moorage.wiring.control import control_at_work, control_options
from moorage.wiring.exports import export_options, export_parts
from moorage.wiring.requests import request_limits
from moorage.wiring.traces import traces_at_work
from moorage.worker.leases import worker_name
from moorage.worker.ticker import Ticker

# The prefixes of each version of the API. The OpenAPI document shows the first.
V1 = ("/api/v1", "")
V2 = ("/v2", "/api/v2")
CONTROL_V1 = ("/v1", "/api-host/v1")
CONTROL_V2 = ("/v2", "/api-host/v2")
MISSING = Missing(
    (traces_missing.NOT_SERVED, (*V1, *V2)),
    (control_missing.NOT_SERVED_V1, CONTROL_V1),
    (control_missing.NOT_SERVED_V2, CONTROL_V2),
)
# The sealed columns of all rooms: a rotation of the master key has to find every one of them.
_SEALED: tuple[SealedColumn, ...] = (
    SEALED_CREDENTIALS,
    SEALED_WEBHOOK_SECRET,
    SEALED_SECRETS,
    SEALED_CLIENT_SECRET,
    SEALED_TOKEN,
    SEALED_VERIFIER,
    SEALED_FORGE_TOKEN,
    SEALED_PUSH_SECRET,
)
_AUDIT_RETENTION_EVERY_S = 3600
# Asks the engine about its disks, and not about its tables.
_TRACE_DISK_FREE_PCT = "SELECT 100 * sum(free_space) / sum(total_space) FROM system.disks"


@dataclass(frozen=True)
class Engines:
    """Connection strings of the engines. Both contain passwords."""

    postgres: str
    clickhouse: str


@dataclass(frozen=True)
class Platform:
    """A running platform: its web application, its first start, and how to stop its work before its connections."""

    app: FastAPI
    first: FirstStart
    login_link: str | None  # only of the first start
    stop_work: Callable[[], Awaitable[None]]


@asynccontextmanager
async def platform(settings: PlatformSettings, home: Path, engines: Engines) -> AsyncIterator[Platform]:
    master_keys = read_master_keys(_revealed(settings.secret_key), home / "secret-key")
    async with _opened(settings, engines) as (postgres, clickhouse):
        await migrate(postgres, "platform")
        await clickhouse.migrate()
        access, accounts = _accounts(settings, master_keys, postgres)
        first = await accounts.workspaces.ensure_first(
            _revealed(settings.bootstrap_api_key), settings.bootstrap_workspace_id
        )
        login_link = await _first_login_link(first, access, accounts)
        bucket = _bucket(settings, home)
        async with (
            traces_at_work(
                postgres,
                clickhouse,
                bucket,
                signing_keys=master_keys.derive("attachment addresses"),
                public_url=settings.origin,
            ) as traces,
            control_at_work(
                control_options(settings, home),
                postgres,
                clickhouse,
                bucket,
                master_keys,
                accounts.keys,
                traces.room,
            ) as control,
        ):
            app = _application(settings, postgres, clickhouse, control.isolation)
            _measure_ingest(app.state.system.metrics, traces.room.ingest, app.state.budget)
            app.state.access, app.state.accounts, app.state.traces = access, accounts, traces.room
            exports = export_parts(
                export_options(settings, home),
                worker_name=worker_name(),
                postgres=postgres,
                clickhouse=clickhouse,
                keys=master_keys,
                projects=ProjectStore(postgres),
            )
            app.state.exports, app.state.control = exports.room, control.room
            audit = AuditLog(AuditStore(postgres), settings.audit_days)
            audit_retention = Ticker("audit log", audit.forget, every_s=_AUDIT_RETENTION_EVERY_S)
            app.state.audit = audit
            exports.start()
            audit_retention.start()
            await accounts.revocations.start()

            async def stop_work() -> None:
                await audit_retention.stop()
                await accounts.revocations.stop()
                await control.stop_work()
                await exports.stop()
                await traces.stop_work()

            yield Platform(app, first, login_link, stop_work)


@asynccontextmanager
async def _opened(settings: PlatformSettings, engines: Engines) -> AsyncIterator[tuple[Postgres, ClickHouse]]:
    postgres, clickhouse = Postgres(engines.postgres, settings.pool_max), ClickHouse(engines.clickhouse)
    try:
        await postgres.open()
        await clickhouse.open()
        yield postgres, clickhouse
    finally:
        await clickhouse.close()
        await postgres.close()


def _application(
    settings: PlatformSettings, postgres: Postgres, clickhouse: ClickHouse, isolation: Isolation
) -> FastAPI:
    app = make_application(
        title="moorage",
        limits=request_limits(settings),
        cors_origins=settings.browser_origins,
        errors=PLATFORM_ERRORS,
        missing=MISSING,
    )
    if settings.rate_limit_per_s:
        app.state.rate_limit = RateLimit(settings.rate_limit_per_s, settings.rate_limit_burst)
    app.add_middleware(ChangeOutcomes)
    metrics = Metrics()
    app.add_middleware(
        RequestLog, metrics=metrics, prefixes=("/api/v1", "/api/v2", "/api-host/v1", "/api-host/v2", "/v1", "/v2")
    )

    async def trace_disk_free_pct() -> float:
        return float(await clickhouse.value(_TRACE_DISK_FREE_PCT))

    app.state.system = system.System(
        engines={"PostgreSQL": lambda: postgres.fetch_one("SELECT 1"), "ClickHouse": clickhouse.open},
        trace_disk_free_pct=trace_disk_free_pct,
        metrics=metrics,
        isolation=isolation.kind,
        isolation_holds=isolation.holds,
        isolation_lacks=isolation.lacks,
    )
    mount_all(app)
    return app


def _measure_ingest(metrics: Metrics, verbs: Ingest, budget: MemoryBudget) -> None:
    counts = verbs.counts
    metrics.counter("moorage_ingest_writes", "Runs begun or changed by requests, and durable.", lambda: counts.writes)
    metrics.counter(
        "moorage_ingest_refused", "Runs begun or changed that the trace store could not take.", lambda: counts.refused
    )
    metrics.counter("moorage_ingest_bytes", "Size of runs begun or changed, unpacked.", lambda: counts.size_bytes)
    metrics.counter("moorage_ingest_inserts", "Inserts that the trace store took.", lambda: counts.inserts)
    metrics.gauge(
        "moorage_ingest_waiting_bytes", "Memory that the bodies of open requests take.", lambda: budget.taken_bytes
    )


def mount_all(app: FastAPI) -> None:
    """Mount all routers, the busiest first, since routes are tried in order."""
    _mount(app, ingest.router, ("",))
    _mount(app, ingest.router, ("/api/v1",))  # also in the document, as in the reference
    _mount(app, runs_v2.router, V2)
    for router in (
        runs.router,
        system.router,
        sessions.router,
        feedback.router,
        deletion.router,
        prices.router,
        deletion.retention,
        sessions.workspaces,
        exports_routes.router,
        accounts_routes.router,
        audit_routes.router,
    ):
        _mount(app, router, V1)
    _mount(app, control_routes.v2_router, CONTROL_V2)
    _mount(app, control_routes.v1_router, CONTROL_V1)
    _mount(app, system.metrics_router, ("",))
    _mount(app, accounts_routes.login_router, ("",))
    app.include_router(console.router)


def _mount(app: FastAPI, router: APIRouter, prefixes: tuple[str, ...]) -> None:
    for position, prefix in enumerate(prefixes):
        app.include_router(router, prefix=prefix, include_in_schema=position == 0)


def _accounts(settings: PlatformSettings, master_keys: MasterKeys, postgres: Postgres) -> tuple[Access, Accounts]:
    provider = identity_provider(
        settings.jwks_url,
        settings.jwt_issuer,
        settings.jwt_audience,
        settings.jwt_workspaces_claim,
        settings.jwt_scopes_claim,
    )
    store, tokens = AccountStore(postgres, Plan(settings.default_plan)), Tokens(master_keys, provider)
    keys, revocations = Keys(store), Revocations(store)
    rotation = MasterKeyRotation(store, master_keys, _SEALED)
    sessions = Sessions(store, master_keys, settings.origin)
    accounts = Accounts(Workspaces(store, keys), keys, tokens, sessions, rotation, revocations)
    return Access(store, tokens, sessions, revoked=revocations.actors), accounts


async def _first_login_link(first: FirstStart, access: Access, accounts: Accounts) -> str | None:
    if first.api_key is None:
        return None
    caller = await access.admit(api_key=first.api_key, bearer=None, tenant_id=None, scope=None)
    return (await accounts.sessions.link(caller))["url"]


def _bucket(settings: PlatformSettings, home: Path) -> Bucket:
    if settings.bucket_url:
        return url_bucket(settings.bucket_url)
    folder = home / "bucket"
    folder.mkdir(mode=0o700, exist_ok=True)  # other users may enter the home, since engines have a user of their own
    return directory_bucket(folder)


def _revealed(secret: SecretStr | None) -> str | None:
    return secret.get_secret_value() if secret else None
