"""The SQL of runs on a real database: statuses move only along the table, and only for the holder of the run."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moorage.agents.records.filters import EVERYTHING
from moorage.agents.records.runs import ENDED, MultitaskStrategy, RunStatus
from moorage.agents.store.runs import Created, LeasedRun, RunEnd
from moorage.kernel.ids import uuid7
from moorage.kernel.postgres import Postgres
from tests.agents.run_houses import ASSISTANT_ID, EXPIRE, LEASE_S, House

pytest_plugins = "tests.kernel.fixtures"
NOBODY = UUID(int=404)
SUCCESS = RunEnd(RunStatus.SUCCESS, None, "idle", None, b'{"x": 1}', b"{}")
ADD_ASSISTANT = """
INSERT INTO assistants (assistant_id, graph_id, name, config, context, metadata, version)
VALUES (%s, 'echo', 'echo', '{}', '{}', '{}', 1)
"""

# Every move of every status, whichever statement makes it.
WATCH = """
CREATE TABLE moves (number serial, run_id uuid, before text, after text);
CREATE FUNCTION note_move() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO moves (run_id, before, after) VALUES (NEW.run_id, OLD.status, NEW.status);
    RETURN NULL;
END $$;
CREATE TRIGGER moved AFTER UPDATE ON runs FOR EACH ROW
    WHEN (OLD.status IS DISTINCT FROM NEW.status) EXECUTE FUNCTION note_move();
"""
FORGET_EVERYTHING = "TRUNCATE runs, threads, moves CASCADE"
START_ANEW = """
DROP TABLE IF EXISTS moves;
DROP FUNCTION IF EXISTS note_move CASCADE;
TRUNCATE assistants, threads, runs CASCADE;
"""


@pytest.fixture
async def house(agents_postgres: Postgres) -> AsyncIterator[House]:
    await agents_postgres.execute(START_ANEW)
    await agents_postgres.execute(ADD_ASSISTANT, (ASSISTANT_ID,))
    await agents_postgres.execute(WATCH)
    house = House(agents_postgres)
    yield house
    await house.check_the_law()


@pytest.fixture
async def neighbour(house: House, agents_conninfo: str) -> AsyncIterator[House]:
    """Return another process's store on the same database."""
    pool = Postgres(agents_conninfo, pool_max=8)
    await pool.open()
    yield House(pool)
    await pool.close()


# --- creating ---------------------------------------------------------------------------------------------------------


async def test_a_run_on_an_idle_thread_starts_in_the_statement_that_makes_it(house: House):
    leased = await house.start(await house.make_thread())
    assert leased.lease.attempt == 1
    assert leased.run["status"] == "running"
    assert await house.row(leased.lease.key) == {"status": "running", "attempt": 1, "worker": "one", "error": None}


async def test_without_a_free_slot_a_run_waits(house: House):
    created = await house.create(await house.make_thread(), start=False)
    assert created.leased is None
    assert created.run is not None
    assert await house.row(created.run["run_id"]) == {"status": "pending", "attempt": 0, "worker": None, "error": None}


async def test_a_run_on_a_busy_thread_waits_or_is_refused(house: House):
    thread_id = await house.make_thread()
    await house.start(thread_id)
    waiting = await house.create(thread_id)
    assert waiting.run is not None
    assert waiting.run["status"] == "pending"
    refused = await house.create(thread_id, strategy="reject")
    assert refused.refused
    assert refused.run is None
    assert len(await house.statuses()) == 2


async def test_a_run_for_later_is_not_claimed_before_its_time(house: House):
    thread_id = await house.make_thread()
    later = await house.create(thread_id, after_s=3600)
    assert later.leased is None
    assert await house.claim() == []
    await house.postgres.execute("UPDATE runs SET not_before = now()")
    assert len(await house.claim()) == 1


async def test_a_run_needs_its_thread_and_its_assistant(house: House):
    thread_id = await house.make_thread()
    assert (await house.create(NOBODY)).missing
    assert (await house.create(thread_id, assistant_id=NOBODY)).missing
    assert await house.statuses() == {}


async def test_a_run_may_bring_its_thread_along(house: House):
    thread_id = uuid7()
    await house.start(thread_id, make_thread=True)
    assert await house.threads.exists(thread_id, EVERYTHING)


