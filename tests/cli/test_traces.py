"""`moorage traces` against a running platform."""

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
import typer
from rich.cells import cell_len
from typer.testing import CliRunner

from moorage.cli import traces
from tests.cli.terminals import on_terminal, without_colours
from tests.platform.serving import environment
from tests.waiting import wait_until

pytest_plugins = "tests.platform.fixtures"

app = typer.Typer()
app.add_typer(traces.app, name="traces")


@pytest.fixture
def moorage(platform, project):
    def run(*arguments, **settings):
        named = {"MOORAGE_URL": platform.url, "MOORAGE_API_KEY": platform.key, "LANGSMITH_PROJECT": project}
        return CliRunner().invoke(app, ["traces", *arguments], env=named | settings)

    return run


@pytest.fixture
def project():
    return f"traces-{uuid4().hex[:8]}"


@pytest.fixture
def send(api, project):
    """Send runs, and wait until they are there. Each is a root unless it names its parent."""

    def make(name, parent=None, ago_s=60, **fields):
        started = datetime.now(UTC) - timedelta(seconds=ago_s)
        run_id = str(uuid4())
        segment = f"{started:%Y%m%dT%H%M%S%fZ}{run_id}"
        return {
            "id": run_id,
            "name": name,
            "run_type": "chain",
            "session_name": project,
            "trace_id": parent["trace_id"] if parent else run_id,
            "parent_run_id": parent["id"] if parent else None,
            "dotted_order": f"{parent['dotted_order']}.{segment}" if parent else segment,
            "start_time": started.isoformat(),
            "end_time": (started + timedelta(seconds=1.5)).isoformat(),
            "inputs": {"q": name},
            **fields,
        }

    def send(*runs):
        assert api.post("/runs/batch", json={"post": runs, "patch": []}).status_code == 202
        places = [f"/api/v1/runs/{run['id']}" for run in (runs[0], runs[-1])]
        wait_until(lambda: all(api.get(place).status_code == 200 for place in places), 10)

    send.make = make
    return send


def test_traces_are_listed_newest_first(moorage, send):
    old, new = send.make("old", ago_s=7200), send.make("new\x1b[2J", error="boom\n  at line 1")
    child = send.make("child", new, ago_s=59)
    send(old, new, child)
    listed = json.loads(moorage("list", "-o", "json").stdout)
    assert [run["id"] for run in listed] == [new["id"], old["id"]]
    assert listed[1]["inputs"] == {"q": "old"}
    lines = moorage("list").stdout.splitlines()
    assert lines[1].split()[0] == new["id"]
    assert all(part in lines[1] for part in ("error", "1.50 s", "boom"))
    assert "\x1b" not in lines[1]

    def ids(*arguments):
        result = moorage("list", "-o", "json", *arguments)
        assert result.exit_code == 0, result.output
        return [run["id"] for run in json.loads(result.stdout)]

    assert ids("--since", "1h") == [new["id"]]
    assert ids("--until", (datetime.now(UTC) - timedelta(hours=1)).isoformat()) == [old["id"]]
    assert (ids("--failed"), ids("--ok")) == ([new["id"]], [old["id"]])
    assert ids("--filter", 'eq(name, "old")') == [old["id"]]
    assert ids("--limit", "1") == [new["id"]]
    assert set(ids("--all-runs")) == {old["id"], new["id"], child["id"]}


def test_more_than_a_page_is_listed(moorage, send):
    send(*(send.make(str(number), ago_s=60 + number) for number in range(130)))
    listed = json.loads(moorage("list", "--limit", "120", "-o", "json").stdout)
    assert [run["name"] for run in listed] == [str(number) for number in range(120)]


