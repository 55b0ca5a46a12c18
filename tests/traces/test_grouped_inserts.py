"""Requests that share an insert: when they are answered, and what happens when the engine fails or is away."""

import asyncio

from moorage.http.request_limits import RequestLimits
from moorage.kernel.errors import UnavailableError
from moorage.traces import ingest, run_buffer
from tests.traces.ingest_rooms import (
    make_run,
    update_of,
)

pytest_plugins = "tests.traces.ingest_clients"


async def test_requests_that_wait_together_become_one_insert(sender, monkeypatch):
    inserts, tasks, may_go_on = [], [], asyncio.Event()
    insert, buffer = sender.room.writes.insert, sender.room.ingest._buffer

    async def counted(rows):
        inserts.append(len(rows))
        await may_go_on.wait()
        await insert(rows)

    async def come(*requests):
        """Send requests, and return once they wait for the insert under way, which is that of the first one."""
        tasks.extend(map(asyncio.create_task, requests))
        async with asyncio.timeout(30):
            while len(inserts) + len(buffer._groups._waiting) < len(tasks):  # noqa: ASYNC110 - nobody tells of it
                await asyncio.sleep(0.01)

    monkeypatch.setattr(sender.room.writes, "insert", counted)
    run = make_run()
    await come(sender.post(make_run()))
    await come(*(sender.post(make_run()) for _ in range(20)), sender.post(run))
    await come(sender.patch(update_of(run, name="patched")))
    may_go_on.set()
    await asyncio.gather(*tasks)
    assert inserts == [1, 21]
    assert (await sender.read(run["id"]))["name"] == "patched"


async def test_a_row_that_the_engine_refuses_fails_alone(sender, monkeypatch):
    insert = sender.room.writes.insert
    poisoned = make_run()

    async def refusing(rows):
        if any(row["id"] == poisoned["id"] for row in rows):
            raise ValueError("the engine does not like it")
        await insert(rows)

    monkeypatch.setattr(sender.room.writes, "insert", refusing)
    runs = [make_run() for _ in range(5)]
    neighbour = asyncio.create_task(sender.post(make_run()))
    answer = await sender.http.post("/runs/batch", json={"post": [*runs, poisoned]})
    await neighbour
    assert answer.status_code == 422
    assert f"The trace store cannot take: run {poisoned['id']}" in answer.json()["details"]
    assert set(await sender.ids()) >= {run["id"] for run in runs}
    assert poisoned["id"] not in await sender.ids()


async def test_an_engine_that_is_away_fails_all_who_wait_and_nothing_is_acknowledged(sender, monkeypatch):
    async def away(rows):
        await asyncio.sleep(0.05)
        raise UnavailableError("The trace store is not available; try again in a moment")

    monkeypatch.setattr(sender.room.writes, "insert", away)
    answers = await asyncio.gather(*(sender.http.post("/runs/batch", json={"post": [make_run()]}) for _ in range(5)))
    assert {(answer.status_code, answer.headers["retry-after"]) for answer in answers} == {(503, "2")}
    assert set(answers[0].json()) == {"error", "details"}
    monkeypatch.undo()
    await sender.post(make_run())
    assert len(await sender.ids()) == 1


async def test_who_waits_too_long_is_told_before_giving_up(sender, monkeypatch):
    go_on = asyncio.Event()
    insert = sender.room.writes.insert

    async def hanging(rows):
        await go_on.wait()
        await insert(rows)

    # Long enough for each to reach its insert. In Python 3.11 `wait_for`, which psycopg waits with, may swallow a
    # cancellation that comes together with the answer of the database.
    monkeypatch.setattr(ingest, "_ANSWER_S", 2.0)
    monkeypatch.setattr(sender.room.writes, "insert", hanging)
    requests = [sender.http.post("/runs/batch", json={"post": [make_run()]}) for _ in range(3)]
    assert {answer.status_code for answer in await asyncio.gather(*requests)} == {503}
    assert not sender.room.ingest._buffer._groups._waiting  # nobody waits for these any more
    go_on.set()
    monkeypatch.setattr(ingest, "_ANSWER_S", 9)
    await sender.post(make_run())


async def test_more_than_fits_in_memory_is_told_to_come_again(sender, monkeypatch):
    started, go_on = asyncio.Event(), asyncio.Event()
    insert = sender.room.writes.insert

    async def slow(rows):
        started.set()
        await go_on.wait()
        await insert(rows)

    monkeypatch.setattr(sender.room.writes, "insert", slow)
    sender.http._transport.app.state.budget._bytes_max = 5_000
    large = make_run(inputs={"text": "x" * 10_000})  # a single one may be of any size
    first = asyncio.create_task(sender.post(large))
    await started.wait()
    answer = await sender.http.post("/runs/batch", json={"post": [make_run()]})
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "2")
    go_on.set()
    await first
    await sender.post(make_run())


async def test_a_stop_writes_what_waits(sender, monkeypatch):
    insert = sender.room.writes.insert

    async def slow(rows):
        await asyncio.sleep(0.1)
        await insert(rows)

    monkeypatch.setattr(sender.room.writes, "insert", slow)
    requests = [asyncio.create_task(sender.post(make_run())) for _ in range(10)]
    await asyncio.sleep(0.05)
    await sender.room.ingest.stop()
    await asyncio.gather(*requests)
    assert len(await sender.ids()) == 10


def test_one_insert_is_bounded_in_rows_and_bytes():
    assert run_buffer.ROWS_MAX <= 10_000
    assert RequestLimits(1).held_bytes_max > run_buffer.INSERT_BYTES_MAX
