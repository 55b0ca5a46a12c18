"""Crons: the times of schedules, exactly one run for each time, and the official client's calls."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import BadRequestError, NotFoundError

from moorage.agents.records.crons import Cron, next_run_date, next_tick
from moorage.agents.records.filters import EVERYTHING
from moorage.agents.store.crons import CronStore, DueCron, Firing, Pick
from moorage.agents.store.new_runs import NewRun
from moorage.kernel.ids import uuid7
from moorage.kernel.postgres import Postgres
from tests.serving import Server, make_server
from tests.waiting import until

pytest_plugins = "tests.kernel.fixtures"

ASSISTANT_ID = UUID(int=7)
EVERY_SECOND = "* * * * * *"
ADD_ASSISTANT = """
INSERT INTO assistants (assistant_id, graph_id, name, config, context, metadata, version)
VALUES (%s, 'echo', 'echo', '{}', '{}', '{}', 1) ON CONFLICT DO NOTHING
"""
# Zones that change their clocks at night, at midnight, by half an hour, and not at all.
ZONES = ["Europe/Berlin", "America/New_York", "America/Santiago", "Australia/Lord_Howe", "Asia/Kolkata", "UTC"]


# --- the clock ------------------------------------------------------------------------------------------------------


def ticks(schedule: str, zone: str, start: datetime, until: datetime) -> list[datetime]:
    """Return the times of a schedule, each computed from the one before, as firing does."""
    found: list[datetime] = []
    while (at := next_tick(schedule, zone, found[-1] if found else start)) is not None and at <= until:
        found.append(at)
    return found


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(ZONES),
    st.integers(0, 23),
    st.integers(0, 59),
    st.sampled_from(["", "0 ", "59 "]),
    st.integers(2020, 2030),
)
def test_a_daily_time_fires_once_a_day_also_where_clocks_change(
    zone: str, hour: int, minute: int, second: str, year: int
):
    start, second_s = datetime(year, 1, 1, tzinfo=ZoneInfo(zone)), timedelta(seconds=1)
    found = ticks(f"{second}{minute} {hour} * * *", zone, start - second_s, start.replace(year=year + 1) - second_s)
    days = Counter(at.astimezone(ZoneInfo(zone)).date() for at in found)
    assert set(days.values()) == {1}
    assert len(days) == (start.replace(year=year + 1) - start).days


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(ZONES), st.sampled_from([(3, 25), (10, 25), (4, 1), (9, 5), (11, 1)]), st.integers(2020, 2030))
def test_what_repeats_within_hours_goes_on_by_real_time(zone: str, day: tuple[int, int], year: int):
    start = datetime(year, *day, tzinfo=UTC)
    found = ticks("*/30 * * * *", zone, start, start + timedelta(days=9))
    assert all(later - earlier == timedelta(minutes=30) for earlier, later in pairwise(found))
    assert len(found) == 9 * 48


def test_a_cron_that_is_made_in_the_second_pass_of_an_hour_does_not_fire_in_the_first():
    after = datetime(2026, 10, 25, 2, 15, fold=1, tzinfo=ZoneInfo("Europe/Berlin")).astimezone(UTC)
    at = next_tick("30 2 * * *", "Europe/Berlin", after)
    assert at is not None
    assert at > after


def test_six_fields_begin_with_seconds():
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert next_tick("*/10 * * * * *", None, noon) == noon + timedelta(seconds=10)
    assert next_tick("30 5 12 * * *", None, noon) == noon + timedelta(minutes=5, seconds=30)


def test_nothing_fires_after_the_end_or_when_switched_off():
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert next_run_date("0 13 * * *", None, noon + timedelta(hours=1), enabled=True, after=noon) is not None
    assert next_run_date("0 13 * * *", None, noon + timedelta(minutes=59), enabled=True, after=noon) is None
    assert next_run_date("0 13 * * *", None, None, enabled=False, after=noon) is None


@pytest.mark.parametrize(
    "schedule",
    [
        "",
        "* * * *",
        "* * * * * * *",
        "0 0 31 2 *",
        "60 * * * *",
        "a b c d e",
        "*/0 * * * *",
        "1,,2 * * * *",
        "٣ * * * *",
    ],
)
def test_a_schedule_that_is_none_is_refused(schedule: str):
    with pytest.raises(ValueError, match=r".+"):
        next_tick(schedule, None, datetime.now(UTC))


@pytest.mark.parametrize("zone", ["Mars/Base", "../../../etc/passwd", "/etc/localtime", "Europe", "a\0b", "x" * 99])
def test_a_time_zone_that_is_none_is_refused(zone: str):
    with pytest.raises(ValueError, match="Unknown timezone"):
        next_tick("* * * * *", zone, datetime.now(UTC))


# --- firing: the store on a real database -----------------------------------------------------------------------------


@pytest.fixture
async def crons(agents_postgres: Postgres) -> CronStore:
    await agents_postgres.execute("TRUNCATE crons, runs, threads CASCADE")
    await agents_postgres.execute(ADD_ASSISTANT, (ASSISTANT_ID,))
    return CronStore(agents_postgres)


def make_cron(due_in_s: float, **more: Any) -> Cron:
    now = datetime.now(UTC)
    cron: dict[str, Any] = {
        "cron_id": uuid7(),
        "assistant_id": ASSISTANT_ID,
        "thread_id": None,
        "user_id": None,
        "schedule": "0 0 * * *",
        "timezone": None,
        "end_time": None,
        "enabled": True,
        "on_run_completed": "keep",
        "payload": {},
        "metadata": {},
        "next_run_date": now + timedelta(seconds=due_in_s),
        "created_at": now,
        "updated_at": now,
    }
    return {**cron, **more}  # type: ignore[return-value]


def new_run(**more: Any) -> NewRun:
    fields: dict[str, Any] = {
        "run_id": uuid7(),
        "thread_id": uuid7(),
        "assistant_id": ASSISTANT_ID,
        "metadata": {},
        "kwargs": b"{}",
        "thread_config": b"{}",
        "strategy": "enqueue",
        "after_s": 0,
        "temporary": False,
        "make_thread": True,
        "followed": False,
    }
    return NewRun(**{**fields, **more})


def fires_once(due: DueCron) -> Firing:
    return Firing(new_run(metadata={"cron_id": str(due.cron["cron_id"])}), due.now + timedelta(hours=1))


async def fire_all(store: CronStore, plan: Callable[[DueCron], Firing] = fires_once, most: int = 10) -> int:
    count = 0
    for pick in Pick:
        while fired := await store.fire(pick, plan, most):
            count += len(fired)
    return count


async def count_runs(postgres: Postgres) -> int:
    row = await postgres.fetch_one("SELECT count(*) AS n FROM runs")
    assert row is not None
    return int(row["n"])


async def test_many_that_fire_at_once_fire_each_cron_once(
    crons: CronStore, agents_postgres: Postgres, agents_conninfo: str
):
    for _ in range(40):
        await crons.insert(make_cron(-1), b"{}")
    other = Postgres(agents_conninfo, pool_max=8)
    await other.open()
    fired = await asyncio.gather(*(fire_all(CronStore(pool)) for pool in [agents_postgres, other] * 4))
    await other.close()
    runs = await agents_postgres.fetch("SELECT metadata->>'cron_id' AS cron_id FROM runs")
    assert sum(fired) == 40
    assert set(Counter(row["cron_id"] for row in runs).values()) == {1}
    assert len(runs) == 40


async def test_a_run_and_the_next_time_are_stored_together_or_not_at_all(crons: CronStore, agents_postgres: Postgres):
    await crons.insert(make_cron(-1), b"{}")

    def dies(due: DueCron) -> Firing:
        raise KeyboardInterrupt  # the process is killed between the two

    with pytest.raises(KeyboardInterrupt):
        await crons.fire(Pick.OLDEST, dies, 1)
    assert await count_runs(agents_postgres) == 0
    assert await fire_all(crons) == 1
    assert await count_runs(agents_postgres) == 1


async def test_a_run_that_the_database_refuses_holds_up_no_other_cron(crons: CronStore, agents_postgres: Postgres):
    poisoned, good = make_cron(-10), [make_cron(due_in_s) for due_in_s in (-20, -10, -1)]
    for cron in (poisoned, *good):
        await crons.insert(cron, b"{}")

    def plan(due: DueCron) -> Firing:
        run = new_run(kwargs=b"{broken") if due.cron["cron_id"] == poisoned["cron_id"] else new_run()
        return Firing(run, due.now + timedelta(hours=1))

    assert await fire_all(crons, plan) == 4
    assert await count_runs(agents_postgres) == 3
    for _ in range(10):  # the connections can still be used
        await crons.insert(make_cron(-1), b"{}")
        assert await fire_all(crons) == 1


async def test_those_whose_time_has_just_come_do_not_wait_for_many_others(crons: CronStore):
    for due_in_s in (-60, -60, -1):
        await crons.insert(make_cron(due_in_s), b"{}")
    [newest] = await crons.fire(Pick.NEWEST, fires_once, 1)
    [oldest] = await crons.fire(Pick.OLDEST, fires_once, 1)
    waited_s = [
        round((fired.due.now - fired.due.cron["next_run_date"]).total_seconds())  # type: ignore[operator]
        for fired in (newest, oldest)
    ]
    assert waited_s == [pytest.approx(1, abs=10), pytest.approx(60, abs=10)]


async def test_a_cron_whose_assistant_has_gone_is_switched_off(crons: CronStore):
    cron = make_cron(-1)
    await crons.insert(cron, b"{}")
    await fire_all(crons, lambda due: Firing(new_run(assistant_id=UUID(int=404)), due.now + timedelta(hours=1)))
    stored = await crons.read(cron["cron_id"], EVERYTHING)
    assert stored is not None
    assert (stored["enabled"], stored["next_run_date"]) == (False, None)


async def test_after_the_clock_was_set_back_by_years_a_cron_counts_from_now(
    crons: CronStore, agents_postgres: Postgres
):
    cron = make_cron(3 * 365 * 86400)
    await crons.insert(cron, b"{}")
    await agents_postgres.execute("UPDATE crons SET fired_at = now() + interval '3 years'")
    seen: list[bool] = []

    def plan(due: DueCron) -> Firing:
        seen.append(due.was_set_back)
        return Firing(None, due.now + timedelta(hours=1))

    assert await fire_all(crons, plan) == 1
    assert seen == [True]
    assert await count_runs(agents_postgres) == 0


# --- through the official client ------------------------------------------------------------------------------------


async def test_a_cron_of_a_thread_runs_on_it_again_and_again_until_it_is_deleted(client: LangGraphClient):
    thread = await client.threads.create()
    cron = await client.crons.create_for_thread(
        thread["thread_id"],
        "echo",
        schedule=EVERY_SECOND,
        input={"text": "tick"},
        metadata={"kind": "test"},
        config={"configurable": {"colour": "red"}},
    )
    assert cron["thread_id"] == thread["thread_id"]
    assert cron["payload"]["config"]["configurable"] == {"colour": "red", "cron_id": cron["cron_id"]}
    assert cron["next_run_date"] is not None

    async def ended() -> list[Any]:
        runs = await client.runs.list(thread["thread_id"])
        return runs if len(runs) >= 2 and runs[-1]["status"] == "success" else []

    runs = await until(ended)
    assert runs[-1]["metadata"]["kind"] == "test"
    assert runs[-1]["kwargs"]["config"]["configurable"]["cron_id"] == cron["cron_id"]
    await client.crons.delete(cron["cron_id"])
    with pytest.raises(NotFoundError):
        await client.crons.delete(cron["cron_id"])
    before = len(await client.runs.list(thread["thread_id"], limit=100))
    await asyncio.sleep(2.5)
    assert len(await client.runs.list(thread["thread_id"], limit=100)) == before


async def test_the_context_of_a_cron_reaches_its_runs_and_can_be_changed(client: LangGraphClient):
    thread = (await client.threads.create())["thread_id"]
    cron = await client.crons.create_for_thread(
        thread, "tastes", schedule=EVERY_SECOND, input={}, context={"flavour": "sweet"}
    )

    async def tasted() -> Any:
        return (await client.threads.get(thread))["values"]

    assert await until(tasted) == {"text": "sweet", "items": []}
    [first, *_] = await client.runs.list(thread)
    configurable = {"flavour": "sweet", "cron_id": cron["cron_id"]}
    assert (first["kwargs"]["context"], first["kwargs"]["config"]["configurable"]) == (
        {"flavour": "sweet"},
        configurable,
    )
    changed = await client.crons.update(cron["cron_id"], enabled=False, context={"flavour": "sour"})
    assert changed["payload"]["context"] == {"flavour": "sour"}
    changed = await client.crons.update(cron["cron_id"], config={"configurable": {"flavour": "salty"}})
    assert "context" not in changed["payload"]
    assert changed["payload"]["config"]["configurable"] == {"flavour": "salty", "cron_id": cron["cron_id"]}
    changed = await client.crons.update(cron["cron_id"], context={"flavour": "bitter"})
    assert changed["payload"]["context"] == {"flavour": "bitter"}
    assert changed["payload"]["config"]["configurable"] == {"cron_id": cron["cron_id"]}
    with pytest.raises(BadRequestError, match="Cannot specify both"):
        await client.crons.update(cron["cron_id"], context={"a": 1}, config={"configurable": {"b": 2}})
    await client.crons.delete(cron["cron_id"])


@pytest.mark.parametrize(("behaviour", "kept"), [("keep", True), ("delete", False)])
async def test_a_cron_without_a_thread_keeps_or_deletes_the_thread_of_each_run(
    client: LangGraphClient, tmp_path: Path, behaviour: Any, *, kept: bool
):
    marks, name = tmp_path / "marks", f"{behaviour}-{uuid7()}"
    cron = await client.crons.create(
        "slow",
        schedule=EVERY_SECOND,
        input={"file": str(marks), "seconds": 0},
        metadata={"name": name},
        on_run_completed=behaviour,
    )

    async def ran() -> bool:
        return marks.exists()

    await until(ran)
    await client.crons.update(cron["cron_id"], enabled=False)
    await asyncio.sleep(1)
    threads = await client.threads.search(metadata={"name": name}, limit=100)
    assert bool(threads) is kept


async def test_crons_are_searched_counted_and_changed(client: LangGraphClient):
    name = str(uuid7())
    thread = await client.threads.create()
    made = [
        await client.crons.create("echo", schedule="0 5 * * *", metadata={"name": name}, timezone="Europe/Berlin"),
        await client.crons.create_for_thread(
            thread["thread_id"], "echo", schedule="0 6 * * *", metadata={"name": name}, enabled=False
        ),
    ]
    assert made[1]["next_run_date"] is None
    ids = [cron["cron_id"] for cron in made]
    assert await client.crons.count(metadata={"name": name}) == 2
    assert await client.crons.count(thread_id=thread["thread_id"]) == 1
    found = await client.crons.search(metadata={"name": name}, sort_by="created_at", sort_order="asc")
    assert [cron["cron_id"] for cron in found] == ids
    [shown] = await client.crons.search(thread_id=thread["thread_id"], select=["schedule", "enabled"])
    assert shown == {"schedule": "0 6 * * *", "enabled": False}
    by_graph = await client.crons.search(assistant_id="echo", metadata={"name": name}, select=["schedule"])
    assert [cron["schedule"] for cron in by_graph] == ["0 6 * * *", "0 5 * * *"]
    assert await client.crons.count(assistant_id="pair", metadata={"name": name}) == 0
    end = datetime(2040, 1, 1, tzinfo=UTC)
    changed = await client.crons.update(ids[1], schedule="0 7 * * *", enabled=True, end_time=end, metadata={"more": 1})
    assert changed["metadata"] == {"name": name, "more": 1}
    assert changed["next_run_date"] is not None
    assert changed["next_run_date"][11:16] == "07:00"
    assert (await client.crons.update(ids[1], end_time=None))["end_time"] is None
    await client.threads.delete(thread["thread_id"])
    assert await client.crons.count(metadata={"name": name}) == 1
    await client.crons.delete(ids[0])


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"assistant_id": "echo", "schedule": "0 0 31 2 *"}, 422),
        ({"assistant_id": "echo", "schedule": "every day"}, 422),
        ({"assistant_id": "echo", "schedule": "* * * * *", "timezone": "Mars/Base"}, 422),
        ({"assistant_id": "echo", "schedule": 5}, 422),
        ({"assistant_id": "echo"}, 422),
        ({"schedule": "* * * * *"}, 422),
        ({"assistant_id": "echo", "schedule": "* * * * *", "webhook": "http://127.0.0.1/"}, 422),
        ({"assistant_id": "echo", "schedule": "* " * 100_000}, 422),
        ({"assistant_id": "nope", "schedule": "* * * * *"}, 404),
        ({"assistant_id": str(UUID(int=404)), "schedule": "* * * * *"}, 404),
    ],
)
async def test_what_cannot_be_a_cron_is_refused_and_makes_none(server: Server, body: dict[str, Any], status: int):
    async with httpx.AsyncClient(base_url=server.url) as http:
        before = (await http.post("/runs/crons/count", json={})).json()
        answer = await http.post("/runs/crons", json=body)
        assert answer.status_code == status
        assert isinstance(answer.json()["detail"], str)
        assert (await http.post("/runs/crons/count", json={})).json() == before


@pytest.mark.parametrize(
    "patch",
    [{"schedule": None}, {"enabled": None}, {"assistant_id": "echo"}, {"on_run_completed": "keep"}, {"timezone": "?"}],
)
async def test_a_change_that_does_not_fit_is_refused(client: LangGraphClient, server: Server, patch: dict[str, Any]):
    thread = await client.threads.create()
    cron = await client.crons.create_for_thread(thread["thread_id"], "echo", schedule="0 0 * * *")
    async with httpx.AsyncClient(base_url=server.url) as http:
        assert (await http.patch(f"/runs/crons/{cron['cron_id']}", json=patch)).status_code == 422
        assert (await http.get(f"/runs/crons/{cron['cron_id']}")).json() == cron
        assert (await http.get(f"/runs/crons/{uuid7()}")).status_code == 404
        assert (await http.get("/runs/crons/none")).status_code == 422


# --- several processes, and kills -------------------------------------------------------------------------------------


@pytest.fixture
def pair() -> Iterator[tuple[Server, Server]]:
    """Start two servers on one home, both of which fire crons."""
    with TemporaryDirectory(prefix="moorage-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        servers = make_server(folder, MOORAGE_LEASE_SECONDS="2"), make_server(folder, MOORAGE_LEASE_SECONDS="2")
        for server in servers:
            server.start()
        yield servers
        for server in servers:
            server.kill()


async def test_each_second_fires_once_in_two_processes_of_which_one_is_killed(pair: tuple[Server, Server]):
    killed, living = pair
    async with get_client(url=living.url) as client:
        thread = await client.threads.create()
        cron = await client.crons.create_for_thread(thread["thread_id"], "echo", schedule=EVERY_SECOND, input={})

        async def runs(count: int) -> list[Any]:
            found = await client.runs.list(thread["thread_id"], limit=1000)
            return found if len(found) >= count else []

        await until(lambda: runs(3))
        killed.kill()
        await until(lambda: runs(8))
        stopped = await client.crons.update(cron["cron_id"], enabled=False)

        async def all_ended() -> list[Any]:
            found = await runs(1)
            return found if all(run["status"] == "success" for run in found) else []

        found = await until(all_ended)
        seconds = Counter(run["created_at"][:19] for run in found)
    began, ended = (datetime.fromisoformat(row[key]) for row, key in ((cron, "created_at"), (stopped, "updated_at")))
    # A poll may come late and fire a second in the next one, but it never fires more than have passed.
    assert len(found) <= (ended - began).total_seconds() + 1
    assert max(seconds.values()) <= 2
    killed.start()


async def test_times_that_passed_while_no_server_lived_fire_once(pair: tuple[Server, Server]):
    first, second = pair
    second.stop()
    async with get_client(url=first.url) as client:
        thread = await client.threads.create()
        await client.crons.create_for_thread(thread["thread_id"], "echo", schedule=EVERY_SECOND, input={})
        await asyncio.sleep(1)
        first.kill()
        await asyncio.sleep(5)  # five due times pass
        first.environment["CRON_SCHEDULER_SLEEP_TIME"] = "3600"  # the server looks once, at its start
        first.start()

        async def runs() -> list[Any]:
            return await client.runs.list(thread["thread_id"], limit=100)

        await until(runs)
        await asyncio.sleep(2)
        assert 1 <= len(await runs()) <= 4
    second.start()
