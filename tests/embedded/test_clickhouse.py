"""The life of the embedded trace store, on the real engine. Each user of a home is a process, so that it can be killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.embedded.home_users import User

from moorage.embedded import clickhouse, processes
from moorage.embedded.clickhouse import EmbeddedClickHouse
from moorage.embedded.engine import LOG_BYTES_MAX, socket_directory
from moorage.kernel.clickhouse import ClickHouse
from moorage.kernel.errors import EngineError

IS_ROOT = os.geteuid() == 0
ROOT_ONLY = pytest.mark.skipif(not IS_ROOT, reason="the way of root can only be tested as root")


class Home:
    """A home in a directory that the engine can reach, and the processes that use it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.users: list[User] = []

    def user(self) -> User:
        self.users.append(User(lambda: EmbeddedClickHouse(self.path)))
        return self.users[-1]

    def server_pid(self) -> int:
        return int((self.path / "clickhouse/server.lock").read_text())

    def server_pids(self) -> list[int]:
        name = os.fsencode(self.path / "clickhouse")
        return [pid for pid in processes.all_pids() if name in _command_line(pid).split(b"\0")]

    def close(self) -> None:
        for user in self.users:
            user.kill()
        for pid in self.server_pids():
            processes.signal_if_alive(pid, signal.SIGKILL)


