"""Several processes on one database: any of them accepts, executes, streams and cancels."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import httpx
import psutil
import psycopg
import pytest

from moorage.agents.runs import Runs
from moorage.embedded.postgres import EmbeddedPostgres
from tests.agents.dropping import follow, protocol_stream, run_stream, thread_stream
from tests.serving import Server, free_port, make_server
from tests.waiting import until


@contextmanager
def _redis(folder: Path) -> Iterator[str]:
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")
    port = free_port()
    command = ["redis-server", "--port", str(port), "--save", "", "--bind", "127.0.0.1", "--dir", str(folder)]
    with (folder / "redis.log").open("wb") as log, subprocess.Popen(command, stdout=log) as server:
        yield f"redis://127.0.0.1:{port}"
        server.terminate()


@pytest.fixture(scope="module", params=["notify", "redis"])
def servers(request: pytest.FixtureRequest) -> Iterator[tuple[Server, Server]]:
    """Start a server that is always full, since its one slot has a run, and a server that is free."""
    with TemporaryDirectory(prefix="moorage-test-") as name, ExitStack() as stack:
        folder = Path(name)
        folder.chmod(0o755)
        environment = {}
        if request.param == "redis":
            environment["REDIS_URI"] = stack.enter_context(_redis(folder))
        full = make_server(folder, N_JOBS_PER_WORKER="1", **environment)
        free = make_server(folder, **environment)
        full.start()
        stack.callback(full.stop)
        asyncio.run(_fill(full))  # before another server exists that would take the run
        free.start()
        stack.callback(free.stop)
        yield full, free


async def _fill(server: Server) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
        await _start_slow(client, 3600)


@pytest.fixture
async def pair(servers: tuple[Server, Server]) -> AsyncIterator[tuple[httpx.AsyncClient, ...]]:
    """Return clients of the full server and of the free one."""
    async with AsyncExitStack() as stack:
        clients = [httpx.AsyncClient(base_url=server.url, timeout=30) for server in servers]
        yield tuple([await stack.enter_async_context(client) for client in clients])


async def _start_slow(client: httpx.AsyncClient, seconds: float) -> str:
    """Start a run of `slow`, and return its path."""
    thread_id = (await client.post("/threads", json={})).json()["thread_id"]
    body = {"assistant_id": "slow", "input": {"seconds": seconds}}
    run: dict[str, Any] = (await client.post(f"/threads/{thread_id}/runs", json=body)).json()
    return f"/threads/{thread_id}/runs/{run['run_id']}"


def _events(text: str) -> list[str]:
    return [line.removeprefix("event: ") for line in text.splitlines() if line.startswith("event: ")]


async def test_a_run_accepted_by_a_full_process_is_executed_and_streamed_through_another(
    pair: tuple[httpx.AsyncClient, ...],
) -> None:
    full, _ = pair
    body = {"assistant_id": "pair", "input": {"text": "x"}, "stream_mode": ["updates"]}
    taken_s = []
    for _ in range(3):
        started = time.monotonic()
        answer = await full.post("/runs/stream", json=body)
        taken_s.append(time.monotonic() - started)
        assert _events(answer.text) == ["metadata", "updates", "updates"]
    assert min(taken_s) < 0.5  # it was notified: by itself, it would look once a second
    long = {"assistant_id": "pair", "input": {"text": "y" * 100_000}}
    assert (await full.post("/runs/wait", json=long)).json()["text"] == "y" * 100_000 + "ab"


CUT_OFF = 6
SENT = {"messages": [{"role": "user", "content": "hi"}]}
MODES = ["values", "updates", "messages-tuple", "tasks", "checkpoints", "debug", "events", "custom"]


@pytest.mark.parametrize("form", ["run", "thread", "protocol"])
async def test_who_is_cut_off_at_any_byte_and_comes_back_to_any_process_misses_and_doubles_nothing(
    pair: tuple[httpx.AsyncClient, ...], form: str
) -> None:
    """Several clients at once, each with its own cuts, while the runs are at work and after they have ended."""
    thread = str(uuid4())
    runs = 1 if form == "run" else 3
    await pair[1].post("/threads", json={"thread_id": thread})
    run_ids = [await _begin(pair[1], thread, form, graph) for graph in ("tokens", "slow", "tokens")[-runs:]]
    kinds = {
        "run": run_stream(thread, run_ids[0]),
        "thread": thread_stream(thread),
        "protocol": protocol_stream(thread),
    }
    kind = kinds[form]
    async with asyncio.timeout(60):
        whole, *others = await asyncio.gather(
            follow(kind, pair[1:], runs, None),
            *(follow(kind, pair, runs, random.Random(seed)) for seed in range(CUT_OFF)),
        )
    assert len(whole) > 10
    assert len({frame_id for _, frame_id, _ in whole}) == len(whole)
    for seen in others:
        assert [frame[:2] for frame in seen] == [frame[:2] for frame in whole]
        # The reader sets the time at which a run of the protocol has ended.
        different = [each for each, other in zip(seen, whole, strict=True) if each != other]
        assert all(kind.ends_run(frame) for frame in different)


async def _begin(client: httpx.AsyncClient, thread: str, form: str, graph: str) -> str:
    given = SENT if graph == "tokens" else {"seconds": 0.5}
    asked = {"assistant_id": graph, "input": given, "multitask_strategy": "enqueue"}
    if form == "protocol":
        command = {"id": 1, "method": "run.start", "params": asked}
        return str((await client.post(f"/threads/{thread}/commands", json=command)).json()["result"]["run_id"])
    more = {"stream_mode": MODES, "stream_resumable": True}
    return str((await client.post(f"/threads/{thread}/runs", json={**asked, **more})).json()["run_id"])


async def test_a_stateless_run_that_ends_while_its_row_is_looked_for_gives_its_result(
    servers: tuple[Server, Server], pair: tuple[httpx.AsyncClient, ...]
) -> None:
    """The run's row is removed at its end. A reader that finds no row in that moment has to wait for the result."""
    (full, _), (full_server, _) = pair, servers
    engine = EmbeddedPostgres(full_server.home)
    conninfo = engine.start()
    engine.stop()  # the servers use it too, so this only ends our own use
    started = asyncio.get_running_loop().time()
    wait = asyncio.create_task(full.post("/runs/wait", json={"assistant_id": "slow", "input": {"seconds": 0.3}}))
    await asyncio.sleep(0.15)
    # Statements wait in the order of their arrival: first the one that ends the run, then the look for its row, which
    # the process that does not execute the run makes twice a second.
    with psycopg.connect(conninfo) as connection:
        connection.execute("LOCK TABLE runs IN ACCESS EXCLUSIVE MODE")
        await asyncio.sleep(started + 0.9 - asyncio.get_running_loop().time())
    assert (await wait).json()["items"] == ["counted", "slept", "echo"]