def test_a_trace_is_a_tree(moorage, send):
    root = send.make("agent")
    usage = {"metadata": {"usage_metadata": {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}}}
    model = send.make("model", root, ago_s=59, run_type="llm", extra=usage, outputs={"answer": "4 knots"})
    error = "no such fileTraceback (most recent call last):\n  File ..."
    tool = send.make("tool", root, ago_s=58, run_type="tool", error=error)
    inner = send.make("inner", tool, ago_s=57, end_time=None)
    send(root, model, tool, inner)
    for named in (root["id"], inner["id"]):
        result = moorage("get", named)
        assert result.exit_code == 0, result.output
        assert [line.rstrip() for line in result.stdout.splitlines()] == [
            "agent  chain  1.50 s  7 tokens",
            "  in   agent",
            "├── model  llm  1.50 s  7 tokens",
            "│     in   model",
            "│     out  4 knots",
            "└── tool  tool  error  1.50 s",
            "      no such file",
            "      in   tool",
            "    └── inner  chain  pending",
            "          in   inner",
        ]
        assert "4 runs" in result.stderr
    runs = json.loads(moorage("get", root["id"], "-o", "json").stdout)
    assert [run["name"] for run in runs] == ["agent", "model", "tool", "inner"]


def test_what_a_graph_asks_is_no_error(moorage, send):
    root = send.make("agent")
    error = """GraphInterrupt((Interrupt(value='May I sail?', id='9f'),))Traceback (most recent call last):"""
    send(root, send.make("approve", root, ago_s=59, error=error))
    shown = moorage("get", root["id"]).stdout
    assert "approve  chain  interrupt" in shown
    assert "'May I sail?'\n" in shown.replace(" \n", "\n")
    assert "error" not in shown
    [line] = [line for line in moorage("list", "--all-runs").stdout.splitlines() if "approve" in line]
    assert "interrupt" in line
    assert "error" not in line
    assert "error" not in moorage("tail").stdout


def test_what_a_graph_asks_counts_as_an_interrupt_and_not_as_an_error(moorage, send):
    asked = """GraphInterrupt((Interrupt(value='May I sail?', id='9f'),))Traceback (most recent call last):"""
    send(send.make("approve", error=asked), send.make("approve"), send.make("approve", error="no GraphInterrupt(("))
    send(send.make("sail", error="aground"))
    groups = json.loads(moorage("stats", "--by", "name", "-o", "json").stdout)
    told = {name: (round(row["error_rate"], 2), row.get("interrupt_count")) for name, row in groups.items()}
    assert told == {"approve": (0.33, 1), "sail": (1.0, 0)}
    total = json.loads(moorage("stats", "--filter", 'eq(name, "approve")', "-o", "json").stdout)
    assert (round(total["error_rate"], 2), total["interrupt_count"]) == (0.33, 1)
    assert "interrupts" in moorage("stats").stdout


def test_traces_of_all_projects_are_listed_when_none_is_named(platform, moorage, send, project):
    run, other = send.make("mine"), send.make("theirs", session_name=f"{project}-2")
    send(run, other)
    listed = moorage("list", "--limit", "100", LANGSMITH_PROJECT="")
    assert listed.exit_code == 0, listed.output
    projects = {line.split()[0]: line.split()[-3] for line in listed.stdout.splitlines()}
    assert (projects[run["id"]], projects[other["id"]]) == (project, f"{project}-2")
    found = json.loads(moorage("list", "-o", "json", "--limit", "100", LANGSMITH_PROJECT="").stdout)
    assert {run["id"], other["id"]} <= {each["id"] for each in found}
    assert [each["id"] for each in json.loads(moorage("list", "-o", "json").stdout)] == [run["id"]]


def test_before_the_first_trace_it_is_said_how_to_send_one(api, moorage):
    made = api.post("/api/v1/workspaces", json={"display_name": "empty"}).json()
    for command in ("list", "tail"):
        shown = moorage(command, LANGSMITH_PROJECT="", MOORAGE_API_KEY=made["api_key"])
        assert (shown.exit_code, shown.stdout) == (0, "")
        assert "LANGSMITH_TRACING=true" in shown.stderr
    assert moorage("stats", LANGSMITH_PROJECT="", MOORAGE_API_KEY=made["api_key"]).exit_code == 3


