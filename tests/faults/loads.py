"""A mixed load over plain HTTP that records which runs were accepted, and what each client saw of them."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.faults.houses import RANDOM, House
from tests.serving import Server

ANSWER_S_MAX = 30
NODES = ["a", "b", "c"]


class AwayError(Exception):
    """The server answered 503, or could not be reached."""


@dataclass
class Accepted:
    """A run that the server has acknowledged, with what its client saw of it."""

    run_id: str
    thread_id: str | None  # None for a run without a thread
    graph: str
    durability: str = "async"
    resumable: bool = False
    marks: str = ""
    frames: list[tuple[str, Any, str]] = field(default_factory=list)  # event, data, id
    saw_end: bool = False

    @property
    def place(self) -> str:
        return f"/threads/{self.thread_id}/runs/{self.run_id}" if self.thread_id else f"/runs/{self.run_id}"

    def seen_nodes(self) -> list[str]:
        return [name for event, data, _ in self.frames if event == "updates" for name in data if name in NODES]


class Ledger:
    """Everything that was promised to clients, and everything wrong in their answers."""

    def __init__(self) -> None:
        self.accepted: list[Accepted] = []
        self.answers: Counter[str] = Counter()
        self.wrongs: list[str] = []
        self.slowest_s = 0.0
        self.latencies: list[tuple[float, float]] = []  # start and duration, for runs that were waited for

    def wrong(self, text: str) -> None:
        self.wrongs.append(text)


class Client:
    """One user of a server. Its answers are counted as good, away or wrong."""

    def __init__(self, http: httpx.AsyncClient, ledger: Ledger) -> None:
        self.http = http
        self.ledger = ledger
        self.last: Accepted | None = None

    async def ask(self, method: str, path: str, body: Any = None, **more: Any) -> httpx.Response:
        """Send a request. Raises AwayError when the server says that it is away, or the connection is cut."""
        started = time.monotonic()
        try:
            answer = await self.http.request(method, path, json=body, **more)
        except httpx.TimeoutException:
            self.ledger.wrong(f"{method} {path}: no answer in {ANSWER_S_MAX} s")
            raise AwayError from None
        except httpx.TransportError:
            self.ledger.answers["cut"] += 1
            raise AwayError from None
        finally:
            self.ledger.slowest_s = max(self.ledger.slowest_s, time.monotonic() - started)
        self.sort(method, path, answer)
        return answer

    def sort(self, method: str, path: str, answer: httpx.Response) -> None:
        if answer.status_code < 300:
            self.ledger.answers["good"] += 1
            return
        self.ledger.answers[str(answer.status_code)] += 1
        if answer.status_code == 503 and answer.headers.get("retry-after"):
            raise AwayError
        text = answer.text[:200] if answer.is_closed else ""
        self.ledger.wrong(f"{method} {path}: {answer.status_code} {text}")
        raise AwayError

    async def make_thread(self) -> str:
        return str((await self.ask("POST", "/threads", {})).json()["thread_id"])

    async def make_run(self, accepted: Accepted, body: dict[str, Any]) -> Accepted:
        """Create a run in the background. It is accepted when this returns."""
        path = f"/threads/{accepted.thread_id}/runs" if accepted.thread_id else "/runs"
        accepted.run_id = (await self.ask("POST", path, body)).json()["run_id"]
        self._note(accepted)
        return accepted

    def _note(self, accepted: Accepted) -> None:
        self.ledger.accepted.append(accepted)
        self.last = accepted

    async def wait(self, accepted: Accepted, body: dict[str, Any]) -> Any:
        path = f"/threads/{accepted.thread_id}/runs/wait" if accepted.thread_id else "/runs/wait"
        async with self._open("POST", path, json=body) as answer:
            accepted.run_id = answer.headers["content-location"].rpartition("/")[2]
            self._note(accepted)
            result = json.loads(await answer.aread())
        accepted.saw_end = True
        return result

    async def stream(self, accepted: Accepted, body: dict[str, Any]) -> None:
        path = f"/threads/{accepted.thread_id}/runs/stream" if accepted.thread_id else "/runs/stream"
        async with self._open("POST", path, json=body) as answer:
            accepted.run_id = answer.headers["content-location"].rpartition("/")[2]
            self._note(accepted)
            await self._read_frames(answer, accepted)

    async def join_stream(self, accepted: Accepted) -> None:
        """Join the stream again, to read what follows the last frame that was seen."""
        headers = {}
        if accepted.resumable:
            headers["Last-Event-ID"] = accepted.frames[-1][2] if accepted.frames else "-1"
        async with self._open("GET", f"{accepted.place}/stream", headers=headers) as answer:
            await self._read_frames(answer, accepted)

    @asynccontextmanager
    async def _open(self, method: str, path: str, **more: Any) -> AsyncIterator[httpx.Response]:
        try:
            async with self.http.stream(method, path, **more) as answer:
                if answer.status_code >= 300:
                    await answer.aread()
                self.sort(method, path, answer)
                yield answer
        except httpx.TimeoutException:
            self.ledger.wrong(f"{method} {path}: silence for {ANSWER_S_MAX} s")
            raise AwayError from None
        except httpx.TransportError:
            self.ledger.answers["cut"] += 1
            raise AwayError from None

    async def _read_frames(self, answer: httpx.Response, accepted: Accepted) -> None:
        fields: dict[str, str] = {}
        async for line in answer.aiter_lines():
            if line.startswith(":"):
                continue
            if line:
                name, _, value = line.partition(": ")
                fields[name] = value
            elif fields:
                accepted.frames.append((fields["event"], json.loads(fields["data"]), fields.get("id", "")))
                fields = {}
        await self._confirm_end(accepted)

    async def _confirm_end(self, accepted: Accepted) -> None:
        """Check the run's status: a stream that closes in good order says that the run is over."""
        if accepted.thread_id:
            status = (await self.ask("GET", accepted.place)).json()["status"]
            if status in {"pending", "running"}:
                self.ledger.wrong(f"the stream of {accepted.run_id} closed in good order, but it is {status}")
        accepted.saw_end = True