async def test_a_result_that_comes_late_is_waited_for_when_the_row_has_gone() -> None:
    """Simulates a busy machine, on which a second passes between the end of a run's row and its result."""

    class Gone:
        async def read_end(self, *_: object) -> None:
            return None

    class Late:
        async def read(self, timeout_s: float) -> list[bytes]:
            return [b'"late"'] if timeout_s >= 1 else []

    runs = Runs.__new__(Runs)
    runs._runs = Gone()
    assert await runs._result_by_now_if_known(uuid4(), uuid4(), Late()) == b'"late"'
    assert b"Run not found" in await runs._result_by_now(uuid4(), uuid4(), Late())


async def test_a_run_is_seen_followed_and_joined_at_another_process(pair: tuple[httpx.AsyncClient, ...]) -> None:
    full, free = pair
    place = await _start_slow(free, 1)
    assert (await full.get(place)).json()["status"] == "running"
    assert (await full.get(place.partition("/runs/")[0])).json()["status"] == "busy"
    join = asyncio.create_task(full.get(f"{place}/join"))
    last = (await full.get(f"{place}/stream")).text.rpartition("data: ")[2]
    assert json.loads(last)["items"] == (await join).json()["items"] == ["counted", "slept", "echo"]


async def test_a_run_is_joined_streamed_and_cancelled_from_another_process(
    pair: tuple[httpx.AsyncClient, ...],
) -> None:
    full, free = pair
    place = await _start_slow(free, 60)
    join = asyncio.create_task(full.get(f"{place}/join"))
    stream = asyncio.create_task(full.get(f"{place}/stream"))
    await asyncio.sleep(0.5)
    started = time.monotonic()
    assert (await full.post(f"{place}/cancel", params={"wait": "true"})).status_code == 200
    assert time.monotonic() - started < 4  # it was notified: by itself, it would look after a third of its lease
    assert (await join).json()["items"] == ["counted"]
    assert (await stream).status_code == 200
    assert (await full.get(place)).json()["status"] == "interrupted"


