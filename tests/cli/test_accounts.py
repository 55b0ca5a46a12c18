"""`moorage keys` and `moorage workspaces` against a running server."""

from __future__ import annotations

import json
from uuid import uuid4

import pytest
import typer
from typer.testing import CliRunner

from moorage.cli import keys, workspaces
from moorage.kernel.crypto import read_master_keys

pytest_plugins = "tests.accounts.fixtures"

app = typer.Typer()
app.add_typer(keys.app, name="keys")
app.add_typer(workspaces.app, name="workspaces")


@pytest.fixture
def moorage(served, monkeypatch):
    """Return a function that runs a command with the installation's first key, or another one."""

    def run(*arguments, key=served.first.api_key, url=served.url):
        for name in ("LANGSMITH_WORKSPACE_ID", "LANGSMITH_TENANT_ID"):
            monkeypatch.delenv(name, raising=False)
        return CliRunner().invoke(app, arguments, env={"MOORAGE_URL": url, "MOORAGE_API_KEY": key})

    return run


def test_a_key_is_made_listed_used_and_revoked(moorage):
    made = moorage("keys", "create", "CI", "--scope", "keys:manage", "--expires-days", "3", "-o", "json")
    assert made.exit_code == 0, made.output
    key = json.loads(made.stdout)
    listed = moorage("keys", "list", key=key["key"])
    line = next(line for line in listed.stdout.splitlines() if key["id"] in line)
    assert all(part in line for part in ("CI", key["short_key"], "keys:manage", "Z"))
    assert key["key"] not in listed.stdout
    assert "all but secrets:read" in listed.stdout  # the first key
    assert moorage("keys", "revoke", key["id"]).exit_code == 0
    again = moorage("keys", "revoke", key["id"])
    assert (again.exit_code, "not found" in again.stderr) == (3, True)


def test_a_new_key_is_the_first_line_and_the_advice_is_on_stderr(moorage):
    result = moorage("keys", "create", "laptop")
    assert result.stdout.splitlines()[0].split()[2].startswith("lsv2_pt_")
    assert "not shown again" in result.stderr


def test_a_key_that_may_not_says_which_scope_it_lacks(moorage):
    limited = json.loads(moorage("keys", "create", "r", "--read-only", "-o", "json").stdout)["key"]
    result = moorage("keys", "list", key=limited)
    assert (result.exit_code, "keys:manage" in result.stderr) == (4, True)


def test_a_workspace_is_made_and_its_key_opens_it_alone(moorage):
    handle = f"lab-{uuid4().hex[:6]}"
    made = json.loads(moorage("workspaces", "create", "Lab", "--handle", handle, "--plan", "plus", "-o", "json").stdout)
    listed = moorage("workspaces", "list", key=made["api_key"])
    [_, line] = listed.stdout.splitlines()
    assert line.split()[:4] == [made["id"], "Lab", handle, "plus"]
    again = moorage("workspaces", "create", "Lab", "--handle", handle)
    assert (again.exit_code, again.stdout) == (5, "")


def test_what_cannot_work_says_the_next_step(moorage):
    wrong = moorage("keys", "list", key="lsv2_pt_" + "0" * 32 + "_" + "0" * 10)
    assert (wrong.exit_code, "moorage keys create" in wrong.stderr) == (4, True)
    missing = moorage("keys", "list", key="")
    assert (missing.exit_code, "MOORAGE_API_KEY" in missing.stderr) == (4, True)
    nowhere = moorage("keys", "list", url="http://127.0.0.1:9")
    assert (nowhere.exit_code, "moorage up" in nowhere.stderr) == (7, True)
    no_scope = moorage("keys", "create", "x", "--scope", "runs:fly")
    assert no_scope.exit_code == 2
    assert moorage("keys", "create", "x", "--expires-days", "99999999").exit_code == 2
    for wrong_id in ("x", "", "../workspaces"):
        assert moorage("keys", "revoke", wrong_id).exit_code == 2


def test_a_master_key_is_made_and_rotated(moorage, tmp_path):
    made = moorage("keys", "new-master")
    assert read_master_keys(made.stdout, tmp_path / "none").ids
    assert made.stdout.count("\n") == 1
    told = moorage("keys", "rotate-master", "-o", "json").stdout
    rotated = json.loads(told[told.index("{") :])  # the server of this test logs to the same place
    assert (rotated["rewrapped"], rotated["left"]) == (0, 0)