def _command_line(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


@pytest.fixture
def home(folder: Path) -> Iterator[Home]:
    home = Home(folder / "home")
    yield home
    home.close()


def query(url: str, sql: str) -> list[tuple]:
    async def ask() -> list[tuple]:
        client = ClickHouse(url)
        try:
            return await client.rows(sql) if sql.startswith("SELECT") else await client.command(sql) or []
        finally:
            await client.close()

    return asyncio.run(ask())


KEPT = "CREATE TABLE kept (number UInt32) ENGINE = MergeTree ORDER BY number SETTINGS fsync_after_insert = 1"


# --- the ordinary life ---


def test_start_answers_and_stop_leaves_nothing_running(home: Home) -> None:
    user = home.user()
    url = user.start()
    assert query(url, "SELECT currentDatabase(), timezone()") == [("moorage", "UTC")]
    assert os.getsid(home.server_pid()) == home.server_pid(), "no Ctrl-C of ours reaches it"
    [uids] = [line for line in Path(f"/proc/{home.server_pid()}/status").read_text().splitlines() if "Uid:" in line]
    assert set(uids.split()[1:]) == {str(processes.engine_uid())}
    user.stop()
    assert home.server_pids() == []
    user.stop()


def test_files_are_closed_to_others(home: Home) -> None:
    home.user().start()
    password = (home.path / "clickhouse/password").stat()
    assert (password.st_uid, password.st_mode & 0o777) == (os.geteuid(), 0o600)
    for name in ("clickhouse/data", "clickhouse/spool"):
        found = (home.path / name).stat()
        assert (found.st_uid, found.st_mode & 0o777) == (processes.engine_uid(), 0o700)
    assert (home.path / "run/clickhouse.sock").stat().st_mode & 0o077 == 0


def test_data_is_there_after_a_restart_and_what_was_spooled_is_not(home: Home) -> None:
    user = home.user()
    url = user.start()
    query(url, KEPT)
    query(url, "INSERT INTO kept VALUES (7)")
    user.stop()
    left_over = home.path / "clickhouse/spool/0123.parquet"
    left_over.touch()
    os.chown(left_over, processes.engine_uid(), -1)
    assert query(user.start(), "SELECT number FROM kept") == [(7,)]
    assert not left_over.exists()


def test_stop_of_a_home_that_was_never_started(home: Home) -> None:
    home.user().stop()
    assert not home.path.exists()


# --- several users ---


def test_two_processes_that_start_at_the_same_instant_share_one_store(home: Home) -> None:
    users = [home.user(), home.user()]
    for user in users:
        user.send("start")
    one, other = [user.result() for user in users]
    assert one == other
    assert len(home.server_pids()) == 1
    users[0].stop()
    assert query(other, "SELECT 1") == [(1,)]
    users[1].stop()
    assert home.server_pids() == []


# --- kills ---


def test_store_of_a_killed_process_is_adopted(home: Home) -> None:
    killed = home.user()
    url = killed.start()
    server = home.server_pid()
    killed.kill()
    assert query(url, "SELECT 1") == [(1,)]
    heir = home.user()
    assert heir.start() == url
    assert home.server_pid() == server
    heir.kill()
    home.user().stop()
    assert home.server_pids() == [], "also without a start"


def test_every_acknowledged_insert_is_there_after_kills(home: Home) -> None:
    """Several writers insert blocks of ten. The store is killed while they do, and comes back under them."""
    user = home.user()
    url = user.start()
    query(url, KEPT)
    acknowledged: set[int] = set()
    over = threading.Event()

    def write(writer: int) -> None:
        asyncio.run(_insert_blocks(url, writer, acknowledged, over))

    writers = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in writers:
        thread.start()
    for pause_s in (0.25, 0.1, 0.4):
        seen = len(acknowledged)
        _wait_until(lambda seen=seen: len(acknowledged) > seen)
        time.sleep(pause_s)
        os.kill(home.server_pid(), signal.SIGKILL)
        assert user.start() == url
    over.set()
    for thread in writers:
        thread.join()
    # An insert whose answer was lost is sent again: all of its rows may be there twice, but never a part of them.
    counts = query(url, "SELECT intDiv(number, 10) AS block, uniqExact(number), count() % 10 FROM kept GROUP BY block")
    assert acknowledged <= {block for block, _, _ in counts}
    assert {(distinct, rest) for _, distinct, rest in counts} == {(10, 0)}


async def _insert_blocks(url: str, writer: int, acknowledged: set[int], over: threading.Event) -> None:
    client = ClickHouse(url)
    for block in range(writer * 100_000, (writer + 1) * 100_000):
        await client.insert("kept", {"number": ("UInt32", list(range(block * 10, block * 10 + 10)))})
        acknowledged.add(block)
        if over.is_set():
            break
    await client.close()


def _wait_until(condition: Callable[[], bool], bound_s: float = 30) -> None:
    give_up_at = time.monotonic() + bound_s
    while not condition():
        assert time.monotonic() < give_up_at, "it did not come to pass"
        time.sleep(0.01)


def test_store_that_hangs_is_replaced_at_a_start_and_killed_at_a_stop(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clickhouse, "ANSWER_BOUND_S", 0.2)
    monkeypatch.setattr(EmbeddedClickHouse, "hang_bound_s", 0.5)
    monkeypatch.setattr(EmbeddedClickHouse, "stop_signals", ((signal.SIGTERM, 0.5), (signal.SIGKILL, 0.5)))
    user = home.user()
    user.start()
    hanging = home.server_pid()
    os.kill(hanging, signal.SIGSTOP)
    assert query(user.start(), "SELECT 1") == [(1,)]
    assert home.server_pid() != hanging
    os.kill(home.server_pid(), signal.SIGSTOP)
    user.stop()
    assert home.server_pids() == []


def test_stale_number_that_is_in_use_again(home: Home) -> None:
    user = home.user()
    user.start()
    user.stop()
    with subprocess.Popen(["sleep", "60"]) as bystander:
        (home.path / "clickhouse/server.lock").write_text(str(bystander.pid))
        assert query(user.start(), "SELECT 1") == [(1,)]
        (home.path / "clickhouse/server.lock").write_text(str(bystander.pid))
        assert bystander.poll() is None, "not ours to stop"
        bystander.kill()


# --- places ---


@pytest.mark.parametrize("name", ["space 'quotes\" back\\slash ünï", "what? {glob,*} & %20", "long" * 25])
def test_odd_names(folder: Path, name: str) -> None:
    home = Home(folder / name)
    try:
        user = home.user()
        url = user.start()
        query(url, KEPT)
        assert query(url, "SELECT count() FROM kept") == [(0,)]
        user.stop()
        assert home.server_pids() == []
    finally:
        home.close()
        if name.startswith("long"):
            socket_directory(home.path, clickhouse._SOCKET_NAME).rmdir()


@ROOT_ONLY
def test_home_that_the_engine_cannot_reach(folder: Path) -> None:
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(EngineError, match=rf"cannot pass through {closed} .* --home.* CLICKHOUSE_URL"):
        EmbeddedClickHouse(closed / "home").start()


@ROOT_ONLY
def test_data_of_another_user(home: Home) -> None:
    data = home.path / "clickhouse/data"
    data.mkdir(parents=True)
    os.chown(data, 1000, 1000)
    with pytest.raises(EngineError, match="is not a directory that only uid"):
        home.user().start()


def test_failed_start_shows_the_engines_own_words(home: Home) -> None:
    user = home.user()
    user.start()
    user.stop()
    (home.path / "run/clickhouse.sock").unlink(missing_ok=True)
    (home.path / "run/clickhouse.sock").mkdir()
    with pytest.raises(EngineError, match=r"ended at its start(.|\n)*Is a directory"):
        user.start()


def test_log_does_not_grow_for_ever(home: Home) -> None:
    user = home.user()
    user.start()
    user.stop()
    log = home.path / "clickhouse/log"
    with log.open("r+") as file:
        file.truncate(LOG_BYTES_MAX + 1)
    user.start()
    assert log.stat().st_size < 10_000
    assert log.with_name("log.1").stat().st_size > LOG_BYTES_MAX
