"""Requests that are small on the wire but large in memory, and bodies that arrive very slowly."""

from __future__ import annotations

import asyncio
import gzip
import io
import multiprocessing
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from uuid import uuid4

import httpx
import zstandard

from tests.faults.houses import house_in, rss_mb
from tests.faults.payloads import MB
from tests.faults.reports import Report, progress
from tests.platform.serving import Platform, make_platform
from tests.traces.ingest_rooms import BOUNDARY, MULTIPART

GROWTH_MB_MAX = 600
OK_S_MAX = 1.0
SILENT_S_MAX = 30.0
AT_ONCE = 6
BASELINE_S = 1.0
# Keys with an empty object each, and numbers, of a body that is still accepted.
KEYS, NUMBERS = 330_000, 998_000
_PIECE = 2**20
_BATCH, _MULTIPART, _QUERY = "/api/v1/runs/batch", "/api/v1/runs/multipart", "/api/v1/runs/query"
_GZIP = {"Content-Encoding": "gzip"}
_ZSTD = {"Content-Encoding": "zstd"}
# Description, path, headers, body.
HostileRequest = tuple[str, str, dict[str, str], bytes]


def _pieces(head: bytes, unit: bytes, size_bytes: int, tail: bytes) -> Iterator[bytes]:
    """Yield the unit again and again, without having the whole body in our own memory."""
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


def hostile_to_traces() -> Iterator[HostileRequest]:
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
    yield "as many keys as are accepted", _BATCH, _GZIP, _keys(KEYS)
    yield "many numbers", _BATCH, _GZIP, _gzipped(run + b'{"a":[1', b",1.5", 30 * MB, b"]}}]}")
    yield "many texts", _BATCH, _GZIP, _gzipped(run + b'{"a":[""', ',"é€"'.encode(), 10 * MB, b"]}}]}")
    yield (
        "as many texts as are accepted",
        _BATCH,
        _GZIP,
        _gzipped(run + b'{"a":[""', ',"é€"'.encode(), 5 * MB, b"]}}]}"),
    )
    yield "texts of commas", _BATCH, _GZIP, _gzipped(run + b'{"a":"', b',[{\\"', 30 * MB, b'"}}]}')
    parts = _part(b"post.%s" % str(uuid4()).encode(), b"{}")
    yield "millions of parts", _MULTIPART, {**MULTIPART, **_GZIP}, _gzipped(b"", parts, 240 * MB, end)
    field = _part(b"patch.%s.inputs" % str(uuid4()).encode(), b"[[],[],[],[],[],[],[],[]]")
    yield "millions of fields", _MULTIPART, {**MULTIPART, **_ZSTD}, _zstandard(b"", field, 240 * MB, end)
    yield "a zstd bomb", _MULTIPART, {**MULTIPART, **_ZSTD}, _zstandard(b"", b"\0", 2000 * MB, b"")
    yield "a filter of millions", _QUERY, {}, b'{"id":[' + b"1," * (10 * MB) + b"1]}"
    yield "wrong identifiers", _QUERY, {}, b'{"id":[' + b"1," * 900_000 + b"1]}"


