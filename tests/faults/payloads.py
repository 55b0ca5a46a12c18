"""Input that is too big or too odd: a state of many megabytes, and text and numbers that databases and JSON dislike."""

from __future__ import annotations

import asyncio
import time
from itertools import product
from pathlib import Path
from typing import Any

import httpx

from tests.faults.houses import house_in, rss_mb
from tests.faults.reports import Report, progress
from tests.serving import Server

MB = 2**20


async def big_state(folder: Path, *, megabytes: int = 100) -> Report:
    """Send a state of this many megabytes through run, state and history, and the same as an input."""
    report = Report("big-state")
    size = megabytes * MB
    with house_in(folder) as house:
        server = house.serve(MOORAGE_LEASE_SECONDS="15")
        async with httpx.AsyncClient(base_url=server.url, timeout=120) as http:
            thread = f"/threads/{(await http.post('/threads', json={})).json()['thread_id']}"
            pulse = asyncio.create_task(_pulse(server))
            made = await _timed(
                report, http, "run", "POST", f"{thread}/runs/wait", {"assistant_id": "big", "input": {"size": size}}
            )
            report.check(len(made.get("value", "")) == size, f"the run gave {str(made)[:200]}")
            state = await _timed(report, http, "state", "GET", f"{thread}/state")
            report.check(len(state["values"]["value"]) == size, "the state is not whole")
            history = await _timed(report, http, "history", "POST", f"{thread}/history", {"limit": 2})
            report.check(len(history[0]["values"]["value"]) == size, "the history is not whole")
            got = await _timed(report, http, "thread", "GET", thread)
            report.check(len(got["values"]["value"]) == size, "the thread's values are not whole")
            given = {"assistant_id": "steps", "input": {"value": "y" * size, "seconds": 0}}
            taken = await _timed(report, http, "run with it as input", "POST", f"{thread}/runs/wait", given)
            report.check(taken.get("value") == "y" * size, f"the run with an input gave {str(taken)[:200]}")
            pulse.cancel()
            report.tell(megabytes=megabytes, longest_silence_of_ok_s=await pulse, server_after_mb=rss_mb(server.pid))
            report.check((await http.get("/ok")).status_code == 200, "the server is not well any more")
    return report


async def _timed(report: Report, http: httpx.AsyncClient, what: str, method: str, path: str, body: Any = None) -> Any:
    started = time.monotonic()
    answer = await http.request(method, path, json=body)
    report.tell(**{f"{what}_s": time.monotonic() - started})
    report.check(answer.status_code == 200, f"{what}: {answer.status_code} {answer.text[:200]}")
    progress(f"{what}: {time.monotonic() - started:.1f} s")
    return answer.json() if answer.status_code == 200 else {}


async def _pulse(server: Server) -> float:
    """Ask `/ok` until cancelled, and record the longest time that it took."""
    longest_s = 0.0
    try:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
            while True:
                started = time.monotonic()
                try:
                    await http.get("/ok")
                finally:
                    longest_s = max(longest_s, time.monotonic() - started)
                await asyncio.sleep(0.05)
    except asyncio.CancelledError:
        return longest_s


# --- odd text and numbers ---------------------------------------------------------------------------------------------