async def test_a_temporary_run_needs_no_thread(house: House):
    leased = await house.start(uuid7(), temporary=True)
    assert leased.temporary
    assert not await house.threads.exists(leased.run["thread_id"], EVERYTHING)


# --- one running run a thread -----------------------------------------------------------------------------------------


async def test_of_fifty_runs_created_at_once_on_one_thread_one_starts_and_the_rest_follow_in_order(
    house: House, neighbour: House
):
    thread_id = await house.make_thread()
    created = await asyncio.gather(
        *(home.create(thread_id, worker=name) for _ in range(25) for home, name in ((house, "one"), (neighbour, "two")))
    )
    leased = [each.leased for each in created if each.leased is not None]
    assert len(leased) == 1
    assert sorted((await house.statuses()).values()) == ["pending"] * 49 + ["running"]

    order: list[UUID] = []
    [current] = leased
    while True:
        order.append(current.lease.key)
        home = house if current.lease.worker == "one" else neighbour
        waiting = await home.runs.end(current.lease, SUCCESS)
        claims = await asyncio.gather(house.claim("one"), neighbour.claim("two"))
        claimed = [row for rows in claims for row in rows]
        assert len(claimed) == (1 if waiting else 0)
        if not claimed:
            break
        [current] = claimed
    assert order[1:] == sorted(order[1:])
    assert set((await house.statuses()).values()) == {"success"}
    assert len(order) == 50


async def test_of_refusing_runs_created_at_once_on_one_thread_one_starts(house: House, neighbour: House):
    thread_id = await house.make_thread()
    created = await asyncio.gather(
        *(home.create(thread_id, strategy="reject") for _ in range(10) for home in (house, neighbour))
    )
    assert sum(each.leased is not None for each in created) == 1
    assert sum(each.refused for each in created) == 19


async def test_runs_created_at_once_that_bring_the_same_thread_along_are_all_accepted(house: House, neighbour: House):
    for _ in range(5):
        thread_id = uuid7()
        created = await asyncio.gather(
            *(home.create(thread_id, make_thread=True) for _ in range(5) for home in (house, neighbour))
        )
        assert [each.missing for each in created] == [False] * 10
        assert sum(each.leased is not None for each in created) == 1


async def test_two_workers_that_claim_at_once_get_different_runs(house: House, neighbour: House):
    created = [await house.create(await house.make_thread(), start=False) for _ in range(30)]
    claims = await asyncio.gather(*(home.claim(name, 3) for _ in range(10) for home, name in both(house, neighbour)))
    claimed = [row.lease.key for rows in claims for row in rows]
    assert len(claimed) == len(set(claimed))
    claimed += [row.lease.key for row in await house.claim()]
    assert sorted(claimed) == [each.run["run_id"] for each in created if each.run]


def both(house: House, neighbour: House) -> Sequence[tuple[House, str]]:
    return ((house, "one"), (neighbour, "two"))


async def test_runs_of_a_thread_are_claimed_one_at_a_time_and_first_come_first_served(house: House):
    thread_id = await house.make_thread()
    waiting = [(await house.create(thread_id, start=False)).run for _ in range(3)]
    for run in waiting:
        assert run is not None
        [claimed] = await house.claim()
        assert claimed.lease.key == run["run_id"]
        assert await house.claim() == []
        await house.runs.end(claimed.lease, SUCCESS)


# --- leases, fenced by attempt ----------------------------------------------------------------------------------------


async def test_a_beat_keeps_what_is_held_and_nothing_else(house: House):
    held, lost = await house.start(await house.make_thread()), await house.start(await house.make_thread())
    await house.runs.hand_back([lost.lease])
    await house.claim("two")
    assert await house.runs.beat([held.lease, lost.lease], LEASE_S) == {held.lease.key: None}


async def test_a_beaten_lease_is_not_reaped(house: House):
    leased = await house.start(await house.make_thread())
    await house.postgres.execute(EXPIRE)
    await house.runs.beat([leased.lease], LEASE_S)
    assert await house.runs.reap(3) == 0
    assert await house.status(leased.lease.key) == "running"


