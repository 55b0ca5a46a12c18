"""The console under faults: odd traces, large values, servers that restart, other tabs, and wrong clocks."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.console.browsers import Watched
from tests.console.runs import HOSTILE, make_run, place, send, wait_for_runs
from tests.platform.serving import Platform

pytest_plugins = "tests.console.fixtures"
pytestmark = pytest.mark.timeout(300)

LARGE_CHARS = 20_000_000
# How long a page may be unresponsive: somebody who types notices longer times.
DEAF_S_MAX = 2.0


def show(page: Page, platform: Platform, run: dict) -> None:
    page.goto(place(platform, f"/projects/p/{run['session_id']}/r/{run['id']}?trace_id={run['trace_id']}"))


def test_no_part_of_a_trace_becomes_a_link_a_script_or_a_mark(
    page: Page, platform: Platform, project: str, api: httpx.Client
) -> None:
    """Covers every place in which a trace holds text: names, kinds of values, keys, tags, metadata, threads, messages,
    errors.
    """
    messages = [
        {"role": HOSTILE, "content": [{"type": "text", "text": HOSTILE}, {"type": "image_url", "image_url": HOSTILE}]}
    ]
    run = make_run(
        project,
        datetime.now(UTC),
        f"hostile {HOSTILE}",
        "llm",
        error=HOSTILE,
        inputs={"messages": messages, HOSTILE: [HOSTILE, {HOSTILE: HOSTILE}]},
        outputs={"messages": messages, "url": "javascript:window.hacked=1"},
        tags=[HOSTILE],
        extra={"metadata": {"thread_id": f"t {HOSTILE}", HOSTILE: HOSTILE, "LANGSMITH_HOST_PROJECT_NAME": HOSTILE}},
    )
    send(api, run)
    wait_for_runs(api, id=[run["id"]])
    watched = Watched(page, platform.url)
    for path in (f"/projects/p/{project}", f"/threads?project={project}", f"/dashboards?project={project}"):
        page.goto(place(platform, path))
        expect(page.get_by_text("hostile" if "projects" in path else "Sign out").first).to_be_visible()
        _is_inert(page)
    show(page, platform, run)
    expect(page.get_by_role("region", name="Messages").first).to_contain_text("<script>window.hacked=1</script>")
    for button in page.get_by_role("button", name="Raw").all():
        button.click()
    _is_inert(page)
    assert not watched.complaints()


def _is_inert(page: Page) -> None:
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("[...document.links].filter(link => !/^https?:/.test(link.href)).map(link => link.href)") == []
    shown = page.inner_text("body")
    assert "\u202e" not in shown
    assert "\x1b" not in shown


def test_a_value_of_20_mb_shows_its_beginning_and_the_page_stays_awake(
    page: Page, platform: Platform, project: str, api: httpx.Client
) -> None:
    run = make_run(project, datetime.now(UTC), "large", "chain", outputs={"text": "begin " + "x" * LARGE_CHARS})
    send(api, run)
    wait_for_runs(api, id=[run["id"]])
    show(page, platform, run)
    output = page.get_by_role("region", name="Output")
    expect(output).to_contain_text("begin xxx", timeout=60_000)
    expect(output.get_by_role("button", name="more characters")).to_be_visible()
    for act in (
        lambda: output.get_by_role("button", name="more characters").click(),
        lambda: output.get_by_label("Search in Output").fill("begin"),
        lambda: page.keyboard.press("Escape"),
    ):
        began = time.monotonic()
        act()
        page.evaluate("new Promise(done => requestAnimationFrame(done))")
        assert time.monotonic() - began < DEAF_S_MAX


def test_runs_whose_times_and_parents_make_no_sense_are_shown(
    page: Page, platform: Platform, project: str, api: httpx.Client
) -> None:
    begun = datetime.now(UTC)
    never_sent = make_run(project, begun, "never sent", "chain")
    orphan = make_run(project, begun + timedelta(milliseconds=5), "orphan", "tool", parent=never_sent)
    backwards = make_run(project, begun + timedelta(milliseconds=9), "backwards", "llm", parent=orphan)
    backwards["end_time"] = (begun - timedelta(hours=3)).isoformat()
    send(api, orphan, backwards)
    wait_for_runs(api, id=[backwards["id"]])
    watched = Watched(page, platform.url)
    show(page, platform, backwards)
    tree = page.get_by_role("treegrid")
    expect(tree.get_by_role("row")).to_have_count(2)
    expect(tree.get_by_role("row").nth(0)).to_contain_text("orphan")
    expect(tree.get_by_role("row").nth(1)).to_contain_text("\u22123 h")
    assert not watched.complaints()


def test_runs_that_are_each_others_parents_are_each_shown_once(
    page: Page, platform: Platform, project: str, api: httpx.Client
) -> None:
    begun = datetime.now(UTC)
    root = make_run(project, begun, "root", "chain")
    one = make_run(project, begun + timedelta(milliseconds=5), "one", "chain", parent=root)
    other = make_run(project, begun + timedelta(milliseconds=9), "other", "chain", parent=root)
    of_one, of_other = (run["dotted_order"].rpartition(".")[2] for run in (one, other))
    one |= {"parent_run_id": other["id"], "dotted_order": f"{root['dotted_order']}.{of_other}.{of_one}"}
    other |= {"parent_run_id": one["id"], "dotted_order": f"{root['dotted_order']}.{of_one}.{of_other}"}
    send(api, root, one, other)
    wait_for_runs(api, id=[other["id"]])
    show(page, platform, one)
    rows = page.get_by_role("treegrid").get_by_role("row")
    expect(rows).to_have_count(3)
    for name in ("root", "one", "other"):
        expect(rows.filter(has=page.get_by_text(name, exact=True))).to_have_count(1)


def test_what_does_not_exist_and_what_is_anothers_look_alike(page: Page, platform: Platform, api: httpx.Client) -> None:
    other = api.post("/api/v1/workspaces", json={"display_name": "stranger"}).json()
    headers = {"X-Api-Key": other["api_key"]}
    foreign = api.post("/api/v1/sessions", json={"name": "theirs"}, headers=headers).json()["id"]
    shown = set()
    for project in (foreign, "0b9a4c0e-8a5c-4d0f-9a53-1f0c5d3f7a11"):
        page.goto(place(platform, f"/projects/p/{project}"))
        expect(page.get_by_role("alert")).to_be_visible()
        shown.add(page.get_by_role("alert").inner_text().replace(project, "ID"))
    assert len(shown) == 1


def test_a_page_outlives_a_restart_of_its_server(
    page: Page, platform: Platform, project: str, api: httpx.Client
) -> None:
    """The server is killed and started: the tail continues where it was, in a tab that nobody has reloaded."""
    page.goto(place(platform, f"/projects/p/{project}"))
    page.get_by_role("button", name="Live").click()
    expect(page.get_by_text("Live: new runs")).to_be_visible()
    platform.kill()
    expect(page.get_by_text("The stream broke off")).to_be_visible()
    platform.start()
    late = make_run(project, datetime.now(UTC), "after the restart", "chain")
    send(api, late)
    expect(page.get_by_role("link", name="after the restart")).to_be_visible(timeout=60_000)
    expect(page.get_by_text("Live: new runs")).to_be_visible()


def test_a_tail_ends_with_its_session_and_says_why(
    context: BrowserContext, platform: Platform, project: str, api: httpx.Client
) -> None:
    made = api.post("/api/v1/api-key", json={"description": "of a tail"}).json()
    page = context.new_page()
    page.goto(f"{platform.url}/login")
    page.get_by_label("API key").fill(made["key"])
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/o/*")
    page.goto(place(platform, f"/projects/p/{project}"))
    page.get_by_role("button", name="Live").click()
    expect(page.get_by_text("Live: new runs")).to_be_visible()
    api.delete(f"/api/v1/api-key/{made['id']}").raise_for_status()
    expect(
        page.get_by_role("link", name="Sign in again").or_(page.get_by_text("Not live any more")).first
    ).to_be_visible()


def test_who_signs_out_in_one_tab_is_out_in_the_other(context: BrowserContext, page: Page, platform: Platform) -> None:
    other = context.new_page()
    other.goto(place(platform, "/projects"))
    expect(other.get_by_role("button", name="Sign out")).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/login")
    other.get_by_role("link", name="Dashboards").click()
    expect(other.get_by_role("link", name="Sign in again").or_(other.get_by_label("API key")).first).to_be_visible(
        timeout=40_000
    )


@pytest.mark.parametrize("hours", [-1, 1])
def test_the_last_hour_is_the_servers(page: Page, platform: Platform, project: str, hours: int) -> None:
    """A browser whose clock is an hour off shows the runs of the last hour, and their times."""
    page.clock.install(time=datetime.now(UTC) + timedelta(hours=hours))
    page.goto(place(platform, f"/projects/p/{project}?range=1h"))
    expect(page.get_by_role("link", name="pilot").first).to_be_visible()
    expect(page.get_by_role("row").filter(has_text="pilot").first).to_contain_text(" min ago")
