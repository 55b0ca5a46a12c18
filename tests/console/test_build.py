"""The console is built with any Node, including the wheel's, whose npm is no program on the path."""

from __future__ import annotations

import json

from tests.serving import ROOT


def test_no_script_of_the_console_calls_npm() -> None:
    scripts = json.loads((ROOT / "console" / "package.json").read_text())["scripts"]
    assert {"types", "build"} <= scripts.keys()
    assert [name for name, command in scripts.items() if "npm" in command.split()] == []
