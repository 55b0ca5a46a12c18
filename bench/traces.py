"""Measures the trace store from outside, over HTTP: filling it, ingest at full speed, and reads. See bench/README.md."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import quote

import generated_runs
import httpx
import psutil
import uvloop
from trace_bodies import CONTENT_TYPE, RARE_WORD, RUNS_A_TREE, Bodies, Tree, body

from moorage.kernel.clickhouse import ClickHouse

TREES_A_BODY = 12
# A trace's end comes this many bodies after its beginning, so that the two never meet in one insert.
PATCHES_BEHIND = 48
PROJECTS = 3
_TELL_EVERY = 50_000
# What a process is, by a word of its command line.
_PARTS = (("chdb_server", "store"), ("caddy", "front door"), ("postgres", "PostgreSQL"))

_OTHER_ID = "toUUID(other(toString({})))"
_OTHER_ORDER = """arrayStringConcat(arrayMap(segment -> concat(
    formatDateTime(parseDateTimeBestEffort(left(segment, 15)) - toIntervalDay({}), '%Y%m%dT%H%i%S'),
    substring(segment, 16, 7), other(substring(segment, 23))), splitByChar('.', assumeNotNull(dotted_order))), '.')"""

DEFAULT_ROOTS: dict[str, Any] = {"is_root": True, "limit": 50}
NARROW = ["id", "name", "run_type", "start_time", "end_time", "status", "error", "trace_id", "parent_run_id"]


def main() -> int:
    options = _options()
    return uvloop.run(options.measure(options))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--key", required=True, help="an API key of the platform")
    parser.add_argument("--pid", type=int, help="of `moorage up`: its CPU and that of its children is counted")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    commands = parser.add_subparsers(required=True)
    fill = commands.add_parser("fill", help="send runs as POST and PATCH, over the last days")
    fill.add_argument("--runs", type=int, default=1_000_000)
    fill.add_argument("--days", type=float, default=30)
    fill.add_argument(
        "--generator", type=Path, help="path of gen_runs.py, whose runs are sent; without it: made-up ones"
    )
    fill.add_argument("--facts", type=Path, default=Path("facts.json"), help="what `read` has to know; written here")
    fill.set_defaults(measure=_fill)
    ingest = commands.add_parser("ingest", help="whole runs at full speed, and when they can be read")
    ingest.add_argument("--seconds", type=float, default=60)
    ingest.set_defaults(measure=_ingest)
    grow = commands.add_parser("grow", help="copy a filled store into the months before it, in the embedded engine")
    grow.add_argument("--home", type=Path, required=True, help="of the platform, whose engine must be up")
    grow.add_argument("--times", type=int, default=5, help="how large it is to become")
    grow.add_argument("--days", type=int, default=30, help="that `fill` has filled")
    grow.set_defaults(measure=_grow)
    read = commands.add_parser("read", help="what a filled store answers, and how fast")
    read.add_argument("--rounds", type=int, default=30)
    read.add_argument("--only", default="")
    read.add_argument(
        "--writes", type=float, default=20, help="runs a second that are sent meanwhile, so that merges run"
    )
    read.add_argument("--facts", type=Path, default=Path("facts.json"))
    read.set_defaults(measure=_read)
    return parser.parse_args()


# --- sending ------------------------------------------------------------------------------------------------------


class Sender:
    """Sends bodies; what is refused for the moment is sent again, as SDKs do."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self.times_s: list[float] = []
        self.again = 0

    async def send(self, parts: Sequence[bytes]) -> None:
        content = body(parts)
        while True:
            started_at = time.perf_counter()
            answer = await self._client.post("/runs/multipart", content=content, headers={"Content-Type": CONTENT_TYPE})
            if answer.status_code == 202:
                self.times_s.append(time.perf_counter() - started_at)
                return
            if answer.status_code not in (429, 503):
                raise RuntimeError(f"{answer.status_code}: {answer.text[:300]}")
            self.again += 1
            await asyncio.sleep(float(answer.headers.get("Retry-After", 1)))


@asynccontextmanager
async def _client(options: argparse.Namespace) -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=options.clients + 4, max_keepalive_connections=options.clients + 4)
    headers = {"X-Api-Key": options.key}
    async with httpx.AsyncClient(base_url=options.url, headers=headers, timeout=60, limits=limits) as client:
        yield client


