"""Measures the web console in a real Chromium, on a platform that `bench/traces.py fill` has filled. See bench/README.md.

It sends one trace of 10,000 runs itself. Times are of this browser on the machine of the server, which they share.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import re
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import httpx
from playwright.sync_api import Browser, Page, sync_playwright

TRACE_RUNS, RUNS_A_BODY, CHILDREN = 10_000, 500, 9
TABLE_ROWS, FRAMES, STEP_PX = 10_000, 240, 240
WAIT_MS, REQUESTS = 120_000, 500
OPENING_S = 0.5
# When the first row of a grid is there, and when the data that it shows was.
_WATCH = """
window.firstRow = new Promise(done => {
  const look = () => document.querySelector('[role=rowgroup] [role=row]') ? done(performance.now()) : requestAnimationFrame(look);
  look();
});
"""
_DATA_AT = """part => Math.max(0, ...performance.getEntriesByType('resource').filter(each => each.name.includes(part))
  .map(each => each.responseEnd))"""
_SCROLL = """async ([frames, step]) => {
  const grid = document.querySelector('[role=treegrid], [role=grid]');
  grid.scrollTop = 0;
  const times = [];
  for (let i = 0; i < frames; i++) {
    const at = await new Promise(requestAnimationFrame);
    times.push(at);
    grid.scrollTop += step;
    if (grid.scrollTop + grid.clientHeight >= grid.scrollHeight - step) grid.scrollTop = 0;
  }
  return times;
}"""
_TO_THE_END = """async rows => {
  const grid = document.querySelector('[role=grid]');
  while (Number(grid.getAttribute('aria-rowcount')) <= rows) {
    const before = grid.getAttribute('aria-rowcount');
    grid.scrollTop = grid.scrollHeight;
    for (let i = 0; i < 600 && grid.getAttribute('aria-rowcount') === before; i++) await new Promise(requestAnimationFrame);
    if (grid.getAttribute('aria-rowcount') === before) break;
  }
  return Number(grid.getAttribute('aria-rowcount')) - 1;
}"""


def main() -> int:
    options = _options()
    with httpx.Client(base_url=options.url, headers={"X-Api-Key": options.key}, timeout=120) as api:
        workspace = api.get("/api/v1/settings").raise_for_status().json()["id"]
        projects = api.get("/api/v1/sessions", params={"limit": 100}).raise_for_status().json()
        largest = max(projects, key=lambda each: _run_count(api, each["id"]))["id"]
        print(f"sending one trace of {TRACE_RUNS:,} runs", file=sys.stderr)
        trace = send_trace(api, largest)
    place = f"{options.url}/o/{workspace}"
    rows: list[tuple[str, list[float], str]] = []
    with sync_playwright() as playwright:
        chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        visit = Visits(browser, options)
        traces, run = (
            f"{place}/projects/p/{largest}?range=30d",
            f"{place}/projects/p/{largest}/r/{trace}?trace_id={trace}",
        )
        rows += [
            ("first view of the traces, nothing cached, ms", visit.each(traces, first_view), "1,000"),
            (f"a trace of {TRACE_RUNS:,} runs, after its data is there, ms", visit.each(run, after_data), "1,000"),
            ("... scrolling, frames/s", visit.each(run, frames), "50"),
            ("... longest frame, ms", visit.each(run, longest_frame), ""),
            (f"a table of {TABLE_ROWS:,} rows, scrolling, frames/s", visit.each(traces, table_frames), "50"),
            ("typing into the filter, longest wait for a frame, ms", visit.each(traces, typing), ""),
        ]
        browser.close()
    rows += serving(options.url, options.key, options.passes)
    print("| what | median | passes | budget |\n|---|---|---|---|")
    for name, values, budget in rows:
        print(f"| {name} | {_number(statistics.median(values))} | {', '.join(map(_number, values))} | {budget} |")
    return 0


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2f}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--key", required=True, help="an API key of the platform")
    parser.add_argument("--passes", type=int, default=5)
    return parser.parse_args()


def _run_count(api: httpx.Client, project: str) -> int:
    body = {"session": [project], "select": ["run_count"]}
    return int(api.post("/api/v1/runs/stats", json=body).raise_for_status().json()["run_count"] or 0)


def send_trace(api: httpx.Client, project: str) -> UUID:
    """A tree in which each run has nine below it, until there are 10,000. Returns the trace's id when it can be read."""
    begun, root = datetime.now(UTC) - timedelta(minutes=1), uuid4()
    orders = [f"{begun:%Y%m%dT%H%M%S%f}Z{root}"]
    ids, runs = [root], []
    for number in range(TRACE_RUNS):
        parent = (number - 1) // CHILDREN
        at = begun + timedelta(milliseconds=number)
        if number:
            ids.append(uuid4())
            orders.append(f"{orders[parent]}.{at:%Y%m%dT%H%M%S%f}Z{ids[number]}")
        runs.append(_run(project, root, ids[number], ids[parent] if number else None, orders[number], at, number))
    for begin in range(0, TRACE_RUNS, RUNS_A_BODY):
        api.post("/api/v1/runs/batch", json={"post": runs[begin : begin + RUNS_A_BODY]}).raise_for_status()
    search = {"session": [project], "trace": str(root), "select": ["run_count"]}
    while api.post("/api/v1/runs/stats", json=search).json()["run_count"] != TRACE_RUNS:
        time.sleep(0.2)
    return root


