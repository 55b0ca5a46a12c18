"""`moorage dockerfile` and `moorage build`: a container image of a project, which runs `moorage serve`."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from moorage.cli.deploy import environment_files
from moorage.cli.errors import plain_errors
from moorage.cli.output import note
from moorage.cli.source_archive import LEFT_OUT, archived

if TYPE_CHECKING:
    from moorage.wiring.images import ImagePlan

_WHEELS = ".moorage"  # as in control/dockerfiles.py

Config = Annotated[
    Path, typer.Option("--config", "-c", help="Path of langgraph.json.", exists=True, dir_okay=False, show_default=True)
]
BaseImage = Annotated[
    str | None, typer.Option(help="Image to build on. Default: base_image of langgraph.json, or python:<version>-slim.")
]


@plain_errors
def dockerfile(
    save_path: Annotated[Path, typer.Argument(help="Path of the Dockerfile to write.")],
    config: Config = Path("langgraph.json"),
    base_image: BaseImage = None,
) -> None:
    """Write a Dockerfile for the project, and next to the sources the moorage wheel that the image installs."""
    from moorage.wiring.images import plan_image  # slow to import, and not needed by other commands

    with TemporaryDirectory() as folder:
        plan = plan_image(config.resolve(), base_image, Path(folder))
        _tell(plan)
        wheels = plan.root / _WHEELS
        wheels.mkdir(exist_ok=True)
        for old in wheels.glob("moorage-*.whl"):
            old.unlink()
        shutil.copy(plan.wheel, wheels)
    save_path.write_text(plan.dockerfile)
    hidden = [*(f"**/{name}" for name in sorted(LEFT_OUT - {_WHEELS})), f"{_WHEELS}/*", f"!{_WHEELS}/moorage-*.whl"]
    hidden += sorted(_secrets(plan, config))
    save_path.with_name(f"{save_path.name}.dockerignore").write_text("\n".join(hidden) + "\n")
    note(f"build it with: docker build -f {save_path} {plan.root}")


@plain_errors
def build(
    tag: Annotated[str, typer.Option("--tag", "-t", help="Name of the image.")],
    config: Config = Path("langgraph.json"),
    base_image: BaseImage = None,
    pull: Annotated[bool, typer.Option(help="Ask the registry for a newer base image.")] = True,
    docker_host: Annotated[
        str, typer.Option(envvar=["MOORAGE_DOCKER_HOST", "DOCKER_HOST"], help="Socket of Docker or podman.")
    ] = "unix:///var/run/docker.sock",
) -> None:
    """Build a container image of the project, without files that git ignores and without the values of its env file."""
    from moorage.wiring.images import build_image, plan_image  # slow to import, and not needed by other commands

    with TemporaryDirectory() as folder:
        plan = plan_image(config.resolve(), base_image, Path(folder))
        _tell(plan)
        more = {"Dockerfile": plan.dockerfile.encode(), f"{_WHEELS}/{plan.wheel.name}": plan.wheel.read_bytes()}
        name = config.resolve().relative_to(plan.root).as_posix()
        with archived(plan.root, name, _secrets(plan, config), more) as archive:
            note(f"building {tag} with {docker_host}")
            build_image(docker_host, archive, tag, pull=pull, say=note)
    typer.echo(tag)


def _tell(plan: ImagePlan) -> None:
    for warning in plan.warnings:
        note(f"warning: {warning}")


def _secrets(plan: ImagePlan, config: Path) -> frozenset[str]:
    """Return files of variables, by their path in the context."""
    folder = config.resolve().parent.relative_to(plan.root)
    return frozenset((folder / name).as_posix() for name in environment_files(config.resolve().parent, config.name))
