"""Many clients that follow one thread by the thread-centric protocol; half of them hardly read."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import httpx

from tests.faults.houses import house_in, rss_mb
from tests.faults.reports import Report, progress
from tests.faults.slow_readers import Watch, allow_open_files, latency_s
from tests.serving import Server

FRAMES = 300
FRAME_BYTES = 2_000
SLOW_READS_BYTES = 1_000  # each second
# In total, and for each client: unread data in the process, and in the buffer of a connection.
GROWTH_MB_MAX = 300
GROWTH_MB_MAX_EACH = 0.5
_SEQ = re.compile(rb'"seq":(\d+)')
_END = b'"event":"completed","run_id"'


async def thread_followers(folder: Path, *, followers: int = 1000) -> Report:
    """Follow one thread with many clients. Those who read get each event once. A client that falls behind is cut off
    and comes back, as real clients do.
    """
    report = Report("followers")
    allow_open_files(4 * followers)
    with house_in(folder) as house, ExitStack() as stack:
        server = house.serve(MOORAGE_LEASE_SECONDS="15")
        before_mb, before_s = rss_mb(server.pid), await latency_s(server, 20)
        thread, watch = str(uuid4()), Watch(server)
        slow = [stack.enter_context(await _open(server, thread)) for _ in range(followers // 2)]
        reading = [asyncio.create_task(_follow(server, thread)) for _ in range(followers - len(slow))]
        trickling = asyncio.create_task(_trickle(slow))
        await asyncio.sleep(1 + followers / 200)
        progress(f"{followers} follow, server {rss_mb(server.pid):.0f} MB")
        await _start(server, thread)
        read = await asyncio.gather(*reading)
        trickling.cancel()
        await watch.stop()
        report.tell(followers=followers, memory_before_mb=before_mb, memory_at_most_mb=watch.peak_mb)
        report.tell(run_of_another_before_s=before_s, meanwhile_at_most_s=watch.slowest_s)
        report.tell(run_of_another_after_s=await latency_s(server, 20))
        whole, _ = await asyncio.wait_for(_follow(server, thread), 60)
        wrong = sum(seen != whole for seen, _ in read)
        report.tell(events=len(whole), who_read=len(read), of_them_with_other_events=wrong)
        report.tell(connections_of_who_read_at_most=max(connections for _, connections in read))
        report.check(len(whole) >= FRAMES and whole == sorted(set(whole)), "the kept events are not whole")
        report.check(not wrong, f"{wrong} of {len(read)} who read have seen other events")
        growth_mb = watch.peak_mb - before_mb
        report.check(growth_mb < GROWTH_MB_MAX + followers * GROWTH_MB_MAX_EACH, f"memory grew by {growth_mb:.0f} MB")
    return report


async def _open(server: Server, thread: str, since: int = 0) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, ("127.0.0.1", server.port))
    body = json.dumps({"channels": ["custom", "lifecycle"], "since": since})
    head = f"POST /threads/{thread}/stream/events HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    await loop.sock_sendall(client, (head + body).encode())
    return client


async def _start(server: Server, thread: str) -> None:
    params = {"assistant_id": "chatters", "input": {"count": FRAMES, "size": FRAME_BYTES}}
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        command = {"id": 1, "method": "run.start", "params": params}
        answer = await http.post(f"/threads/{thread}/commands", json=command)
        assert answer.json()["type"] == "success", answer.text


async def _follow(server: Server, thread: str) -> tuple[list[int], int]:
    """Return the numbers of the events up to the end of the run, and the number of connections that they took."""
    seen: list[int] = []
    connections, has_ended = 0, False
    while not has_ended:
        connections += 1
        has_ended = await _read(await _open(server, thread, seen[-1] if seen else 0), seen)
    return seen, connections


async def _read(client: socket.socket, seen: list[int]) -> bool:
    """Add the numbers of complete events. Returns True if the run has ended, False if only the connection has."""
    loop, text = asyncio.get_running_loop(), b""
    with client:
        while part := await loop.sock_recv(client, 2**16):
            text += part
            *whole, text = text.split(b"\r\n\r\n")
            seen += [int(found[1]) for event in whole if (found := _SEQ.search(event))]
            if any(_END in event for event in whole):
                return True
    return False


async def _trickle(clients: list[socket.socket]) -> None:
    """Read slowly: half of the slow clients read a little each second, the others never."""
    while True:
        for client in clients[::2]:
            try:
                client.recv(SLOW_READS_BYTES)
            except OSError:  # no data yet, or the connection was cut
                continue
        await asyncio.sleep(1)