def _run(
    project: str, root: UUID, run: UUID, parent: UUID | None, order: str, at: datetime, number: int
) -> dict[str, Any]:
    return {
        "id": str(run),
        "trace_id": str(root),
        "parent_run_id": str(parent) if parent else None,
        "dotted_order": order,
        "session_id": project,
        "name": f"step {number}",
        "run_type": ("chain", "llm", "tool")[number % 3],
        "start_time": at.isoformat(),
        "end_time": (at + timedelta(milliseconds=5)).isoformat(),
        "inputs": {"messages": [{"role": "user", "content": f"which berth is free? {number}"}]},
        "outputs": {"answer": f"berth {number}"},
    }


class Visits:
    """Visits of a page by somebody who has signed in, each with a browser's context of its own."""

    def __init__(self, browser: Browser, options: argparse.Namespace) -> None:
        self._browser, self._options = browser, options

    def each(self, url: str, measure: Callable[[Page], float]) -> list[float]:
        return [self._visit(url, measure) for _ in range(self._options.passes)]

    def _visit(self, url: str, measure: Callable[[Page], float]) -> float:
        context = self._browser.new_context(viewport={"width": 1440, "height": 900})
        try:
            page = context.new_page()
            page.set_default_timeout(WAIT_MS)
            _sign_in(page, self._options)
            page.add_init_script(_WATCH)
            page.goto(url)
            page.locator("[role=rowgroup] [role=row]").first.wait_for()
            return measure(page)
        finally:
            context.close()


def _sign_in(page: Page, options: argparse.Namespace) -> None:
    page.goto(f"{options.url}/login")
    page.get_by_label("API key").fill(options.key)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/o/*")


def first_view(page: Page) -> float:
    return float(page.evaluate("window.firstRow"))


def after_data(page: Page) -> float:
    return float(page.evaluate("window.firstRow")) - float(page.evaluate(_DATA_AT, "/v2/traces/"))


def _times(page: Page) -> list[float]:
    times: list[float] = page.evaluate(_SCROLL, [FRAMES, STEP_PX])
    return times


def frames(page: Page) -> float:
    times = _times(page)
    return 1000 * (len(times) - 1) / (times[-1] - times[0])


def longest_frame(page: Page) -> float:
    times = _times(page)
    return max(later - earlier for earlier, later in itertools.pairwise(times))


def table_frames(page: Page) -> float:
    shown = page.evaluate(_TO_THE_END, TABLE_ROWS)
    assert shown >= TABLE_ROWS, f"the table has {shown} rows"
    return frames(page)


def typing(page: Page) -> float:
    """The longest time from a key to the next frame."""
    field, waits = page.get_by_label("Text in inputs, outputs or error"), []
    for letter in "berth":
        began = time.monotonic()
        field.press_sequentially(letter)
        page.evaluate("new Promise(requestAnimationFrame)")
        waits.append(1000 * (time.monotonic() - began))
    return max(waits)


def serving(url: str, key: str, passes: int) -> list[tuple[str, list[float], str]]:
    """The median of an API request, alone and while somebody opens the console with an empty cache, in turns."""
    alone, beside = [], []
    for _ in range(passes):
        alone.append(_request_ms(url, key))
        # A process of its own: a thread would take the processor from the requests that are timed.
        opening = multiprocessing.Process(target=_open_console, args=(url,))
        opening.start()
        beside.append(_request_ms(url, key))
        opening.terminate()
        opening.join()
    return [
        ("an API request alone, p50, ms", alone, ""),
        (f"... while all files of the console are fetched {1 / OPENING_S:.0f} times a second", beside, ""),
    ]


def _request_ms(url: str, key: str) -> float:
    times = []
    with httpx.Client(base_url=url, headers={"X-Api-Key": key}) as api:
        for _ in range(REQUESTS):
            began = time.perf_counter()
            api.get("/api/v1/auth").raise_for_status()
            times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)


def _open_console(url: str) -> None:
    with httpx.Client(base_url=url) as client:
        files = ["/login", *re.findall(r'"(/[^"]+\.(?:js|css))"', client.get("/login").text)]
        while True:
            for file in files:
                client.get(file).raise_for_status()
            time.sleep(OPENING_S)


if __name__ == "__main__":
    sys.exit(main())
