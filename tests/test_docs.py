"""Docs are tests: every setting and command is documented, links lead somewhere, and generated tables are current."""

from __future__ import annotations

import asyncio
import os
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from moorage.cli import app
from moorage.settings import AgentSettings
from tests.serving import Server

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(ROOT.glob("*.md")) + sorted(ROOT.glob("docs/**/*.md"))


def settings_table() -> str:
    """The table of docs/settings.md, made from the fields themselves."""
    rows = ["| variable | default | meaning |", "|---|---|---|"]
    for field in AgentSettings.model_fields.values():
        alias = field.validation_alias
        names = [alias] if isinstance(alias, str) else [str(choice) for choice in getattr(alias, "choices", [])]
        default = "" if field.default in (None, "") else f"`{field.default}`"
        rows.append(f"| {', '.join(f'`{name}`' for name in names)} | {default} | {field.description} |")
    return "\n".join(rows)


def test_every_setting_is_documented_as_it_is() -> None:
    page = ROOT / "docs" / "settings.md"
    before, _, rest = page.read_text().partition("<!-- settings -->\n")
    _, _, after = rest.partition("\n<!-- end of settings -->")
    if os.environ.get("UPDATE_GOLDENS"):
        page.write_text(f"{before}<!-- settings -->\n{settings_table()}\n<!-- end of settings -->{after}")
    assert settings_table() in page.read_text(), "run UPDATE_GOLDENS=1 pytest tests/test_docs.py"


def test_every_setting_has_a_variable_that_does_not_collide_with_the_system() -> None:
    names = {str(field.validation_alias) for field in AgentSettings.model_fields.values()}
    assert "None" not in names
    assert not names & {"HOME", "PATH", "USER"}


def test_every_command_is_documented() -> None:
    text = (ROOT / "docs" / "commands.md").read_text()
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        assert f"`moorage {name}" in text, name
        for parameter in command.params:
            option = max(parameter.opts, key=len)
            hidden = getattr(parameter, "hidden", False)  # between a server and its own children
            assert hidden or option == "--help" or f"`{option}" in text, f"{name} {option}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_snippet_of_the_readme_runs(examples_server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    snippets = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert snippets
    for snippet in snippets:
        body = textwrap.indent(snippet.replace("http://127.0.0.1:2024", examples_server.url), "    ")
        scope: dict[str, Any] = {}
        exec(f"async def snippet():\n{body}", scope)  # noqa: S102 - our own page
        asyncio.run(scope["snippet"]())
    assert "updates {'answer'" in capsys.readouterr().out
