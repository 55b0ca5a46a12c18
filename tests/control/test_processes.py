"""Agents as processes: features of this runtime alone. `test_runtimes` covers those of every runtime."""

from __future__ import annotations

import ast
import asyncio
import errno
import os
import random
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace

import httpx
import psycopg
import pytest
import uvloop

from moorage.control.isolation import find_isolation
from moorage.control.records.logs import LogLevel, LogLine
from moorage.control.runtimes import DeployError
from moorage.control.runtimes.excess import disk_excess, disk_limit_bytes
from moorage.control.runtimes.log_tail import LogTail
from moorage.control.runtimes.running import is_well
from moorage.control.store.agent_databases import AgentDatabases
from moorage.embedded import firewall, processes, processor_groups, users
from moorage.kernel.ids import uuid7
from moorage.kernel.postgres import Postgres
from tests.control.worlds import World, make_world
from tests.embedded.test_users import sleep_as
from tests.waiting import until

pytest_plugins = "tests.kernel.fixtures"


@pytest.fixture
async def world(postgres: object, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    async with make_world(postgres, 100 + sum(request.node.name.encode()) % 10_000) as made:
        yield made


async def test_an_agent_has_its_own_user_database_and_environment(world: World, conninfo: str) -> None:
    runtime = world.platform()
    world.secrets = {"OPENAI_API_KEY": "sk-1"}
    await runtime.prepare(world.row)
    order = world.order()
    await runtime.start(order, world.secrets)
    await runtime.switch(order)
    found = ast.literal_eval(await world.get("/env"))
    assert found["OPENAI_API_KEY"] == "sk-1"
    assert found["LANGSMITH_PROJECT"] == world.name
    assert found["LANGSMITH_ENDPOINT"] == "http://127.0.0.1:1/api/v1"
    assert found["LANGSMITH_API_KEY"] == "lsv2_pt_key"
    assert not {name for name in found if name.startswith("PYTEST")}
    if processes.is_root():
        assert await world.get("/uid") == str(world.place.uid)
    with psycopg.connect(found["DATABASE_URI"]) as connection:
        assert connection.execute("SELECT current_database()").fetchone() == (f"moorage_agent_{world.number}",)
    database = psycopg.conninfo.conninfo_to_dict(conninfo)["dbname"]
    foreign = psycopg.conninfo.make_conninfo(found["DATABASE_URI"], dbname=database)
    with pytest.raises(psycopg.OperationalError, match="permission denied"):
        psycopg.connect(foreign)
    await until(lambda: "it serves" in world.texts())
    await runtime.remove(world.row)
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(found["DATABASE_URI"])


async def test_databases_of_agents_that_come_together_are_all_made(postgres: object) -> None:
    databases, names = AgentDatabases(postgres), [f"moorage_agent_{number}" for number in range(31_000, 31_008)]
    try:
        for _ in range(3):  # and again, which changes nothing
            await asyncio.gather(*(databases.create(name, "secret") for name in names))
    finally:
        for name in names:
            await databases.remove(name)


async def test_an_agent_gets_into_no_database_but_its_own_and_holds_up_no_other(postgres: Postgres) -> None:
    databases, names = AgentDatabases(postgres), ["moorage_agent_31100", "moorage_agent_31101"]
    try:
        await databases.create(names[0], "secret")
        await postgres.execute("GRANT CONNECT ON DATABASE template1 TO PUBLIC")  # as in homes of earlier versions
        own = databases.uri(names[0], "secret")
        with psycopg.connect(psycopg.conninfo.make_conninfo(own, dbname="template1")):
            await databases.create(names[1], "secret")
        for _ in range(2):
            await databases.close_all()
        rows = await postgres.fetch("SELECT datname FROM pg_database WHERE datname <> %s", (names[0],))
        assert {"postgres", "template0", "template1", names[1]} <= {row["datname"] for row in rows}
        for row in rows:
            with pytest.raises(psycopg.OperationalError, match=r"permission denied|not currently accepting"):
                psycopg.connect(psycopg.conninfo.make_conninfo(own, dbname=row["datname"]))
    finally:
        for name in names:
            await databases.remove(name)


async def test_an_agent_that_takes_all_connections_it_gets_leaves_others_theirs(postgres: Postgres) -> None:
    databases, name = AgentDatabases(postgres), "moorage_agent_31102"
    held: list[psycopg.Connection] = []
    try:
        await databases.create(name, "secret")
        held += [psycopg.connect(databases.uri(name, "secret")) for _ in range(40)]
        with pytest.raises(psycopg.OperationalError, match="too many connections for role"):
            psycopg.connect(databases.uri(name, "secret"))
        reserved = await postgres.fetch_one("SHOW superuser_reserved_connections")
        assert reserved == {"superuser_reserved_connections": "100"}
    finally:
        for connection in held:
            connection.close()
        await databases.remove(name)


async def test_what_an_agent_has_started_in_other_sessions_ends_with_its_deployment(world: World) -> None:
    if not processes.is_root():
        pytest.skip("only root gives an agent a user of its own")
    runtime, _ = await world.serving()
    uid = world.place.uid
    left = await asyncio.to_thread(sleep_as, uid)
    await runtime.remove(world.row)
    assert users.processes_of(uid) == []
    assert left.wait(10) == -signal.SIGKILL
    assert not world.place.root.exists()


async def test_an_agent_sees_no_process_of_others_and_is_stopped_when_it_forks_without_end(world: World) -> None:
    isolation = find_isolation()
    if isolation.program is None or not processes.is_root():
        pytest.skip("bubblewrap does not work here, or agents have no users of their own")
    runtime, order = await world.serving()
    seen = ast.literal_eval(await world.get("/processes"))
    assert 0 < len(seen) < 6, "its own and those of its sandbox"
    uid = world.place.uid
    other = replace(world, number=world.number + 1, deployment_id=uuid7())
    await runtime.prepare(other.row)
    neighbour = other.order()
    await runtime.start(neighbour, {})
    await runtime.switch(neighbour)
    with suppress(httpx.HTTPError):  # it may be killed before it answers
        stayed = ast.literal_eval(await world.get("/forks"))  # tries 4000 processes in sessions of their own
        assert 0 < stayed < 1600
    assert len(users.processes_of(uid)) <= 1600
    assert await other.get() == str(neighbour.revision_id)
    await until(lambda: order.revision_id in world.reported)
    assert world.reported[order.revision_id].startswith("Too many processes: the agent runs 1")
    await until(lambda: not users.processes_of(uid))
    assert await other.get() == str(neighbour.revision_id)
    await runtime.remove(other.row)


async def test_an_agent_is_removed_while_its_lines_are_stored_and_others_are_still_followed(world: World) -> None:
    stored, storing = asyncio.Event(), asyncio.Event()

    async def insert(lines: list[LogLine]) -> None:
        storing.set()
        await stored.wait()
        world.lines.extend(lines)

    world.insert = insert
    runtime, _ = await world.serving()
    await storing.wait()
    removal = asyncio.create_task(runtime.remove(world.row))
    await until(lambda: bool(world.revoked))
    await asyncio.wait([removal], timeout=0.3)  # only the folder is left
    stored.set()
    await removal
    await until(lambda: bool(world.lines))
    assert not world.place.root.exists()
    await runtime.prepare(world.row)
    again = world.order(2)
    await runtime.start(again, {})
    await until(lambda: any(line.revision_id == again.revision_id for line in world.lines))


async def test_logs_are_followed_again_once_a_disk_has_space_again(world: World, monkeypatch) -> None:
    keep, failed = LogTail.keep, []

    def full(tail: LogTail, reached: object) -> None:
        failed.append(tail)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(LogTail, "keep", full)
    _, order = await world.serving()
    await until(lambda: len(failed) > 1)
    monkeypatch.setattr(LogTail, "keep", keep)
    await until(lambda: world.place.log_file(order.revision_id).with_suffix(".tail").exists())


async def test_what_stays_silent_is_ended(world: World) -> None:
    hasty = world.platform(start_timeout_s=1)
    await hasty.prepare(world.row)
    silent = world.order()
    with pytest.raises(DeployError, match="did not answer /ok within 1 s"):
        await hasty.start(silent, {"SILENT": "1"})
    assert world.process(silent) is None


@pytest.mark.parametrize("workers", [1, 2])
async def test_the_way_back_takes_up_the_process_that_stands_by(world: World, workers: int) -> None:
    runtime = world.platform(standby_s=600)
    await runtime.prepare(world.row)
    first, second = world.order(1, min_scale=workers), world.order(2)
    for order in (first, second):
        await runtime.start(order, {})
        await runtime.switch(order)
    before = world.process(first)
    await runtime.stop(first)
    await until(lambda: "it takes no more" in world.texts())
    back = world.order(3, build_of=first.revision_id, min_scale=workers)
    await runtime.start(back, {})
    await runtime.switch(back)
    await runtime.stop(second)
    assert world.process(back) == before
    assert world.process(first) is None
    assert await world.get() == str(first.revision_id), "it names the revision that it was started for"
    await until(
        lambda: {"it goes on"} <= {line.message for line in world.lines if line.revision_id == back.revision_id}
    )
    before.kill()
    await until(lambda: world.process(back) not in {None, before})
    assert await world.get() == str(back.revision_id), "a crash ends that"


async def test_who_was_told_something_else_is_not_taken_up(world: World) -> None:
    runtime = world.platform(standby_s=600)
    await runtime.prepare(world.row)
    first, second = world.order(1), world.order(2)
    for order in (first, second):
        await runtime.start(order, {"KEY": "old"})
        await runtime.switch(order)
    before = world.process(first)
    await runtime.stop(first)
    back = world.order(3, build_of=first.revision_id)
    await runtime.start(back, {"KEY": "new"})
    await runtime.switch(back)
    assert world.process(back) != before
    assert ast.literal_eval(await world.get("/env"))["KEY"] == "new"


async def test_who_has_fewer_workers_is_not_taken_up(world: World) -> None:
    runtime = world.platform(standby_s=600)
    await runtime.prepare(world.row)
    first, second = world.order(1), world.order(2)
    for order in (first, second):
        await runtime.start(order, {})
        await runtime.switch(order)
    await runtime.stop(first)
    back = world.order(3, build_of=first.revision_id, min_scale=2)
    await runtime.start(back, {})
    await runtime.switch(back)
    assert len(await world.workers(2)) == 2
    assert world.process(first)


async def test_the_role_of_an_agent_has_connections_for_all_its_workers(world: World, conninfo: str) -> None:
    runtime = world.platform()
    await runtime.prepare(world.row)
    limits = []
    for scale in ({}, {"max_scale": 3}, {}):  # the last one runs beside the one before it
        await runtime.start(world.order(**scale), {})
        with psycopg.connect(conninfo) as connection:
            limit = "SELECT rolconnlimit FROM pg_roles WHERE rolname = %s"
            limits += connection.execute(limit, (f"moorage_agent_{world.number}",)).fetchone() or ()
    assert limits == [40, 80, 80]


async def test_one_revision_stands_by_and_those_before_it_end(world: World) -> None:
    runtime = world.platform(standby_s=600)
    await runtime.prepare(world.row)
    first, second, third = (world.order(number) for number in (1, 2, 3))
    for order in (first, second, third):
        await runtime.start(order, {})
    await runtime.switch(third)
    await runtime.stop(first)
    await asyncio.sleep(2)  # nobody waits for it, so it is on standby
    await runtime.stop(second)
    await until(lambda: world.process(first) is None)
    assert world.process(second)
    assert await world.get() == str(third.revision_id)


async def test_what_an_earlier_platform_ran_is_brought_back_and_no_line_is_stored_twice(world: World) -> None:
    _, order = await world.serving()
    pid = world.process(order).pid
    await world.leave()
    second = world.platform()
    await second.reconcile([order], set())
    await until(lambda: order.revision_id in world.reported)
    os.kill(pid, signal.SIGKILL)
    await until(lambda: "the agent has ended by itself and is started again" in world.texts())
    await until(lambda: world.process(order) is not None)
    assert await world.get() == str(order.revision_id)
    texts = [(line.position, line.message) for line in world.lines if line.revision_id == order.revision_id]
    assert len(texts) == len(set(texts)), "a line was stored twice"


async def test_a_platform_that_was_killed_between_the_switch_and_its_record_costs_no_request(world: World) -> None:
    runtime, first = await world.serving()
    second = world.order(2)
    await runtime.start(second, {})
    await runtime.switch(second)
    await world.leave()  # killed here: the rows still say that the first one serves, and the second is under way
    answers: list[str] = []
    asking = asyncio.create_task(_ask_on(world, answers))
    under_way = asyncio.create_task(world.get("/slow"))
    runtime = world.platform()
    await runtime.reconcile([first], set(), {second.revision_id})
    await until(lambda: answers[-1:] == [str(first.revision_id)])
    await runtime.start(second, {})  # its lease has run out, and it is claimed again
    await runtime.switch(second)
    await runtime.reconcile([second], set())
    assert await under_way == str(second.revision_id)
    await until(lambda: world.process(first) is None)
    await asyncio.sleep(1)  # by now, a loop that would end the second by mistake has done so
    asking.cancel()
    assert set(answers) == {str(first.revision_id), str(second.revision_id)}


async def test_a_name_that_is_used_again_is_not_taken_from_its_new_deployment(world: World) -> None:
    runtime, first = await world.serving()
    before, world.number, world.deployment_id = world.row, world.number + 1, uuid7()
    world.renamed = world_name = before.name  # the next deployment of that name has another number
    try:
        await runtime.prepare(world.row)
        with pytest.raises((httpx.HTTPError, OSError)):
            await world.get()  # nobody reaches the deleted one under its name
        second = world.order()
        await runtime.start(second, {})
        await runtime.switch(second)
        await runtime.remove(before)
        assert await world.get() == str(second.revision_id)
        assert world.name == world_name
        assert first.deployment_name == world_name
        await runtime.remove(world.row)
        with pytest.raises((httpx.HTTPError, OSError)):
            await world.get()
    finally:
        world.number -= 1


async def test_nothing_that_is_dialled_ends_before_what_should_serve_answers(world: World) -> None:
    runtime, first = await world.serving()
    second = world.order(2)
    await runtime.start(second, {})
    await runtime.switch(second)
    await runtime.stop(first)
    await until(lambda: world.process(first) is None)
    await world.leave()
    runtime = world.platform()
    answers: list[str] = []
    asking = asyncio.create_task(_ask_on(world, answers))
    world.secrets = {"STARTS_AFTER_S": "4"}
    await runtime.reconcile([first], set())  # it has to be started, which takes a while
    await until(lambda: answers[-1:] == [str(first.revision_id)])
    await runtime.reconcile([first], set())
    await until(lambda: world.process(second) is None)
    asking.cancel()
    assert set(answers) == {str(first.revision_id), str(second.revision_id)}


async def _ask_on(world: World, answers: list[str]) -> None:
    """Ask every 20 ms as the front door does, and record the answer, or the error of the connection."""
    while True:
        try:
            answers.append(await world.get())
        except httpx.HTTPError as error:
            answers.append(type(error).__name__)
        await asyncio.sleep(0.02)


async def test_requests_wait_while_a_crashed_agent_is_started_again(world: World) -> None:
    _, order = await world.serving()
    with pytest.raises(httpx.HTTPError):
        await world.get("/crash")
    assert await world.get() == str(order.revision_id)


async def test_a_crash_loop_ends_and_its_revision_says_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moorage.control.runtimes.processes._BACK_OFF_S", (0.0,) * 5)
    monkeypatch.setattr("moorage.control.runtimes.processes._WATCH_S", 0.1)
    monkeypatch.setattr("moorage.control.runtimes.processes._CRASHES_WITHIN_S", 300.0)
    _, order = await world.serving()
    world.secrets = {"FAILS": "1"}
    with pytest.raises(httpx.HTTPError):
        await world.get("/crash")
    await until(lambda: "the agent has ended 5 times within 300 s and stays down" in world.texts(), 60)
    await until(lambda: order.revision_id in world.reported)
    assert "stays down" in world.reported[order.revision_id]
    assert "no module named nowhere" in world.reported[order.revision_id]
    with pytest.raises((httpx.HTTPError, OSError)):
        await world.get()


async def test_an_agent_that_gives_up_stays_down_at_once(world: World) -> None:
    _, order = await world.serving()
    with pytest.raises(httpx.HTTPError):
        await world.get("/give-up")
    await until(lambda: order.revision_id in world.reported)
    assert "stays down" in world.reported[order.revision_id]
    with pytest.raises((httpx.HTTPError, OSError)):
        await world.get()


async def test_each_worker_may_take_as_much_memory_and_only_the_one_that_takes_more_is_ended(world: World) -> None:
    _, order = await world.serving(min_scale=2, memory_limit_mb=220)
    eaters: set[str] = set()
    while len(eaters) < 2:
        eaters.add(await world.get("/eat"))
    before = world.process(order)
    await asyncio.sleep(2.5)  # the processes have been checked
    assert not any(text.startswith("out of memory") for text in world.texts())
    with suppress(httpx.HTTPError):  # it may be killed before it answers
        await world.get("/eat-more")
    await until(lambda: any(text.startswith("out of memory: the agent took") for text in world.texts()))
    assert len({str(pid) for pid in await world.workers(2)} & eaters) == 1
    assert world.process(order) == before


async def test_an_agent_that_eats_memory_or_crashes_in_a_loop_harms_no_other(world: World) -> None:
    runtime, order = await world.serving(memory_limit_mb=128)
    other = replace(world, number=world.number + 1, deployment_id=uuid7())
    await runtime.prepare(other.row)
    neighbour = other.order()
    await runtime.start(neighbour, {})
    await runtime.switch(neighbour)
    before = other.process(neighbour)
    for path in ("/eat", "/crash", "/give-up"):
        with suppress(httpx.HTTPError):  # it may be killed before it answers
            await world.get(path)
        assert await other.get() == str(neighbour.revision_id)
    await until(lambda: order.revision_id in world.reported)
    assert await other.get() == str(neighbour.revision_id)
    assert other.process(neighbour) == before
    await runtime.remove(other.row)


async def test_an_agent_that_eats_memory_is_ended_and_says_so(world: World) -> None:
    _, order = await world.serving(memory_limit_mb=128)
    before = world.process(order)
    with suppress(httpx.HTTPError):  # it may be killed before it answers
        await world.get("/eat")
    await until(lambda: any(text.startswith("out of memory: the agent took") for text in world.texts()))
    await until(lambda: world.process(order) not in {None, before})
    assert await world.get() == str(order.revision_id)
    assert LogLevel.CRITICAL in {line.level for line in world.lines}


async def test_an_agent_takes_no_more_of_the_processors_than_its_limit(world: World) -> None:
    if not processor_groups.are_available():
        pytest.skip("the kernel gives us no control groups")
    runtime, order = await world.serving(cpu=0.1, cpu_limit=0.3)
    group = processor_groups._root() / processor_groups._FOLDER / world.process(order).key
    await until(group.exists)
    assert 0.05 < float(await world.get("/spin")) < 0.4
    await runtime.remove(world.row)
    await until(lambda: not group.exists())


async def test_an_agent_that_takes_too_much_disk_is_stopped_and_says_so_and_harms_no_other(world: World) -> None:
    world.disk_bytes_max = 40 * 2**20
    runtime, order = await world.serving()
    other = replace(world, number=world.number + 1, deployment_id=uuid7())
    await runtime.prepare(other.row)
    neighbour = other.order()
    await runtime.start(neighbour, {})
    await runtime.switch(neighbour)
    assert await world.get(f"/fill/{10 * 2**20}") == str(order.revision_id)
    await asyncio.sleep(6)  # the process has been checked
    assert order.revision_id not in world.reported
    with suppress(httpx.HTTPError):  # it may be killed before it answers
        await world.get(f"/fill/{60 * 2**20}")
    await until(lambda: order.revision_id in world.reported)
    said = world.reported[order.revision_id]
    assert said.startswith("Out of disk: the deployment takes 0.1 GiB")
    assert "db_storage_gi" in said
    await until(lambda: any(text.startswith("out of disk") for text in world.texts()))
    with pytest.raises(httpx.ConnectError):
        await world.get()
    assert await other.get() == str(neighbour.revision_id)
    await runtime.remove(other.row)


async def test_the_database_counts_as_disk_of_its_agent(world: World) -> None:
    runtime, order = await world.serving(db_storage_gi=1)
    assert disk_limit_bytes(order.resource_spec, 5) == 2**30
    database = f"moorage_agent_{world.number}"
    size = await AgentDatabases(world.postgres).size_bytes(database)
    assert size > 2**20
    assert disk_excess(world.place, size, 2**30) is None
    assert disk_excess(world.place, 2 * 2**30, 2**30) is not None
    await runtime.remove(world.row)
    assert await AgentDatabases(world.postgres).size_bytes(database) == 0


@pytest.mark.skipif(not firewall.close(), reason="only root, with nftables, closes the network to agents")
async def test_an_agent_reaches_of_the_machine_what_it_is_given_and_no_more(world: World) -> None:
    with (
        socket.create_server(("127.0.0.1", free_low_port())) as given,
        socket.create_server(("127.0.0.1", free_low_port())) as other,
        socket.create_server(("127.0.0.1", 0)) as high,
    ):
        world.ports = {given.getsockname()[1]}
        await world.serving()
        assert await world.get(f"/reach/127.0.0.1/{given.getsockname()[1]}") == "reached"
        assert await world.get(f"/reach/127.0.0.1/{other.getsockname()[1]}") == "ConnectionRefusedError"
        assert await world.get(f"/reach/127.0.0.1/{high.getsockname()[1]}") == "reached"
        assert await world.get("/reach/169.254.169.254/80") in {"OSError", "PermissionError"}
        # We are no agent.
        socket.create_connection(other.getsockname(), timeout=5).close()


def free_low_port() -> int:
    """Return a free port below those that the kernel assigns by itself."""
    for port in random.sample(range(20_000, 32_000), 50):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is free")


def test_an_agent_that_ends_while_it_is_asked_leaves_no_trace_in_the_log(tmp_path):
    class Ending:
        """An agent whose end closes its connections, as the kernel does."""

        def __init__(self, listening: socket.socket) -> None:
            self._listening = listening
            self._alive = True

        def is_alive(self) -> bool:
            with suppress(BlockingIOError):
                self._listening.accept()[0].close()
                self._alive = False
            return self._alive

    async def ask() -> list[dict[str, object]]:
        told: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(tmp_path / "agent.sock"))
            listening.listen()
            listening.setblocking(False)
            assert not await is_well(tmp_path / "agent.sock", Ending(listening), 5)
            await asyncio.sleep(0.1)
        return told

    assert uvloop.run(ask()) == []
