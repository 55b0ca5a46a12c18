"""Makes the pictures of docs/console.md: `scripts/pictures`. Each shows a page with the traces of
an invented harbour.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
from playwright.sync_api import Page

from tests.console.browsers import open_browser
from tests.console.runs import make_run, place, send, wait_for_runs
from tests.platform.serving import Platform, make_folder, make_platform, moorage
from tests.serving import EXAMPLES, ROOT

FOLDER = ROOT / "docs" / "images"
_TRACES, _DAYS, _SEED = 400, 6, 3
_QUESTION = "Which berth is free for the Gudrun?"
_ANSWER = "Berth 4 is free until 18:00. It is 9 m deep, and the Gudrun needs 7."
_SETTLED_MS = 2_000


def main() -> None:
    with make_folder() as folder, make_platform(folder / "home") as platform, platform.client() as api:
        project, run = _fill(api)
        _deploy_and_export(platform)
        pages = {
            "home": "",
            "projects": "/projects",
            "traces": f"/projects/p/{project}",
            "run": f"/projects/p/{project}/r/{run['id']}?trace_id={run['trace_id']}",
            "threads": f"/threads?project={project}",
            "dashboards": f"/dashboards?project={project}",
            "deployments": "/deployments",
            "exports": "/exports",
            "settings": "/settings",
        }
        with open_browser() as browser:
            page = browser.new_page(viewport={"width": 1280, "height": 720})
            page.goto(moorage("console", MOORAGE_URL=platform.url, MOORAGE_API_KEY=platform.key)[1].strip())
            page.wait_for_url("**/o/*")
            for name, path in pages.items():
                _take(page, platform, name, path)


def _take(page: Page, platform: Platform, name: str, path: str) -> None:
    page.goto(place(platform, path))
    page.wait_for_timeout(_SETTLED_MS)
    page.screenshot(path=FOLDER / f"{name}.png")


def _fill(api: httpx.Client) -> tuple[str, dict[str, Any]]:
    """Fill a project with some days of runs, and return a run that is worth a picture."""
    project = api.post("/api/v1/sessions", json={"name": "harbour"}).json()["id"]
    chance, now, runs = random.Random(_SEED), datetime.now(UTC), []
    for number in range(_TRACES):
        at = now - timedelta(days=_DAYS) * chance.random() ** 2
        error = "ValueError: no berth is free" if chance.random() < 0.1 else None
        runs += _trace(project, at, chance, f"ship-{number % 40}", error)
    send(api, *runs)
    wait_for_runs(api, session=[project])
    return project, next(run for run in runs if run["run_type"] == "llm" and not run["error"])


def _deploy_and_export(platform: Platform) -> None:
    """Deploy an agent, and export the last days to a folder."""
    told = {"MOORAGE_URL": platform.url, "MOORAGE_API_KEY": platform.key}
    start = (datetime.now(UTC) - timedelta(days=_DAYS)).strftime("%Y-%m-%d")
    for command in (
        ("deploy", str(EXAMPLES.parent), "--name", "harbour-master"),
        ("destinations", "create", "lake", "--type", "local", "--bucket", "lake"),
        ("exports", "create", "harbour", "--to", "lake", "--start", start, "--watch"),
    ):
        code, _, errors = moorage(*command, **told)
        assert code == 0, errors


def _trace(project: str, at: datetime, chance: random.Random, ship: str, error: str | None) -> list[dict[str, Any]]:
    took = timedelta(seconds=chance.lognormvariate(0.5, 0.6))
    asked = {"messages": [{"role": "user", "content": _QUESTION}]}
    metadata = {"thread_id": ship, "ls_model_name": "gpt-4o"}
    root = make_run(
        project,
        at,
        chance.choice(("pilot", "berths", "customs")),
        "chain",
        error=error,
        inputs=asked,
        extra={"metadata": metadata},
    )
    root |= {"end_time": (at + took).isoformat(), "outputs": {"answer": _ANSWER}, "tags": ["production"]}
    tool = make_run(project, at + 0.1 * took, "look_up_berths", "tool", parent=root, inputs={"day": "today"})
    model = make_run(project, at + 0.3 * took, "model", "llm", parent=root, inputs=asked, extra={"metadata": metadata})
    tokens = {"prompt_tokens": chance.randint(100, 900), "completion_tokens": chance.randint(20, 300)}
    model["outputs"] = {
        "messages": [{"role": "assistant", "content": _ANSWER}],
        "llm_output": {"token_usage": {**tokens, "total_tokens": sum(tokens.values())}},
    }
    tool["end_time"], model["end_time"] = (at + 0.25 * took).isoformat(), (at + 0.95 * took).isoformat()
    return [root, tool, model]


if __name__ == "__main__":
    main()
