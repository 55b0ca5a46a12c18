"""Fixtures of the console's tests: a browser, a signed-in user, and a project with traces.

A test module uses them with `pytest_plugins = "tests.console.fixtures"`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from tests.console.browsers import open_browser
from tests.console.runs import HOSTILE, make_run, send, wait_for_runs
from tests.platform.serving import Platform, moorage

pytest_plugins = "tests.platform.fixtures"


@pytest.fixture(scope="module")  # a loop of Playwright runs as long as the browser, and others need their own
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    made = browser.new_context(viewport={"width": 1440, "height": 800})
    made.set_default_timeout(30_000)
    yield made
    made.close()


@pytest.fixture
def page(context: BrowserContext, platform: Platform) -> Page:
    """Open a page of a signed-in user."""
    link = moorage("console", MOORAGE_URL=platform.url, MOORAGE_API_KEY=platform.key)[1].strip()
    opened = context.new_page()
    opened.goto(link)
    opened.wait_for_url("**/o/*")
    return opened


@pytest.fixture(scope="session")
def project(platform: Platform) -> str:
    """Create a project with a trace that succeeded, and a failed one with hostile text."""
    with platform.client() as api:
        made = api.post("/api/v1/sessions", json={"name": f"console-{uuid4()}"}).json()
        begun = datetime.now(UTC) - timedelta(minutes=5)
        for error in (None, f"ValueError: no berth is free\n{HOSTILE}"):
            root = make_run(made["id"], begun, "pilot", "chain", error=error)
            child = make_run(made["id"], begun + timedelta(milliseconds=10), "model", "llm", parent=root)
            child["outputs"] = {"messages": [{"role": "assistant", "content": f"berth 4 {HOSTILE}"}]}
            send(api, root, child)
        wait_for_runs(api, session=[made["id"]], filter='search(error, "no berth is free")')
    return str(made["id"])
