"""The command line as a person uses it: its output, and its exit codes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import structlog
from typer.testing import CliRunner

from moorage import __version__
from moorage.cli import app
from tests.serving import free_port, make_server

# No server answers there. For commands that end before they need a database, so that none is started for them.
NO_DATABASE = f"postgresql://somebody:hunter2@127.0.0.1:{free_port()}/nothing?connect_timeout=1"
AGENT = """
import asyncio
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

class State(TypedDict, total=False):
    seconds: float

async def sleep(state: State) -> State:
    await asyncio.sleep(state["seconds"])
    return {"seconds": 0}

graph = StateGraph(State).add_node("sleep", sleep).add_edge(START, "sleep").add_edge("sleep", END).compile()
"""


@pytest.fixture
def project(folder: Path) -> Path:
    """Write the langgraph.json of a project with one graph, which sleeps."""
    (folder / "agent.py").write_text(AGENT)
    (folder / "langgraph.json").write_text(json.dumps({"graphs": {"sleeper": "./agent.py:graph"}}))
    return folder / "langgraph.json"


def moorage(*arguments: str | Path, **environment: str) -> tuple[int, str, str]:
    """Run a command that ends by itself, and return its exit code, standard output and standard error."""
    unset = {name: value for name, value in os.environ.items() if name not in ("DATABASE_URI", "POSTGRES_URI")}
    ended = subprocess.run(
        [sys.executable, "-m", "moorage", *map(str, arguments)],
        env={**unset, "COLUMNS": "120", "NO_COLOR": "1", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in ended.stderr, ended.stderr
    return ended.returncode, ended.stdout, ended.stderr


def in_process(*arguments: str | Path, **environment: str) -> tuple[int, str, str]:
    """Run a command as `moorage` does, but in this process: for commands that start nothing. It saves the second that a
    new process takes.
    """
    unset = dict.fromkeys(("DATABASE_URI", "POSTGRES_URI"))
    shown = {"COLUMNS": "120", "NO_COLOR": "1"}
    ended = CliRunner().invoke(app, list(map(str, arguments)), env={**unset, **shown, **environment})
    structlog.reset_defaults()  # the command has its logs written to a stream that is closed now
    assert isinstance(ended.exception, SystemExit | None), ended.exception
    return ended.exit_code, ended.stdout, ended.stderr


def test_version_prints_the_version():
    assert moorage("version") == (0, f"{__version__}\n", "")
    assert in_process("--version") == (0, f"{__version__}\n", "")
    told = json.loads(in_process("version", "-o", "json")[1])
    assert told.keys() == {"moorage", "langgraph", "python"}
    assert told["moorage"] == __version__


def test_help_names_every_command():
    code, out, err = in_process("--help")
    assert (code, err) == (0, "")
    assert "The open, self-hosted home for LangGraph agents." in out
    for command in ("dev", "serve", "migrate", "version"):
        assert f" {command} " in out


def test_no_command_is_a_question_for_help():
    code, out, err = in_process()
    assert code == 2
    assert "Usage: " in out + err


@pytest.mark.parametrize("command", ["dev", "serve", "migrate"])
def test_each_command_explains_its_options(command):
    code, out, _ = in_process(command, "--help")
    assert code == 0
    assert "--config" in out


@pytest.mark.parametrize("arguments", [["serve", "--colour"], ["sail"], ["serve", "--port", "high"]])
def test_what_it_does_not_know_is_a_usage_error(arguments):
    code, out, err = in_process(*arguments)
    assert (code, out) == (2, "")
    assert "Usage: " in err


# --- langgraph.json -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["dev", "serve", "migrate"])
def test_without_a_langgraph_json_it_says_so(folder, command, monkeypatch):
    monkeypatch.chdir(folder)
    code, _, err = in_process(command)
    assert code != 0
    assert "langgraph.json" in err
    assert "does not exist" in err or "There is no" in err


@pytest.mark.parametrize(
    "text, complaint",
    [
        ("{", "cannot be read as JSON: "),
        ("[]", "is not a valid langgraph.json: file: "),
        ("{}", "is not a valid langgraph.json: graphs: Field required"),
        ('{"graphs": {}}', "is not a valid langgraph.json: graphs: "),
        ('{"graphs": {"a": 1}}', "is not a valid langgraph.json: graphs.a"),
        ('{"graphs": {"a": "./a.py:a"}, "env": "nowhere.env"}', "names the environment file nowhere.env, which does"),
        ('{"graphs": {"a": "./a.py:a"}, "dependencies": ["./nowhere"]}', "names the dependency ./nowhere, which is"),
        (
            '{"graphs": {"a": "./a.py:a"}, "encryption": {"path": "./e.py:e"}}',
            "sets encryption, which encrypts what is",
        ),
    ],
)
def test_a_wrong_langgraph_json_ends_the_start_with_one_line(folder, text, complaint):
    config = folder / "langgraph.json"
    config.write_text(text)
    code, out, err = in_process("serve", "--config", config, "--port", str(free_port()), DATABASE_URI=NO_DATABASE)
    assert (code, out) == (1, "")
    assert err.startswith("error: ")
    assert complaint in err
    assert err.count("\n") == 1


# --- starting -----------------------------------------------------------------------------------------------------


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


@pytest.mark.parametrize("command", ["serve", "dev"])
def test_a_port_in_use_ends_the_start_in_plain_words(project, taken_port, command):
    code, out, err = in_process(command, "--config", project, "--port", str(taken_port))
    assert (code, out) == (1, "")
    assert " serves " not in err
    last = err.splitlines()[-1]
    assert last.startswith("error: ")
    assert str(taken_port) in last


def test_an_unreachable_database_ends_the_start_in_plain_words(project):
    commands = [("serve", "--config", project, "--port", str(free_port())), ("migrate", "--config", project)]
    with ThreadPoolExecutor() as both:
        for code, out, err in both.map(lambda command: moorage(*command, DATABASE_URI=NO_DATABASE), commands):
            assert (code, out) == (1, "")
            last = err.splitlines()[-1]
            assert last == "error: PostgreSQL does not answer; check DATABASE_URI and that the server runs"
            assert "hunter2" not in err


def test_migrate_says_what_it_applied_and_nothing_else(project):
    code, out, _ = moorage("migrate", "--config", project)
    assert code == 0
    assert out.splitlines()[0] == "applied agents/0018_agent_server"
    assert all(line.startswith("applied agents/") for line in out.splitlines())
    assert moorage("migrate", "--config", project)[:2] == (0, "up to date\n")


def test_an_open_address_without_authentication_is_warned_of(folder):
    config, port = folder / "langgraph.json", str(free_port())
    config.write_text("{")
    everywhere = "0.0.0.0"  # noqa: S104
    listen = ("--host", everywhere, "--port", port)
    _, _, err = in_process("serve", "--config", config, *listen, DATABASE_URI=NO_DATABASE)
    warning = err.splitlines()[0]
    assert warning.startswith("warning: ")
    assert everywhere in warning


def test_the_environment_names_the_port_and_the_home(project):
    port, home = free_port(), project.parent / "elsewhere"
    named = {"PORT": str(port), "MOORAGE_HOME": str(home)}
    with running("serve", "--config", project, log=project.parent / "log", **named):
        wait_for(lambda: httpx.get(f"http://127.0.0.1:{port}/ok").json() == {"ok": True, "services": {}})
        assert home.is_dir()
        assert not (project.parent / ".moorage").exists()


def test_serve_listens_on_a_unix_socket(project):
    path = project.parent / "moorage.sock"
    with running("serve", "--config", project, "--uds", path, log=project.parent / "log") as log:
        wait_for(path.exists)
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://moorage") as http:
            wait_for(lambda: http.get("/ok").is_success)
            run = {"assistant_id": "sleeper", "input": {"seconds": 0.1}}
            assert http.post("/runs/wait", json=run).json() == {"seconds": 0}
        assert log.read_text().endswith(f"serves sleeper at {path}\n")
    assert not path.exists()


@contextmanager
def running(*arguments: str | Path, log: Path, **environment: str) -> Iterator[Path]:
    """Run a command until the end of the context; its output is in the log."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "moorage", *map(str, arguments)],
            stdout=file,
            stderr=file,
            env={**os.environ, **environment},
        )
    try:
        yield log
    finally:
        process.terminate()
        assert process.wait(30) == 0, log.read_text()