async def _fill(options: argparse.Namespace) -> int:
    last = datetime.now(UTC)
    first = last - timedelta(days=options.days)
    if options.generator:
        trees = generated_runs.trees(options.generator, first, last, options.runs)
    else:
        trees = _made_up(options, first, last)
    waiting: list[list[Tree]] = []
    runs = told = 0
    async with _client(options) as client:
        sender = Sender(client)

        async def work() -> None:
            nonlocal runs, told
            while sent := list(itertools.islice(trees, TREES_A_BODY)):
                runs += sum(len(tree.ids) for tree in sent)
                await sender.send([part for tree in sent for part in tree.post])
                waiting.append(sent)
                if len(waiting) > PATCHES_BEHIND:
                    await sender.send([part for tree in waiting.pop(0) for part in tree.patch])
                if runs >= told + _TELL_EVERY:
                    told = runs
                    _tell(f"{runs:,} of {options.runs:,} runs, {time.perf_counter() - started_at:.0f} s")

        trees = itertools.chain([next(trees)], trees)  # a generator that writes files first has done so now
        started_at, before = time.perf_counter(), cpu_s(options.pid)
        await asyncio.gather(*(work() for _ in range(options.clients)))
        while waiting:
            await sender.send([part for tree in waiting.pop(0) for part in tree.patch])
    took_s = time.perf_counter() - started_at
    options.facts.write_text(json.dumps({"until": last.isoformat(), "since": first.isoformat(), "runs": runs}))
    cpu_us = (cpu_s(options.pid) - before) / runs * 1e6
    print(
        json.dumps(
            {"runs": runs, "s": round(took_s), "writes_per_s": round(2 * runs / took_s), "cpu_us_a_run": round(cpu_us)}
        )
    )
    return 0


def _made_up(options: argparse.Namespace, first: datetime, last: datetime) -> Iterator[Tree]:
    """The projects in turn."""
    projects = [Bodies(options.seed + number, f"bench-{number}") for number in range(PROJECTS)]
    trees = options.runs // RUNS_A_TREE
    step = (last - first) / trees
    return (projects[number % PROJECTS].tree(first + step * number, whole=False) for number in range(trees))


