"""Dockerfiles: from a langgraph.json to an image that runs `moorage serve`. Pure functions.

Like a deployment from git, the image gets this very version of the agent server, as a wheel in the build context, and
the packages that `uv` installs beside it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from moorage.control.environments import BuildConfig, plan_environment
from moorage.kernel.encoding import encode
from moorage.kernel.errors import InvalidRequestError

# The folder of the wheel in the build context. Nothing else of that folder is part of the context.
WHEEL_FOLDER = ".moorage"
PORT = 8000
_PYTHON = "3.12"
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_INTO = "/deps"
_WHEELS = Path("/moorage")
# Keys whose settings have no effect in an image.
_WITHOUT_EFFECT = {
    "api_version": "it names a version of another server",
    "image_distro": "the image is Debian; name another one by base_image",
    "keep_pkg_tools": "pip and uv stay in the image",
    "pip_installer": "packages are installed with uv",
}


def build_root(config: BuildConfig, project: Path) -> Path:
    """Return the folder that a build needs: that of langgraph.json, or the parent that holds all its local
    dependencies.
    """
    local = [(project / name).resolve() for name in config.dependencies if name.startswith(".")]
    return Path(os.path.commonpath([project.resolve(), *local]))


def warnings_of_image(raw: dict[str, Any]) -> list[str]:
    return [f"{key} has no effect: {why}" for key, why in _WITHOUT_EFFECT.items() if raw.get(key)]


def dockerfile(config: BuildConfig, config_file: Path, root: Path, wheel: str, base_image: str | None) -> str:
    """Return the Dockerfile. `wheel` is the file's name in WHEEL_FOLDER of the root. Raises InvalidRequestError for
    dependencies that cannot be installed.
    """
    place = Path(_INTO) / _UNSAFE.sub("-", root.name or "project")
    project = place / config_file.parent.resolve().relative_to(root)
    plan = plan_environment(config, config_file.parent.resolve(), root, _WHEELS / wheel)
    base = base_image or config.base_image or f"python:{config.python_version or _PYTHON}-slim"
    serve = ["python", "-P", "-m", "moorage", "serve", "--config", str(project / config_file.name), "--host", "0.0.0.0"]  # noqa: S104
    install = [
        "uv",
        "pip",
        "install",
        "--system",
        "--no-cache",
        "--compile-bytecode",
        *_moved(plan.install, root, place),
    ]
    lines = [
        f"FROM {_line(base)}",
        *map(_line, config.dockerfile_lines),
        "RUN command -v uv || python -m pip install --no-cache-dir uv",
        f"COPY {encode([f'{WHEEL_FOLDER}/{wheel}', f'{_WHEELS}/']).decode()}",
        f"COPY {encode(['.', f'{place}/']).decode()}",
        f"WORKDIR {project}",
        *(_run(["uv", *_moved(export, root, place)]) for export in plan.exports),
        _run(install),
        f"ENV PORT={PORT}",
        f"EXPOSE {PORT}",
        f"CMD {encode(serve).decode()}",
    ]
    return "\n".join(lines) + "\n"


def _moved(arguments: Iterable[str], root: Path, place: Path) -> list[str]:
    """Replace paths below the root in the arguments with their paths in the image."""
    return [
        str(place / Path(each).relative_to(root)) if Path(each).is_relative_to(root) else each for each in arguments
    ]


def _run(arguments: Sequence[str]) -> str:
    """Return a RUN line in exec form, since a shell would interpret special characters in names."""
    return f"RUN {encode(list(arguments)).decode()}"


def _line(text: str) -> str:
    if "\0" in text:
        raise InvalidRequestError("a line of the Dockerfile holds a zero byte")
    return text