# JSON as a hostile client writes it, or text that is no JSON.
ODD = {
    "NUL": rb'"a\u0000b"',
    "raw NUL": b'"a\0b"',
    "lone surrogate": rb'"\ud800"',
    "surrogate in bytes": b'"\xed\xa0\x80"',
    "not UTF-8": b'"\xff\xfe"',
    "NaN": b"NaN",
    "infinity": b"-Infinity",
    "huge exponent": b"1e999",
    "100 bits": b"1267650600228229401496703205376",
    "400 digits": b"9" * 400,
    "5000 digits": b"9" * 5000,
    "tiny": b"1e-400",
    "NUL as a key": rb'{"a\u0000b": 1}',
    "surrogate as a key": rb'{"\udfff": 1}',
    "twice the same key": b'{"a": 1, "a": "\\u0000"}',
    "deep list": b"[" * 3000 + b"]" * 3000,
    "very deep object": b'{"a":' * 200_000 + b"1" + b"}" * 200_000,
    "unfinished": b'{"a": [1, ',
    "noncharacters": '"\uffff\U0010ffff\u202e"'.encode(),
}
# Places for a value, which is written as `@`.
PLACES: dict[str, tuple[str, str, bytes]] = {
    "metadata of a thread": ("POST", "/threads", b'{"metadata": {"odd": @}}'),
    "metadata as it is": ("POST", "/threads", b'{"metadata": @}'),
    "changed metadata": ("PATCH", "{thread}", b'{"metadata": {"odd": @}}'),
    "search by metadata": ("POST", "/threads/search", b'{"metadata": {"odd": @}}'),
    "search by values": ("POST", "/threads/search", b'{"values": {"odd": @}}'),
    "count": ("POST", "/threads/count", b'{"metadata": {"odd": @}}'),
    "state": ("POST", "{thread}/state", b'{"values": {"value": @}, "as_node": "a"}'),
    "input, waited for": ("POST", "{thread}/runs/wait", b'{"assistant_id": "steps", "input": {"value": @}}'),
    "input, streamed": ("POST", "{thread}/runs/stream", b'{"assistant_id": "steps", "input": {"value": @}}'),
    "input, resumable": (
        "POST",
        "{thread}/runs/stream",
        b'{"assistant_id": "steps", "stream_resumable": true, "input": {"value": @}}',
    ),
    "input without a thread": ("POST", "/runs/wait", b'{"assistant_id": "steps", "input": {"value": @}}'),
    "input as it is": ("POST", "/runs/wait", b'{"assistant_id": "steps", "input": @}'),
    "metadata of a run": ("POST", "{thread}/runs", b'{"assistant_id": "steps", "metadata": {"odd": @}}'),
    "configurable": ("POST", "{thread}/runs", b'{"assistant_id": "steps", "config": {"configurable": {"odd": @}}}'),
    "context": ("POST", "{thread}/runs", b'{"assistant_id": "steps", "input": {}, "context": {"odd": @}}'),
    "command": ("POST", "{thread}/runs", b'{"assistant_id": "steps", "command": {"resume": @}}'),
    "assistant": ("POST", "/runs/wait", b'{"assistant_id": @, "input": {}}'),
    "metadata of an assistant": ("POST", "/assistants", b'{"graph_id": "steps", "metadata": {"odd": @}}'),
    "config of an assistant": ("POST", "/assistants", b'{"graph_id": "steps", "config": {"configurable": {"odd": @}}}'),
    "name of an assistant": ("POST", "/assistants", b'{"graph_id": "steps", "name": @}'),
    "search of assistants": ("POST", "/assistants/search", b'{"metadata": {"odd": @}}'),
}


async def odd_text(folder: Path, *, times: int = 1) -> Report:
    """Send every odd value at every place: no 500, no dropped connection, and the threads can still be read."""
    report = Report("odd-text")
    with house_in(folder) as house:
        server = house.serve()
        async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
            seen: dict[int, int] = {}
            for (place, (method, path, body)), _ in product(PLACES.items(), range(times)):
                thread = f"/threads/{(await http.post('/threads', json={})).json()['thread_id']}"
                for odd, value in ODD.items():
                    content = body.replace(b"@", value)
                    status = await _send(report, http, f"{odd} as {place}", method, path.format(thread=thread), content)
                    seen[status] = seen.get(status, 0) + 1
                await _read_back(report, http, place, thread)
            await _emit_odd(report, http)
        await asyncio.to_thread(house.await_the_end_of_all_runs, 30)
        log = server.log.read_text()
        report.check("Traceback" not in log or not report.wrongs, "the log holds tracebacks")
    report.tell(values=len(ODD), places=len(PLACES))
    report.tell(**{f"answers_{status}": count for status, count in sorted(seen.items())})
    return report


async def _send(report: Report, http: httpx.AsyncClient, what: str, method: str, path: str, content: bytes) -> int:
    try:
        answer = await http.request(method, path, content=content)
        report.check(answer.status_code < 500, f"{what}: {answer.status_code} {answer.text[:200]}")
        return answer.status_code
    except httpx.TransportError as error:
        report.check(right=False, wrong=f"{what}: {error!r}")
        return 0


async def _read_back(report: Report, http: httpx.AsyncClient, what: str, thread: str) -> None:
    for path in (thread, f"{thread}/state", f"{thread}/history", f"{thread}/runs"):
        answer = await http.get(path)
        report.check(answer.status_code < 500, f"{what}: then GET {path} {answer.status_code} {answer.text[:200]}")


async def _emit_odd(report: Report, http: httpx.AsyncClient) -> None:
    """Let a graph return the same odd values."""
    thread = f"/threads/{(await http.post('/threads', json={})).json()['thread_id']}"
    for path, more in ((f"{thread}/runs/wait", {}), (f"{thread}/runs/stream", {"stream_resumable": True})):
        answer = await http.post(path, json={"assistant_id": "odd", "input": {}, **more})
        report.check(answer.status_code == 200, f"odd output: {answer.status_code} {answer.text[:200]}")
    await _read_back(report, http, "odd output", thread)
    runs = (await http.get(f"{thread}/runs")).json()
    report.tell(runs_with_odd_output=", ".join(run["status"] for run in runs))
