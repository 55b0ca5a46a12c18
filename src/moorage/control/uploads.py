"""Uploads: source archives on their way from a caller to the bucket, and from there to a build.

The upload URL is signed: for an hour it accepts one PUT, for one path and a limited size. The signature is the only
credential, since clients send no key with the upload.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

from moorage.control.deployments import deployment_not_found
from moorage.control.records.states import Source
from moorage.control.records.uploads import UploadUrl, is_signed, upload_signature
from moorage.control.spool import SpoolRules, spooled, write_all
from moorage.control.store.deployments import DeploymentStore
from moorage.control.store.uploads import UploadStore
from moorage.kernel.access import Caller
from moorage.kernel.buckets.bucket import Bucket
from moorage.kernel.crypto import MasterKeys
from moorage.kernel.errors import (
    BadRequestError,
    BodyTooLargeError,
    ConflictError,
    ForbiddenError,
    NotFoundError,
)
from moorage.kernel.ids import uuid7

_CONTENT_TYPE = "application/gzip"
_GZIP = b"\x1f\x8b"


class Uploads:
    def __init__(
        self, store: UploadStore, deployments: DeploymentStore, bucket: Bucket, keys: MasterKeys, rules: SpoolRules
    ) -> None:
        self._store = store
        self._deployments = deployments
        self._bucket = bucket
        self._keys = list(keys.derive("upload urls").values())
        self._rules = rules

    async def create_url(self, caller: Caller, deployment_id: UUID) -> UploadUrl:
        """Make an upload URL. Raises NotFoundError, and BadRequestError for a deployment that takes no uploads."""
        deployment = await self._deployments.read(caller.workspace_id, deployment_id)
        if deployment is None:
            raise deployment_not_found(deployment_id)
        if deployment["source"] == Source.EXTERNAL_DOCKER:
            raise BadRequestError("An external_docker deployment is made of images: PATCH it with an image_uri")
        path = f"sources/{deployment_id}/{secrets.token_hex(16)}.tar.gz"
        expires_at = await self._store.insert(
            caller.workspace_id, deployment_id, path, self._rules.good_for_s, caller.actor
        )
        if expires_at is None:
            raise deployment_not_found(deployment_id)
        signature = upload_signature(self._keys[0], path, expires_at, self._rules.bytes_max)
        return {
            "upload_url": f"{self._rules.public_url}/v2/uploads/{path}?expires={expires_at}&signature={signature}",
            "object_path": path,
            "upload_headers": {"Content-Type": _CONTENT_TYPE},
        }

    async def receive(
        self, path: str, expires_at: int, signature: str, size_bytes: int | None, chunks: AsyncIterator[bytes]
    ) -> None:
        """Store the upload durably. `size_bytes` is the announced size.

        Raises ForbiddenError for an invalid or expired URL, ConflictError for a used one, BodyTooLargeError, and
        BadRequestError for an invalid archive.
        """
        if not is_signed(self._keys, path, expires_at, self._rules.bytes_max, signature):
            raise ForbiddenError("This upload address is not valid: ask upload-url for a new one")
        if expires_at < time.time():
            raise ForbiddenError("This upload address has expired: ask upload-url for a new one")
        self._check_size(size_bytes or 0)
        upload = await self._store.read(path)
        if upload is None:
            raise NotFoundError("The deployment of this upload was deleted")
        if upload.object_key is not None:
            raise _used()
        with spooled(self._rules.folder) as file:
            await write_all(file, chunks, self._check_size)
            await self._keep(path, Path(file.name))

    async def fetch(self, path: str, into: Path) -> None:
        """Write the archive to a file. Raises NotFoundError when the archive was removed."""
        upload = await self._store.read(path)
        if upload is None or upload.object_key is None:
            raise _gone()
        written = 0
        with await asyncio.to_thread(into.open, "wb") as file:
            async for piece in self._bucket.stream(upload.object_key):
                written += await asyncio.to_thread(file.write, piece)
        if written != upload.size_bytes:
            raise _gone()

    async def remove_all(self, deployment_id: UUID) -> None:
        """Remove the objects of a deleted deployment. Their rows are deleted with the deployment's."""
        await self._bucket.delete(await self._store.read_keys(deployment_id))

    async def sweep(self) -> int:
        """Remove uploads that are no longer needed, and return how many. May be repeated, and interrupted."""
        unused = await self._store.read_unused(self._rules.keep_s, self._rules.keep_revisions)
        await self._bucket.delete([upload.object_key for upload in unused if upload.object_key])
        await self._store.remove([upload.path for upload in unused])
        return len(unused)

    async def _keep(self, path: str, file: Path) -> None:
        """Store the file. Concurrent uploads write to different objects, and one of them wins."""
        with file.open("rb") as head:
            if head.read(len(_GZIP)) != _GZIP:
                raise BadRequestError("The upload is not a tar.gz archive")
        object_key = f"{path.removesuffix('.tar.gz')}/{uuid7()}.tar.gz"
        facts = await self._bucket.put_file(object_key, file)
        if not await self._store.set_uploaded(path, object_key, facts.size_bytes):
            await self._bucket.delete([object_key])
            raise _used()

    def _check_size(self, size_bytes: int) -> None:
        if size_bytes > self._rules.bytes_max:
            raise BodyTooLargeError(f"The archive is larger than the limit of {self._rules.bytes_max} bytes")


def _used() -> ConflictError:
    return ConflictError("This upload address was used already: ask upload-url for a new one")


def _gone() -> NotFoundError:
    return NotFoundError("The source archive of this revision is no longer kept: upload it again")
