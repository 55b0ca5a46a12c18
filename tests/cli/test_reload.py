"""Files whose changes restart the server of `moorage dev`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from watchfiles import Change

from moorage.cli.reload import Sources

CONFIG = {
    "graphs": {"a": "./graphs-of-mine/agent.py:graph", "b": {"path": "package.module:graph"}},
    "dependencies": [".", "./libs", "../shared", "langchain"],
    "env": "settings/.env",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    for name in ("graphs-of-mine", "libs/src", "package", "settings", "an_environment", "../shared"):
        (folder / name).mkdir(parents=True)
    (folder / "an_environment" / "pyvenv.cfg").touch()
    (folder / "langgraph.json").write_text(json.dumps(CONFIG))
    return folder


@pytest.mark.parametrize(
    ("file", "restarts"),
    [
        ("langgraph.json", True),
        ("settings/.env", True),
        ("graphs-of-mine/agent.py", True),
        ("package/module.py", True),
        ("package/__init__.py", True),
        ("package/native.abi3.so", True),
        ("beside.py", True),
        ("libs/src/library.py", True),
        ("../shared/other.py", True),
        ("graphs-of-mine/notebook.py", False),  # no module can have that name, and no graph is in it
        ("answers.json", False),
        ("package/data.yaml", False),
        ("package/prompt.txt", False),
        ("README.md", False),
        (".env", False),  # langgraph.json does not name it
        ("pyproject.toml", False),
        ("an_environment/lib/module.py", False),
        (".venv/lib/module.py", False),
        ("node_modules/package/setup.py", False),
        (".moorage/postgres/module.py", False),
        ("__pycache__/beside.cpython-311.pyc", False),
        ("2024-notes/a.py", False),
    ],
)
def test_what_a_graph_can_import_restarts_the_server_and_nothing_else(project, file, restarts):
    path = (project / file).resolve()
    assert Sources(project / "langgraph.json")(Change.modified, str(path)) is restarts


def test_another_langgraph_json_names_other_files(project):
    sources = Sources(project / "langgraph.json")
    assert {path.name for path in sources.folders} == {"project", "shared"}
    other = str((project / "graphs-of-mine" / "other.py").resolve())
    assert not sources(Change.added, other)
    config = project / "langgraph.json"
    config.write_text("{")
    assert sources(Change.modified, str(config))
    assert sources(Change.modified, str(project / "graphs-of-mine" / "agent.py")), "what cannot be read changes nothing"
    config.write_text(json.dumps({"graphs": {"a": "graphs-of-mine/other.py:graph"}}))
    assert sources(Change.modified, str(config))
    assert sources(Change.added, other)
