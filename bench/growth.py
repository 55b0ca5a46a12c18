"""Search over a million threads, and thousands of crons that are due at the same moment.

    python bench/growth.py threads --threads 1000000
    python bench/growth.py crons --crons 10000

Threads are written to the database directly, with metadata as chat applications have it; searches go over HTTP, one at a
time. Crons are made over HTTP; the times are those that the database has of their runs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import psycopg

from moorage.embedded.postgres import EmbeddedPostgres

CONFIG = Path(__file__).parent / "project" / "langgraph.json"
START_BOUND_S = 60
# A user has 20 threads of a million, an organisation 10,000.
FILL = """
INSERT INTO threads (thread_id, metadata, "values", created_at, updated_at)
SELECT gen_random_uuid(),
    jsonb_build_object('user', 'user-' || n %% (%(threads)s / 20), 'org', 'org-' || n %% 100, 'graph_id', 'echo'),
    jsonb_build_object('messages', jsonb_build_array(repeat(md5(n::text), 8))),
    now() - (%(threads)s - n) * interval '10 seconds', now() - (%(threads)s - n) * interval '10 seconds'
FROM generate_series(1, %(threads)s) AS n
"""
SEARCHES: dict[str, dict[str, Any]] = {
    "of a user (20 threads)": {"metadata": {"user": "user-{n}"}},
    "of a user, by time of change": {"metadata": {"user": "user-{n}"}, "sort_by": "updated_at"},
    "of an organisation (10,000)": {"metadata": {"org": "org-{h}"}},
    "of an organisation, by time of change": {"metadata": {"org": "org-{h}"}, "sort_by": "updated_at"},
    "of a user in an organisation": {"metadata": {"user": "user-{n}", "org": "org-{h}"}},
    "of a graph (all)": {"metadata": {"graph_id": "echo"}},
    "of nobody": {"metadata": {"user": "nobody-{n}"}},
    "of a user, interrupted": {"metadata": {"user": "user-{n}"}, "status": "interrupted"},
}
# Each other cron is due in a second of its own, before, among and after the many.
OTHERS = 50


@contextmanager
def server() -> Iterator[tuple[str, str]]:
    """Yield the address of a server on an empty database, and where that database is."""
    with TemporaryDirectory(prefix="moorage-bench-") as name:
        Path(name).chmod(0o755)
        home = Path(name) / "home"
        engine = EmbeddedPostgres(home)
        conninfo = engine.start()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        arguments = ["serve", "--config", str(CONFIG), "--port", str(port), "--home", str(home)]
        with (Path(name) / "log").open("wb") as log:
            environment = {**os.environ, "DATABASE_URI": conninfo, "LOG_LEVEL": "WARNING"}
            command = [sys.executable, "-m", "moorage", *arguments]
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            try:
                await_ok(f"http://127.0.0.1:{port}")
                yield f"http://127.0.0.1:{port}", conninfo
            finally:
                process.terminate()
                process.wait()
                engine.stop()


def await_ok(url: str) -> None:
    give_up_at = time.monotonic() + START_BOUND_S
    while True:
        try:
            httpx.get(f"{url}/ok").raise_for_status()
            return
        except httpx.HTTPError:
            if time.monotonic() > give_up_at:
                raise
            time.sleep(0.1)


def show(name: str, values: Sequence[float], unit: str) -> None:
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    print(f"| {name} | {cuts[49]:.1f} {unit} | {cuts[98]:.1f} {unit} | {max(values):.1f} {unit} |", flush=True)


# --- threads --------------------------------------------------------------------------------------------------------


def filled(body: dict[str, Any], number: int) -> dict[str, Any]:
    metadata = {key: value.format(n=number, h=number % 100) for key, value in body["metadata"].items()}
    return {**body, "metadata": metadata, "limit": 10}


def bench_threads(threads: int, searches: int) -> None:
    with server() as (url, conninfo), httpx.Client(base_url=url, timeout=60) as http:
        began = time.perf_counter()
        with psycopg.connect(conninfo, autocommit=True) as connection:
            connection.execute(FILL, {"threads": threads})
            connection.execute("VACUUM ANALYZE threads")
        print(f"{threads} threads, written in {time.perf_counter() - began:.0f} s\n")
        print("| search | p50 | p99 | most |\n|---|---|---|---|")
        for name, body in SEARCHES.items():
            taken_ms = []
            for number in range(searches + 10):
                asked = filled(body, number * 7919 % (threads // 20))
                began = time.perf_counter()
                http.post("/threads/search", json=asked).raise_for_status()
                taken_ms.append((time.perf_counter() - began) * 1000)
            show(name, taken_ms[10:], "ms")


# --- crons ----------------------------------------------------------------------------------------------------------


async def make_crons(http: httpx.AsyncClient, crons: Sequence[dict[str, Any]]) -> None:
    left = iter(crons)

    async def make() -> None:
        for cron in left:
            (await http.post("/runs/crons", json=cron)).raise_for_status()

    await asyncio.gather(*(make() for _ in range(16)))


def cron(at: datetime, kind: str) -> dict[str, Any]:
    return {
        "assistant_id": "echo",
        "schedule": f"{at.second} {at.minute} {at.hour} {at.day} {at.month} *",
        "input": {"text": "x"},
        "metadata": {"kind": kind, "due": at.timestamp()},
        "on_run_completed": "keep",
    }


@asynccontextmanager
async def waits(http: httpx.AsyncClient) -> AsyncIterator[list[float]]:
    """Milliseconds that a client waits for runs of its own meanwhile."""
    taken_ms: list[float] = []

    async def ask() -> None:
        while True:
            began = time.perf_counter()
            (await http.post("/runs/wait", json={"assistant_id": "echo", "input": {"text": "x"}})).raise_for_status()
            taken_ms.append((time.perf_counter() - began) * 1000)
            await asyncio.sleep(0.1)

    task = asyncio.create_task(ask())
    try:
        yield taken_ms
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def late_s(connection: psycopg.Connection[Any], kind: str) -> list[float]:
    """Seconds from the time of each cron to the start of its run."""
    rows = connection.execute(
        "SELECT extract(epoch FROM started_at) - (metadata ->> 'due')::float8 FROM runs WHERE metadata ->> 'kind' = %s"
        " AND started_at IS NOT NULL",
        (kind,),
    )
    return [float(row[0]) for row in rows]


async def bench_crons(crons: int) -> None:
    with server() as (url, conninfo):
        async with httpx.AsyncClient(base_url=url, timeout=120) as http:
            began = time.perf_counter()
            far = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
            await make_crons(http, [cron(far, "warm-up")] * 200)
            a_cron_s = (time.perf_counter() - began) / 200
            due = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=30 + 2 * crons * a_cron_s)
            began = time.perf_counter()
            await make_crons(http, [cron(due + timedelta(seconds=n - 10), "other") for n in range(OTHERS)])
            await make_crons(http, [cron(due, "many")] * crons)
            print(f"{crons} crons, made in {time.perf_counter() - began:.0f} s", flush=True)
            await asyncio.sleep(max(0, (due - datetime.now(UTC)).total_seconds() - 12))
            with psycopg.connect(conninfo, autocommit=True) as connection:
                async with waits(http) as taken_ms:
                    give_up_at = time.monotonic() + 300
                    while len(late_s(connection, "many")) < crons or len(late_s(connection, "other")) < OTHERS:
                        assert time.monotonic() < give_up_at, "not all crons have fired"
                        await asyncio.sleep(2)
                print("\n| from its time to the start of its run | p50 | p99 | most |\n|---|---|---|---|")
                show(f"{crons} crons of one moment", late_s(connection, "many"), "s")
                show("other crons, one a second", late_s(connection, "other"), "s")
                show("runs of a client meanwhile, until their answer", taken_ms, "ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["threads", "crons"])
    parser.add_argument("--threads", type=int, default=1_000_000)
    parser.add_argument("--searches", type=int, default=200)
    parser.add_argument("--crons", type=int, default=10_000)
    arguments = parser.parse_args()
    if arguments.what == "threads":
        bench_threads(arguments.threads, arguments.searches)
    else:
        asyncio.run(bench_crons(arguments.crons))


if __name__ == "__main__":
    main()
