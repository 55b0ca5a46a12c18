"""Graphs of every form that langgraph.json knows: how they are imported, when factories are called, and which arguments
reach them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import dedent
from typing import Any
from uuid import UUID, uuid5

import httpx
import psutil
import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from moorage.agents.graphs import output_of
from tests.serving import PROJECT, free_port, make_server
from tests.waiting import wait_until

SYSTEM_NAMESPACE = UUID("6ba7b821-9dad-11d1-80b4-00c04fd430c8")
GRAPHS: dict[str, Any] = json.loads(PROJECT.read_text())["graphs"]


def system(graph: str) -> UUID:
    """Return the id of the graph's system assistant."""
    return uuid5(SYSTEM_NAMESPACE, graph)


async def result_of(http: httpx.AsyncClient, graph: str, **run: Any) -> Any:
    answer = await http.post("/runs/wait", json={"assistant_id": graph, **run})
    assert answer.status_code == 200, answer.text
    return answer.json()


# --- forms --------------------------------------------------------------------------------------------------------

X = {"text": "x"}
FLAVOUR = {"configurable": {"flavour": "mint"}}


@pytest.mark.parametrize(
    "graph, form, run, result",
    [
        ("echo", "file:variable, compiled", {"input": X}, {"text": "x!", "items": ["echo"]}),
        ("builder", "not compiled yet", {"input": X}, {"text": "x!", "items": ["echo"]}),
        ("entrypoint", "functional", {"input": "text"}, "TEXT"),
        ("by_module", "module:variable", {"input": X}, {"text": "from the package"}),
        ("in_package", "a file in a package", {"input": X}, {"text": "from the package"}),
        ("described", "an object", {"input": X}, {"text": "x!", "items": ["echo"]}),
        ("factory", "()", {"input": {}}, {"factory": "plain"}),
        ("factory_config", "(config)", {"input": {}, "config": FLAVOUR}, {"flavour": "mint"}),
        ("factory_runtime", "(runtime)", {"input": {}}, {"access": "threads.create_run", "executes": True}),
        (
            "factory_both",
            "(config, runtime)",
            {"input": {}, "config": FLAVOUR},
            {"flavour": "mint", "access": "threads.create_run"},
        ),
        ("factory_async", "async", {"input": {}, "config": FLAVOUR}, {"factory": "async", "flavour": "mint"}),
        ("factory_context", "with", {"input": {}}, {"factory": "context"}),
        ("factory_async_context", "async with", {"input": {}}, {"factory": "async context"}),
        ("factory_generator", "async generator", {"input": {}}, {"factory": "generator"}),
    ],
)
async def test_every_form_of_a_graph_runs(http, graph, form, run, result):
    shown = await result_of(http, graph, **run)
    assert (shown["seen"] if graph.startswith("factory") else shown) == result


@pytest.mark.parametrize("graph, given", [("echo", X), ("entrypoint", "text"), ("nested", X), ("ask", X)])
async def test_the_result_is_the_same_when_no_values_are_streamed(http, graph, given):
    """The result is then read from the state."""
    results = [await result_of(http, graph, input=given, stream_mode=mode) for mode in ("values", "updates")]
    for result in results:
        for interrupt in result.get("__interrupt__", ()) if isinstance(result, dict) else ():
            assert interrupt.pop("id")
    assert results[0] == results[1]


async def test_the_output_of_a_state_has_what_the_output_schema_has():
    class Whole(TypedDict, total=False):
        secret: str
        text: str

    class Shown(TypedDict, total=False):
        text: str

    builder = StateGraph(Whole, output_schema=Shown)
    builder.add_node("write", lambda state: {"secret": "s", "text": "t"})
    builder.add_edge(START, "write")
    graph = builder.compile(checkpointer=InMemorySaver())
    on: RunnableConfig = {"configurable": {"thread_id": "1"}}
    last = await graph.ainvoke({}, on)
    snapshot = await graph.aget_state(on)
    assert snapshot.values == {"secret": "s", "text": "t"}
    assert output_of(graph, snapshot) == last == {"text": "t"}


