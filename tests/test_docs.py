"""Docs are tests: every setting and command is documented, links lead somewhere, and generated tables are current."""

from __future__ import annotations

import asyncio
import os
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph_sdk import get_client
from pydantic_settings import BaseSettings
from typer.main import get_command

from moorage.cli import app
from moorage.cli.client import ClientSettings
from moorage.kernel import project_keys
from moorage.settings.agents import AgentSettings
from moorage.settings.platform import PlatformSettings
from tests import compatibility
from tests.serving import Server

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(ROOT.glob("*.md")) + sorted(ROOT.glob("docs/**/*.md"))


# Each table of docs/settings.md stands between `<!-- name -->` and `<!-- end of name -->`.
TABLES: dict[str, type[BaseSettings]] = {
    "settings": AgentSettings,
    "platform settings": PlatformSettings,
    "client settings": ClientSettings,
}


def settings_table(settings: type[BaseSettings]) -> str:
    """Return the table, made from the fields themselves."""
    rows = ["| variable | default | meaning |", "|---|---|---|"]
    for field in settings.model_fields.values():
        alias = field.validation_alias
        names = [alias] if isinstance(alias, str) else [str(choice) for choice in getattr(alias, "choices", [])]
        default = "" if field.default in (None, "") else f"`{field.default}`"
        assert field.description, f"{names} has no help text below it"
        meaning = " ".join(field.description.split())
        rows.append(f"| {', '.join(f'`{name}`' for name in names)} | {default} | {meaning} |")
    return "\n".join(rows)


def keys_table() -> str:
    """Return a table of keys of langgraph.json and variables that have no effect."""
    refused = {**project_keys.NOT_SERVED, **project_keys.NOT_SERVED_VARIABLES}
    rows = ["| key or variable | what becomes of it |", "|---|---|"]
    rows += [f"| `{name}` | stops the start: it {does} |" for name, does in refused.items()]
    without_effect = {**project_keys.WITHOUT_EFFECT, **project_keys.WITHOUT_EFFECT_VARIABLES}
    rows += [f"| `{name}` | a warning: {why} |" for name, why in without_effect.items()]
    return "\n".join(rows)


@pytest.mark.parametrize("name", [*TABLES, "keys"])
def test_every_setting_is_documented_as_it_is(name: str) -> None:
    page = ROOT / "docs" / "settings.md"
    table = keys_table() if name == "keys" else settings_table(TABLES[name])
    before, found, rest = page.read_text().partition(f"<!-- {name} -->\n")
    _, _, after = rest.partition(f"\n<!-- end of {name} -->")
    assert found, f"docs/settings.md needs the lines <!-- {name} --> and <!-- end of {name} -->"
    if os.environ.get("UPDATE_GOLDENS"):
        page.write_text(f"{before}<!-- {name} -->\n{table}\n<!-- end of {name} -->{after}")
    assert table in page.read_text(), "run UPDATE_GOLDENS=1 pytest tests/test_docs.py"


@pytest.mark.parametrize("settings", TABLES.values())
def test_every_setting_has_a_variable_that_does_not_collide_with_the_system(settings: type[BaseSettings]) -> None:
    names = {str(field.validation_alias) for field in settings.model_fields.values()}
    assert "None" not in names
    assert not names & {"HOME", "PATH", "USER"}


def commands(group: Any, path: str = "moorage") -> Iterator[tuple[str, Any]]:
    """Return every command that does something, with the words that call it."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


@pytest.mark.parametrize(
    "words, command", list(commands(get_command(app))), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_command_is_documented(words: str, command: Any) -> None:
    text = (ROOT / "docs" / "commands.md").read_text()
    assert f"`{words}" in text, words
    for parameter in command.params:
        option = max(parameter.opts, key=len)
        hidden = getattr(parameter, "hidden", False)  # between a server and its own children
        known = option == "--help" or not option.startswith("-") or f"`{option}" in text
        assert hidden or known, f"{words} {option}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_walks_through_the_code_name_files_that_are_there() -> None:
    walks = (ROOT / "docs/reading-the-code.md").read_text()
    files = set(re.findall(r"`([a-z_/]+(?:\.py|/))`", walks))
    assert len(files) > 20
    rooms = [ROOT / "src/moorage" / room for room in ("", "traces", "exports")]
    assert [file for file in sorted(files) if not any((room / file).exists() for room in rooms)] == []


def run_snippets(page: str, examples_server: Server) -> None:
    snippets = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert snippets
    for snippet in snippets:
        body = textwrap.indent(snippet.replace("http://127.0.0.1:2024", examples_server.url), "    ")
        scope: dict[str, Any] = {"get_client": get_client}
        exec(f"async def snippet():\n{body}", scope)  # noqa: S102 - our own page
        asyncio.run(scope["snippet"]())


def test_the_snippet_of_the_readme_runs(examples_server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    run_snippets("README.md", examples_server)
    assert "updates {'answer'" in capsys.readouterr().out


def test_the_snippet_about_memory_runs(examples_server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    run_snippets("docs/memory.md", examples_server)
    assert capsys.readouterr().out == "boats\n"


def test_the_snippet_about_the_protocol_runs(examples_server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    run_snippets("docs/protocol.md", examples_server)
    assert capsys.readouterr().out.strip()


def test_the_snippet_about_crons_runs(examples_server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    run_snippets("docs/crons.md", examples_server)
    assert capsys.readouterr().out.startswith("20")


@pytest.mark.parametrize("page", ["authentication.md", "own-routes.md"])
def test_the_snippets_of_a_page_run(own_users_server: Server, page: str) -> None:
    """Runs those that are marked as examples, against `examples/own_users`."""
    snippets = re.findall(r"```python example\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
    assert snippets
    for snippet in snippets:
        body = textwrap.indent(snippet.replace("http://127.0.0.1:2024", own_users_server.url), "    ")
        scope: dict[str, Any] = {}
        exec(f"async def snippet():\n{body}", scope)  # noqa: S102 - our own page
        asyncio.run(scope["snippet"]())


def test_the_page_of_compatibility_has_every_row_and_each_names_tests_that_are_there() -> None:
    page = (ROOT / "docs" / "compatibility.md").read_text()
    for what, tests in compatibility.ROWS.items():
        assert f"| {what} | yes | {', '.join(f'`{test}`' for test in tests)} |" in page, "run scripts/compatibility"
        for test in tests:
            file, _, function = test.partition("::")
            assert f"def {function}(" in (ROOT / file).read_text() if function else (ROOT / file).is_file(), test