class MixedLoad:
    """Clients of all kinds, each of which does one thing after the other until it is told to stop."""

    def __init__(
        self, house: House, servers: list[Server], *, clients: int, seconds: float, pause_s: float = 0
    ) -> None:
        self.house = house
        self.ledger = Ledger()
        self.stopping = False
        self._servers = servers
        self._clients = clients
        self._seconds = seconds  # the most time that each node takes
        self._pause_s = pause_s
        self._numbers = itertools.count()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self._use(number)) for number in range(self._clients)]
        try:
            yield
        finally:
            self.stopping = True
            await asyncio.wait_for(asyncio.gather(*tasks), 90)

    async def _use(self, number: int) -> None:
        kinds: list[Callable[[Client], Awaitable[None]]] = [
            self._stream,
            self._stream_resumable,
            self._wait,
            self._background,
            self._interrupt_and_resume,
            self._stateless,
            self._enqueue,
            self._fail,
        ]
        servers = itertools.cycle(self._servers[number % len(self._servers) :] + self._servers)
        for kind in itertools.cycle(kinds[number % len(kinds) :] + kinds[: number % len(kinds)]):
            if self.stopping:
                return
            async with httpx.AsyncClient(base_url=next(servers).url, timeout=ANSWER_S_MAX) as http:
                client = Client(http, self.ledger)
                try:
                    await kind(client)
                except AwayError:
                    await self._come_back(client)
            if self._pause_s:
                await asyncio.sleep(RANDOM.random() * 2 * self._pause_s)

    async def _come_back(self, client: Client) -> None:
        """Join the stream again as soon as the server is back, as a client does whose connection was cut."""
        cut = client.last if client.last and client.last.thread_id and not client.last.saw_end else None
        for _ in range(20):
            await asyncio.sleep(0.3)
            try:
                if cut:
                    await client.join_stream(cut)
                else:
                    await client.ask("GET", "/ok", params={"check_db": "true"})
            except AwayError:
                continue
            return

    def _new(self, graph: str, thread_id: str | None, **more: Any) -> tuple[Accepted, dict[str, Any]]:
        accepted = Accepted("", thread_id, graph, **more)
        accepted.marks = f"{graph}-{next(self._numbers)}"
        seconds = RANDOM.random() * self._seconds
        return accepted, {
            "assistant_id": graph,
            "input": {"file": self.house.new_marks(accepted.marks), "seconds": seconds},
            "stream_mode": ["updates", "values"],
            "durability": accepted.durability,
            "stream_resumable": accepted.resumable,
        }

    # --- what a client may want -----------------------------------------------------------------------------------

    async def _stream(self, client: Client) -> None:
        await client.stream(*self._new("steps", await client.make_thread(), durability="sync"))

    async def _stream_resumable(self, client: Client) -> None:
        await client.stream(*self._new("steps", await client.make_thread(), resumable=True, durability="sync"))

    async def _wait(self, client: Client) -> None:
        accepted, body = self._new("steps", await client.make_thread())
        started = time.monotonic()
        result = await client.wait(accepted, body)
        self.ledger.latencies.append((started, time.monotonic() - started))
        if result.get("done") != NODES:
            self.ledger.wrong(f"wait for {accepted.run_id} gave {str(result)[:200]}")

    async def _background(self, client: Client) -> None:
        accepted = await client.make_run(*self._new("steps", await client.make_thread(), durability="sync"))
        result = (await client.ask("GET", f"{accepted.place}/join")).json()
        accepted.saw_end = True
        if result.get("done") != NODES:
            self.ledger.wrong(f"join of {accepted.run_id} gave {str(result)[:200]}")

    async def _interrupt_and_resume(self, client: Client) -> None:
        thread_id = await client.make_thread()
        await client.wait(*self._new("asks", thread_id, durability="sync"))
        accepted, body = self._new("asks", thread_id, durability="sync")
        result = await client.wait(accepted, {**body, "input": None, "command": {"resume": "b"}})
        if result.get("done") != NODES:
            self.ledger.wrong(f"resumed run {accepted.run_id} gave {str(result)[:200]}")

    async def _stateless(self, client: Client) -> None:
        await client.wait(*self._new("steps", None))
        await client.stream(*self._new("steps", None))

    async def _enqueue(self, client: Client) -> None:
        thread_id = await client.make_thread()
        for _ in range(3):
            await client.make_run(*self._new("steps", thread_id, durability="sync"))
        running = (await client.ask("GET", f"/threads/{thread_id}/runs", params={"status": "running"})).json()
        if len(running) > 1:
            self.ledger.wrong(f"thread {thread_id} shows {len(running)} running runs")

    async def _fail(self, client: Client) -> None:
        accepted, body = self._new("fails", await client.make_thread())
        result = await client.wait(accepted, body)
        if "__error__" not in result:
            self.ledger.wrong(f"the failing run {accepted.run_id} gave {str(result)[:200]}")