@pytest.mark.parametrize("graph", GRAPHS)
async def test_every_graph_has_an_assistant_of_the_system(http, graph):
    spec = GRAPHS[graph]
    assistant = (await http.get(f"/assistants/{system(graph)}")).json()
    told = {key: assistant[key] for key in ("graph_id", "name", "metadata", "version", "description")}
    assert told == {
        "graph_id": graph,
        "name": graph,
        "metadata": {"created_by": "system"},
        "version": 1,
        "description": spec["description"] if isinstance(spec, dict) else None,
    }


async def test_a_graph_is_drawn_and_described_whatever_its_form(http):
    for graph in ("echo", "builder", "by_module", "described", "factory_async_context"):
        drawing = (await http.get(f"/assistants/{system(graph)}/graph")).json()
        assert drawing["nodes"][0]["id"] == "__start__"
        assert (await http.get(f"/assistants/{system(graph)}/schemas")).json()["graph_id"] == graph


async def test_a_stream_calls_the_graph_by_its_id(http):
    """The variable of a graph may have any name, and two graphs may share one."""
    run = {"assistant_id": "described", "input": X, "stream_mode": "debug"}
    answer = await http.post("/runs/stream", json=run)
    assert '"graph_id":"described"' in answer.text


# --- factories ----------------------------------------------------------------------------------------------------


@pytest.fixture
def log(folder: Path) -> Path:
    folder.chmod(0o777)
    return folder / "factory.log"


@pytest.mark.parametrize("graph", ["factory_context", "factory_async_context", "factory_generator"])
async def test_a_factory_is_opened_and_closed_for_each_run(http, log, graph):
    run = {"input": {}, "config": {"configurable": {"log": str(log)}}}
    await result_of(http, graph, **run)
    assert log.read_text().splitlines() == ["open", "close"]
    await result_of(http, graph, **run)
    assert log.read_text().splitlines() == ["open", "close"] * 2


@pytest.mark.parametrize("graph", ["factory_context", "factory_async_context", "factory_generator"])
async def test_a_factory_is_opened_and_closed_for_each_read(http, log, graph):
    """The factory gets the assistant's configuration."""
    new = {"graph_id": graph, "config": {"configurable": {"log": str(log)}}}
    assistant = (await http.post("/assistants", json=new)).json()["assistant_id"]
    for reads, path in enumerate(("graph", "schemas", "subgraphs"), 1):
        assert (await http.get(f"/assistants/{assistant}/{path}")).status_code == 200
        assert log.read_text().splitlines() == ["open", "close"] * reads
    await http.delete(f"/assistants/{assistant}")


async def calls_during(http: httpx.AsyncClient, *requests: tuple[str, str, Any]) -> list[dict[str, Any]]:
    """Return the arguments with which `factory_watched` was called because of the requests alone."""
    before = (await result_of(http, "factory_watched", input={}))["seen"]["calls"]
    for method, path, body in requests:
        answer = await http.request(method, path, json=body)
        assert answer.status_code == 200, answer.text
    after = (await result_of(http, "factory_watched", input={}))["seen"]["calls"]
    return list(after[len(before) : -1])


async def test_a_factory_learns_why_it_is_called(http):
    """Reads call the factory too, so that a graph may depend on who reads; only a run may execute."""
    assistant = system("factory_watched")
    thread = (await http.post("/threads", json={})).json()["thread_id"]
    run = {"assistant_id": "factory_watched", "input": {}}
    calls = await calls_during(
        http,
        ("GET", f"/assistants/{assistant}/graph", None),
        ("GET", f"/assistants/{assistant}/schemas", None),
        ("GET", f"/assistants/{assistant}/subgraphs", None),
        ("POST", f"/threads/{thread}/runs/wait", run),
        ("GET", f"/threads/{thread}/state", None),
        ("GET", f"/threads/{thread}/history", None),
        ("POST", f"/threads/{thread}/state", {"values": {"text": "y"}}),
        ("POST", f"/threads/{thread}/runs/stream", run),
    )
    assert [(call["access"], call["executes"], call["for_execution"]) for call in calls] == [
        ("assistants.read", False, False),
        ("assistants.read", False, False),
        ("assistants.read", False, False),
        ("threads.create_run", True, True),
        ("threads.read", False, False),
        ("threads.read", False, False),
        ("threads.update", False, False),
        ("threads.create_run", True, True),
    ]


