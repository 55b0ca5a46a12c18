"""Shell snippets of the guides, run as a reader would paste them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.platform.serving import Platform, environment

_DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"^```(.*?)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def snippet(page: str, has: str) -> str:
    """Return the one block of commands with these words, from a page of docs/."""
    blocks = _BLOCK.findall((_DOCS / page).read_text())
    [found] = [block for kind, block in blocks if kind in {"", "sh"} and has in block]
    return found


def paste(text: str, stands_for: Mapping[str, object], platform: Platform, folder: Path, **more: str) -> str:
    """Run the snippet in a shell, in the folder, and return what it prints.

    `stands_for` has the replacements of examples, all of which must be in the snippet.
    """
    for example, real in stands_for.items():
        assert example in text, f"the page does not say {example!r} any more"
        text = text.replace(example, str(real))
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    reach = {"MOORAGE_URL": platform.url, "MOORAGE_API_KEY": platform.key, "PATH": programs}
    ended = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=folder,
        env=environment(**reach | more),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, text + ended.stdout + ended.stderr
    return ended.stdout + ended.stderr