@pytest.mark.parametrize("width", [80, 120])
def test_lists_and_trees_fit_the_terminal(platform, send, project, width):
    root = send.make("an agent of a rather long name", error="ValueError: " + "no wind " * 30)
    model = send.make("model", root, ago_s=59, outputs={"answer": "knots " * 50})
    send(root, model)
    for command in (["list"], ["get", root["id"]], ["tail"]):
        named = {"MOORAGE_URL": platform.url, "MOORAGE_API_KEY": platform.key, "LANGSMITH_PROJECT": project}
        code, shown = on_terminal(["traces", *command], width, **named)
        assert code == 0, shown
        assert all(0 < cell_len(without_colours(line)) <= width for line in shown), shown
        assert sum("\x1b[31m" in line for line in shown) >= 1, shown  # red
        if command != ["tail"]:
            assert sum("ValueErr" in line for line in shown) == 1, shown


def test_what_traces_add_up_to_is_shown(moorage, send):
    root, other = send.make("a", tags=["x"]), send.make("b", error="no", extra={"metadata": {"user": "ann"}})
    send(root, other)
    stats = json.loads(moorage("stats", "-o", "json").stdout)
    assert (stats["run_count"], stats["error_rate"]) == (2, 0.5)
    shown = moorage("stats").stdout
    assert "50.0 %" in shown
    assert set(json.loads(moorage("stats", "--by", "name", "-o", "json").stdout)) == {"a", "b"}
    over_time = json.loads(moorage("stats", "--by", "time", "--groups", "10", "-o", "json").stdout)
    assert sum(each["run_count"] for each in over_time) == 2
    assert 1 <= len(over_time) <= 10
    assert moorage("stats", "--by", "time").stdout.split()[:2] == ["FROM", "RUNS"]
    lines = moorage("stats", "--by", "metadata:user").stdout.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["ann", "1"]]
    assert json.loads(moorage("stats", "--since", "1s", "-o", "json").stdout)["run_count"] == 0


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["list", "--project", "not there"], 3, "no project"),
        (["list", "--filter", "eq(nothing"], 2, "Invalid filter"),
        (["list", "--since", "yesterday"], 2, "an age such as"),
        (["list", "--since", "9999999d"], 2, "an age such as"),
        (["list", "--since", "99999999999999999999d"], 2, "an age such as"),
        (["list", "--limit", "0"], 2, "limit"),
        (["get", "../sessions"], 2, "UUID"),
        (["get", str(uuid4())], 3, "not found"),
        (["stats", "--by", "shoe"], 2, "attribute"),
    ],
)
def test_what_goes_wrong_has_its_exit_code(moorage, send, arguments, code, told):
    send(send.make("any"))
    result = moorage(*arguments)
    assert (result.exit_code, told in result.stderr) == (code, True), result.output


def test_the_newest_traces_are_shown_oldest_first(moorage, send):
    send(*(send.make(f"run-{number}", ago_s=60 - number) for number in range(3)))
    result = moorage("tail", "-n", "2")
    assert [line.split()[4] for line in result.stdout.splitlines()] == ["run-1", "run-2"]


def test_a_follower_sees_traces_begin_and_end(platform, project, api, send):
    send(send.make("before"))
    settings = {"MOORAGE_URL": platform.url, "MOORAGE_API_KEY": platform.key}
    command = [sys.executable, "-c", "from moorage.cli import traces; traces.app()"]
    command += ["tail", "-f", "-n", "1", "-p", project, "-o", "json"]
    follower = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment(**settings))
    try:
        assert json.loads(follower.stdout.readline())["name"] == "before"
        pending = send.make("slow", ago_s=0, end_time=None)
        send(pending)
        began = json.loads(follower.stdout.readline())
        assert (began["id"], began["status"]) == (pending["id"], "pending")
        patch = {"end_time": datetime.now(UTC).isoformat(), "trace_id": pending["id"]}
        patch |= {"dotted_order": pending["dotted_order"], "error": "lost"}
        assert api.patch(f"/runs/{pending['id']}", json=patch).status_code == 202
        ended = json.loads(follower.stdout.readline())
        assert (ended["id"], ended["status"]) == (pending["id"], "error")
    finally:
        follower.send_signal(2)
        assert follower.wait(10) == 130
        follower.stdout.close()
