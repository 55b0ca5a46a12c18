"""References of container images: their registry, and their pinned form."""

from __future__ import annotations

import re
from collections.abc import Iterable

# A host, a path of lower-case parts, then a tag, a digest or both: the grammar of the distribution project.
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{1,5})?"
_REFERENCE = re.compile(rf"(?:{_HOST}/)?{_PART}(?:/{_PART})*(?::\w[\w.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?")
_LOCAL = "localhost/"

NO_IMAGES = (
    "This installation runs no container images: set MOORAGE_DOCKER_HOST to the socket of Docker or podman, such as "
    "unix:///var/run/docker.sock, or use a git repository or an uploaded source"
)


def is_reference(text: str) -> bool:
    return _REFERENCE.fullmatch(text) is not None


def is_local(reference: str) -> bool:
    """Return True for an image that was made on this machine. It is never pulled."""
    return reference.startswith((_LOCAL, "sha256:"))


def registry_of(reference: str) -> str | None:
    """Return the host and port of the registry, or None for an image that names none."""
    first, slash, _ = reference.partition("/")
    return first if slash and ("." in first or ":" in first or first == "localhost") else None


def with_tag(reference: str) -> str:
    """Return the reference, with the tag `latest` when it has neither tag nor digest: without one, all tags would be
    pulled.
    """
    has_tag = ":" in reference.rpartition("/")[2] or "@" in reference
    return reference if has_tag else f"{reference}:latest"


def pinned(reference: str, image_id: str, digests: Iterable[str]) -> str:
    """Return a reference that always means this image: a digest at its registry, or the id of an image that was made
    here.
    """
    if "@" in reference:
        return reference
    if is_local(reference):
        return image_id
    repository = re.sub(r":[^:/]*$", "", reference)
    known = list(digests)
    return next(
        (each for each in known if each.partition("@")[0].endswith(repository)), known[0] if known else image_id
    )
