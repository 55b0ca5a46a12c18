"""`moorage deploy`, `deployments`, `revisions`, `rollback`, `logs` and `secrets` against a running control plane."""

from __future__ import annotations

import json
import subprocess

import httpx
import pytest
import typer
from typer.testing import CliRunner

from moorage.cli import deploy, deployment_logs, deployments, secrets, threads
from moorage.cli.agents import connect_agent
from moorage.cli.deployments import _FIELDS
from tests.cli.control_planes import serving
from tests.cli.terminals import on_terminal, without_colours

pytest_plugins = ["tests.accounts.fixtures", "tests.traces.fixtures"]

app = typer.Typer()
app.command("deploy")(deploy.deploy)
app.command("rollback")(deployments.rollback)
app.command("logs")(deployment_logs.logs)
app.add_typer(deployments.app, name="deployments")
app.add_typer(deployments.revisions_app, name="revisions")
app.add_typer(secrets.app, name="secrets")
app.add_typer(threads.app, name="threads")


@pytest.fixture(scope="module")
def platform(platform_conninfo, clickhouse_url, tmp_path_factory):
    with serving(platform_conninfo, clickhouse_url, tmp_path_factory.mktemp("control")) as running:
        yield running


@pytest.fixture
def moorage(platform, monkeypatch):
    url, key = platform
    monkeypatch.setattr(deployments, "_POLL_S", 0.05)
    for name in ("LANGSMITH_WORKSPACE_ID", "LANGSMITH_TENANT_ID"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments, **environment):
        return CliRunner().invoke(app, arguments, env={"MOORAGE_URL": url, "MOORAGE_API_KEY": key, **environment})

    return run


@pytest.fixture
def project(tmp_path):
    """Make a folder as people have it: with secrets, a link, and files generated from the source."""
    folder = tmp_path / "My_Agent"
    for name, text in {
        "langgraph.json": '{"graphs": {"agent": "./agent.py:graph"}, "env": ".env"}',
        "agent.py": "graph = None",
        "sub/more.py": "",
        ".env": "OPENAI_API_KEY=sk-very-secret\nEMPTY=",
        ".venv/lib.py": "",
        "__pycache__/agent.pyc": "",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "link").symlink_to("/etc/passwd")
    return folder


def _deployed(result):
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_folder_is_deployed_changed_and_taken_back(moorage, project, platform):
    first = _deployed(moorage("deploy", str(project), "--secret", "TOKEN", "-o", "json", TOKEN="t-1"))
    assert first["deployment"]["name"] == "my-agent"
    assert first["revision"]["status"] == "DEPLOYED"
    assert [secret["name"] for secret in first["deployment"]["secrets"]] == ["EMPTY", "OPENAI_API_KEY", "TOKEN"]

    lines = moorage("logs", "my-agent", "--type", "build").stdout.splitlines()
    assert [line.split()[-1] for line in lines] == [".env", "agent.py", "langgraph.json", "sub/more.py"]

    (project / "broken.py").touch()
    failed = moorage("deploy", str(project))
    assert failed.exit_code == 1
    assert failed.stdout == ""
    assert failed.stderr.splitlines()[-2] == "error: revision 2 ended BUILD_FAILED: no solution found"

    (project / "broken.py").unlink()
    third = moorage("deploy", str(project), "--verbose")
    assert "| found agent.py" in third.stderr
    assert third.stdout.splitlines()[0].split() == ["url", f"{platform[0]}/d/my-agent"]

    back = _deployed(moorage("rollback", "my-agent", "-o", "json"))
    assert back["revision"]["build_of"] == first["revision"]["id"]
    assert back["revision"]["status"] == "DEPLOYED"
    assert "no earlier build" not in moorage("rollback", "my-agent").stderr, "and forth again"
    listed = moorage("revisions", "list", "my-agent").stdout
    assert [line.split()[0] for line in listed.splitlines()[1:]] == ["5", "4", "3", "2", "1"]
    assert _deployed(moorage("rollback", "my-agent", "--to", "1", "-o", "json"))["revision"]["number"] == 6
    assert moorage("rollback", "my-agent", "--to", "99").exit_code == 3


