"""The console in a real Chromium, against a real platform: signing in, the pages, what they may load, and the text that
they show.
"""

from __future__ import annotations

import gzip
import re
import time
from datetime import UTC, datetime
from uuid import UUID, uuid4

import httpx
import pytest
from playwright.sync_api import BrowserContext, Page, expect

from moorage.http.console import BUILD
from tests.console.browsers import Watched, missing
from tests.console.runs import make_run, place
from tests.platform.serving import Platform, moorage

pytest_plugins = "tests.console.fixtures"
pytestmark = pytest.mark.timeout(300)

FIRST_SCRIPT_BYTES_MAX = 250_000
ALL_BYTES_MAX = 2_500_000


# --- files ------------------------------------------------------------------------------------------------------------


def test_pages_are_fresh_and_their_files_are_kept_for_good(platform: Platform) -> None:
    if missing():
        pytest.skip(str(missing()))
    with httpx.Client(base_url=platform.url) as client:
        index = client.get("/o/anything/at/all")
        assert (index.status_code, index.headers["cache-control"]) == (200, "no-store")
        policy = index.headers["content-security-policy"]
        assert "script-src 'self';" in policy
        assert "frame-ancestors 'none'" in policy
        script = next(word for word in index.text.split('"') if word.endswith(".js"))
        for accepted in ("br", "gzip", "identity"):
            answer = client.get(script, headers={"Accept-Encoding": accepted})
            assert "immutable" in answer.headers["cache-control"]
            assert answer.headers.get("content-encoding", "identity") == accepted
        assert client.get("/assets/..%2findex.html").status_code == 404
        assert client.get("/assets/none.js").status_code == 404


def test_the_console_stays_within_its_size() -> None:
    if missing():
        pytest.skip(str(missing()))
    index = (BUILD / "index.html").read_text()
    first = [BUILD / word.lstrip("/") for word in index.split('"') if word.endswith(".js")]
    assert first
    assert sum(len(gzip.compress(file.read_bytes())) for file in first) <= FIRST_SCRIPT_BYTES_MAX
    files = [file for file in BUILD.rglob("*") if file.is_file() and file.suffix not in {".br", ".gz"}]
    assert sum(file.stat().st_size for file in files) <= ALL_BYTES_MAX


# --- signing in -------------------------------------------------------------------------------------------------------


def sign_in(client: httpx.Client, body: dict[str, str], **headers: str) -> httpx.Response:
    return client.post("/login", json=body, headers={"Origin": str(client.base_url).rstrip("/"), **headers})


def test_a_link_opens_the_console_once(platform: Platform) -> None:
    code, link, _ = moorage("console", MOORAGE_URL=platform.url, MOORAGE_API_KEY=platform.key)
    assert code == 0
    secret = link.strip().partition("#")[2]
    with httpx.Client(base_url=platform.url) as client:
        answer = sign_in(client, {"code": secret})
        assert answer.status_code == 204
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=lax" in cookie
        assert client.get("/api/v1/auth").json()["workspace_id"] == str(platform.workspace_id)
        assert sign_in(client, {"code": secret}).status_code == 401


def test_a_session_ends_with_its_key(platform: Platform, api: httpx.Client) -> None:
    made = api.post("/api/v1/api-key", json={"description": "console"}).json()
    with httpx.Client(base_url=platform.url) as client:
        assert sign_in(client, {"api_key": made["key"]}).status_code == 204
        assert client.get("/api/v1/auth").status_code == 200
        api.delete(f"/api/v1/api-key/{made['id']}").raise_for_status()
        deadline = time.monotonic() + 20
        while client.get("/api/v1/auth").status_code != 401:  # within 2 seconds on a quiet machine
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_a_session_changes_nothing_for_another_origin(platform: Platform) -> None:
    with httpx.Client(base_url=platform.url) as client:
        assert sign_in(client, {"api_key": platform.key}).status_code == 204
        body = {"name": f"csrf-{uuid4()}"}
        for headers in ({}, {"Origin": "http://evil.test"}, {"Origin": "http://127.0.0.1:1"}, {"Origin": "null"}):
            assert client.post("/api/v1/sessions", json=body, headers=headers).status_code == 403
        own = {"Origin": platform.url}
        assert (
            client.post("/api/v1/sessions", json=body, headers=own | {"Sec-Fetch-Site": "same-site"}).status_code == 403
        )
        assert (
            client.post("/api/v1/sessions", json=body, headers=own | {"Sec-Fetch-Site": "same-origin"}).status_code
            == 200
        )


def test_nobody_is_signed_in_by_another_site_or_with_a_session_of_their_choice(platform: Platform) -> None:
    with httpx.Client(base_url=platform.url) as client:
        assert (
            client.post("/login", json={"api_key": platform.key}, headers={"Origin": "http://evil.test"}).status_code
            == 403
        )
        client.cookies.set("moorage_session", "session:chosen")
        assert client.get("/api/v1/auth").status_code == 401
        answer = sign_in(client, {"api_key": platform.key})
        assert "session:chosen" not in answer.headers["set-cookie"]
        assert sign_in(client, {"api_key": "wrong"}).status_code == 401
        assert sign_in(client, {}).status_code == 422


def test_signing_in_leads_to_no_other_site(page: Page, context: BrowserContext, platform: Platform) -> None:
    context.clear_cookies()
    page.goto(f"{platform.url}/login?next=//evil.test/o/x")
    page.get_by_label("API key").fill(platform.key)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"{platform.url}/o/*")


