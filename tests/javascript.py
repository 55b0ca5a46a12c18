"""JavaScript packages that tests use, installed once for each package.json, in pytest's cache.

Without the cache, the newest versions that the package.json allows are installed, as in CI.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

has_npm = bool(shutil.which("node") and shutil.which("npm"))
needs_npm = pytest.mark.skipif(not has_npm, reason="needs Node.js and npm")

_INSTALL = ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error"]
_INSTALL_S_MAX = 110


def install_packages(cache: pytest.Cache, folder: Path) -> Path:
    """Install the packages of the folder's package.json, and return the folder."""
    wanted = (folder / "package.json").read_bytes()
    kept = cache.mkdir(f"npm-{hashlib.sha256(wanted).hexdigest()[:12]}")
    with (kept / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test processes may install the same packages
        if not (kept / "installed").exists():
            (kept / "package.json").write_bytes(wanted)
            subprocess.run(_INSTALL, cwd=kept, check=True, timeout=_INSTALL_S_MAX)
            (kept / "installed").touch()
    (folder / "node_modules").symlink_to(kept / "node_modules")
    return folder