def hostile_to_agents() -> Iterator[HostileRequest]:
    """Return bodies near the limit of the front door, 25 MB, and of 60 MB, which an agent server alone accepts; none is
    compressed.
    """
    size = 24 * MB
    emoji = b'"\xf0\x9f\x98\x80' + b"x" * size + b'"'
    numbers = b"[1" + b",1.5" * NUMBERS + b"]"
    keys = b"{%s}" % b",".join(b'"%d":{}' % number for number in range(KEYS))
    for what, path, before, after in (
        ("a thread", "/threads", b'{"metadata":{"a":', b"}}"),
        ("a run", "/runs/wait", b'{"assistant_id":"steps","input":{"a":', b"}}"),
        ("a cron", "/runs/crons", b'{"assistant_id":"steps","schedule":"0 5 * * *","input":{"a":', b"}}"),
        ("a search", "/store/items/search", b'{"namespace_prefix":["a"],"filter":{"a":', b"}}"),
    ):
        yield f"{what}: empty objects", path, {}, before + b"[{}" + b",{}" * (size // 3) + b"]" + after
        yield f"{what}: depth", path, {}, before + b'{"a":' * (size // 5)
        yield f"{what}: text", path, {}, before + b'"' + b"x" * size + b'"' + after
        yield f"{what}: text with an emoji", path, {}, before + emoji + after
        yield f"{what}: as many numbers as are accepted", path, {}, before + numbers + after
        yield f"{what}: as many keys as are accepted", path, {}, before + keys + after
    thread = b'{"metadata":{"a":"%s'
    yield "a thread: 60 MB of text", "/threads", {}, thread % b"x" + b"x" * (60 * MB) + b'"}}'
    yield (
        "a thread: 60 MB of text with an emoji",
        "/threads",
        {},
        thread % b"\xf0\x9f\x98\x80" + b"x" * (60 * MB) + b'"}}',
    )
    yield "a thread: 60 MB of escapes", "/threads", {}, thread % b"" + rb"\u20ac" * (10 * MB) + b'"}}'


async def hostile_bodies(folder: Path, *, at_once: int = AT_ONCE) -> Report:
    report = Report("hostile-bodies")
    with make_platform(folder / "home", LOG_LEVEL="WARNING") as platform, platform.client() as http:
        await attack(report, http, platform.pid, hostile_to_traces(), at_once)
    with house_in(folder, folder / "agents") as house:
        server = house.serve()
        with httpx.Client(base_url=server.url) as http:
            await attack(report, http, server.pid, hostile_to_agents(), at_once)
    return report


async def attack(
    report: Report,
    http: httpx.Client,
    pid: int,
    requests: Iterable[HostileRequest],
    at_once: int,
    ok_s_max: float = OK_S_MAX,
) -> None:
    """Send each request several times at once, and report what it cost the server."""
    http.timeout = httpx.Timeout(300)
    with ThreadPoolExecutor(at_once) as pool:
        for what, path, headers, body in requests:
            async with _watched(str(http.base_url), pid) as idle:
                await asyncio.sleep(BASELINE_S)
            before = rss_mb(pid)
            async with _watched(str(http.base_url), pid) as seen:
                loop, post = asyncio.get_running_loop(), partial(http.post, path, content=body, headers=headers)
                answers = await asyncio.gather(*(loop.run_in_executor(pool, post) for _ in range(at_once)))
            statuses = Counter(answer.status_code for answer in answers)
            growth, longest = seen["rss_mb"] - before, seen["ok_s"]
            report.check(growth <= GROWTH_MB_MAX, f"{what}: memory grew by {growth:.0f} MB")
            report.check(longest <= ok_s_max, f"{what}: /ok took {longest:.1f} s")
            report.check(not any(status >= 500 and status != 503 for status in statuses), f"{what}: {dict(statuses)}")
            told = ", ".join(f"{status}: {count}" for status, count in sorted(statuses.items()))
            line = f"{len(body) / 1000:.0f} KB, +{growth:.0f} MB, /ok {longest:.2f} s (before: {idle['ok_s']:.2f} s), {told}"
            progress(f"{what}: {line}")
            report.tell(**{what.replace(" ", "_"): line})


async def slow_bodies(folder: Path, *, clients: int = 3000) -> Report:
    with make_platform(folder / "home", LOG_LEVEL="WARNING") as platform:
        report = await trickles(platform, clients=clients, seconds=30)
        await silence(platform, report, clients=clients)
        return report


async def trickles(platform: Platform, *, clients: int, seconds: float, ok_s_max: float = OK_S_MAX) -> Report:
    """Send one byte a second of bodies that are announced as large, while `/ok` is asked."""
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

    async with _watched(platform.url, platform.pid) as seen:
        await asyncio.gather(*(trickle() for _ in range(clients)))
    report.check(ends["429"] + ends["held"] == clients, f"ends: {dict(ends)}")
    report.check(seen["ok_s"] <= ok_s_max, f"/ok took {seen['ok_s']:.1f} s")
    report.tell(clients=clients, longest_ok_s=seen["ok_s"], ends=", ".join(f"{end}: {n}" for end, n in ends.items()))
    return report


async def silence(platform: Platform, report: Report, *, clients: int, ok_s_max: float = OK_S_MAX) -> None:
    """Open connections that send nothing. The server closes them, and they delay nobody meanwhile."""

    async def stay() -> float:
        began_at = time.monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", platform.port)
        with suppress(ConnectionError):
            await asyncio.wait_for(reader.read(), 60)
        writer.close()
        return time.monotonic() - began_at

    async with _watched(platform.url, platform.pid) as seen:
        stayed = await asyncio.gather(*(stay() for _ in range(clients)))
    report.check(max(stayed) < SILENT_S_MAX, f"a silent connection stayed open for {max(stayed):.0f} s")
    report.check(seen["ok_s"] <= ok_s_max, f"beside silent connections /ok took {seen['ok_s']:.1f} s")
    report.tell(longest_silence_s=max(stayed), ok_beside_silence_s=seen["ok_s"])


@asynccontextmanager
async def _watched(url: str, pid: int) -> AsyncIterator[dict[str, float]]:
    """Measure the most memory and the slowest `/ok` meanwhile. A separate process asks, since ours is busy with the
    attack.
    """
    seen = {"rss_mb": rss_mb(pid), "ok_s": 0.0}
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    watcher = context.Process(target=_watch, args=(url, pid, theirs), daemon=True)
    watcher.start()
    await asyncio.to_thread(ours.recv)
    try:
        yield seen
    finally:
        ours.send("stop")
        seen["rss_mb"], seen["ok_s"] = await asyncio.to_thread(ours.recv)
        watcher.join()


def _watch(url: str, pid: int, pipe: Connection) -> None:
    weights_mb, slowest_s = [rss_mb(pid)], 0.0

    def weigh() -> None:
        while True:
            weights_mb[0] = max(weights_mb[0], rss_mb(pid))
            time.sleep(0.01)

    with httpx.Client(base_url=url, timeout=120) as http:
        http.get("/ok")
        Thread(target=weigh, daemon=True).start()
        pipe.send("ready")
        while not pipe.poll(0.02):
            began_at = time.monotonic()
            http.get("/ok")
            slowest_s = max(slowest_s, time.monotonic() - began_at)
    pipe.send((weights_mb[0], slowest_s))
