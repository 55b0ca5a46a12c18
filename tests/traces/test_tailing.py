"""The live tail: runs appear as they are written, complete, and again when they change."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from moorage.kernel.errors import BadRequestError, TooManyRequestsError
from moorage.traces import tailing
from moorage.traces.records.runs import RunsFilter
from moorage.traces.searches import InvalidFiltersError
from moorage.traces.tailing import Tailing
from tests.traces.trace_data import insert_runs, make_run

pytest_plugins = "tests.traces.fixtures"

FIELDS = ("name", "error")
QUIET_TURNS = 3


@pytest.fixture
def tails(clickhouse, reading, monkeypatch):
    monkeypatch.setattr(tailing, "_LOOK_S", 0.05)
    return Tailing(clickhouse, reading)


class Tail:
    """An open tail. `read` returns the events until this many runs came; `quiet` asserts that none comes."""

    def __init__(self, runs):
        self.runs = runs
        self.times = []

    async def read(self, count):
        found = []
        async with asyncio.timeout(20):
            while len(found) < count:
                some = await anext(self.runs)
                self.times += [at for at, _ in some]
                found += [row for _, row in some]
        return found

    async def quiet(self):
        for _ in range(QUIET_TURNS * tailing._LONG_AGO_TURNS):
            assert not await anext(self.runs)


async def test_new_and_changed_runs_come_once_and_in_their_order(clickhouse, tails):
    tenant, session = uuid4(), uuid4()
    first = make_run(tenant_id=tenant, session_id=session, name="first")
    await insert_runs(clickhouse, [first])
    async with aclosing(tails.follow(tenant, RunsFilter(session=[session], is_root=True), fields=FIELDS)) as runs:
        tail = Tail(runs)
        # It came within the seconds before, in which a list may have missed it.
        assert [row["name"] for row in await tail.read(1)] == ["first"]
        await tail.quiet()
        later = [make_run(tenant_id=tenant, session_id=session, name=f"later {number}") for number in range(5)]
        for run in later:
            await insert_runs(clickhouse, [run, make_run(run, name="a child")])
        assert [row["name"] for row in await tail.read(5)] == [run.name for run in later]
        first.error = "lost"
        await insert_runs(clickhouse, [make_run(tenant_id=uuid4(), session_id=session, name="a stranger's")])
        await insert_runs(clickhouse, [first])
        [changed] = await tail.read(1)
        assert (changed["id"], changed["error"]) == (first.id, "lost")
        await tail.quiet()
        assert tail.times == sorted(tail.times)


async def test_who_comes_back_is_given_what_came_meanwhile(clickhouse, tails):
    tenant, session = uuid4(), uuid4()
    runs = [make_run(tenant_id=tenant, session_id=session, name=str(number)) for number in range(300)]
    await insert_runs(clickhouse, runs[:100])
    seen, since = set(), datetime.now(UTC) - timedelta(minutes=1)
    for cut in range(3):
        async with aclosing(tails.follow(tenant, RunsFilter(session=[session]), fields=FIELDS, since=since)) as tailed:
            tail = Tail(tailed)
            seen |= {row["name"] for row in await tail.read(40)}
            since = tail.times[-1]
        if cut < 2:
            await insert_runs(clickhouse, runs[100 * (cut + 1) : 100 * (cut + 2)])
    async with aclosing(tails.follow(tenant, RunsFilter(), fields=FIELDS, since=since)) as tailed:
        async with asyncio.timeout(20):
            while len(seen) < 300:
                seen |= {row["name"] for _, row in await anext(tailed)}
    assert seen == {run.name for run in runs}


async def test_more_than_one_look_finds_comes_whole(clickhouse, tails, monkeypatch):
    monkeypatch.setattr(tailing, "_ARRIVALS_AT_ONCE", 7)
    monkeypatch.setattr(tailing, "_READ_AT_ONCE", 3)
    tenant, session = uuid4(), uuid4()
    runs = [make_run(tenant_id=tenant, session_id=session, name=str(number)) for number in range(40)]
    for at in range(0, 40, 5):
        await insert_runs(clickhouse, runs[at : at + 5])
    async with aclosing(tails.follow(tenant, RunsFilter(session=[session]), fields=FIELDS)) as tailed:
        tail = Tail(tailed)
        found = await tail.read(40)
        assert sorted(row["name"] for row in found) == sorted(run.name for run in runs)
        await tail.quiet()


async def test_a_condition_holds_of_the_whole_run(clickhouse, tails):
    tenant, session = uuid4(), uuid4()
    run = make_run(tenant_id=tenant, session_id=session, name="agent")
    search = RunsFilter(session=[session], filter='and(eq(name, "agent"), eq(status, "error"))')
    async with aclosing(tails.follow(tenant, search, fields=FIELDS)) as tailed:
        await insert_runs(clickhouse, [run])
        tail = Tail(tailed)
        await tail.quiet()
        run.error = "lost"
        await insert_runs(clickhouse, [make_run(tenant_id=tenant, session_id=session, name="other"), run])
        assert [row["id"] for row in await tail.read(1)] == [run.id]


async def test_what_cannot_be_followed_is_refused_at_once(tails):
    with pytest.raises(InvalidFiltersError):
        tails.follow(uuid4(), RunsFilter(filter="eq("), fields=FIELDS)
    with pytest.raises(BadRequestError):
        tails.follow(uuid4(), RunsFilter(min_feedback_modified_at=datetime.now(UTC)), fields=FIELDS)


async def test_a_workspace_has_so_many_tails_and_no_more(tails):
    tenant = uuid4()
    open_tails = [tails.follow(tenant, RunsFilter(), fields=FIELDS) for _ in range(tailing._TAILS_MAX)]
    for tail in open_tails:
        await anext(tail)
    with pytest.raises(TooManyRequestsError, match="close one"):
        tails.follow(tenant, RunsFilter(), fields=FIELDS)
    await anext(tails.follow(uuid4(), RunsFilter(), fields=FIELDS))
    await open_tails[0].aclose()
    await anext(tails.follow(tenant, RunsFilter(), fields=FIELDS))
