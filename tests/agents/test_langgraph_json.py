"""Keys of langgraph.json: each has an effect, is refused before the start, or is named in a warning."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict

import pytest
from langgraph_cli.schemas import Config
from structlog.testing import capture_logs

from moorage.agents.langgraph_json import LanggraphJson, load_langgraph_json
from moorage.kernel import project_keys
from moorage.kernel.errors import StartupError

GRAPHS = {"graphs": {"agent": "./agent.py:graph"}}
# The form of a refused key in the file; other keys are refused whatever their value is.
VALUES: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo, after each test, variables that the test or a file has set."""
    monkeypatch.setattr(os, "environ", dict(os.environ))


def load(folder: Path, **keys: Any) -> LanggraphJson:
    (folder / "langgraph.json").write_text(json.dumps({**GRAPHS, **keys}))
    return load_langgraph_json(folder / "langgraph.json")


def nested(path: str, value: Any) -> dict[str, Any]:
    for key in reversed(path.split(".")):
        value = {key: value}
    return value


def warned(folder: Path, **keys: Any) -> list[str]:
    with capture_logs() as logs:
        load(folder, **keys)
    return [line["event"] for line in logs if line["log_level"] == "warning"]


@pytest.mark.parametrize("path", project_keys.NOT_SERVED)
def test_a_key_that_is_not_served_stops_the_start_and_says_what_it_does(tmp_path, path):
    with pytest.raises(StartupError) as refusal:
        load(tmp_path, **nested(path, VALUES.get(path, "x")))
    assert f"sets {path}, which {project_keys.NOT_SERVED[path]}" in str(refusal.value)


@pytest.mark.parametrize("value", [None, False, {}, ""])
def test_a_key_that_asks_for_nothing_is_no_reason_to_stop(tmp_path, value):
    assert warned(tmp_path, http={"disable_store": value}, auth=value, store=value) == []


def test_several_keys_are_named_together(tmp_path):
    os.environ["LANGGRAPH_AES_KEY"] = "x" * 16
    with pytest.raises(StartupError, match=r"sets encryption, .* sets priority, .* LANGGRAPH_AES_KEY is set"):
        load(tmp_path, encryption={"path": "./a.py:a"}, priority={"path": "./a.py:a"}, http={"disable_runs": False})


@pytest.mark.parametrize("variable", ["LANGGRAPH_ENCRYPTION"])
@pytest.mark.parametrize("by_file", [True, False])
def test_a_section_in_a_variable_is_refused_like_the_key(tmp_path, variable, by_file):
    section = json.dumps({"path": "./a.py:a"})
    if not by_file:
        os.environ[variable] = section
    with pytest.raises(StartupError, match=f"sets {project_keys.SECTION_VARIABLES[variable]}, which"):
        load(tmp_path, env={variable: section} if by_file else {})


@pytest.mark.parametrize("variable", project_keys.NOT_SERVED_VARIABLES)
def test_a_variable_that_is_not_served_stops_the_start(tmp_path, variable):
    os.environ[variable] = "x"
    with pytest.raises(StartupError, match=f"{variable} is set, which"):
        load(tmp_path)


@pytest.mark.parametrize(("kind", "starts"), [("", True), ("noop", True), ("langsmith", False)])
def test_authentication_by_another_service_is_refused(tmp_path, kind, starts):
    os.environ["LANGGRAPH_AUTH_TYPE"] = kind
    if starts:
        assert warned(tmp_path) == []
        return
    with pytest.raises(StartupError, match="LANGGRAPH_AUTH_TYPE"):
        load(tmp_path)


def test_a_served_section_in_a_variable_acts(tmp_path):
    os.environ["LANGGRAPH_WEBHOOKS"] = json.dumps({"url": {"allowed_domains": ["example.com"]}})
    os.environ["LANGSERVE_GRAPHS"] = json.dumps({"other": "./other.py:graph"})
    config = load(tmp_path, webhooks={"url": {"allowed_domains": ["example.org"]}})
    assert config.webhooks.url.allowed_domains == ["example.com"]
    assert list(config.graphs) == ["other"]


@pytest.mark.parametrize("text", ["{", "./auth.py:auth"])
def test_a_section_that_is_no_json_stops_the_start(tmp_path, text):
    os.environ["LANGGRAPH_AUTH"] = text
    with pytest.raises(StartupError, match="LANGGRAPH_AUTH must hold the section 'auth'"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        *project_keys.WITHOUT_EFFECT.items(),
        ("atuh", "does not know this key"),
        ("http.corss", "does not know this key"),
        ("webhooks.url.allowed_domain", "does not know this key"),
    ],
)
def test_a_key_without_effect_is_named_in_a_warning(tmp_path, path, reason):
    (text,) = warned(tmp_path, **nested(path, ["x"]))
    assert text.startswith(f"langgraph.json sets {path}, which has no effect: ")
    assert reason in text


def test_another_python_than_the_wanted_one_is_warned_of(tmp_path):
    assert warned(tmp_path, python_version="3.7")[0].startswith("langgraph.json asks for Python 3.7")
    assert warned(tmp_path, python_version=f"3.{sys.version_info.minor}") == []


def test_a_variable_without_effect_is_warned_of(tmp_path):
    os.environ["LANGGRAPH_CLOUD_LICENSE_KEY"] = "secret"
    assert warned(tmp_path) == ["LANGGRAPH_CLOUD_LICENSE_KEY is set, which has no effect: moorage needs no licence key"]


def keys_of(kind: Any, above: str = "") -> Iterator[str]:
    """Return the paths of all keys of a section's type, as deep as the types of the official command line go."""
    for key, hint in get_type_hints(kind).items():
        section = next((part for part in (hint, *get_args(hint)) if is_typeddict(get_origin(part) or part)), None)
        if section is None:
            yield f"{above}{key}"
        else:
            yield from keys_of(section, f"{above}{key}.")


def test_every_key_that_the_official_command_line_knows_is_in_a_table():
    ours = {*project_keys.SERVED, *project_keys.NOT_SERVED, *project_keys.WITHOUT_EFFECT}
    known = {path for path in keys_of(Config) if not path.startswith("graphs.")}
    assert len(known) > 50
    assert [path for path in sorted(known) if not any(path == own or path.startswith(f"{own}.") for own in ours)] == []


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "Invalid JSON"),
        ('{"agent": 1}', "agent: "),
        ('{"agent": {"recursion_limit": 0}}', "agent.recursion_limit: "),
        ('{"agent": {"configurabel": {}}}', "agent.configurabel: "),
        ('{"agent": {"configurable": {"a": 1}, "context": {"a": 1}}}', "configurable or context, not both"),
        ('{"other": {}}', "configures other, which langgraph.json does not serve"),
    ],
)
def test_wrong_defaults_of_system_assistants_stop_the_start(tmp_path, text, complaint):
    os.environ["LANGGRAPH_CONFIG"] = text
    with pytest.raises(StartupError, match=r"^LANGGRAPH_CONFIG ") as refusal:
        load(tmp_path)
    assert complaint in str(refusal.value)


def test_the_file_cannot_hold_defaults_of_system_assistants(tmp_path):
    assert warned(tmp_path, assistants={"agent": {"tags": ["x"]}}) == [
        "langgraph.json sets assistants, which has no effect: moorage does not know this key"
    ]
