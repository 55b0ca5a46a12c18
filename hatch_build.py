"""The wheel carries the web console: built here, unless it is already. An editable installation builds it by `scripts/console`."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ConsoleBuild(BuildHookInterface):
    def dependencies(self) -> list[str]:
        console = _console(Path(self.root))
        return [] if console is None or console.is_built() or console.has_node() else [console.NODE_WHEEL]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        console = _console(Path(self.root))
        if version != "editable" and console is not None and not console.is_built():
            console.build()


def _console(root: Path) -> ModuleType | None:
    """`console/build.py`; none where a package was unpacked without the source of the console."""
    spec = importlib.util.spec_from_file_location("console_build", root / "console" / "build.py")
    if spec is None or spec.loader is None or not (root / "console" / "build.py").is_file():
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
