"""`moorage integrations` against a running control plane and a forge."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from moorage.cli import integrations
from tests.cli.control_planes import serving
from tests.control.forge_server import TOKEN, forge_server
from tests.control.repositories import git, make_repository

pytest_plugins = ["tests.accounts.fixtures", "tests.traces.fixtures"]
app = typer.Typer()
app.add_typer(integrations.app, name="integrations")


@pytest.fixture(scope="module")
def platform(platform_conninfo, clickhouse_url, tmp_path_factory):
    with serving(platform_conninfo, clickhouse_url, tmp_path_factory.mktemp("control")) as running:
        yield running


@pytest.fixture
def moorage(platform):
    url, key = platform

    def run(*arguments, env=None, **options):
        known = {"MOORAGE_URL": url, "MOORAGE_API_KEY": key}
        return CliRunner().invoke(app, ["integrations", *arguments], env=known | (env or {}), **options)

    return run


def test_an_integration_is_added_listed_used_and_removed(moorage, tmp_path):
    repository = make_repository(tmp_path / "team" / "agent", {"langgraph.json": "{}"})
    with forge_server("gitea", tmp_path) as forge:
        added = moorage("add", "ours", "--kind", "gitea", "--base-url", forge.url, "-o", "json", input=f"{TOKEN}\n")
        assert added.exit_code == 0, added.output
        made = json.loads(added.stdout)
        assert made["webhook_url"].endswith(f"{made['id']}/pushes")
        assert TOKEN not in added.output
        [listed] = json.loads(moorage("list", "-o", "json").stdout)
        assert listed["id"] == made["id"]
        [found] = json.loads(moorage("repos", "ours", "-o", "json").stdout)
        assert (found["owner"], found["name"]) == ("team", "agent")
        branches = json.loads(moorage("branches", made["id"], "team/agent", "-o", "json").stdout)
        assert branches == [{"name": "main", "commit_sha": git(repository, "rev-parse", "HEAD")}]
        assert "team/agent" in moorage("repos", "ours").stdout
    assert moorage("remove", "ours", "--yes").exit_code == 0
    assert json.loads(moorage("list", "-o", "json").stdout) == []


def test_without_a_token_nothing_is_added_and_the_environment_may_hold_it(moorage):
    assert moorage("add", "none", input="").exit_code != 0
    by_environment = moorage("add", "ours", "-o", "json", env={"FORGE_TOKEN": TOKEN})
    assert by_environment.exit_code == 0, by_environment.output
    assert TOKEN not in by_environment.output
    assert moorage("repos", "none").exit_code != 0
    assert moorage("remove", "ours", "--yes").exit_code == 0
