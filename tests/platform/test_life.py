"""`moorage up`, `down` and `restart` as a person uses them: their output, and which processes keep running."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from uuid import UUID

import httpx
import pytest

from moorage.accounts.workspaces import FirstStart
from moorage.cli import platform as command
from moorage.cli.output import Output
from moorage.embedded.front_door import AWAY_WAIT_S
from moorage.wiring.platform import Platform as Started
from tests.platform.serving import environment, make_platform, moorage
from tests.waiting import wait_until

pytest_plugins = "tests.platform.fixtures"


def test_the_first_start_prints_all_that_a_client_needs(platform):
    printed = platform.log.read_text()
    assert f"runs at {platform.url}" in printed
    assert f"export LANGSMITH_ENDPOINT={platform.url}/api/v1" in printed
    with platform.client() as api:
        [workspace] = api.get("/api/v1/workspaces").json()
    assert workspace["id"] == str(platform.workspace_id)


def test_a_program_gets_what_a_start_prints_as_json(capsys):
    for key in ("lsv2_pt_x", None):
        command._announce("http://localhost:1", Started(None, FirstStart(UUID(int=1), key), None, None), Output.JSON)
        told = json.loads(capsys.readouterr().out)
        assert told == {
            "url": "http://localhost:1",
            "workspace_id": str(UUID(int=1)),
            "api_key": key,
            "console": "http://localhost:1",
        }


def test_a_second_one_on_the_home_says_who_runs_there(platform):
    code, out, err = moorage("up", "--home", platform.home, "--port", "1")
    assert (code, out) == (5, "")
    assert f"already runs for {platform.home} at {platform.url} (process {platform.pid}, since " in err


def test_it_outlives_a_restart_a_kill_and_the_loss_of_its_front_door_and_leaves_nothing_behind(platform_folder):
    with make_platform(platform_folder / "home") as platform:
        engines = platform.engines()
        assert set(engines) == {"caddy", "clickhouse", "postgres"}

        restart = ("restart", "--home", platform.home, "-o", "json")
        answers, told = _answers_while(platform.url, lambda: moorage(*restart))
        assert json.loads(told) == {"home": str(platform.home), "url": platform.url}
        assert (200, True) in answers
        assert {status for status, _ in answers} <= {200, 503}, "none is refused"
        assert answers.count((503, False)) <= 1, "none fails without having waited, but one that was under way"
        assert platform.engines() == engines
        assert platform.process.poll() is None, "it is the same process"

        platform.kill()
        away = httpx.get(f"{platform.url}/ok")
        assert (away.status_code, away.headers["Retry-After"]) == (503, "1")
        platform.start()
        assert platform.engines() == engines
        with platform.client() as api:
            assert api.get("/api/v1/workspaces").status_code == 200
        assert platform.log.read_text().count("API key") == 1, "the key is shown once"

        os.kill(engines["caddy"], signal.SIGKILL)
        wait_until(lambda: platform.engines().get("caddy", engines["caddy"]) != engines["caddy"])
        assert httpx.get(f"{platform.url}/ok").status_code == 200

        assert platform.stop(signal.SIGINT) == 130
        assert platform.engines() == {}
        assert moorage("down", "--home", platform.home) == (
            0,
            f"nothing runs in {platform.home}; `moorage up` starts the platform\n",
            "",
        )
        _, told, _ = moorage("down", "--home", platform.home, "-o", "json")
        assert json.loads(told) == {"home": str(platform.home), "was_running": False}
        code, _, err = moorage("restart", "--home", platform.home)
        assert (code, "nothing runs" in err) == (3, True)


def _answers_while(url: str, act: Callable[[], tuple[int, str, str]]) -> tuple[list[tuple[int, bool]], str]:
    """Send requests, each on a new connection, from before to after the command.

    Returns their statuses, whether they waited for a platform that was away, and the command's output.
    """
    answers, over = list[tuple[int, bool]](), threading.Event()

    def ask() -> None:
        while not over.is_set():
            began = time.monotonic()
            status = httpx.get(f"{url}/ok", timeout=30).status_code
            waited_s = time.monotonic() - began
            answers.append((status, waited_s > (0.3 if status == 200 else AWAY_WAIT_S - 0.5)))

    asking = threading.Thread(target=ask)
    asking.start()
    code, out, err = act()
    over.set()
    asking.join()
    assert code == 0, err
    return answers, out


GIVEN = {
    "MOORAGE_BOOTSTRAP_API_KEY": "lsv2_pt_0123456789abcdef",
    "MOORAGE_BOOTSTRAP_WORKSPACE_ID": "6a9dcb05-1f0e-4d0c-9a9b-0d7d34c1a111",
    "MOORAGE_PUBLIC_URL": "https://agents.example.com",
}


def test_an_unattended_install_has_what_it_was_given_and_down_stops_what_a_killed_one_left(platform_folder):
    with make_platform(platform_folder / "given", **GIVEN) as platform:
        with platform.client() as api:
            [workspace] = api.get("/workspaces").json()
        assert workspace["id"] == GIVEN["MOORAGE_BOOTSTRAP_WORKSPACE_ID"]
        assert f"runs at {GIVEN['MOORAGE_PUBLIC_URL']}\n" in platform.log.read_text()
        assert GIVEN["MOORAGE_BOOTSTRAP_API_KEY"] not in platform.log.read_text()

        platform.kill()
        code, out, _ = moorage("down", "--home", platform.home)
        assert (code, out) == (0, f"stopped moorage and everything that ran in {platform.home}\n")
        assert platform.engines() == {}


def test_the_owner_of_a_home_gets_another_key_while_it_runs_and_while_it_does_not(platform_folder):
    home = platform_folder / "recovered"
    nothing = moorage("keys", "recover", "--home", home)
    assert (nothing[0], "no platform has run" in nothing[2], home.exists()) == (3, True, False)
    with make_platform(home) as platform:
        code, told, advice = moorage("keys", "recover", "--home", home, "-o", "json")
        assert (code, "not shown again" in advice) == (0, True)
        running = json.loads(told)
        assert running["workspace_id"] == str(platform.workspace_id)
        platform.stop()
        stopped = json.loads(moorage("keys", "recover", "--home", home, "-o", "json")[1])
        foreign = moorage("keys", "recover", "--home", home, "--workspace", "00000000-0000-7000-8000-000000000000")
        assert (foreign[0], "there is no workspace" in foreign[2]) == (3, True)
        platform.start()
        for key in (platform.key, running["api_key"], stopped["api_key"]):
            answer = httpx.get(f"{platform.url}/api/v1/api-key", headers={"X-Api-Key": key}, timeout=30)
            assert answer.status_code == 200, answer.text
        assert {found["description"] for found in answer.json()} == {"First API key", "Recovered API key"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a home of somebody else")
def test_nobody_else_gets_a_key_of_a_home(platform_folder):
    home = platform_folder / "foreign"
    (home / "postgres").mkdir(parents=True)
    os.chown(home, 12345, 12345)
    refused = moorage("keys", "recover", "--home", home)
    assert (refused[0], "only the owner of" in refused[2]) == (4, True)


def test_an_address_that_is_taken_is_said_before_anything_is_started(platform_folder):
    home = platform_folder / "taken"
    with closing(socket.socket()) as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        code, _, err = moorage("up", "--home", home, "--port", port)
    assert code == 1
    assert f"Cannot listen on http://127.0.0.1:{port}: Address already in use. Is another server running there?" in err
    assert "choose another --host, --port" in err
    assert not (home / "postgres").exists()


@pytest.mark.parametrize("place, reason", [("/proc/moorage", "No such file"), ("/dev/null/home", "Not a directory")])
def test_a_home_that_cannot_be_written_is_said(place, reason):
    code, _, err = moorage("up", "--home", place)
    assert code == 1
    assert f"The platform cannot use {place}: {reason}" in err
    assert "--home" in err


@pytest.mark.parametrize(
    "name, value", [("MOORAGE_PORT", "hunter2"), ("MOORAGE_BOOTSTRAP_WORKSPACE_ID", "hunter2"), ("LOG_JSON", "hunter2")]
)
def test_a_wrong_setting_is_named_and_not_shown(platform_folder, name, value):
    code, _, err = moorage("up", "--home", platform_folder / "wrong", **{name: value})
    assert code == 1
    assert f"Invalid settings. {name}: " in err
    assert value not in err


def test_without_the_extra_it_says_what_to_install():
    hidden = f"import sys; sys.modules.update(dict.fromkeys({command._EXTRA!r}))"
    run = "from moorage.cli import app; app(['up'])"
    ended = subprocess.run(
        [sys.executable, "-c", f"{hidden}; {run}"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode == 1
    assert "pip install 'moorage[platform]'" in ended.stderr
