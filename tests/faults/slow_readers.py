"""Clients that open a stream of a graph that emits much, and do not read it."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import httpx

from tests.faults.houses import House, house_in, rss_mb
from tests.faults.reports import Report, progress
from tests.serving import Server
from tests.waiting import wait_until

FRAME_BYTES = 200_000
FRAMES = 100  # makes 20 MB for each reader
# In total, and for each client: unread data in the process, and in the buffer of a connection.
GROWTH_MB_MAX = 500
GROWTH_MB_MAX_EACH = 0.5


async def slow_readers(folder: Path, *, readers: int = 1000) -> Report:
    report = Report("slow-readers")
    allow_open_files(4 * readers)
    with house_in(folder) as house, ExitStack() as stack:
        server = house.serve(MOORAGE_LEASE_SECONDS="15")
        await latency_s(server, 20)
        before_mb, before_s = rss_mb(server.pid), await latency_s(server, 20)
        watch = Watch(server)
        sockets = []
        for number in range(readers):
            sockets.append(stack.enter_context(await _open(server)))
            if number % 100 == 99:
                progress(f"{number + 1} readers, server {rss_mb(server.pid):.0f} MB")
        await asyncio.to_thread(wait_until, lambda: _all_settled(house), 600)
        await watch.stop()
        after_s = await latency_s(server, 20)
        whole, cut, refused = await asyncio.to_thread(_read_to_end, sockets)
        report.tell(readers=readers, sent_to_them_mb=readers * FRAMES * FRAME_BYTES / 2**20)
        report.tell(memory_before_mb=before_mb, memory_at_most_mb=watch.peak_mb)
        report.tell(run_of_another_before_s=before_s, while_they_emit_at_most_s=watch.slowest_s, after_s=after_s)
        report.tell(of_the_first=len(sockets[:100]), served_when_they_read_at_last=whole, cut=cut, refused=refused)
        report.check(
            watch.peak_mb - before_mb < GROWTH_MB_MAX + readers * GROWTH_MB_MAX_EACH,
            f"memory grew by {watch.peak_mb - before_mb:.0f} MB",
        )
        report.check(after_s < 0.1 + 5 * before_s, f"a run of another took {before_s:.2f} s, and takes {after_s:.2f} s")
        report.check(whole + cut + refused == len(sockets[:100]), "a stream ended in good order before its last frame")
    return report


def _all_settled(house: House) -> bool:
    """Return True once the runs of the slow readers have ended and no more are created."""
    count = "SELECT count(*) AS n, count(*) FILTER (WHERE status <> 'success') AS active FROM runs WHERE graph_id = %s"
    [before] = house.query(count, ("chatters",))
    time.sleep(2)
    [after] = house.query(count, ("chatters",))
    return before == after and after["n"] > 0 and after["active"] == 0


def allow_open_files(number: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, number), hard), hard))


async def _open(server: Server) -> socket.socket:
    """Request a stream, and never read it."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, ("127.0.0.1", server.port))
    body = json.dumps(
        {
            "assistant_id": "chatters",
            "input": {"count": FRAMES, "size": FRAME_BYTES},
            "stream_mode": ["custom"],
            "on_completion": "keep",
        }
    )
    head = f"POST /runs/stream HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    await loop.sock_sendall(client, (head + body).encode())
    return client


async def latency_s(server: Server, times: int) -> float:
    """Return the median time of a small run."""
    taken = []
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        for _ in range(times):
            started = time.monotonic()
            answer = await http.post("/runs/wait", json={"assistant_id": "steps", "input": {"seconds": 0}})
            assert answer.json()["done"] == ["a", "b", "c"]
            taken.append(time.monotonic() - started)
    return median(taken)


class Watch:
    """Records the most memory, and the slowest small run of another client meanwhile."""

    def __init__(self, server: Server) -> None:
        self.peak_mb = 0.0
        self.slowest_s = 0.0
        self._server = server
        self._tasks = [asyncio.create_task(self._weigh()), asyncio.create_task(self._run())]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)

    async def _weigh(self) -> None:
        while True:
            self.peak_mb = max(self.peak_mb, rss_mb(self._server.pid))
            await asyncio.sleep(0.1)

    async def _run(self) -> None:
        while True:
            started = time.monotonic()
            try:
                await latency_s(self._server, 1)
            finally:  # also of a run that was still under way at the end
                self.slowest_s = max(self.slowest_s, time.monotonic() - started)
            await asyncio.sleep(0.1)


def _read_to_end(sockets: list[socket.socket]) -> tuple[int, int, int]:
    """Let the slow readers read at last. Returns how many got all frames to the last one, saw that they were cut off,
    or read a 503.
    """
    whole = cut = refused = 0
    for client in sockets[:100]:
        client.settimeout(20)
        last, all_there = b"", False
        try:
            while part := client.recv(2**20):
                last = (last + part)[-2 * FRAME_BYTES :]
                if last.startswith(b"HTTP/1.1 503"):
                    break
                if last.endswith(b"0\r\n\r\n"):
                    all_there = True
                    break
        except OSError:
            all_there = False
        if last.startswith(b"HTTP/1.1 503"):
            refused += 1
        elif not all_there:
            cut += 1
        elif b'"number":%d' % (FRAMES - 1) in last:
            whole += 1
    return whole, cut, refused
