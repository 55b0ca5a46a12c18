"""Container images for the command line: plans an image, and lets an engine build it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from moorage.control.agent_wheel import agent_wheel
from moorage.control.dockerfiles import build_root, dockerfile, warnings_of_image
from moorage.control.environments import read_build_config
from moorage.embedded.docker import Docker
from moorage.kernel.encoding import decode

_CHUNK_BYTES = 2**20


@dataclass(frozen=True)
class ImagePlan:
    """A planned image: the folder that its build needs, its Dockerfile, the wheel of the agent server, and warnings for
    its author.
    """

    root: Path
    dockerfile: str
    wheel: Path
    warnings: list[str]


def plan_image(config_file: Path, base_image: str | None, wheels: Path) -> ImagePlan:
    """Pack the agent server into the folder `wheels`, and plan the image.

    Raises InvalidRequestError for a project that cannot be built as an image.
    """
    config, _ = read_build_config(config_file, for_image=True)
    root = build_root(config, config_file.parent)
    wheel = agent_wheel(None, wheels)
    text = dockerfile(config, config_file, root, wheel.name, base_image)
    return ImagePlan(root, text, wheel, warnings_of_image(decode(config_file.read_bytes())))


def build_image(host: str, archive: Path, tag: str, *, pull: bool, say: Callable[[str], None]) -> None:
    """Let an engine build an image from a tar.gz with a Dockerfile. Raises DockerError or UnavailableError."""
    asyncio.run(_build(host, archive, tag, pull, say))


async def _build(host: str, archive: Path, tag: str, pull: bool, say: Callable[[str], None]) -> None:  # noqa: FBT001
    docker = Docker(host)
    query = {"t": tag, "dockerfile": "Dockerfile", "pull": "1" if pull else "", "rm": "1", "forcerm": "1"}
    try:
        await docker.build(_chunks(archive), query, say)
    finally:
        await docker.close()


async def _chunks(archive: Path) -> AsyncIterator[bytes]:
    with archive.open("rb") as file:
        while chunk := await asyncio.to_thread(file.read, _CHUNK_BYTES):
            yield chunk