def test_what_is_uploaded_holds_no_secret_and_nothing_that_git_ignores(moorage, project):
    (project / ".gitignore").write_text("ignored.py\n.env\n")
    (project / "ignored.py").touch()
    subprocess.run(["git", "init", "-q", str(project)], check=True)
    assert moorage("deploy", str(project), "--name", "from-git-folder").exit_code == 0
    lines = moorage("logs", "from-git-folder", "--type", "build", "-o", "json").stdout
    names = [line["message"].split()[-1] for line in json.loads(lines)]
    assert names == [".env", ".gitignore", "agent.py", "langgraph.json", "sub/more.py"]


def test_a_first_deployment_that_failed_is_tried_again(moorage, project):
    (project / "broken.py").touch()
    assert moorage("deploy", str(project), "--name", "second-try").exit_code == 1
    [row] = [line for line in moorage("deployments", "list").stdout.splitlines() if line.startswith("second-try ")]
    assert "BUILD_FAILED" in row
    assert "READY" not in row
    assert moorage("revisions", "list", "second-try").stdout.rstrip().endswith("no solution found")
    (project / "broken.py").unlink()
    assert moorage("deploy", str(project), "--name", "second-try").exit_code == 0
    (project / "broken.py").touch()
    assert moorage("deploy", str(project), "--name", "third-try").exit_code == 1
    url = "https://github.com/someone/third"
    assert moorage("deploy", url, "--name", "third-try").exit_code == 0, "of another source, since nothing serves yet"
    assert moorage("deploy", "https://github.com/someone/else", "--name", "third-try").exit_code == 5


def test_what_is_kept_without_acting_is_printed(moorage, project, platform):
    made = _deployed(moorage("deploy", str(project), "--name", "warned", "-o", "json"))["deployment"]
    path = f"{platform[0]}/v2/deployments/{made['id']}"
    config = {"source_config": {"install_command": "npm ci"}}
    assert httpx.patch(path, json=config, headers={"x-api-key": platform[1]}).status_code == 200
    for command in (("deployments", "show", "warned"), ("deploy", str(project), "--name", "warned")):
        assert "warning: source_config.install_command is kept but does not act" in moorage(*command).stderr


def test_a_repository_is_deployed_by_its_url(moorage):
    url = "https://github.com/someone/A_Repo.git"
    made = _deployed(moorage("deploy", url, "--ref", "refs/tags/v1", "--type", "prod", "-o", "json"))
    assert made["deployment"]["name"] == "a-repo"
    assert made["revision"]["source_revision_config"]["repo_ref"] == "refs/tags/v1"
    again = _deployed(moorage("deploy", url, "--name", "a-repo", "--no-wait", "-o", "json"))
    assert again["revision"]["number"] == 2
    other = moorage("deploy", "https://github.com/someone/other", "--name", "a-repo")
    assert (other.exit_code, "another --name" in other.stderr) == (5, True)
    assert moorage("deploy", "https://user:word@github.com/a/b").exit_code == 2
    assert moorage("deploy", "git@github.com:a/b.git").exit_code == 2


