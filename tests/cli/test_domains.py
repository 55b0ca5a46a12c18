"""`moorage domains`, and the commands of docs/deployments.md about it, against a running control plane."""

from __future__ import annotations

import json
import re
import threading
import time

import httpx
import psycopg
import pytest
import typer
from typer.testing import CliRunner

from moorage.cli import domains
from tests.cli.control_planes import serving
from tests.control.houses import from_git
from tests.serving import ROOT

pytest_plugins = ["tests.accounts.fixtures", "tests.traces.fixtures"]
app = typer.Typer()
app.add_typer(domains.app, name="domains")


@pytest.fixture(scope="module")
def platform(platform_conninfo, clickhouse_url, tmp_path_factory):
    with serving(platform_conninfo, clickhouse_url, tmp_path_factory.mktemp("control")) as running:
        yield running


@pytest.fixture(scope="module")
def api(platform):
    url, key = platform
    with httpx.Client(base_url=url, headers={"X-Api-Key": key}) as client:
        for name in ("agent", "another"):
            client.post("/v2/deployments", json=from_git(name)).raise_for_status()
        yield client


@pytest.fixture
def moorage(platform, api, monkeypatch):
    url, key = platform
    monkeypatch.setattr(domains, "_POLL_S", 0.02)

    def run(*arguments, **options):
        return CliRunner().invoke(app, arguments, env={"MOORAGE_URL": url, "MOORAGE_API_KEY": key}, **options)

    return run


@pytest.fixture
def certificates(platform_conninfo):
    """Set the result of a look at a name, while the command waits for it."""

    def seen(name, state, message=None):
        def note():
            found = "UPDATE deployments SET certificate_state = %s, certificate_message = %s WHERE host_name = %s"
            give_up_at = time.monotonic() + 20
            with psycopg.connect(platform_conninfo, autocommit=True) as connection:
                while not connection.execute(found, (state, message, name)).rowcount and time.monotonic() < give_up_at:
                    time.sleep(0.02)

        threads.append(threading.Thread(target=note))
        threads[-1].start()

    threads: list[threading.Thread] = []
    yield seen
    for thread in threads:
        thread.join()


def test_the_commands_of_the_page_do_what_it_says(moorage, api, certificates):
    page = (ROOT / "docs" / "deployments.md").read_text()
    commands = re.findall(r"^moorage (domains [^#\n]*)", page, re.MULTILINE)
    assert [command.split()[1] for command in commands] == ["set", "list", "remove"]
    certificates("chat.example.com", "issued")
    for command in commands:
        result = moorage(*command.split(), input="y\n")
        assert result.exit_code == 0, result.output
        if "list" in command:
            assert "https://chat.example.com" in result.stdout
    [agent] = api.get("/v2/deployments", params={"name": "agent"}).json()["resources"]
    assert agent["host_name"] is None


def test_a_host_name_is_set_listed_and_given_back(moorage):
    assert json.loads(moorage("domains", "list", "-o", "json").stdout) == []
    result = moorage("domains", "set", "agent", "http://one.example.com:8080", "--no-wait", "-o", "json")
    shown = {"name": "one.example.com", "deployment": "agent", "url": "http://one.example.com:8080"}
    shown |= {"certificate": "none", "message": None, "expires_at": None}
    assert json.loads(result.stdout) == shown
    assert json.loads(moorage("domains", "list", "-o", "json").stdout) == [shown]
    gone = json.loads(moorage("domains", "remove", "agent", "--yes", "-o", "json").stdout)
    assert (gone["name"], gone["url"].endswith("/d/agent")) == ("one.example.com", True)
    assert moorage("domains", "remove", "agent", "--yes").exit_code == 3
    assert moorage("domains", "set", "nobody", "one.example.com").exit_code == 3


def test_exit_codes_tell_what_went_wrong(moorage, certificates):
    assert moorage("domains", "set", "agent", "127.0.0.1").exit_code == 1
    certificates("late.example.com", "failed", "DNS problem: NXDOMAIN")
    failed = moorage("domains", "set", "agent", "late.example.com")
    assert (failed.exit_code, "late.example.com is set" in failed.stderr, "NXDOMAIN" in failed.stderr) == (
        1,
        True,
        True,
    )
    waited = moorage("domains", "set", "agent", "slow.example.com", "--timeout", "1")
    assert (waited.exit_code, "still pending" in waited.stderr) == (6, True)
    taken = moorage("domains", "set", "another", "slow.example.com")
    assert (taken.exit_code, "is taken" in taken.stderr) == (5, True)
    assert moorage("domains", "remove", "agent", input="n\n").exit_code != 0
    assert moorage("domains", "remove", "agent", "--yes").exit_code == 0