async def _ingest(options: argparse.Namespace) -> int:
    """Whole traces from `clients` connections; and, twice a second, how soon one that was acknowledged can be read."""
    acknowledged: list[str] = []
    visible_s: list[float] = []
    bodies, before = Bodies(options.seed, "bench-ingest"), cpu_by_part(options.pid)
    began = time.perf_counter()
    until = began + options.seconds
    async with _client(options) as client:
        sender = Sender(client)

        async def work() -> None:
            while time.perf_counter() < until:
                now = datetime.now(UTC)
                trees = [bodies.tree(now, whole=True) for _ in range(TREES_A_BODY)]
                await sender.send([part for tree in trees for part in tree.whole])
                acknowledged.extend(run_id for tree in trees for run_id in tree.ids)

        async def look() -> None:
            while time.perf_counter() < until:
                await asyncio.sleep(0.5)
                if acknowledged:
                    visible_s.append(await _until_visible(client, acknowledged[-1]))

        await asyncio.gather(look(), *(work() for _ in range(options.clients)))
        took_s = time.perf_counter() - began
        await _until_idle(options.pid)
        sample = acknowledged[:: max(1, len(acknowledged) // 200)]
        lost = [run_id for run_id in sample if (await client.get(f"/api/v1/runs/{run_id}")).status_code != 200]
    used = {part: s - before.get(part, 0) for part, s in cpu_by_part(options.pid).items()}
    times = sorted(sender.times_s)
    print(
        json.dumps(
            {
                "runs": len(acknowledged),
                "runs_per_s": round(len(acknowledged) / took_s),
                "answer_ms": {
                    "p50": round(times[len(times) // 2] * 1000),
                    "p99": round(times[len(times) * 99 // 100] * 1000),
                },
                "visible_ms_most": round(max(visible_s, default=0) * 1000),
                "cpu_us_a_run": {part: round(s / len(acknowledged) * 1e6, 1) for part, s in used.items()},
                "sent_again": sender.again,
                "lost_of_sample": [len(lost), len(sample)],
            }
        )
    )
    return 1 if lost else 0


async def _until_visible(client: httpx.AsyncClient, run_id: str) -> float:
    started_at = time.perf_counter()
    while (await client.get(f"/api/v1/runs/{run_id}")).status_code != 200:  # noqa: ASYNC110 - of another process
        await asyncio.sleep(0.005)
    return time.perf_counter() - started_at


async def _until_idle(pid: int | None) -> None:
    """The merges that the runs cause are a part of what they cost."""
    quiet, last = 0, sum(cpu_by_part(pid).values())
    while quiet < 4:
        await asyncio.sleep(0.5)
        now = sum(cpu_by_part(pid).values())
        quiet, last = (quiet + 1 if now - last < 0.05 else 0), now


# Every id gets another last digit, and every time lies so many days earlier, also inside of dotted_order.
_COPY = Template("""
INSERT INTO trace_run_rows ($columns)
WITH text -> concat(left(text, 35), lower(right(hex(bitXor(reinterpretAsUInt8(unhex(concat('0', right(text, 1)))), {number:UInt8})), 1))) AS other
SELECT $values FROM trace_run_rows WHERE _part = {part:String} AND isNull(deleted_at)
SETTINGS max_threads = 1, max_block_size = 4096, min_insert_block_size_rows = 20000, min_insert_block_size_bytes = 60000000
""")
_PARTS_OF_RUNS = "SELECT name FROM system.parts WHERE active AND table = 'trace_run_rows'"
_COLUMNS_OF_RUNS = """
SELECT name FROM system.columns WHERE table = 'trace_run_rows' AND database = currentDatabase() AND default_kind != 'ALIAS'
"""


async def _grow(options: argparse.Namespace) -> int:
    """Not over HTTP, which would take an hour: the engine copies what it has."""
    engine = options.home / "clickhouse"
    socket = quote(str(options.home / "run" / "clickhouse.sock"), safe="")
    store = ClickHouse(f"http+unix://default:{(engine / 'password').read_text()}@{socket}/moorage")
    columns = [name for (name,) in await store.rows(_COLUMNS_OF_RUNS)]
    parts = [name for (name,) in await store.rows(_PARTS_OF_RUNS)]
    for number in range(1, options.times):
        days = number * options.days
        changed = {
            "start_time": f"start_time - toIntervalDay({days})",
            **{name: f"{name} - toIntervalDay({days})" for name in ("end_time", "patched_end_time")},
            "id": _OTHER_ID.format("id"),
            **{name: f"if(isNull({name}), NULL, {_OTHER_ID.format(name)})" for name in ("trace_id", "parent_run_id")},
            "dotted_order": _OTHER_ORDER.format(days),
        }
        values = ", ".join(f"{changed.get(name, name)} AS copied_{name}" for name in columns)
        sql = _COPY.substitute(columns=", ".join(columns), values=values)
        for part in parts:
            await store.command(sql, {"number": number, "part": part})
        _tell(f"{number + 1} times as large")
    await store.close()
    return 0


# --- reading ------------------------------------------------------------------------------------------------------


async def _read(options: argparse.Namespace) -> int:
    facts = json.loads(options.facts.read_text())
    async with _client(options) as client, asyncio.TaskGroup() as group:
        writing = group.create_task(_write_on(client, options))
        try:
            reads = await _reads(client, facts)
            print("| what | p50 ms | p90 ms | most ms | CPU ms | runs |\n|---|---|---|---|---|---|")
            for name, read in reads.items():
                if options.only in name:
                    await _time(name, read, options)
        finally:
            writing.cancel()
    return 0


async def _write_on(client: httpx.AsyncClient, options: argparse.Namespace) -> None:
    bodies, sender = Bodies(options.seed, "bench-0"), Sender(client)
    while options.writes:
        tree = bodies.tree(datetime.now(UTC), whole=False)
        await sender.send(tree.post)
        await asyncio.sleep(RUNS_A_TREE / options.writes)
        await sender.send(tree.patch)


async def _time(name: str, read: Callable[[int], Awaitable[httpx.Response]], options: argparse.Namespace) -> None:
    times, before, found = [], 0.0, 0
    for number in range(-3, options.rounds):
        if number == 0:
            before = cpu_s(options.pid)
        started_at = time.perf_counter()
        answer = await read(number)
        if number >= 0:
            times.append((time.perf_counter() - started_at) * 1000)
        if answer.status_code != 200:
            raise RuntimeError(f"{name}: {answer.status_code}: {answer.text[:300]}")
        content = answer.json()
        found = len(content.get("runs", content.get("items", [content])))
    cpu_ms = (cpu_s(options.pid) - before) * 1000 / options.rounds
    times.sort()
    p50, p90 = times[len(times) // 2], times[len(times) * 9 // 10]
    print(f"| {name} | {p50:.1f} | {p90:.1f} | {times[-1]:.1f} | {cpu_ms:.0f} | {found} |", flush=True)


async def _reads(
    client: httpx.AsyncClient, facts: dict[str, Any]
) -> dict[str, Callable[[int], Awaitable[httpx.Response]]]:
    sessions = (await client.get("/api/v1/sessions", params={"name": "bench-0"})).json()
    session, until = sessions[0]["id"], datetime.fromisoformat(facts["until"])
    week = {"start_time": (until - timedelta(days=7)).isoformat(), "end_time": until.isoformat()}
    day = {"start_time": (until - timedelta(days=1)).isoformat(), "end_time": until.isoformat()}

    def query(**search: Any) -> Awaitable[httpx.Response]:
        return client.post("/api/v1/runs/query", json={"session": [session], **search})

    async def some(at: datetime, fields: list[str]) -> list[dict[str, Any]]:
        answer = await query(is_root=True, limit=50, end_time=at.isoformat(), select=fields)
        return list(answer.json()["runs"])

    ids = [run["id"] for days in range(1, 21) for run in (await some(until - timedelta(days=days), ["id"]))[:10]]
    old = (await some(until - timedelta(days=20), ["id", "extra"]))[3]["extra"]["metadata"]
    pair = 'and(eq(metadata_key, "{}"), eq(metadata_value, "{}"))'.format
    all_of = await client.get(f"/api/v1/runs/{ids[0]}")
    assert all_of.status_code == 200, all_of.text

    return {
        "newest 50 roots of 7 days, default fields": lambda _: query(**DEFAULT_ROOTS, **week),
        "newest 50 roots of 7 days, narrow": lambda _: query(**DEFAULT_ROOTS, **week, select=NARROW),
        "newest 50 runs, narrow": lambda _: query(limit=50, select=NARROW),
        "run by id": lambda n: client.get(f"/api/v1/runs/{ids[n]}"),
        "trace by id, default fields": lambda n: client.post("/api/v1/runs/query", json={"trace": ids[n]}),
        "trace by id, narrow": lambda n: client.post("/api/v1/runs/query", json={"trace": ids[n], "select": NARROW}),
        "metadata value, rare (1 trace), narrow": lambda _: query(
            filter=pair("thread_id", old["thread_id"]), select=NARROW
        ),
        "metadata value, rare (1 trace), default fields": lambda _: query(filter=pair("thread_id", old["thread_id"])),
        "metadata value, common, narrow": lambda _: query(filter=pair("user_id", "user-3"), select=NARROW, limit=50),
        "metadata value, nobody's": lambda _: query(filter=pair("user_id", "nobody"), select=NARROW),
        "text, rare word": lambda _: query(filter=f'search("{RARE_WORD}")', select=NARROW, limit=50),
        "text, nowhere": lambda _: query(filter='search("zzqqx")', select=NARROW, limit=50),
        "text, common word": lambda _: query(filter='search("system")', select=NARROW, limit=50),
        "daily statistics": lambda _: client.post("/api/v1/runs/stats", json={"session": [session], **day}),
        "daily statistics of roots": lambda _: client.post(
            "/api/v1/runs/stats", json={"session": [session], "is_root": True, **day}
        ),
        "failed roots of 7 days, narrow": lambda _: query(
            filter='and(eq(is_root, true), eq(status, "error"))', limit=50, select=NARROW, **week
        ),
    }


def cpu_by_part(pid: int | None) -> dict[str, float]:
    """Seconds that the platform's process and those below it have used so far."""
    if pid is None:
        return {}
    used: dict[str, float] = {}
    root = psutil.Process(pid)
    for process in (root, *root.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            text = " ".join(process.cmdline())
            part = next((part for word, part in _PARTS if word in text), "platform")
            used[part] = used.get(part, 0) + sum(process.cpu_times()[:4])
    return used


def cpu_s(pid: int | None) -> float:
    return sum(cpu_by_part(pid).values())


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
