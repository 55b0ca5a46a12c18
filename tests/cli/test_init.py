"""`moorage init`: its agent answers, its CI files call a command that exists, and it replaces nothing."""

from __future__ import annotations

import importlib.util
import json
import shlex

import typer
from typer.testing import CliRunner

from moorage.cli import app
from moorage.cli.init import FILES

runner = CliRunner()


def test_the_agent_answers_and_the_configuration_names_it(tmp_path):
    folder = tmp_path / "new" / "agent"
    done = runner.invoke(app, ["init", str(folder)])
    assert done.exit_code == 0, done.output
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == set(FILES)
    path, _, name = json.loads((folder / "langgraph.json").read_text())["graphs"]["agent"].partition(":")
    spec = importlib.util.spec_from_file_location("of_init", folder / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    told = getattr(module, name).invoke({"messages": [("user", "hello")]})
    assert told["messages"][-1].text == "You said: hello"


def test_ci_files_call_deploy_with_options_that_it_has():
    deploy = typer.main.get_command(app).commands["deploy"]
    for file in (".github/workflows/deploy.yml", ".gitea/workflows/deploy.yml", ".gitlab-ci.yml"):
        [line] = [line for line in FILES[file].splitlines() if "moorage deploy" in line]
        arguments = shlex.split(line.partition("moorage deploy")[2])
        assert deploy.make_context("deploy", arguments).params["name"] == "agent"


def test_a_file_that_exists_is_kept_and_nothing_else_is_written(tmp_path):
    (tmp_path / "agent.py").write_text("mine = 1\n")
    done = runner.invoke(app, ["init", str(tmp_path)])
    assert done.exit_code != 0
    assert [path.name for path in tmp_path.iterdir()] == ["agent.py"]
    assert (tmp_path / "agent.py").read_text() == "mine = 1\n"
