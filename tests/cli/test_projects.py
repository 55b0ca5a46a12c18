"""`moorage projects` against a running platform."""

import json
from uuid import uuid4

import pytest
import typer
from typer.testing import CliRunner

from moorage.cli import projects

pytest_plugins = "tests.platform.fixtures"

app = typer.Typer()
app.add_typer(projects.app, name="projects")


@pytest.fixture
def moorage(platform):
    def run(*arguments, key=platform.key, url=platform.url, answer=None):
        environment = {"MOORAGE_URL": url, "MOORAGE_API_KEY": key}
        return CliRunner().invoke(app, ["projects", *arguments], env=environment, input=answer)

    return run


@pytest.fixture
def name():
    return f"cli-{uuid4().hex[:8]}"


def made(moorage, *arguments):
    result = moorage("create", *arguments, "-o", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_project_is_made_shown_changed_and_deleted(moorage, name):
    project = made(moorage, name, "--description", "d", "--metadata", "team=x", "--keep-days", "30")
    assert project["extra"] == {"metadata": {"team": "x"}}
    for named in (name, project["id"]):
        shown = moorage("show", named)
        assert shown.exit_code == 0, shown.output
        assert all(part in shown.stdout for part in (name, project["id"], '{"team": "x"}', "30 days", "0 B"))
    changed = moorage("update", name, "--name", f"{name}-2", "--keep-days", "for-ever", "-o", "json")
    assert json.loads(changed.stdout)["longlived_ttl_days"] == 0
    assert json.loads(moorage("update", f"{name}-2", "--keep-days", "workspace", "-o", "json").stdout)[
        "longlived_ttl_days"
    ] is None  # fmt: skip
    declined = moorage("delete", f"{name}-2", answer="n\n")
    assert (declined.exit_code, "0 runs" in declined.stderr) == (1, True)
    assert moorage("delete", f"{name}-2", "--yes").exit_code == 0
    assert moorage("show", f"{name}-2").exit_code == 3


def test_projects_are_listed(moorage, name):
    for letter in "ab":
        made(moorage, f"{name}-{letter}", "--metadata", f"letter={letter}")
    listed = json.loads(moorage("list", "--name", name, "--sort", "name", "--stats", "-o", "json").stdout)
    assert [project["name"] for project in listed] == [f"{name}-a", f"{name}-b"]
    assert [project["run_count"] for project in listed] == [0, 0]
    lines = moorage("list", "--name", name, "--metadata", "letter=b").stdout.splitlines()
    assert (lines[0].split()[0], len(lines)) == ("NAME", 2)
    assert json.loads(moorage("list", "--limit", "1", "-o", "json").stdout)[0]["name"]
    nothing = moorage("list", "--name", str(uuid4()))
    assert (nothing.exit_code, nothing.stdout, nothing.stderr) == (
        0,
        "",
        "no project matches; `moorage projects list` shows all\n",
    )


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["show", "not there"], 3, "no project 'not there'"),
        (["show", str(uuid4())], 3, "not found"),
        (["update", "x"], 2, "nothing to change was given"),
        (["create", "x", "--metadata", "nothing"], 2, "KEY=VALUE"),
        (["create", "x", "--keep-days", "-1"], 2, "--keep-days takes"),
        (["create", ""], 2, "name: String should have at least 1"),
    ],
)
def test_what_goes_wrong_has_its_exit_code(moorage, arguments, code, told):
    result = moorage(*arguments)
    assert (result.exit_code, told in result.stderr) == (code, True), result.output


def test_a_taken_name_a_wrong_key_and_no_server_have_exit_codes_of_their_own(moorage, name):
    made(moorage, name)
    assert moorage("create", name).exit_code == 5
    assert moorage("create", name, "--upsert").exit_code == 0
    assert moorage("list", key="lsv2_pt_wrong").exit_code == 4
    assert moorage("list", url="http://127.0.0.1:9").exit_code == 7


def test_names_are_completed(platform, moorage, name, monkeypatch):
    made(moorage, f"{name}-one")
    made(moorage, f"x-{name}")
    monkeypatch.setenv("MOORAGE_URL", platform.url)
    monkeypatch.setenv("MOORAGE_API_KEY", platform.key)
    assert projects.complete_project(name) == [f"{name}-one"]
    monkeypatch.setenv("MOORAGE_URL", "http://127.0.0.1:9")
    assert projects.complete_project(name) == []


@pytest.mark.parametrize(
    ("size", "text"), [(None, "-"), (0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 * 2**40, "5.0 TiB")]
)
def test_sizes_read_well(size, text):
    assert projects.size_text(size) == text