async def test_what_does_not_look_at_the_graph_calls_no_factory(http):
    thread = (await http.post("/threads", json={})).json()["thread_id"]
    calls = await calls_during(
        http,
        ("GET", f"/assistants/{system('factory_watched')}", None),
        ("POST", "/assistants/search", {"graph_id": "factory_watched"}),
        ("GET", f"/threads/{thread}", None),
        ("GET", f"/threads/{thread}/state", None),
    )
    assert calls == []


async def test_the_config_of_a_run_has_the_keys_that_factories_read(http):
    (call,) = await calls_during(http, ("POST", "/runs/wait", {"assistant_id": "factory_watched", "input": {}}))
    assert {"tags", "metadata", "callbacks", "recursion_limit", "configurable"} <= set(call["keys"])


# --- a project of its own -----------------------------------------------------------------------------------------

GRAPH = """
    import os
    from langgraph.graph import END, START, StateGraph
    from typing_extensions import TypedDict

    class State(TypedDict, total=False):
        told: str

    async def tell(state: State) -> State:
        return {"told": TOLD}

    graph = StateGraph(State).add_node("tell", tell).add_edge(START, "tell").add_edge("tell", END).compile()
"""


def telling(python: str) -> str:
    """Return a module whose graph returns the value of an expression."""
    return dedent(GRAPH).replace("TOLD", python)


def write_project(folder: Path, files: dict[str, str], **config: Any) -> Path:
    """Write the project, and return the path of its langgraph.json."""
    project = folder / "project"
    for name, text in files.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    (project / "langgraph.json").write_text(json.dumps({"graphs": {"agent": "./agent.py:graph"}, **config}))
    return project / "langgraph.json"


WELL = {
    "agent": "./agent.py:graph",
    "variables": "./variables.py:graph",
    "imports": "./imports.py:graph",
    "one": "./one/agent.py:graph",
    "two": "./two/agent.py:graph",
}
WRONG = {
    "no_colon": ("./agent.py", "ValueError: expected the form file.py:variable or package.module:variable"),
    "no_variable": ("./agent.py:nothing", "AttributeError: the module has no 'nothing'"),
    "no_graph": ("./other.py:NUMBER", "TypeError: 'NUMBER' is a int, not a graph or a function that makes one"),
    "no_file": ("./nowhere.py:graph", "FileNotFoundError: the file does not exist"),
    "no_module": ("no.where:graph", "ModuleNotFoundError: No module named 'no'"),
    "no_python": ("./no_python.py:graph", "SyntaxError: '(' was never closed (no_python.py, line 1)"),
    "raises": ("./raises.py:graph", "ZeroDivisionError: division by zero"),
    "exits": ("./exits.py:graph", "SystemExit: 3"),
}
FILES = {
    "agent.py": telling("'well'"),
    "variables.py": telling("[os.environ['OF_THE_FILE'], os.environ['OF_BOTH'], os.environ['QUOTED']]"),
    "settings/.env": "# a comment\nOF_THE_FILE=file\nOF_BOTH=file\nQUOTED='with a space'\n",
    "imports.py": "from beside import A\nfrom library import B\n" + telling("[A, B]"),
    "beside.py": "A = 'beside'",
    "libs/src/library.py": "B = 'of the library'",
    "one/agent.py": telling("'one'"),
    "two/agent.py": telling("'two'"),
    "other.py": "NUMBER = 1",
    "no_python.py": "graph = (",
    "raises.py": "1 / 0",
    "exits.py": "raise SystemExit(3)",
}


