"""Search by meaning over many items: how long it takes, and how many of the true nearest it finds.

    python bench/memory.py --items 100000 --dims 384

Vectors are random points around random centres, as embeddings of texts on some hundred subjects are. The true nearest are
worked out exactly by the same database.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from moorage.agents.store.items import ItemQuery, ItemStore, ItemWrite
from moorage.embedded.postgres import EmbeddedPostgres
from moorage.kernel.migrations import migrate
from moorage.kernel.postgres import Postgres

CENTRES = 300
GROUP = 500
SPREAD = 0.6


def near(centre: list[float]) -> list[float]:
    return [value + random.gauss(0, SPREAD) for value in centre]


async def fill(store: ItemStore, items: int, centres: list[list[float]]) -> None:
    for start in range(0, items, GROUP):
        writes = [
            ItemWrite(
                ("bench", str(number % 10)), str(number), {"n": number}, None, {"$": near(random.choice(centres))}
            )
            for number in range(start, min(start + GROUP, items))
        ]
        await store.write(writes)


async def measure(store: ItemStore, postgres: Postgres, queries: list[list[float]]) -> tuple[list[float], float]:
    """Milliseconds of each search, and the recall at 10."""
    taken_ms, found = [], []
    for vector in queries:
        began = time.perf_counter()
        rows = await store.search_near(ItemQuery(("bench",)), vector)
        taken_ms.append((time.perf_counter() - began) * 1000)
        found.append({row["key"] for row in rows})
    async with postgres.connection() as connection, connection.transaction():
        await connection.execute("SET LOCAL enable_indexscan = off")
        hits = 0
        for vector, keys in zip(queries, found, strict=True):
            sql = "SELECT key FROM item_vectors ORDER BY embedding <=> %s::vector LIMIT 10"
            exact = await (await connection.execute(sql, (str(vector),))).fetchall()
            hits += len(keys & {row["key"] for row in exact})
    return taken_ms, hits / (10 * len(queries))


async def bench(conninfo: str, items: int, dims: int, searches: int) -> None:
    random.seed(7)
    postgres = Postgres(conninfo, pool_max=4)
    await postgres.open()
    await migrate(postgres, "agents")
    store = ItemStore(postgres, dims)
    await store.prepare()
    centres = [[random.gauss(0, 1) for _ in range(dims)] for _ in range(CENTRES)]
    began = time.perf_counter()
    await fill(store, items, centres)
    filled_s = time.perf_counter() - began
    await postgres.execute("ANALYZE items")
    await postgres.execute("ANALYZE item_vectors")
    queries = [near(random.choice(centres)) for _ in range(searches)]
    await measure(store, postgres, queries[:10])
    taken_ms, recall = await measure(store, postgres, queries)
    cuts = statistics.quantiles(taken_ms, n=100, method="inclusive")
    print(f"{items} items of {dims} dimensions, stored in {filled_s:.0f} s")
    print(f"search: p50 {cuts[49]:.1f} ms, p99 {cuts[98]:.1f} ms, recall at 10: {recall:.3f}")
    await postgres.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--dims", type=int, default=384)
    parser.add_argument("--searches", type=int, default=200)
    arguments = parser.parse_args()
    with TemporaryDirectory(prefix="moorage-bench-") as name:
        Path(name).chmod(0o755)
        engine = EmbeddedPostgres(Path(name) / "home")
        try:
            asyncio.run(bench(engine.start(), arguments.items, arguments.dims, arguments.searches))
        finally:
            engine.stop()


if __name__ == "__main__":
    main()