async def test_a_reaped_run_is_claimed_with_the_next_attempt_and_its_old_holder_can_write_nothing(house: House):
    thread_id = await house.make_thread()
    old = (await house.start(thread_id)).lease
    assert await house.reap() == 1
    assert await house.row(old.key) == {"status": "pending", "attempt": 1, "worker": None, "error": None}
    # Claimed by the same worker: the name alone does not make it the holder.
    [new] = await house.claim("one")
    assert new.lease == replace(old, attempt=2)

    assert await house.runs.end(old, SUCCESS) is None
    assert not await house.runs.end_gone(old)
    assert await house.runs.beat([old], LEASE_S) == {}
    await house.runs.hand_back([old])
    assert await house.row(old.key) == {"status": "running", "attempt": 2, "worker": "one", "error": None}
    thread = await house.threads.read(thread_id, EVERYTHING)
    assert thread is not None
    assert thread["values"] is None
    assert await house.runs.end(new.lease, SUCCESS) is False


async def test_while_a_lost_run_waits_its_old_holder_can_write_nothing_either(house: House):
    old = (await house.start(await house.make_thread())).lease
    await house.reap()
    assert await house.runs.end(old, SUCCESS) is None
    assert not await house.runs.end_gone(old)
    assert await house.runs.beat([old], LEASE_S) == {}
    await house.runs.hand_back([old])
    assert await house.row(old.key) == {"status": "pending", "attempt": 1, "worker": None, "error": None}


async def test_a_run_that_is_handed_back_has_used_no_attempt(house: House):
    leased = await house.start(await house.make_thread())
    await house.runs.hand_back([leased.lease])
    assert await house.row(leased.lease.key) == {"status": "pending", "attempt": 0, "worker": None, "error": None}
    [again] = await house.claim("two")
    assert again.lease.attempt == 1


async def test_the_last_attempt_of_a_lost_run_is_only_claimed_apart(house: House):
    async def claim(*, apart: bool) -> list[int]:
        rows = await house.runs.claim("one", 10, LEASE_S, ["echo"], attempts_max=3, apart=apart)
        return [row.lease.attempt for row in rows]

    await house.start(await house.make_thread())
    await house.reap()
    assert not await house.runs.waits_apart(3, ["echo"])
    assert await claim(apart=True) == []
    assert await claim(apart=False) == [2]
    await house.reap()
    assert await house.runs.waits_apart(3, ["echo"])
    assert not await house.runs.waits_apart(3, ["another graph"])
    assert await claim(apart=False) == []
    assert await claim(apart=True) == [3]
    assert not await house.runs.waits_apart(3, ["echo"])


async def test_a_run_that_was_never_lost_is_not_apart_even_if_it_may_not_be_lost(house: House):
    leased = await house.start(await house.make_thread())
    await house.runs.hand_back([leased.lease])
    assert not await house.runs.waits_apart(1, ["echo"])
    [claimed] = await house.runs.claim("one", 10, LEASE_S, ["echo"], attempts_max=1)
    assert claimed.lease.attempt == 1


async def test_a_run_that_was_lost_too_often_ends_as_an_error_and_says_so_on_its_thread(house: House):
    thread_id = await house.make_thread()
    run_id = (await house.start(thread_id)).lease.key
    for _ in range(2):
        await house.reap(attempts_max=3)
        await house.claim()
    await house.reap(attempts_max=3)
    error = {"error": "WorkerLost", "message": "The run was lost 3 times."}
    assert await house.row(run_id) == {"status": "error", "attempt": 3, "worker": None, "error": error}
    thread = await house.threads.read(thread_id, EVERYTHING)
    assert thread is not None
    assert (thread["status"], thread["error"]) == ("error", error)


async def test_the_end_of_a_run_leaves_its_values_on_the_thread_and_tells_who_waits(house: House):
    thread_id = await house.make_thread()
    leased = await house.start(thread_id)
    await house.create(thread_id)
    assert await house.runs.end(leased.lease, SUCCESS) is True
    assert await house.runs.end(leased.lease, SUCCESS) is None
    thread = await house.threads.read(thread_id, EVERYTHING)
    assert thread is not None
    assert (thread["values"], thread["status"]) == ({"x": 1}, "busy")


@pytest.mark.parametrize("status", sorted(ENDED))
async def test_an_ended_run_moves_no_more(house: House, status: RunStatus):
    thread_id = await house.make_thread()
    lease = (await house.start(thread_id)).lease
    await house.runs.end(lease, replace(SUCCESS, status=status))
    await house.runs.hand_back([lease])
    await house.reap()
    await house.runs.cancel(thread_id, [lease.key], "interrupt")
    assert not await house.runs.end_gone(lease)
    assert await house.claim() == []
    assert await house.status(lease.key) == status