async def come_back(load: MixedLoad, server: Server) -> int:
    """Join every stream again that was cut before its end, and return how many there were."""
    cut = [accepted for accepted in load.ledger.accepted if not accepted.saw_end and accepted.thread_id]
    async with httpx.AsyncClient(base_url=server.url, timeout=ANSWER_S_MAX) as http:
        client = Client(http, load.ledger)
        for accepted in cut:
            try:
                await client.join_stream(accepted)
            except AwayError:
                load.ledger.wrong(f"the stream of {accepted.run_id} cannot be joined again")
    return len(cut)


def judge(load: MixedLoad) -> list[str]:
    """Check that everything that was accepted has ended as it should, from its last checkpoint, and that its client saw
    it.
    """
    rows = {str(row["run_id"]): row for row in load.house.runs()}
    wrongs = list(load.ledger.wrongs)
    for accepted in load.ledger.accepted:
        wrongs += _wrong_end(accepted, rows.get(accepted.run_id))
        wrongs += _wrong_marks(load.house, accepted)
        wrongs += _wrong_stream(accepted)
    for run_id, row in rows.items():
        if row["status"] in {"pending", "running"}:
            wrongs.append(f"run {run_id} of {row['graph_id']} is still {row['status']}")
    return wrongs


def _wrong_end(accepted: Accepted, row: dict[str, Any] | None) -> list[str]:
    if row is None:
        return [] if accepted.thread_id is None else [f"run {accepted.run_id} is lost"]
    right = "error" if accepted.graph == "fails" else "success"
    if row["status"] == right:
        return []
    return [f"run {accepted.run_id} of {accepted.graph} ended as {row['status']}: {row['error']}"]


def _wrong_marks(house: House, accepted: Accepted) -> list[str]:
    """Return wrong marks. With durability sync a node starts after the one before is saved, so an earlier node cannot
    run again after a later one.
    """
    if accepted.durability != "sync" or not accepted.thread_id:
        return []
    marks = [mark for mark in house.read_marks(accepted.marks) if mark.run_id == accepted.run_id]
    starts = [mark.what.split()[0] for mark in marks if mark.what.endswith("start")]
    if starts != sorted(starts):
        return [f"run {accepted.run_id} did not go on from its checkpoint: {starts}"]
    if accepted.graph == "steps" and sorted(set(starts)) != NODES:
        return [f"run {accepted.run_id} ran only {starts}"]
    return []


def _wrong_stream(accepted: Accepted) -> list[str]:
    if not accepted.thread_id:
        return []
    if not accepted.saw_end and accepted.frames:
        return [f"the stream of {accepted.run_id} never showed its end"]
    if not accepted.resumable:
        return []
    ids = [tuple(map(int, frame[2].split("-"))) for frame in accepted.frames]
    wrongs = []
    if ids != sorted(set(ids)):
        wrongs.append(f"the stream of {accepted.run_id} repeats frames, or their order is wrong")
    if sorted(set(accepted.seen_nodes())) != NODES:
        wrongs.append(f"the stream of {accepted.run_id} showed only {accepted.seen_nodes()}")
    return wrongs