@pytest.fixture(scope="module")
def project() -> Iterator[httpx.Client]:
    """Start a server of a project in which some graphs cannot be loaded."""
    with TemporaryDirectory(prefix="moorage-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        graphs = WELL | {graph: path for graph, (path, _) in WRONG.items()}
        more = {"graphs": graphs, "env": "./settings/.env", "dependencies": [".", "./libs"]}
        running = make_server(folder, write_project(folder, FILES, **more), OF_BOTH="environment")
        running.start()
        with httpx.Client(base_url=running.url, timeout=30) as http:
            yield http
        assert running.stop() == 0


def told(http: httpx.Client, graph: str = "agent") -> Any:
    answer: dict[str, Any] = http.post("/runs/wait", json={"assistant_id": graph, "input": {}}).json()
    return answer.get("told") or answer.get("__error__") or answer


async def test_variables_of_langgraph_json_reach_the_graph(http):
    seen = (await result_of(http, "shows_config", input={}))["seen"]
    assert seen["environment"] == "from langgraph.json"


def test_variables_of_a_file_reach_the_graph_and_the_environment_wins(project):
    assert told(project, "variables") == ["file", "environment", "with a space"]


def test_a_graph_imports_what_lies_beside_it_and_in_the_folders_of_dependencies(project):
    assert told(project, "imports") == ["beside", "of the library"]


def test_files_of_one_name_in_two_folders_are_two_graphs(project):
    assert [told(project, "one"), told(project, "two")] == ["one", "two"]


@pytest.mark.parametrize("graph", WRONG)
def test_what_is_wrong_with_a_graph_is_told_and_the_others_are_served(project, graph):
    path, cause = WRONG[graph]
    assert told(project, graph)["message"] == f"Graph '{graph}' ({path}) cannot be loaded: {cause}"
    assert told(project) == "well"
    assert project.get("/ok").json() == {"ok": True, "services": {}}  # only `moorage dev` shows the source


# --- moorage dev --------------------------------------------------------------------------------------------------


class Dev:
    """A `moorage dev` in a process group of its own, as a terminal would start it."""

    def __init__(self, folder: Path, config: Path) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.log = folder / "dev.log"
        arguments = ["dev", "--config", str(config), "--port", str(port), "--home", str(folder / "home")]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "moorage", *arguments], stdout=log, stderr=log, start_new_session=True
            )

    def told(self) -> Any:
        """Return the answer of the graph, or None while the server is away."""
        with suppress(httpx.TransportError), httpx.Client(base_url=self.url, timeout=10) as http:
            return told(http)

    def says(self, text: str) -> bool:
        return text in self.log.read_text()


@pytest.fixture
def dev(folder: Path) -> Iterator[Callable[[Path], Dev]]:
    started = []

    def start(config: Path) -> Dev:
        started.append(Dev(folder, config))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.terminate()
            one.process.wait(30)


def test_dev_serves_what_the_files_say_now_keeps_what_was_stored_and_ctrl_c_ends_all_of_it(folder, dev):
    config = write_project(folder, {"agent.py": telling("'first'")})
    source = config.parent / "agent.py"
    running = dev(config)
    wait_until(lambda: running.told() == "first")
    thread = httpx.post(f"{running.url}/threads", json={"metadata": {"kept": True}}).json()

    (config.parent / "notes.json").write_text("{}")  # as an agent may write it during a run
    source.write_text(telling("'second'"))
    wait_until(lambda: running.told() == "second")
    assert running.says("reloading: agent.py changed")
    assert httpx.get(f"{running.url}/threads/{thread['thread_id']}").json() == thread

    # The error is reported over HTTP and in the terminal, and the next change repairs it.
    source.write_text("graph = (")
    failure = wait_until(lambda: isinstance(running.told(), dict) and running.told())
    assert failure["error"] == "GraphLoadError"
    assert "SyntaxError" in failure["message"]
    assert running.says("error: Graph 'agent' (./agent.py:graph) cannot be loaded: SyntaxError")
    assert running.says("agent.py, line 1: graph = (")
    assert "Traceback" not in running.log.read_text().partition("error: Graph 'agent'")[0]
    told_by_ok = httpx.get(f"{running.url}/ok").json()
    assert told_by_ok["ok"] is False
    assert "agent.py, line 1: graph = (" in told_by_ok["graphs"]["agent"]
    source.write_text(telling("'third'"))
    wait_until(lambda: running.told() == "third")
    assert httpx.get(f"{running.url}/ok").json() == {"ok": True, "services": {}}

    # Without langgraph.json itself nothing is served either, and the server waits.
    good = config.read_text()
    config.write_text("{")
    wait_until(lambda: running.says("the next change of a file starts it again"))
    assert running.says("cannot be read as JSON")
    config.write_text(good)
    wait_until(lambda: running.told() == "third")

    family = psutil.Process(running.process.pid).children(recursive=True)
    assert len(family) > 1
    said_before = len(running.log.read_text())
    os.killpg(running.process.pid, signal.SIGINT)
    running.process.wait(30)
    _, alive = psutil.wait_procs(family, 10)
    assert alive == []
    assert "Traceback" not in running.log.read_text()[said_before:]
