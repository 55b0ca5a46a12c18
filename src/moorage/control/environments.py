"""Environments of revisions: from a langgraph.json and its folder to the commands that `uv` runs.

Pure functions that return argument lists and variables; `builds` runs them in the sandbox. The steps have the same
order as in the official build of the same file.
"""

from __future__ import annotations

import configparser
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from moorage.control.checkouts import inside
from moorage.kernel import project_keys
from moorage.kernel.encoding import decode
from moorage.kernel.errors import InvalidRequestError

# The first character of a requirement, which is a name or the URL of a wheel. Never a dash: the requirement would be
# read as an option.
_REQUIREMENT = re.compile(r"[A-Za-z0-9]")
_PYTHON = re.compile(r"3\.\d{1,2}")
# Secrets with these names set package indexes. pip's variables are passed to uv under uv's names.
_INDEX_VARIABLES = re.compile(r"UV_(DEFAULT_INDEX|INDEX|INDEX_\w+|INDEX_URL|EXTRA_INDEX_URL|FIND_LINKS)")
_PIP_VARIABLES = {
    "PIP_INDEX_URL": "UV_DEFAULT_INDEX",
    "PIP_EXTRA_INDEX_URL": "UV_INDEX",
    "PIP_FIND_LINKS": "UV_FIND_LINKS",
}
_PIP_OPTIONS = {"index-url": "--default-index", "extra-index-url": "--index", "find-links": "--find-links"}


class BuildConfig(BaseModel):
    """The keys of a langgraph.json that control how its environment is built."""

    model_config = ConfigDict(extra="ignore")

    graphs: dict[str, Any] = Field(min_length=1)
    dependencies: list[str] = []
    python_version: str | None = None
    pip_config_file: str | None = None
    dockerfile_lines: list[str] = []
    base_image: str | None = None
    node_version: str | None = None
    source: Any = None
    auth: Any = None


@dataclass(frozen=True)
class EnvironmentPlan:
    """The commands that make one environment. Each command of `exports` writes a requirements file that `install`
    reads.
    """

    python: str | None  # such as "3.12"; None: the platform's own version
    exports: list[list[str]]
    install: list[str]  # arguments after `uv pip install --python <environment>`


def read_build_config(config: Path, *, for_image: bool = False) -> tuple[BuildConfig, list[str]]:
    """Read the configuration, with warnings for the build's log. Raises InvalidRequestError with the reason."""
    try:
        raw = decode(config.read_bytes())
    except FileNotFoundError:
        raise InvalidRequestError(f"There is no {config.name} at the config path") from None
    except (OSError, ValueError) as error:
        raise InvalidRequestError(f"{config.name} cannot be read as JSON: {error}") from None
    try:
        parsed = BuildConfig.model_validate(raw)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, item['loc'])) or 'file'}: {item['msg']}" for item in error.errors())
        raise InvalidRequestError(f"{config.name} is not valid: {wrong}") from None
    _check_supported(parsed, for_image=for_image)
    # The agent would refuse these settings at its start. Checked here, the build fails before it installs anything.
    if refused := project_keys.refusals(raw):
        raise InvalidRequestError(" ".join(refused))
    return parsed, project_keys.warnings(raw)


def _check_supported(config: BuildConfig, *, for_image: bool) -> None:
    if config.node_version and for_image:
        raise InvalidRequestError("node_version is set: this server runs graphs in Python only")
    if config.node_version:
        raise InvalidRequestError("node_version is set: graphs in JavaScript need a container image")
    if config.dockerfile_lines and not for_image:
        raise InvalidRequestError("dockerfile_lines are set: they need a container image, which `moorage build` makes")
    if config.source:
        raise InvalidRequestError("source is set: name the folder of the uv project in `dependencies` instead")
    if config.python_version and not _PYTHON.fullmatch(config.python_version):
        raise InvalidRequestError(f"python_version {config.python_version!r} is not a version such as 3.12")


def plan_environment(config: BuildConfig, project: Path, checkout: Path, agent_wheel: Path) -> EnvironmentPlan:
    """Plan the commands. `project` is the folder of langgraph.json in the checkout. Raises InvalidRequestError."""
    exports: list[list[str]] = []
    wanted = [str(agent_wheel)]
    for dependency in config.dependencies:
        if dependency.startswith("."):
            folder = inside(checkout, str((project / dependency).relative_to(checkout)), "The dependency")
            export, local = _local(folder, dependency, len(exports))
            exports += export
            wanted += local
        elif _REQUIREMENT.match(dependency):
            wanted.append(dependency)
        else:
            raise InvalidRequestError(f"The dependency {dependency!r} is neither a folder nor the name of a package")
    return EnvironmentPlan(config.python_version, exports, [*_index_options(config, project, checkout), *wanted])


def _local(folder: Path, dependency: str, number: int) -> tuple[list[list[str]], list[str]]:
    """Return the exports of a folder of the checkout, and its arguments for the installation.

    A package is installed in place, since the graphs are read from the checkout too. A folder without a package only
    needs its requirements installed: the agent server puts the folder on the import path.
    """
    if not folder.is_dir():
        raise InvalidRequestError(f"The dependency {dependency!r} is not a folder of the source")
    is_package = (folder / "pyproject.toml").is_file() or (folder / "setup.py").is_file()
    editable = ["--editable", str(folder)] if is_package else []
    if (folder / "uv.lock").is_file() and (folder / "pyproject.toml").is_file():
        locked = f"locked-{number}.txt"
        options = ("--frozen", "--no-dev", "--no-hashes", "--no-emit-workspace", "--quiet")
        return [["export", "--project", str(folder), *options, "--output-file", locked]], ["-r", locked, *editable]
    if not is_package and (folder / "requirements.txt").is_file():
        return [], ["-r", str(folder / "requirements.txt")]
    return [], editable


def _index_options(config: BuildConfig, project: Path, checkout: Path) -> list[str]:
    """Return the package indexes of `pip_config_file` as options."""
    if not config.pip_config_file:
        return []
    relative = str((project / config.pip_config_file).relative_to(checkout))
    path = inside(checkout, relative, "pip_config_file")
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(path.read_text())
    except (OSError, UnicodeDecodeError, configparser.Error):
        raise InvalidRequestError("pip_config_file does not name a configuration file of pip") from None
    found = parser["global"] if parser.has_section("global") else {}
    return [
        part
        for name, option in _PIP_OPTIONS.items()
        for value in found.get(name, "").split()
        for part in (option, value)
    ]


def index_variables(secrets: Mapping[str, str]) -> dict[str, str]:
    """Return the secrets that set package indexes. A build sees no other secrets."""
    ours = {name: value for name, value in secrets.items() if _INDEX_VARIABLES.fullmatch(name)}
    theirs = {uv: secrets[pip] for pip, uv in _PIP_VARIABLES.items() if pip in secrets}
    return theirs | ours
