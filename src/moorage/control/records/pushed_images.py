"""Images that are pushed here: the token that lets a client push, digests, and the parts of a manifest.

The protocol is the distribution specification of the Open Container Initiative:
https://github.com/opencontainers/distribution-spec.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from pydantic import BaseModel, Field
from typing_extensions import TypedDict

USERNAME = "moorage"
_DIGEST = r"^sha256:[0-9a-f]{64}$"
_TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
_MEDIA_TYPES = frozenset(
    {
        "application/vnd.docker.distribution.manifest.v2+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.oci.image.index.v1+json",
    }
)


class _Part(BaseModel):
    digest: str = Field(pattern=_DIGEST)


class _Document(BaseModel):
    media_type: str | None = Field(None, alias="mediaType")
    config: _Part | None = None
    layers: list[_Part] | None = None
    manifests: list[_Part] | None = None


class PushToken(TypedDict):
    """A login for `docker login` to `registry_url` with `username` and `token`. The image goes to `repository_url`,
    with any tag.
    """

    token: str
    username: str
    registry_url: str
    repository_url: str


@dataclass(frozen=True)
class ImageManifest:
    """A manifest. `parts` are digests: of an image's configuration and layers, or of the manifests of an index."""

    digest: str
    media_type: str
    body: bytes
    parts: tuple[str, ...] = ()


def repository_of(deployment_id: UUID) -> str:
    """Return the path of a deployment's images at the registry."""
    return f"images/{deployment_id}"


def push_token(key: bytes, deployment_id: UUID, expires_at: int) -> str:
    """Sign a token for the images of one deployment."""
    told = f"{deployment_id.hex}.{expires_at}"
    return f"{told}.{hmac.digest(key, told.encode(), 'sha256').hex()}"


def opened_by(keys: Iterable[bytes], token: str, now_s: float) -> UUID | None:
    """Return the deployment whose images the token opens, or None for a token that is not signed by these keys or has
    expired.
    """
    try:
        told_id, told_expiry, _ = token.split(".")
        deployment_id, expires_at = UUID(hex=told_id), int(told_expiry)
    except ValueError:
        return None
    given = token.encode()
    signed = any(hmac.compare_digest(push_token(key, deployment_id, expires_at).encode(), given) for key in keys)
    return deployment_id if signed and now_s < expires_at else None


def is_digest(text: str) -> bool:
    return re.fullmatch(_DIGEST, text) is not None


def is_tag(text: str) -> bool:
    return _TAG.fullmatch(text) is not None


def parts_of(media_type: str, body: bytes) -> tuple[str, ...]:
    """Return the digests that a manifest names. Raises ValueError for a body that is no manifest of this type."""
    if media_type not in _MEDIA_TYPES:
        raise ValueError(f"{media_type or 'nothing'} is no type of manifest that is served here")
    document = _Document.model_validate_json(body)
    if document.media_type not in (None, media_type):
        raise ValueError(f"the body says that its type is {document.media_type}")
    if document.manifests is None and (document.config is None or document.layers is None):
        raise ValueError("an image has config and layers, an index manifests")
    image = [document.config, *(document.layers or ())]
    return tuple(dict.fromkeys(part.digest for part in document.manifests or image if part is not None))