def test_secrets_are_set_one_by_one(moorage, project):
    moorage("deploy", str(project), "--name", "with-secrets")
    assert moorage("secrets", "set", "with-secrets", "A=1", "B=x=y").exit_code == 0
    assert moorage("secrets", "unset", "with-secrets", "EMPTY", "A").exit_code == 0
    listed = json.loads(moorage("secrets", "list", "with-secrets", "-o", "json").stdout)
    assert listed == [{"name": "B", "value": "********"}, {"name": "OPENAI_API_KEY", "value": "********"}]
    assert moorage("secrets", "unset", "with-secrets", "NONE").exit_code == 3
    told = moorage("secrets", "set", "with-secrets", "C=1").stderr
    assert "revision 4 of with-secrets will have the change" in told
    assert "--wait" in told
    waited = moorage("secrets", "set", "with-secrets", "C=2", "--wait")
    assert (waited.exit_code, "revision 5" in waited.stderr, "DEPLOYED" in waited.stderr) == (0, True, True)
    assert moorage("secrets", "set", "with-secrets", "NOT_SET_ANYWHERE").exit_code == 2
    assert "reserved" in moorage("secrets", "set", "with-secrets", "PORT=1").stderr


def test_lines_are_shown_sought_and_followed(moorage, project, monkeypatch):
    moorage("deploy", str(project), "--name", "with-logs")
    [line] = moorage("logs", "with-logs").stdout.splitlines()
    assert line.split()[1:] == ["INFO", "revision", "1", "started"]
    assert "no log lines" in moorage("logs", "with-logs", "--level", "error").stderr
    assert moorage("logs", "with-logs", "-q", "STARTED", "--revision", "1", "-n", "1").stdout.count("\n") == 1

    class EnoughError(Exception):
        pass

    def push_or_stop(seconds):
        if push_or_stop.pushed:
            raise EnoughError
        push_or_stop.pushed = True
        monkeypatch.undo()
        moorage("deploy", str(project), "--name", "with-logs", "--secret", "A=1")
        monkeypatch.setattr(deployment_logs.time, "sleep", push_or_stop)

    push_or_stop.pushed = False
    monkeypatch.setattr(deployment_logs.time, "sleep", push_or_stop)
    followed = moorage("logs", "with-logs", "-f", "-o", "json")
    assert [json.loads(line)["message"] for line in followed.stdout.splitlines()] == [
        "revision 1 started",
        "revision 2 started",
    ]


def test_deployments_are_listed_shown_completed_and_deleted(moorage, project, platform, monkeypatch):
    moorage("deploy", str(project), "--name", "to-delete")
    line = next(line for line in moorage("deployments", "list").stdout.splitlines() if "to-delete" in line)
    assert line.split()[2:4] == ["serving", "upload"]
    shown = moorage("deployments", "show", "to-delete").stdout
    assert "OPENAI_API_KEY" in shown
    assert "very-secret" not in shown
    monkeypatch.setenv("MOORAGE_URL", platform[0])
    monkeypatch.setenv("MOORAGE_API_KEY", platform[1])
    assert deployments.complete_deployment("to-d") == ["to-delete"]
    ended = moorage("revisions", "interrupt", "to-delete")
    assert (ended.exit_code, "has ended as DEPLOYED" in ended.stderr) == (1, True)
    assert "DEPLOYED" in moorage("revisions", "show", "to-delete", "1").stdout
    assert moorage("deployments", "delete", "to-delete", "--yes").exit_code == 0
    assert moorage("deployments", "show", "to-delete").exit_code == 3


def test_commands_for_agents_call_a_deployment_at_its_own_address(moorage, project, platform, monkeypatch):
    moorage("deploy", str(project), "--name", "called")
    monkeypatch.setenv("MOORAGE_URL", platform[0])
    monkeypatch.setenv("MOORAGE_API_KEY", platform[1])
    with connect_agent(None, "called") as client:
        assert client._http.base_url == f"{platform[0]}/d/called/"
    told = moorage("threads", "list", "--deployment", "nowhere")
    assert (told.exit_code, "there is no deployment 'nowhere'" in told.stderr) == (3, True)


