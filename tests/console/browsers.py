"""A real Chromium for tests of the console: Debian's, or any other that is found.

With `MOORAGE_TEST_BROWSER=required`, the tests fail if there is none.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from moorage.http.console import BUILD
from tests.serving import ROOT

AXE = ROOT / "console" / "node_modules" / "axe-core" / "axe.min.js"
expect.set_options(timeout=30_000)  # for a machine that is busy with other things too
# Rules of axe-core that only advise are left out.
_RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}


def missing() -> str | None:
    """Return what the tests of the browser lack, or None."""
    if not (BUILD / "index.html").is_file():
        return "the console is not built: scripts/console"
    if not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
        return "no Chromium is installed: apt install chromium"
    return None


@contextmanager
def open_browser() -> Iterator[Browser]:
    if lacks := missing():
        assert os.environ.get("MOORAGE_TEST_BROWSER") != "required", lacks
        pytest.skip(lacks)
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@dataclass
class Watched:
    """A page, with its requests to other origins and its errors."""

    page: Page
    origin: str
    foreign: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("request", self._on_request)
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("console", lambda told: self.faults.append(told.text) if "Content Security" in told.text else None)

    def _on_request(self, request: object) -> None:
        url = urlsplit(str(request.url))  # type: ignore[attr-defined]
        if url.scheme in {"http", "https"} and f"{url.scheme}://{url.netloc}" != self.origin:
            self.foreign.append(url.geturl())

    def complaints(self) -> list[str]:
        """Return the complaints of axe-core, requests to other origins, and errors."""
        # Not as a script of the page, which its policy would refuse.
        self.page.evaluate(Path(AXE).read_text())
        found = self.page.evaluate("rules => axe.run(document, rules)", _RULES)["violations"]
        told = [f"{rule['id']}: {node['html'][:200]}" for rule in found for node in rule["nodes"]]
        return told + self.foreign + self.faults