async def test_a_resumable_stream_is_joined_from_another_process_without_loss(
    pair: tuple[httpx.AsyncClient, ...],
) -> None:
    full, free = pair
    thread_id = (await free.post("/threads", json={})).json()["thread_id"]
    body = {
        "assistant_id": "slow",
        "input": {"seconds": 2},
        "stream_mode": ["updates"],
        "stream_resumable": True,
    }
    run = (await free.post(f"/threads/{thread_id}/runs", json=body)).json()
    answer = await full.get(f"/threads/{thread_id}/runs/{run['run_id']}/stream", headers={"Last-Event-ID": "-1"})
    assert _events(answer.text) == ["metadata", "updates", "updates", "updates"]


@pytest.mark.parametrize("listens", ["itself", "its parent"])
async def test_workers_share_one_address_and_one_that_dies_is_replaced(folder: Path, listens: str) -> None:
    server = make_server(folder)
    with socket.socket() as listening:
        if listens == "itself":
            server.start("--workers", "2")
        else:
            listening.bind(("127.0.0.1", server.port))
            listening.listen()
            fd = listening.fileno()
            server.start("--workers", "2", "--fd", str(fd), pass_fds=[fd])
    try:
        # `--fd` is only in the command lines of the workers.
        workers = await until(lambda: len(found := _workers(server)) == 2 and found)
        os.kill(workers[0].pid, signal.SIGKILL)
        async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
            for _ in range(10):
                body = {"assistant_id": "echo", "input": {"text": "x"}}
                assert (await client.post("/runs/wait", json=body)).json()["text"] == "x!"
        await _has_workers(server, 2, other_than=workers[0].pid)
        await _shows_each_worker_apart(server)
    finally:
        assert server.stop() == 0


async def _shows_each_worker_apart(server: Server) -> None:
    """Check that in a scrape, all numbers but those of the queue name the answering worker."""
    seen = set[str]()
    async with asyncio.timeout(60):
        while seen != {"0", "1"}:
            async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:  # a new connection each time
                told = (await client.get("/metrics")).text
                assert (await client.get("/metrics?format=json")).json()["worker"] in {"0", "1"}
            lines = [line for line in told.splitlines() if not line.startswith("#")]
            labels = {label for line in lines for label in re.findall(r'[{,]worker="(\d+)"', line)}
            assert len(labels) == 1, "one process answers"
            seen |= labels
    bare = {line.split()[0] for line in lines if "worker=" not in line}
    waits = {f"lg_api_pending_runs_wait_time_{which}" for which in ("max", "med")}
    assert bare == {"lg_api_num_pending_runs", "lg_api_num_running_runs", *waits}
    assert any(line.startswith("lg_api_workers_max{worker=") for line in lines)
    assert any(re.match(r"lg_api_pg_pool{worker=.\d.,what=.max.} ", line) for line in lines)


