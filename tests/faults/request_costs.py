"""Requests that are small on the wire and would be large in memory, and bodies that hardly come."""

from __future__ import annotations

import asyncio
import gzip
import io
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import httpx
import psutil
import zstandard

from tests.faults.houses import rss_mb
from tests.faults.payloads import MB
from tests.faults.reports import Report, progress
from tests.platform.serving import Platform, make_platform
from tests.traces.ingest_rooms import BOUNDARY, MULTIPART

GROWTH_MB_MAX = 600
OK_S_MAX = 1.0
AT_ONCE = 6
_PIECE = 2**20
_BATCH, _MULTIPART, _QUERY = "/api/v1/runs/batch", "/api/v1/runs/multipart", "/api/v1/runs/query"
_GZIP = {"Content-Encoding": "gzip"}
_ZSTD = {"Content-Encoding": "zstd"}


def _pieces(head: bytes, unit: bytes, size_bytes: int, tail: bytes) -> Iterator[bytes]:
    """The unit again and again, without the whole of it in our own memory."""
    yield head
    piece = unit * max(1, _PIECE // len(unit))
    for _ in range(size_bytes // len(piece) + 1):
        yield piece
    yield tail


def _gzipped(head: bytes, unit: bytes, size_bytes: int, tail: bytes) -> bytes:
    made = io.BytesIO()
    with gzip.GzipFile(fileobj=made, mode="wb") as file:
        for piece in _pieces(head, unit, size_bytes, tail):
            file.write(piece)
    return made.getvalue()


def _zstandard(head: bytes, unit: bytes, size_bytes: int, tail: bytes) -> bytes:
    compressor = zstandard.ZstdCompressor().compressobj()
    pieces = _pieces(head, unit, size_bytes, tail)
    return b"".join(compressor.compress(piece) for piece in pieces) + compressor.flush()


def _keys(count: int) -> bytes:
    packer = zlib.compressobj(wbits=31)
    run = b'{"post":[{"id":"%s","name":"n","run_type":"llm","inputs":{' % str(uuid4()).encode()
    made = packer.compress(run)
    for start in range(0, count, 10_000):
        made += packer.compress(b"".join(b'"%d":{},' % number for number in range(start, start + 10_000)))
    return made + packer.compress(b'"":0}}]}') + packer.flush()


def _part(name: bytes, data: bytes) -> bytes:
    head = b'--%s\r\nContent-Disposition: form-data; name="%s"\r\n\r\n' % (BOUNDARY.encode(), name)
    return head + data + b"\r\n"


def hostile_requests() -> Iterator[tuple[str, str, dict[str, str], bytes]]:
    """What, path, headers, body."""
    run = b'{"post":[{"id":"%s","name":"n","run_type":"llm","inputs":' % str(uuid4()).encode()
    end = b"--%s--\r\n" % BOUNDARY.encode()
    yield "20 million empty runs", _BATCH, _GZIP, _gzipped(b'{"post":[{}', b",{}", 60 * MB, b"]}")
    yield "a million empty runs", _BATCH, _GZIP, _gzipped(b'{"post":[{}', b",{}", 2 * MB, b"]}")
    yield "a string of 250 MB", _BATCH, _GZIP, _gzipped(run + b'{"a":"', b"x", 250 * MB, b'"}}]}')
    yield (
        "a string of 28 MB with an emoji",
        _BATCH,
        _GZIP,
        _gzipped(run + b'{"a":"\xf0\x9f\x98\x80', b"x", 27 * MB, b'"}}]}'),
    )
    yield "deep lists", _BATCH, _GZIP, _gzipped(run, b"[", 30 * MB, b"")
    yield "deep objects", _BATCH, _GZIP, _gzipped(run, b'{"a":', 30 * MB, b"")
    yield "millions of keys", _BATCH, _GZIP, _keys(2_500_000)
    yield "two million keys", _BATCH, _GZIP, _keys(900_000)
    yield "many numbers", _BATCH, _GZIP, _gzipped(run + b'{"a":[1', b",1.5", 30 * MB, b"]}}]}")
    yield "many texts", _BATCH, _GZIP, _gzipped(run + b'{"a":[""', ',"é€"'.encode(), 10 * MB, b"]}}]}")
    yield "texts of commas", _BATCH, _GZIP, _gzipped(run + b'{"a":"', b',[{\\"', 30 * MB, b'"}}]}')
    parts = _part(b"post.%s" % str(uuid4()).encode(), b"{}")
    yield "millions of parts", _MULTIPART, {**MULTIPART, **_GZIP}, _gzipped(b"", parts, 240 * MB, end)
    field = _part(b"patch.%s.inputs" % str(uuid4()).encode(), b"[[],[],[],[],[],[],[],[]]")
    yield "millions of fields", _MULTIPART, {**MULTIPART, **_ZSTD}, _zstandard(b"", field, 240 * MB, end)
    yield "a zstd bomb", _MULTIPART, {**MULTIPART, **_ZSTD}, _zstandard(b"", b"\0", 2000 * MB, b"")
    yield "a filter of millions", _QUERY, {}, b'{"id":[' + b"1," * (10 * MB) + b"1]}"
    yield "wrong identifiers", _QUERY, {}, b'{"id":[' + b"1," * 900_000 + b"1]}"


async def hostile_bodies(folder: Path, *, at_once: int = AT_ONCE) -> Report:
    with make_platform(folder / "home", LOG_LEVEL="WARNING") as platform:
        return await costs(platform, at_once=at_once)


async def costs(platform: Platform, *, at_once: int) -> Report:
    report, process = Report("hostile-bodies"), psutil.Process(platform.pid)
    with platform.client() as http, ThreadPoolExecutor(at_once) as pool:
        http.timeout = 300
        for what, path, headers, body in hostile_requests():
            before, longest = rss_mb(process.pid), 0.0
            async with _watched(platform, process.pid) as seen:
                loop, more = asyncio.get_running_loop(), {"content": body, "headers": headers}
                asked = (loop.run_in_executor(pool, lambda: http.post(path, **more)) for _ in range(at_once))  # noqa: B023
                answers = await asyncio.gather(*asked)
            statuses = Counter(answer.status_code for answer in answers)
            growth, longest = seen["rss_mb"] - before, seen["ok_s"]
            report.check(growth <= GROWTH_MB_MAX, f"{what}: memory grew by {growth:.0f} MB")
            report.check(longest <= OK_S_MAX, f"{what}: /ok took {longest:.1f} s")
            report.check(not any(status >= 500 and status != 503 for status in statuses), f"{what}: {dict(statuses)}")
            told = ", ".join(f"{status}: {count}" for status, count in sorted(statuses.items()))
            line = f"{len(body) / 1000:.0f} KB, +{growth:.0f} MB, /ok {longest:.2f} s, {told}"
            progress(f"{what}: {line}")
            report.tell(**{what.replace(" ", "_"): line})
    return report


async def slow_bodies(folder: Path, *, clients: int = 3000) -> Report:
    with make_platform(folder / "home", LOG_LEVEL="WARNING") as platform:
        return await trickles(platform, clients=clients, seconds=30)


async def trickles(platform: Platform, *, clients: int, seconds: float) -> Report:
    """A byte a second of bodies that are announced as large, while `/ok` is asked."""
    report, ends = Report("slow-bodies"), Counter[str]()

    async def trickle() -> None:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", platform.port)
            head = f"POST {_BATCH} HTTP/1.1\r\nHost: a\r\nX-Api-Key: {platform.key}\r\nContent-Length: 1000000\r\n\r\n"
            writer.write(head.encode())
            answer = asyncio.create_task(reader.readline())
            until = time.monotonic() + seconds
            while time.monotonic() < until and not answer.done():
                writer.write(b" ")
                await asyncio.wait([answer], timeout=1)
            ends[(answer.result().decode().split() or ["", "closed"])[1] if answer.done() else "held"] += 1
            answer.cancel()
            writer.close()
        except OSError as error:
            ends[type(error).__name__] += 1

    async with _watched(platform, platform.pid) as seen:
        await asyncio.gather(*(trickle() for _ in range(clients)))
    report.check(seen["ok_s"] <= OK_S_MAX, f"/ok took {seen['ok_s']:.1f} s")
    report.tell(clients=clients, longest_ok_s=seen["ok_s"], ends=", ".join(f"{end}: {n}" for end, n in ends.items()))
    return report


@asynccontextmanager
async def _watched(platform: Platform, pid: int) -> AsyncIterator[dict[str, float]]:
    """The most memory and the slowest `/ok` meanwhile."""
    seen = {"rss_mb": rss_mb(pid), "ok_s": 0.0}

    async def watch() -> None:
        async with httpx.AsyncClient(base_url=platform.url, timeout=120) as http:
            while True:
                began_at = time.monotonic()
                await http.get("/ok")
                seen["ok_s"] = max(seen["ok_s"], time.monotonic() - began_at)
                await asyncio.sleep(0.05)

    async def weigh() -> None:
        while True:
            seen["rss_mb"] = max(seen["rss_mb"], rss_mb(pid))
            await asyncio.sleep(0.02)

    tasks = [asyncio.create_task(watch()), asyncio.create_task(weigh())]
    await asyncio.sleep(0.2)
    try:
        yield seen
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