def test_a_page_asks_to_sign_in_and_comes_back(context: BrowserContext, platform: Platform) -> None:
    page = context.new_page()
    page.goto(place(platform, "/projects"))
    page.wait_for_url("**/login?next=*")
    page.get_by_label("API key").fill("lsv2_pt_wrong_but_long_enough")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("not known here")
    page.get_by_label("API key").fill(platform.key)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/projects")
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/login")


def test_a_foreign_workspace_looks_like_none(page: Page, platform: Platform, api: httpx.Client) -> None:
    other = api.post("/api/v1/workspaces", json={"display_name": "other"}).json()
    shown = set()
    for workspace in (other["id"], UUID(int=7)):
        page.goto(f"{platform.url}/o/{workspace}/projects")
        alert = page.get_by_role("alert")
        expect(alert).to_be_visible()
        shown.add(alert.inner_text())
    assert len(shown) == 1


# --- pages ------------------------------------------------------------------------------------------------------------


def test_a_failed_run_is_found_by_text_and_read_to_its_messages(page: Page, platform: Platform, project: str) -> None:
    watched = Watched(page, platform.url)
    page.goto(place(platform, f"/projects/p/{project}"))
    page.get_by_label("Text in inputs, outputs or error").fill("no berth is free")
    page.get_by_label("State").select_option("error")
    expect(page.get_by_role("row")).to_have_count(2)
    page.reload()
    expect(page.get_by_role("row")).to_have_count(2)
    assert not watched.complaints()
    page.get_by_role("link", name="pilot").click()
    expect(page.get_by_role("region", name="Error")).to_contain_text("no berth is free")
    page.get_by_role("row").filter(has_text="model").click()
    expect(page.get_by_role("region", name="Messages")).to_contain_text("berth 4 <img src=x")
    assert page.evaluate("window.hacked") is None
    assert "\u202e" not in page.inner_text("body")
    assert not watched.complaints()


def test_projects_are_listed(page: Page, platform: Platform, project: str) -> None:
    watched = Watched(page, platform.url)
    page.goto(place(platform, "/projects"))
    expect(page.get_by_role("link", name="console-")).to_have_count(1)
    assert not watched.complaints()


def test_a_key_that_is_revoked_meanwhile_is_told(
    context: BrowserContext, platform: Platform, api: httpx.Client
) -> None:
    made = api.post("/api/v1/api-key", json={"description": "console"}).json()
    page = context.new_page()
    page.goto(f"{platform.url}/login")
    page.get_by_label("API key").fill(made["key"])
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/o/*")
    api.delete(f"/api/v1/api-key/{made['id']}").raise_for_status()
    expect(page.get_by_role("link", name="Sign in again")).to_be_visible(timeout=40_000)


def test_every_page_is_accessible_and_fits(
    context: BrowserContext, page: Page, platform: Platform, project: str
) -> None:
    watched = Watched(page, platform.url)
    paths = ["", "/projects", "/threads", "/dashboards", "/playground", "/deployments", "/exports", "/settings"]
    for width, scheme in ((1440, "light"), (360, "dark")):
        page.set_viewport_size({"width": width, "height": 800})
        page.emulate_media(color_scheme=scheme)
        for path in [*paths, f"/projects/p/{project}"]:
            page.goto(place(platform, path))
            expect(page.get_by_role("heading").or_(page.get_by_text("No agent is deployed")).first).to_be_visible()
            page.wait_for_load_state("networkidle")
            assert not watched.complaints(), (path, scheme)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (path, width)


def test_a_key_is_made_and_revoked(page: Page, platform: Platform, api: httpx.Client) -> None:
    page.on("dialog", lambda dialog: dialog.accept())
    name = f"made {uuid4()}"
    page.goto(place(platform, "/settings"))
    page.get_by_label("What the key is for").fill(name)
    page.get_by_role("button", name="Make a key").click()
    key = page.get_by_role("status").locator("code").inner_text()
    assert api.get("/api/v1/auth", headers={"X-Api-Key": key}).status_code == 200
    page.get_by_role("button", name=f"Revoke {name}").click()
    expect(page.get_by_role("button", name=f"Revoke {name}")).to_have_count(0)


def test_a_time_is_chosen_by_drawing_over_the_bars(page: Page, platform: Platform, project: str) -> None:
    page.goto(place(platform, f"/projects/p/{project}?range=24h"))
    bars = page.get_by_role("img", name=re.compile("runs over time, [1-9].* of them failed"))
    expect(bars).to_be_visible()
    box = bars.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.05 * box["width"], box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 20, steps=5)
    page.mouse.up()
    expect(page.get_by_label("Time", exact=True)).to_have_value("chosen")
    expect(page.get_by_text("No run of this time meets these conditions")).to_be_visible()
    page.get_by_label("Time", exact=True).select_option("24h")
    expect(page.get_by_role("link", name="pilot").first).to_be_visible()


def test_figures_over_time_are_drawn_and_told(page: Page, platform: Platform, project: str) -> None:
    watched = Watched(page, platform.url)
    page.goto(place(platform, f"/dashboards?project={project}&range=24h"))
    for name in ("Traces: .* failed", "Took: at most", "Tokens", "Cost"):
        expect(page.get_by_role("img", name=re.compile(name))).to_be_visible()
    assert not watched.complaints()


def test_new_runs_appear_while_the_list_is_live(
    page: Page, platform: Platform, project: str, api: httpx.Client
) -> None:
    page.goto(place(platform, f"/projects/p/{project}"))
    page.get_by_role("button", name="Live").click()
    late = make_run(project, datetime.now(UTC), "late", "chain")
    assert api.post("/api/v1/runs/batch", json={"post": [late], "patch": []}).status_code == 202
    expect(page.get_by_role("link", name="late")).to_be_visible(timeout=30_000)
