"""The playground of `moorage dev` in a real Chromium: chat, questions, checkpoints and forks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.console.browsers import Watched, open_browser
from tests.serving import EXAMPLES, PROJECT, Server, make_server

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def developing() -> Iterator[Server]:
    with TemporaryDirectory(prefix="moorage-test-") as folder:
        Path(folder).chmod(0o755)
        running = make_server(Path(folder), EXAMPLES)
        running.start("--development")
        yield running
        running.stop()


@pytest.fixture(scope="module")
def page(developing: Server) -> Iterator[Page]:
    with open_browser() as browser:
        opened = browser.new_page(viewport={"width": 1440, "height": 800})
        opened.set_default_timeout(30_000)
        yield opened


def open_graph(page: Page, server: Server, name: str) -> None:
    page.goto(f"{server.url}/")
    page.get_by_label("Assistant").select_option(label=name)


def say(page: Page, text: str) -> None:
    expect(page.get_by_role("button", name=re.compile("^(Send|Fork)$"))).to_be_visible()  # the previous run has ended
    page.get_by_label("Message, or input as JSON").fill(text)
    page.keyboard.press("Enter")


def test_programs_still_get_the_health_of_the_server_at_the_root(developing: Server) -> None:
    assert httpx.get(f"{developing.url}/").json()["ok"] is True


def test_a_chat_goes_on_and_forks_from_an_earlier_checkpoint(page: Page, developing: Server) -> None:
    watched = Watched(page, developing.url)
    open_graph(page, developing, "chat")
    conversation = page.get_by_role("region", name="Conversation")
    say(page, "first")
    expect(conversation).to_contain_text("you said 'first', after 0 earlier messages")
    say(page, "second")
    expect(conversation).to_contain_text("you said 'second', after 2 earlier messages")
    page.get_by_role("button", name="step 1").click()
    expect(conversation).not_to_contain_text("second")
    say(page, "another")
    expect(conversation).to_contain_text("you said 'another', after 2 earlier messages")
    expect(conversation).not_to_contain_text("second")
    assert not watched.complaints()


def test_a_question_of_the_graph_is_answered_by_its_form(page: Page, developing: Server) -> None:
    watched = Watched(page, developing.url)
    open_graph(page, developing, "approval")
    say(page, '{"action": "cast off"}')
    question = page.get_by_role("form", name="The agent asks")
    expect(question).to_contain_text("May I cast off?")
    expect(page.locator("[data-node=ask]")).to_have_attribute("data-active", "true")
    assert not watched.complaints()
    page.get_by_role("button", name="Approve: yes").click()
    expect(page.get_by_role("region", name="State")).to_contain_text("approved: true")


def test_an_assistant_is_configured_by_a_form_of_its_schema(page: Page, developing: Server) -> None:
    watched = Watched(page, developing.url)
    open_graph(page, developing, "chat")
    page.get_by_text("Configure the assistant").click()
    page.get_by_label("Model Name").fill("pirate")
    page.get_by_label("Name of a new assistant").fill("Blackbeard")
    assert not watched.complaints()
    page.get_by_role("button", name="Make an assistant").click()
    expect(page.get_by_label("Assistant", exact=True).locator("option:checked")).to_have_text("Blackbeard (chat)")
    say(page, "ahoy")
    expect(page.get_by_role("region", name="Conversation")).to_contain_text("pirate: you said 'ahoy'")
    page.get_by_text("Configure the assistant").click()
    page.get_by_label("Model Name").fill("admiral")
    page.get_by_role("button", name="Save a new version").click()
    say(page, "at ease")
    expect(page.get_by_role("region", name="Conversation")).to_contain_text("admiral: you said 'at ease'")


def test_a_state_is_changed_by_hand(page: Page, developing: Server) -> None:
    open_graph(page, developing, "chat")
    say(page, "hello")
    expect(page.get_by_role("region", name="Conversation")).to_contain_text("you said 'hello'")
    page.get_by_text("Change the state").click()
    page.get_by_label("Values by channel").fill('{"messages": [{"role": "user", "content": "put in by hand"}]}')
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("region", name="Conversation")).to_contain_text("put in by hand")


def test_a_stream_that_drops_is_told_and_the_thread_goes_on(page: Page) -> None:
    """The server is killed in the middle of a run. The page reports that the stream ended, and works once a server is
    back.
    """
    with TemporaryDirectory(prefix="moorage-test-") as folder:
        Path(folder).chmod(0o755)
        short_lived = make_server(Path(folder), PROJECT)
        short_lived.start("--development")
        open_graph(page, short_lived, "slow")
        say(page, '{"seconds": 8}')
        expect(page.get_by_text("The agent works")).to_be_visible()
        page.wait_for_timeout(500)  # the stream has begun
        short_lived.kill()
        expect(page.get_by_role("alert").first).to_be_visible(timeout=60_000)  # the client tries again for 22 s
        short_lived.start("--development")
        page.reload()
        say(page, '{"seconds": 0}')
        expect(page.get_by_role("region", name="State")).to_contain_text("slept")
        short_lived.stop()
