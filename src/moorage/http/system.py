"""`/ok`, `/info` and `/metrics` of the platform: its health, capabilities and metrics. It imports
nothing of the rooms.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import structlog
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import TypedDict

from moorage import __version__
from moorage.http.access import needs
from moorage.http.answers import json_answer
from moorage.http.metrics import CONTENT_TYPE, Metrics
from moorage.http.operations import operation
from moorage.http.requests import read_flag
from moorage.kernel.access import Caller, Scope
from moorage.kernel.errors import UnavailableError

log = structlog.get_logger(__name__)

# The version of the API. From 0.18.0 on, the tracing SDK uses all features that it knows.
WIRE_VERSION = "0.18.0"
_ANSWER_S = 2.0

router = APIRouter(tags=["info"])
metrics_router = APIRouter(tags=["info"])


@dataclass(frozen=True)
class System:
    """Facts about the platform for its routes. A probe in `engines` raises if its engine does not answer."""

    engines: Mapping[str, Callable[[], Awaitable[object]]]
    trace_disk_free_pct: Callable[[], Awaitable[float]]
    metrics: Metrics
    isolation: str
    isolation_holds: list[str]
    isolation_lacks: list[str]


class Health(TypedDict):
    ok: bool
    services: dict[str, str]


class DiskHealth(TypedDict):
    clickhouse_disk_free_pct: float


class BatchIngestConfig(TypedDict):
    use_multipart_endpoint: bool
    scale_up_qsize_trigger: int
    scale_up_nthreads_limit: int
    scale_down_nempty_trigger: int
    size_limit: int
    size_limit_bytes: int


class Info(TypedDict):
    version: str
    git_sha: str | None
    license_expiration_time: str | None
    customer_info: dict[str, str] | None
    batch_ingest_config: BatchIngestConfig
    instance_flags: dict[str, Any]
    moorage_version: str
    isolation: str
    isolation_holds: list[str]
    isolation_lacks: list[str]
    not_served: list[str]


_INFO = {
    "version": WIRE_VERSION,
    "git_sha": None,
    "license_expiration_time": None,
    "customer_info": None,
    # Settings for the SDK's batches of runs: requests of up to 100 operations or 20 MB, by up to 16 threads when 1000
    # wait.
    "batch_ingest_config": {
        "use_multipart_endpoint": True,
        "scale_up_qsize_trigger": 1000,
        "scale_up_nthreads_limit": 16,
        "scale_down_nempty_trigger": 4,
        "size_limit": 100,
        "size_limit_bytes": 20_971_520,
    },
    "instance_flags": {
        "zstd_compression_enabled": True,
        "blob_storage_enabled": True,
        # Runs are read over either version of the API. Without the second one, the SDK would no longer use the first.
        "ch_query_enabled": True,
        "sdb_query_enabled": True,
        "dataset_examples_multipart_enabled": False,
        "examples_multipart_enabled": False,
    },
    "moorage_version": __version__,
}


def _system(request: Request) -> System:
    return cast(System, request.app.state.system)


@router.get("/ok", **operation(gives=Health, errors=(422, 503), query={"check_db": {"type": "boolean"}}))
async def ok(request: Request) -> Response:
    """Raises UnavailableError (503) when asked to check the engines and one does not answer."""
    services = await _ask_engines(_system(request)) if read_flag(request, "check_db") else {}
    if away := [engine for engine, well in services.items() if not well]:
        raise UnavailableError(
            f"{' and '.join(away)} does not answer; the platform starts its own engines again by itself"
        )
    return json_answer({"ok": True, "services": dict.fromkeys(services, "ok")})


@router.get("/info", **operation(gives=Info))
async def info(request: Request) -> Response:
    """Return the facts by which clients choose how to send and read, and the isolation of deployed agents: `user`,
    `bubblewrap` or `none`, with the protections that hold and those that are missing. Needs no key.
    """
    system = _system(request)
    isolation = {
        "isolation": system.isolation,
        "isolation_holds": system.isolation_holds,
        "isolation_lacks": system.isolation_lacks,
    }
    return json_answer(_INFO | isolation | {"not_served": request.app.state.missing.names})


@router.get("/info/health", **operation(gives=DiskHealth, errors=(503,)))
async def health(request: Request) -> Response:
    """Say that the server answers."""
    free_pct = await _system(request).trace_disk_free_pct()
    return json_answer({"clickhouse_disk_free_pct": round(free_pct, 2)})


@metrics_router.get("/metrics", **operation(errors=(401, 403)))
async def metrics(request: Request, caller: Caller = needs(Scope.OPERATOR)) -> Response:  # noqa: B008 - as in routes
    """For Prometheus. They are of the whole installation, so they are not for everyone who reaches it: the key of an
    operator is needed, which Prometheus sends as its `authorization` credentials.
    """
    system = _system(request)
    for engine, well in (await _ask_engines(system)).items():
        system.metrics.engine_answered(engine, well=well)
    return Response(system.metrics.text(), media_type=CONTENT_TYPE)


async def _ask_engines(system: System) -> dict[str, bool]:
    answers = await asyncio.gather(*(_answers(engine, ask) for engine, ask in system.engines.items()))
    return dict(zip(system.engines, answers, strict=True))


async def _answers(engine: str, ask: Callable[[], Awaitable[object]]) -> bool:
    try:
        async with asyncio.timeout(_ANSWER_S):
            await ask()
    except (UnavailableError, TimeoutError) as error:
        log.warning("an engine does not answer", engine=engine, error=str(error) or "no answer in time")
        return False
    return True
