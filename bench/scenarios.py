"""What is measured: each scenario is a load on one server, bounded in time and count, with a number in our targets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count, cycle
from time import perf_counter
from typing import Any

import wire
from subjects import Running

FILLING_BOUND_S = 120.0
TOKENS_PER_SECOND = 50
HEAVY_STREAMS = 1000
CHECKPOINTS = 50
RUNS_PER_THREAD = 20
FAILURES_MAX = 20

NEW_THREAD = wire.request("POST", "/threads", {})


@dataclass
class Sample:
    """What one load gave. A time is of what the scenario says it times, a count of its unit."""

    operations: int = 0
    times_s: list[float] = field(default_factory=list)
    wall_s: float = 0.0
    server_cpu_s: float = 0.0
    postgres_cpu_s: float = 0.0
    failures: int = 0
    first_failure: str = ""
    first_data_s: list[float] = field(default_factory=list)

    def fail(self, why: object) -> None:
        self.failures += 1
        self.first_failure = self.first_failure or str(why)[:300]


Operation = Callable[[wire.Connection, Sample], Awaitable[None]]


@dataclass(frozen=True)
class Load:
    """A server under test and how much of a load it gets."""

    server: Running
    seconds: float
    threads: int

    async def closed_loop(self, clients: int, operation: Operation, *, operations_max: int = 10**6) -> Sample:
        """Each client starts its next operation when the last one has ended, until time or count is used up."""
        tickets = iter(range(operations_max))
        return await self._measured(clients, lambda sample, end: _repeat(self.port, operation, sample, tickets, end))

    async def all_at_once(self, clients: int, operation: Operation) -> Sample:
        """Each client does the operation once, however long it takes. A wave of new connections is not the point, so
        that the clients start a millisecond apart.
        """
        starts = count()

        async def once(sample: Sample, end: float) -> None:
            await asyncio.sleep(next(starts) / 1000)
            await _repeat(self.port, operation, sample, iter(range(1)), float("inf"))

        return await self._measured(clients, once)

    async def answer(self, method: str, path: str, body: Any = None) -> Any:
        """One request outside of any measuring."""
        connection = await wire.connect(self.port)
        try:
            return (await connection.send(wire.request(method, path, body))).json()
        finally:
            connection.close()

    async def _measured(self, clients: int, client: Callable[[Sample, float], Awaitable[None]]) -> Sample:
        sample = Sample()
        server_before, postgres_before = self.server.cpu_s()
        started_at = perf_counter()
        await asyncio.gather(*(client(sample, started_at + self.seconds) for _ in range(clients)))
        sample.wall_s = perf_counter() - started_at
        server_after, postgres_after = self.server.cpu_s()
        sample.server_cpu_s = server_after - server_before
        sample.postgres_cpu_s = postgres_after - postgres_before
        return sample

    @property
    def port(self) -> int:
        return self.server.port


async def _repeat(port: int, operation: Operation, sample: Sample, tickets: Any, end: float) -> None:
    connection = await wire.connect(port)
    try:
        while perf_counter() < end and sample.failures < FAILURES_MAX and next(tickets, None) is not None:
            try:
                await operation(connection, sample)
            except wire.RequestFailedError as error:
                sample.fail(error)
                connection.close()
                connection = await wire.connect(port)
    except OSError as error:
        sample.fail(error)
    finally:
        connection.close()


# --- operations ---


def simple(requests: list[bytes]) -> Operation:
    """The requests in turn; each is an operation."""
    turns = cycle(requests)

    async def operation(connection: wire.Connection, sample: Sample) -> None:
        answer = await connection.send(next(turns))
        sample.operations += 1
        sample.times_s.append(answer.took_s)

    return operation


async def new_thread(connection: wire.Connection) -> str:
    return (await connection.send(NEW_THREAD)).json()["thread_id"]


def run_of(graph: str, given: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"assistant_id": graph, "input": given, **more}


def waited(body: dict[str, Any]) -> Operation:
    """Each client runs on a thread of its own. It takes a new one after some runs, so that what a run costs does not
    depend on how long the load lasts.
    """
    requests: dict[wire.Connection, tuple[bytes, int]] = {}

    async def operation(connection: wire.Connection, sample: Sample) -> None:
        request, left = requests.get(connection, (b"", 0))
        if not left:
            request = wire.request("POST", f"/threads/{await new_thread(connection)}/runs/wait", body)
            left = RUNS_PER_THREAD
        requests[connection] = (request, left - 1)
        answer = await connection.send(request)
        _expect_trail(answer)
        sample.operations += 1
        sample.times_s.append(answer.took_s)

    return operation


def streamed(body: dict[str, Any], events: int, record: Callable[[Sample, wire.Answer], None]) -> Operation:
    """A stream on a new thread. Making the thread is in the CPU time, but not in what is timed."""

    async def operation(connection: wire.Connection, sample: Sample) -> None:
        path = f"/threads/{await new_thread(connection)}/runs/stream"
        answer = await connection.send(wire.request("POST", path, body), streamed=True)
        if answer.events < events or answer.first_data_at is None:
            raise wire.RequestFailedError(f"a stream of {answer.events} events where {events} were expected")
        record(sample, answer)
        sample.first_data_s.append(answer.first_data_at - answer.started_at)

    return operation


def of_streams(sample: Sample, answer: wire.Answer) -> None:
    sample.operations += 1
    sample.times_s.append(answer.took_s)


def of_first_data(sample: Sample, answer: wire.Answer) -> None:
    sample.operations += 1
    sample.times_s.append((answer.first_data_at or answer.ended_at) - answer.started_at)


def of_events(sample: Sample, answer: wire.Answer) -> None:
    sample.operations += answer.events
    sample.times_s.append(answer.took_s)


def of_gaps(sample: Sample, answer: wire.Answer) -> None:
    sample.operations += answer.events
    sample.times_s += answer.gaps_s


async def in_background(connection: wire.Connection, sample: Sample) -> None:
    thread_id = await new_thread(connection)
    started_at = perf_counter()
    runs = f"/threads/{thread_id}/runs"
    run = (await connection.send(wire.request("POST", runs, run_of("echo", {"text": "hello"})))).json()
    _expect_trail(await connection.send(wire.request("GET", f"{runs}/{run['run_id']}/join")))
    sample.operations += 1
    sample.times_s.append(perf_counter() - started_at)


def _expect_trail(answer: wire.Answer) -> None:
    if b'"trail"' not in answer.body:
        raise wire.RequestFailedError(f"not the output of the graph: {answer.body[:300]!r}")


# --- loads ---


async def first_data(load: Load) -> Sample:
    body = run_of("tokens", {"n": 5, "delay": 0}, stream_mode=["messages-tuple"])
    return await load.closed_loop(1, streamed(body, 6, of_first_data))


async def wait(load: Load) -> Sample:
    return await load.closed_loop(16, waited(run_of("echo", {"text": "hello"}, durability="async")))


async def stream(load: Load) -> Sample:
    return await _chain(load, "async")


async def stream_sync(load: Load) -> Sample:
    return await _chain(load, "sync")


async def _chain(load: Load, durability: str) -> Sample:
    body = run_of("chain", {"text": "hello"}, stream_mode=["updates"], durability=durability)
    return await load.closed_loop(16, streamed(body, 11, of_streams))


async def tokens(load: Load) -> Sample:
    body = run_of("tokens", {"n": 200, "delay": 0}, stream_mode=["messages-tuple"])
    return await load.closed_loop(50, streamed(body, 200, of_events))


async def paced(load: Load) -> Sample:
    """Tokens for as long as the load lasts, but enough of them to have gaps."""
    n = max(10, round(TOKENS_PER_SECOND * load.seconds))
    body = run_of("tokens", {"n": n, "delay": 1 / TOKENS_PER_SECOND}, stream_mode=["messages-tuple"])
    return await load.all_at_once(200, streamed(body, n, of_gaps))


async def open_streams(load: Load) -> Sample:
    body = run_of("ticks", {"n": 5, "delay": 1.0}, stream_mode=["custom"])
    return await load.all_at_once(HEAVY_STREAMS, streamed(body, 6, of_streams))


async def state(load: Load) -> Sample:
    threads = await _threads_of_many_checkpoints(load)
    return await load.closed_loop(4, simple([wire.request("GET", f"/threads/{each}/state") for each in threads]))


async def history(load: Load) -> Sample:
    threads = await _threads_of_many_checkpoints(load)
    page = {"limit": CHECKPOINTS}
    return await load.closed_loop(4, simple([wire.request("POST", f"/threads/{t}/history", page) for t in threads]))


async def _threads_of_many_checkpoints(load: Load) -> list[str]:
    # Besides one for each step there is a checkpoint for the input and one before the first step.
    body = run_of("loop", {"n": CHECKPOINTS - 2}, config={"recursion_limit": 100})
    threads = [(await load.answer("POST", "/threads", {}))["thread_id"] for _ in range(4)]
    for thread in threads:
        await load.answer("POST", f"/threads/{thread}/runs/wait", body)
    found = len(await load.answer("POST", f"/threads/{threads[0]}/history", {"limit": 2 * CHECKPOINTS}))
    if found != CHECKPOINTS:
        raise wire.RequestFailedError(f"the thread has {found} checkpoints")
    return threads


async def threads(load: Load) -> Sample:
    return await load.closed_loop(16, simple([NEW_THREAD]))


async def background(load: Load) -> Sample:
    return await load.closed_loop(16, in_background)


async def search(load: Load) -> Sample:
    filling = Load(load.server, FILLING_BOUND_S, load.threads)
    made = await filling.closed_loop(16, simple([NEW_THREAD]), operations_max=load.threads)
    if made.failures:
        raise wire.RequestFailedError(f"the threads to search could not be made: {made.first_failure}")
    return await load.closed_loop(4, simple([wire.request("POST", "/threads/search", {"limit": 10})]))


async def warm_up(load: Load) -> None:
    """A few of each kind of run, so that no scenario pays for what happens only once."""
    each = Load(load.server, 5, 0)
    await each.closed_loop(4, waited(run_of("echo", {"text": "hello"})), operations_max=40)
    body = run_of("chain", {"text": "hello"}, stream_mode=["updates"])
    await each.closed_loop(4, streamed(body, 11, of_streams), operations_max=20)
    body = run_of("tokens", {"n": 20, "delay": 0}, stream_mode=["messages-tuple"])
    await each.closed_loop(4, streamed(body, 20, of_streams), operations_max=20)


@dataclass(frozen=True)
class Scenario:
    row: str
    name: str
    what: str
    unit: str
    timed: str
    target: str
    run: Callable[[Load], Awaitable[Sample]]
    is_heavy: bool = False


START = "start"  # not a load: agents.py measures it by itself

SCENARIOS = [
    Scenario("1", "first-data", "stream, 1 client", "stream", "first data", "first data ≤ 6 ms", first_data),
    Scenario("2", "wait", "wait, 16 clients", "run", "answer", "≥ 350/s, ≤ 2.2 + 0.8 ms", wait),
    Scenario("3", "stream", "10-node stream, 16 clients", "stream", "stream", "≥ 130/s, ≤ 5 + 1.5 ms", stream),
    Scenario("3", "stream-sync", "the same, durability sync", "stream", "stream", "≥ 100/s", stream_sync),
    Scenario("4", "tokens", "tokens, 50 clients", "event", "stream", "≥ 11,000/s", tokens),
    Scenario("5", "paced", "200 streams of 50 tokens/s", "event", "gap", "≥ 6,500/s, gap p99 ≤ 120 ms", paced),
    Scenario(
        "6",
        "open-streams",
        "1,000 open streams of 5 s",
        "stream",
        "stream",
        "100 %, p50 ≤ 5.6 s, first data p99 ≤ 500 ms, ≤ 6 CPU s",
        open_streams,
        is_heavy=True,
    ),
    Scenario("7", "state", "state of a 50-checkpoint thread", "read", "answer", "≤ 4 ms", state),
    Scenario("7", "history", "history of 50 checkpoints", "read", "answer", "≤ 30 ms", history),
    Scenario("8", "threads", "POST /threads, 16 clients", "thread", "answer", "≥ 1,200/s", threads),
    Scenario("8", "background", "background + join, 16 clients", "run", "run to join", "≥ 200/s", background),
    Scenario("9", "search", "search over many threads", "search", "answer", "p50 ≤ 4 ms at 10,000 threads", search),
]