async def _has_workers(server: Server, count: int, other_than: int) -> None:
    async with asyncio.timeout(20):
        while True:
            found = _workers(server)
            if len(found) == count and other_than not in {child.pid for child in found}:
                return
            await asyncio.sleep(0.1)


def _workers(server: Server) -> list[psutil.Process]:
    """Return the children that serve. A child that was just killed may still be in the list."""

    def serves(child: psutil.Process) -> bool:
        try:
            return child.status() != psutil.STATUS_ZOMBIE and "--fd" in child.cmdline()
        except psutil.NoSuchProcess:
            return False

    return [child for child in psutil.Process(server.pid).children() if serves(child)]


async def test_no_worker_outlives_its_parent_whether_it_serves_or_is_paused_or_still_starts(folder: Path) -> None:
    server = make_server(folder)
    server.start("--workers", "2")
    await _has_workers(server, 2, other_than=server.pid)
    _, second = sorted(
        _workers(server), key=psutil.Process.create_time
    )  # the first worker serves, or the server would not have started
    os.kill(second.pid, signal.SIGKILL)
    await _has_workers(server, 2, other_than=second.pid)  # the replacement has hardly begun
    server.process.send_signal(signal.SIGURG)
    await _end_with_their_parent(server)


async def test_a_worker_whose_graph_hangs_does_not_outlive_its_parent(folder: Path) -> None:
    (folder / "graph.py").write_text(f"import time\nopen({str(folder / 'reached')!r}, 'w').close()\ntime.sleep(600)\n")
    (folder / "langgraph.json").write_text(json.dumps({"dependencies": ["."], "graphs": {"g": "./graph.py:graph"}}))
    server = make_server(folder, folder / "langgraph.json")
    starting = asyncio.create_task(asyncio.to_thread(server.start, "--workers", "2"))
    async with asyncio.timeout(60):
        while not (folder / "reached").exists():  # noqa: ASYNC110 - it is written by another process
            await asyncio.sleep(0.05)
    await _end_with_their_parent(server)
    with pytest.raises(AssertionError, match="the server ended"):
        await starting


async def _end_with_their_parent(server: Server) -> None:
    workers = _workers(server)
    server.kill()
    assert workers
    _, left = await asyncio.to_thread(psutil.wait_procs, workers, 30)
    EmbeddedPostgres(server.home).stop()  # the killed ones have not
    assert not [worker for worker in left if worker.status() != psutil.STATUS_ZOMBIE]


async def test_processes_come_with_a_burst_and_leave_without_a_failed_request(folder: Path) -> None:
    server = make_server(folder, MOORAGE_RUNS_PER_WORKER="2", MOORAGE_SCALE_DOWN_SECONDS="1")
    server.start("--workers", "1", "--workers-max", "3")
    failed: list[str] = []

    async def call(until_done: asyncio.Event) -> None:
        async with httpx.AsyncClient(base_url=server.url, timeout=60, headers={"Connection": "close"}) as client:
            while not until_done.is_set():
                answer = await client.post("/runs/wait", json={"assistant_id": "echo", "input": {"text": "x"}})
                if answer.status_code != 200 or answer.json()["text"] != "x!":
                    failed.append(answer.text)
                await asyncio.sleep(0.2)

    try:
        assert len(_workers(server)) == 1
        done = asyncio.Event()
        caller = asyncio.create_task(call(done))
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            runs = [await _start_slow(client, 12) for _ in range(6)]
            await _has_workers(server, 3, other_than=0)
            answers = [(await client.get(f"{run}/join")).json()["items"] for run in runs]
        assert answers == [["counted", "slept", "echo"]] * 6
        await _has_workers(server, 1, other_than=0)
        done.set()
        await caller
        assert failed == []
    finally:
        assert server.stop() == 0