def test_an_empty_list_names_the_next_command(moorage, project):
    assert "`moorage deployments list`" in moorage("deployments", "list", "--name-contains", "nowhere").stderr
    moorage("deploy", str(project), "--name", "bare")
    assert moorage("secrets", "unset", "bare", "OPENAI_API_KEY", "EMPTY").exit_code == 0
    assert json.loads(moorage("secrets", "list", "bare", "-o", "json").stdout) == []
    assert "`moorage logs bare --type build`" in moorage("logs", "bare", "-q", "never printed").stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("deployments", "delete", "--yes", ""),
        ("deployments", "show", ""),
        ("secrets", "set", "", "A=b"),
        ("rollback", ""),
        ("rollback", "spared", "--to", ""),
        ("logs", "spared", "--revision", ""),
        ("threads", "list", "--deployment", ""),
        ("revisions", "show", "spared", "\N{SUPERSCRIPT TWO}"),
        ("revisions", "show", "spared", ".."),
        ("revisions", "show", "spared", "a/b"),
    ],
)
def test_an_empty_or_odd_name_finds_nothing(moorage, project, arguments):
    moorage("deploy", str(project), "--name", "spared")
    told = moorage(*arguments)
    assert (told.exit_code, "; see `moorage" in told.stderr) == (3, True), told.output
    assert moorage("deployments", "show", "spared").exit_code == 0


def test_a_question_that_nobody_answers_changes_nothing(moorage, project):
    moorage("deploy", str(project), "--name", "asked")
    refused = moorage("deployments", "delete", "asked")
    assert (refused.exit_code, "--yes" in refused.stderr) == (2, True)
    assert moorage("deployments", "show", "asked").exit_code == 0


def test_a_terminal_shows_phases_and_what_the_build_prints(platform, project):
    named = {"MOORAGE_URL": platform[0], "MOORAGE_API_KEY": platform[1]}
    code, shown = on_terminal(["deploy", str(project), "--name", "seen"], 80, **named)
    lines = [without_colours(line).rstrip() for line in shown]
    assert code == 0, lines
    assert "    found agent.py" in lines
    assert "  DEPLOYED" in lines
    assert all(len(line) <= 80 for line in lines)


def test_ctrl_c_at_a_question_is_an_interruption(platform, moorage, project):
    moorage("deploy", str(project), "--name", "kept")
    named = {"MOORAGE_URL": platform[0], "MOORAGE_API_KEY": platform[1]}
    code, shown = on_terminal(["deployments", "delete", "kept"], 80, typed=b"\x03", **named)
    assert code == 130, shown
    assert moorage("deployments", "show", "kept").exit_code == 0


def test_what_cannot_be_deployed_says_why(moorage, tmp_path):
    (tmp_path / "empty").mkdir()
    missing = moorage("deploy", str(tmp_path / "empty"))
    assert (missing.exit_code, "--config" in missing.stderr) == (2, True)
    assert moorage("deploy", str(tmp_path / "nowhere")).exit_code == 2
    (tmp_path / "123").mkdir()
    assert "--name" in moorage("deploy", str(tmp_path / "123")).stderr
    of_git = moorage("deploy", str(tmp_path), "--ref", "main")
    assert (of_git.exit_code, "--ref works only" in of_git.stderr) == (2, True)


def test_a_list_says_that_an_agent_is_down() -> None:
    status = _FIELDS["status"]
    assert callable(status)
    row = {"status": "READY", "latest_revision_status": "DEPLOYED", "active_revision_id": 1, "latest_revision_id": 1}
    assert status(row) == "serving"
    assert status(row | {"active_revision_message": "the agent stays down"}) == "down"
    assert status(row | {"active_revision_message": "x", "latest_revision_id": 2}) == "down; latest DEPLOYED"


@pytest.mark.parametrize(
    ("authentication", "said"),
    [("platform_keys", "a key of the workspace"), ("custom", "the project's own authentication"), (None, "")],
)
def test_show_says_what_callers_of_an_agent_bring(authentication: str | None, said: str) -> None:
    column = _FIELDS["callers bring"]
    assert callable(column)
    shown = str(column({"authentication": authentication}))
    assert said in shown
    assert bool(shown) is bool(said)
