"""A control plane with a stand-in for its control loop, for tests of commands."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from moorage.control.store.logs import LogStore
from moorage.kernel.clickhouse import ClickHouse
from moorage.kernel.postgres import Postgres
from tests.control import houses
from tests.control.stand_in import Builds, Chores, workers


@contextmanager
def serving(conninfo: str, clickhouse_url: str, folder: Path) -> Iterator[tuple[str, str]]:
    """Serve a control plane, and yield its address and the key of its workspace."""
    listening = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    ready: Future[tuple[uvicorn.Server, str]] = Future()

    async def serve() -> None:
        postgres, clickhouse = Postgres(conninfo, pool_max=8), ClickHouse(clickhouse_url)
        await postgres.open()
        house = await houses.make_control_house(postgres, folder, clickhouse, url)
        builds = Builds(house.rows.revisions, LogStore(clickhouse), house.room.uploads, folder)
        both = workers(Chores(house.rows.deployments), builds)
        for worker in both:
            worker.start()
        server = uvicorn.Server(uvicorn.Config(house.house.app, log_config=None, lifespan="off", ws="none"))
        ready.set_result((server, house.workspace["api_key"]))
        await server.serve([listening])
        for worker in both:
            await worker.stop()
        await postgres.close()
        await clickhouse.close()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    server, key = ready.result(20)
    try:
        yield url, key
    finally:
        server.should_exit = True
        thread.join(20)