def wait_for(what: Callable[[], Any], timeout_s: float = 20) -> None:
    """Wait until the condition is true. A server that does not answer is only not up yet."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            if what():
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise AssertionError("it did not happen in time")


# --- stopping -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_the_server_and_all_that_it_started_in_the_midst_of_a_run(folder, project, number, code):
    server = make_server(folder, project)
    server.start()
    family = psutil.Process(server.pid).children(recursive=True)
    assert family  # the embedded database
    run = {"assistant_id": "sleeper", "input": {"seconds": 600}}
    with httpx.stream("POST", f"{server.url}/runs/stream", json=run, timeout=30) as answer:
        next(answer.iter_raw())
        start = time.monotonic()
        assert server.stop(number) == code
    assert time.monotonic() - start < 10
    _, alive = psutil.wait_procs(family, 10)
    assert alive == []
    assert "Traceback" not in server.log.read_text()


@pytest.mark.parametrize("command", ["serve", "dev"])
def test_ctrl_c_reaches_the_whole_group_and_still_ends_it_in_order(project, command):
    """A terminal signals every process in the foreground at once: the server, and its database too."""
    log, port = project.parent / "log", free_port()
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "moorage", command, "--config", str(project), "--port", str(port)],
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    wait_for(lambda: httpx.get(f"http://127.0.0.1:{port}/ok").is_success)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(30) == 130
    assert "Traceback" not in log.read_text()
