"""Users of agents: no two deployments of a machine have the same one, and none outlives its deployment."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.platform.serving import make_folder

from moorage.embedded import processes, users
from moorage.embedded.users import Users, end_all, processes_of, user_of
from moorage.kernel.errors import EngineError

pytestmark = pytest.mark.skipif(not processes.is_root(), reason="only root gives agents users of their own")

# The last ones that a machine assigns, so they are not assigned while these tests run.
_LAST = (61180, 61181, 61182, 61183)


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(users, "AGENT_UIDS", _LAST)
    with make_folder() as made:
        yield made


def make_deployment(folder: Path) -> Path:
    for part in ("run", "home"):
        (folder / part).mkdir(parents=True)
    return folder


def sleep_as(uid: int, script: str = "exec sleep 300") -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["/bin/sh", "-c", script], user=uid, group=uid, extra_groups=[], start_new_session=True, cwd="/"
    )


def test_deployments_of_several_homes_have_users_of_their_own(folder: Path) -> None:
    register = Users(folder / "users")
    deployments = [make_deployment(folder / home / "agents" / "1") for home in ("a", "b", "c", "d")]
    with ThreadPoolExecutor() as threads:
        given = list(threads.map(register.claim, deployments))
    assert sorted(given) == list(_LAST)
    assert [register.claim(each) for each in deployments] == given == [user_of(each) for each in deployments]
    with pytest.raises(EngineError, match="All 4 operating-system users"):
        register.claim(make_deployment(folder / "e" / "agents" / "1"))


def test_a_home_that_is_deleted_frees_its_users_and_what_still_runs_as_them_ends(folder: Path) -> None:
    register = Users(folder / "users")
    deployments = [make_deployment(folder / name) for name in "abcd"]
    given = [register.claim(each) for each in deployments]
    left = sleep_as(given[2])
    shutil.rmtree(deployments[2])
    assert register.claim(make_deployment(folder / "next")) == given[2]
    assert left.wait(10) == -9


def test_a_copy_of_a_home_gets_users_of_its_own_and_a_moved_one_keeps_them(folder: Path) -> None:
    register, first = Users(folder / "users"), make_deployment(folder / "first")
    uid = register.claim(first)
    (first / "home" / "file").touch()
    shutil.chown(first / "home" / "file", uid, uid)
    subprocess.run(["cp", "-a", first, folder / "copy"], check=True)
    other = register.claim(folder / "copy")
    assert other != uid
    assert (folder / "copy" / "home" / "file").stat().st_uid == other
    assert (first / "home" / "file").stat().st_uid == uid
    first.rename(folder / "moved")
    assert register.claim(folder / "moved") == uid


def test_a_user_that_others_run_as_is_not_given_out(folder: Path) -> None:
    stranger = sleep_as(_LAST[0])
    try:
        assert Users(folder / "users").claim(make_deployment(folder / "one")) == _LAST[1]
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_home_of_an_earlier_version_keeps_its_user_unless_another_has_it(folder: Path) -> None:
    register = Users(folder / "users")
    deployments = [make_deployment(folder / name) for name in "ab"]
    for each in deployments:
        shutil.chown(each / "home", _LAST[2], _LAST[2])
    assert [register.claim(each) for each in deployments] == [_LAST[2], _LAST[0]]
    assert (deployments[1] / "home").stat().st_uid == _LAST[0]


def test_all_processes_of_a_user_end_whatever_they_have_left(folder: Path) -> None:
    script = "for n in 1 2 3 4 5; do (setsid sh -c 'while :; do setsid sleep 30 & sleep 0.05; done' &); done; sleep 300"
    uid = Users(folder / "users").claim(make_deployment(folder / "one"))
    started = sleep_as(uid, f"ulimit -p 60 || ulimit -u 60; {script}")
    try:
        for _ in range(500):
            if len(processes_of(uid)) > 10:  # the five loops, and some processes that they have left
                break
            subprocess.run(["sleep", "0.02"], check=True)
        assert len(processes_of(uid)) > 10
    finally:
        end_all(uid)
    assert processes_of(uid) == []
    assert started.wait(10) == -9


def test_no_other_user_is_ever_ended() -> None:
    for uid in (0, processes.ENGINE_UID, 1000):
        with pytest.raises(ValueError, match="no agents' user"):
            end_all(uid)