# --- cancelling -------------------------------------------------------------------------------------------------------


async def test_a_pending_run_is_cancelled_at_once(house: House):
    thread_id = await house.make_thread()
    run = (await house.create(thread_id, start=False)).run
    assert run is not None
    assert await house.runs.cancel(thread_id, [run["run_id"]], "interrupt") == {run["run_id"]: "interrupted"}
    assert await house.status(run["run_id"]) == "interrupted"
    assert await house.claim() == []


async def test_a_pending_run_that_is_rolled_back_is_gone(house: House):
    thread_id = await house.make_thread()
    run = (await house.create(thread_id, start=False)).run
    assert run is not None
    await house.runs.cancel(thread_id, [run["run_id"]], "rollback")
    assert await house.statuses() == {}


async def test_the_cancellation_of_a_running_run_reaches_its_holder_with_the_beat(house: House):
    thread_id = await house.make_thread()
    lease = (await house.start(thread_id)).lease
    assert await house.runs.cancel(thread_id, [lease.key], "rollback") == {lease.key: "running"}
    assert await house.runs.beat([lease], LEASE_S) == {lease.key: "rollback"}


async def test_a_cancellation_is_not_forgotten_when_the_holder_is_lost(house: House):
    thread_id = await house.make_thread()
    lease = (await house.start(thread_id)).lease
    await house.runs.cancel(thread_id, [lease.key], "interrupt")
    await house.reap()
    [claimed] = await house.claim("two")
    assert claimed.cancel_action == "interrupt"


async def test_a_run_of_another_thread_is_not_cancelled(house: House):
    lease = (await house.start(await house.make_thread())).lease
    assert await house.runs.cancel(await house.make_thread(), [lease.key], "interrupt") == {}
    assert await house.runs.beat([lease], LEASE_S) == {lease.key: None}


# --- a thread that goes away ------------------------------------------------------------------------------------------


async def test_a_run_created_while_its_thread_is_deleted_is_gone_or_refused_and_never_left_over(
    house: House, neighbour: House
):
    orphans = "SELECT run_id FROM runs r WHERE NOT EXISTS (SELECT FROM threads t WHERE t.thread_id = r.thread_id)"
    outcomes = set()
    for _ in range(40):
        thread_id = await house.make_thread()
        racing = [house.create(thread_id), neighbour.threads.remove(thread_id, EVERYTHING), house.create(thread_id)]
        random.shuffle(racing)
        results = await asyncio.gather(*racing)
        outcomes |= {result.missing for result in results if isinstance(result, Created)}
        assert True in results
        assert await house.postgres.fetch(orphans) == []
    assert outcomes  # usually both: accepted and then deleted with the thread, or refused


async def test_a_run_that_brings_its_thread_along_may_race_with_its_deletion(house: House, neighbour: House):
    for _ in range(20):
        thread_id = await house.make_thread()
        created, _ = await asyncio.gather(
            house.create(thread_id, make_thread=True), neighbour.threads.remove(thread_id, EVERYTHING)
        )
        assert not created.missing
        [row] = await house.postgres.fetch("SELECT count(*) AS runs FROM runs WHERE thread_id = %s", (thread_id,))
        assert bool(row["runs"]) == await house.threads.exists(thread_id, EVERYTHING)


# --- anything may happen in any order ---------------------------------------------------------------------------------

WORKERS = st.sampled_from(["one", "two"])
STRATEGIES: st.SearchStrategy[MultitaskStrategy] = st.sampled_from(["enqueue", "reject"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("create"), WORKERS, st.integers(0, 2), STRATEGIES, st.booleans()),
        st.tuples(st.just("claim"), WORKERS, st.integers(1, 3)),
        st.tuples(st.just("end"), st.integers(0, 50), st.sampled_from(sorted(ENDED))),
        st.tuples(st.just("hand_back"), st.integers(0, 50)),
        st.tuples(st.just("beat"), st.integers(0, 50)),
        st.tuples(st.just("cancel"), st.integers(0, 50)),
        st.tuples(st.just("reap")),
    ),
    min_size=5,
    max_size=25,
)


