"""The playground and the live tail with a deployed agent: questions, forks, and the way between messages and traces."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.console.browsers import Watched
from tests.console.runs import place
from tests.platform.serving import Platform, moorage
from tests.serving import EXAMPLES

pytest_plugins = "tests.console.fixtures"
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def agent(platform: Platform, browser: Browser) -> Iterator[str]:
    """Deploy the graphs of `examples`, and return the agent's name. It asks for the browser, so that nothing is built
    where there is none.
    """
    told = {"MOORAGE_URL": platform.url, "MOORAGE_API_KEY": platform.key}
    code, _, errors = moorage("deploy", str(EXAMPLES.parent), "--name", "playing", **told)
    assert code == 0, errors
    yield "playing"
    code, _, errors = moorage("deployments", "delete", "playing", "--yes", **told)
    assert code == 0, errors


def open_graph(page: Page, platform: Platform, agent: str, name: str) -> None:
    page.goto(place(platform, f"/playground?agent={agent}"))
    page.get_by_label("Assistant").select_option(label=name)


def say(page: Page, text: str) -> None:
    expect(page.get_by_role("button", name=re.compile("^(Send|Fork)$"))).to_be_visible()
    page.get_by_label("Message, or input as JSON").fill(text)
    page.keyboard.press("Enter")


def test_a_chat_leads_to_its_trace_and_back_and_the_tail_shows_it_live(
    page: Page, context: BrowserContext, platform: Platform, agent: str, api: httpx.Client
) -> None:
    watched = Watched(page, platform.url)
    open_graph(page, platform, agent, "chat")
    conversation = page.get_by_role("region", name="Conversation")
    say(page, "first")
    expect(conversation).to_contain_text("you said 'first', after 0 earlier messages")
    page.reload()
    trace = conversation.get_by_role("link", name="Its trace").last
    expect(trace).to_be_visible()
    assert not watched.complaints()

    tail = context.new_page()
    tail.goto(str(trace.evaluate("link => link.href")).partition("/r/")[0])
    tail.get_by_role("button", name="Live").click()
    expect(tail.get_by_text("Live: new runs")).to_be_visible()
    expect(tail.get_by_role("row")).to_have_count(2)
    say(page, "second")
    expect(conversation).to_contain_text("you said 'second', after 2 earlier messages")
    expect(tail.get_by_role("row")).to_have_count(3)

    trace.click()
    expect(page.get_by_role("treegrid", name="Runs of the trace")).to_contain_text("chat")
    page.get_by_role("link", name="Open in the playground").click()
    expect(conversation).to_contain_text("you said 'first'")


def test_a_question_is_answered_a_state_changed_and_a_checkpoint_forked(
    page: Page, platform: Platform, agent: str
) -> None:
    open_graph(page, platform, agent, "approval")
    say(page, '{"action": "cast off"}')
    expect(page.get_by_role("form", name="The agent asks")).to_contain_text("May I cast off?")
    page.get_by_role("button", name="Approve: yes").click()
    expect(page.get_by_role("region", name="State")).to_contain_text("approved: true")
    page.get_by_text("Change the state").click()
    page.get_by_label("Values by channel").fill('{"action": "stay"}')
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("region", name="State")).to_contain_text("stay")
    page.get_by_role("button", name=re.compile("step -1")).click()
    say(page, '{"action": "sound the horn"}')
    expect(page.get_by_role("form", name="The agent asks")).to_contain_text("May I sound the horn?")


def test_a_deployment_that_never_served_shows_what_failed(page: Page, platform: Platform, tmp_path: Path) -> None:
    told = {"MOORAGE_URL": platform.url, "MOORAGE_API_KEY": platform.key}
    (tmp_path / "langgraph.json").write_text('{"dependencies": ["./missing"], "graphs": {"a": "./a.py:graph"}}')
    code, _, errors = moorage("deploy", str(tmp_path), "--name", "broken", **told)
    assert (code, "BUILD_FAILED" in errors) == (1, True), errors
    page.goto(place(platform, "/deployments"))
    row = page.get_by_role("row", name="broken")
    expect(row).to_contain_text("build failed")
    expect(row.get_by_role("link", name="Playground")).to_have_count(0)
    assert moorage("deployments", "delete", "broken", "--yes", **told)[0] == 0
