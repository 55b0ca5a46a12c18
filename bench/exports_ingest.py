"""Ingest at a fixed rate, as an SDK sends it: batches of POST and PATCH parts, to see what an export beside it takes away."""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

import httpx

RUNS_PER_S = 1_000
_BATCH = 100
_AT_ONCE = 16
_BOUNDARY = "bench-boundary"


@dataclass(frozen=True)
class Rate:
    runs_per_s: float
    p50_ms: float
    p99_ms: float
    failures: int

    def __str__(self) -> str:
        return f"{self.runs_per_s:,.0f} runs/s, p50 {self.p50_ms:.0f} ms, p99 {self.p99_ms:.0f} ms, {self.failures} failures"


async def ingest(url: str, key: str, seconds: int) -> Rate:
    """Batches are due at fixed moments, whatever became of those before; what is not acknowledged in time is missed."""
    random_ = random.Random(11)
    texts = [" ".join(random_.choices(("tide", "quay", "rope", "sail", "keel", "port"), k=400)) for _ in range(32)]
    headers = {"X-Api-Key": key, "Content-Type": f"multipart/form-data; boundary={_BOUNDARY}"}
    times_s: list[float] = []
    failures = 0
    turn = asyncio.Semaphore(_AT_ONCE)
    limits = httpx.Limits(max_connections=_AT_ONCE)
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=30, limits=limits) as client:

        async def send(body: bytes, due_at: float) -> None:
            nonlocal failures
            async with turn:
                try:
                    answer = await client.post("/runs/multipart", content=body)
                    taken = answer.status_code == 202
                except httpx.HTTPError:
                    taken = False
            if taken and time.monotonic() < ends_at:
                times_s.append(time.monotonic() - due_at)
            failures += not taken

        begun_at = time.monotonic()
        ends_at = begun_at + seconds
        sent: list[asyncio.Task[None]] = []
        for number in range(seconds * RUNS_PER_S // _BATCH):
            due_at = begun_at + number * _BATCH / RUNS_PER_S
            await asyncio.sleep(max(0.0, due_at - time.monotonic()))
            sent.append(asyncio.create_task(send(_body(random_, texts), due_at)))
        await asyncio.gather(*sent)
    times_s.sort()
    return Rate(len(times_s) * _BATCH / seconds, _at(times_s, 0.5) * 1000, _at(times_s, 0.99) * 1000, failures)


def _at(times_s: list[float], part: float) -> float:
    return times_s[min(len(times_s) - 1, int(part * len(times_s)))] if times_s else 0.0


def _body(random_: random.Random, texts: list[str]) -> bytes:
    parts: list[bytes] = []
    for _ in range(_BATCH):
        now = datetime.now(UTC)
        run_id = str(UUID(int=int(now.timestamp() * 1000) << 80 | 7 << 76 | 2 << 62 | random_.getrandbits(62)))
        stamp, text = now.isoformat(), random_.choice(texts)
        run = {
            "id": run_id,
            "trace_id": run_id,
            "dotted_order": f"{now:%Y%m%dT%H%M%S%fZ}{run_id}",
            "start_time": stamp,
            "end_time": stamp,
            "name": "load",
            "run_type": "chain",
            "session_name": "bench-ingest",
            "extra": {"metadata": {"env": "bench"}},
        }
        for name, value in (("", run), (".inputs", {"input": text}), (".outputs", {"output": text[:200]})):
            parts.append(_part(f"post.{run_id}{name}", json.dumps(value).encode()))
    return b"".join((*parts, f"--{_BOUNDARY}--\r\n".encode()))


def _part(name: str, value: bytes) -> bytes:
    head = (
        f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\nContent-Type: application/json\r\n'
        f"Content-Length: {len(value)}\r\n\r\n"
    )
    return head.encode() + value + b"\r\n"