class Walk:
    """A walk that applies steps to the store, and keeps everything that workers ever held: stale leases are used as
    well.
    """

    def __init__(self, house: House, threads: list[UUID]) -> None:
        self.house = house
        self.threads = threads
        self.accepted: dict[UUID, UUID] = {}
        self.leases: list[LeasedRun] = []

    def lease(self, number: int) -> LeasedRun | None:
        return self.leases[number % len(self.leases)] if self.leases else None

    async def step(self, what: str, *how: Any) -> None:
        await getattr(self, what)(*how)

    async def create(self, worker: str, thread: int, strategy: MultitaskStrategy, start: bool) -> None:
        created = await self.house.create(self.threads[thread], worker=worker, strategy=strategy, start=start)
        if created.run is not None:
            self.accepted[created.run["run_id"]] = self.threads[thread]
        if created.leased is not None:
            self.leases.append(created.leased)

    async def claim(self, worker: str, slots: int) -> None:
        claimed = await self.house.claim(worker, slots)
        assert len(claimed) <= slots
        self.leases += claimed

    async def end(self, number: int, status: RunStatus) -> None:
        if leased := self.lease(number):
            await self.house.runs.end(leased.lease, replace(SUCCESS, status=status))

    async def hand_back(self, number: int) -> None:
        if leased := self.lease(number):
            await self.house.runs.hand_back([leased.lease])

    async def beat(self, number: int) -> None:
        if leased := self.lease(number):
            await self.house.runs.beat([leased.lease], LEASE_S)

    async def cancel(self, number: int) -> None:
        if self.accepted:
            run_id = list(self.accepted)[number % len(self.accepted)]
            await self.house.runs.cancel(self.accepted[run_id], [run_id], "interrupt")

    async def reap(self) -> None:
        await self.house.reap()

    async def finish(self) -> None:
        """Bring everything to an end, from any state."""
        while set((await self.house.statuses()).values()) - set(ENDED):
            await self.house.reap()
            claimed = await self.house.claim("three")
            for leased in claimed:
                assert await self.house.runs.end(leased.lease, SUCCESS) is not None
            assert claimed or set((await self.house.statuses()).values()) <= set(ENDED), "a run that nobody can claim"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
async def test_whatever_two_workers_do_the_law_holds_and_no_run_is_lost(house: House, steps: list[tuple[Any, ...]]):
    await house.postgres.execute(FORGET_EVERYTHING)
    walk = Walk(house, [await house.make_thread() for _ in range(3)])
    for step in steps:
        await walk.step(*step)
        await house.check_the_law()
        assert (await house.statuses()).keys() == walk.accepted.keys()
    await walk.finish()
    await house.check_the_law()
    assert (await house.statuses()).keys() == walk.accepted.keys()


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_two_workers_do_at_the_same_time_the_law_holds(house: House, neighbour: House, seed: int):
    chance = random.Random(seed)
    threads = [await house.make_thread() for _ in range(3)]

    async def work(home: House, name: str) -> Walk:
        walk = Walk(home, threads)
        for _ in range(80):
            number = chance.randrange(50)
            match chance.choice(["create", "create", "claim", "claim", "end", "end", "hand_back", "cancel", "reap"]):
                case "create":
                    await walk.create(name, number % 3, "enqueue", start=True)
                case "claim":
                    await walk.claim(name, 2)
                case "end":
                    await walk.end(-1, RunStatus.SUCCESS)
                case "hand_back" | "cancel" as what:
                    await walk.step(what, number)
                case "reap" if number < 10:
                    await walk.reap()
        return walk

    walks = await asyncio.gather(work(house, "one"), work(neighbour, "two"))
    await house.check_the_law()
    await walks[0].finish()
    assert (await house.statuses()).keys() == walks[0].accepted.keys() | walks[1].accepted.keys()


async def test_a_process_claims_only_runs_of_graphs_that_it_serves(house: House):
    created = await house.create(await house.make_thread(), start=False)
    assert await house.runs.claim("one", 10, LEASE_S, ["another graph"], attempts_max=3) == []
    [claimed] = await house.runs.claim("two", 10, LEASE_S, ["echo", "another graph"], attempts_max=3)
    assert created.run is not None
    assert claimed.lease.key == created.run["run_id"]
