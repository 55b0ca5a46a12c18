"""A registry for pushed images, with one repository for each deployment, as `langgraph deploy` expects.

A token gives access to the images of one deployment for an hour, to clients that push and to the container engine that
pulls. Blobs are objects of the bucket; an unfinished blob is a file, so that a push continues after a restart.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from io import BufferedReader
from pathlib import Path
from urllib.parse import urlsplit
from uuid import UUID

from moorage.control.deployments import deployment_not_found
from moorage.control.records.images import NO_IMAGES
from moorage.control.records.pushed_images import (
    USERNAME,
    ImageManifest,
    PushToken,
    is_digest,
    is_tag,
    opened_by,
    parts_of,
    push_token,
    repository_of,
)
from moorage.control.records.states import Source
from moorage.control.spool import SpoolRules, disk_errors, write_all
from moorage.control.store.deployments import DeploymentStore
from moorage.control.store.pushed_images import Blob, PushedImageStore
from moorage.kernel.access import Caller
from moorage.kernel.buckets.bucket import Bucket
from moorage.kernel.crypto import MasterKeys
from moorage.kernel.errors import (
    BadRequestError,
    BodyTooLargeError,
    ForbiddenError,
    NotFoundError,
    TooManyRequestsError,
    UnauthenticatedError,
)
from moorage.kernel.ids import uuid7

_MANIFEST_BYTES_MAX = 4 * 2**20
_UPLOADS_MAX = 100  # of one deployment at a time
_RETRY_S = 60


@dataclass(frozen=True)
class ImageRegistry:
    """The images of all deployments. `runs_images` tells whether the installation runs images that are pushed here."""

    store: PushedImageStore
    deployments: DeploymentStore
    bucket: Bucket
    keys: MasterKeys
    rules: SpoolRules
    runs_images: bool

    @property
    def _host(self) -> str:
        return urlsplit(self.rules.public_url).netloc

    @cached_property
    def _token_keys(self) -> list[bytes]:
        return list(self.keys.derive("push tokens").values())

    # --- tokens ---

    async def create_token(self, caller: Caller, deployment_id: UUID) -> PushToken:
        """Make a login for pushing images of the deployment.

        Raises NotFoundError, and BadRequestError for a deployment or an installation that runs no pushed images.
        """
        row = await self.deployments.read(caller.workspace_id, deployment_id)
        if row is None:
            raise deployment_not_found(deployment_id)
        if row["source"] != Source.INTERNAL_DOCKER:
            raise BadRequestError("push-token is only available for 'internal_docker' source deployments")
        if row["source_config"].get("listener_id"):
            raise BadRequestError(
                "A listener's machine fetches images from a registry of yours: push there (langgraph deploy --push-to)"
            )
        if not self.runs_images:
            raise BadRequestError(f"{NO_IMAGES} (langgraph deploy --remote)")
        return {
            "token": self._token(deployment_id),
            "username": USERNAME,
            "registry_url": self._host,
            "repository_url": f"{self._host}/{repository_of(deployment_id)}",
        }

    def login(self, deployment_id: UUID, registry: str | None) -> dict[str, str] | None:
        """Return the credentials with which the container engine pulls a deployment's images, or None for another
        registry.
        """
        if registry != self._host:
            return None
        return {"username": USERNAME, "password": self._token(deployment_id), "serveraddress": self._host}

    def _token(self, deployment_id: UUID) -> str:
        return push_token(self._token_keys[0], deployment_id, int(time.time() + self.rules.good_for_s))

    def check(self, token: str | None, deployment_id: UUID | None) -> None:
        """Check a client's token. Raises UnauthenticatedError for an invalid token, ForbiddenError for a token of
        another deployment.
        """
        opened = opened_by(self._token_keys, token, time.time()) if token else None
        if opened is None:
            raise UnauthenticatedError("Pushing needs a token of push-token, which is good for an hour")
        if deployment_id not in (None, opened):
            raise ForbiddenError("This token is for the images of another deployment")

    # --- blobs ---

    async def begin(self, deployment_id: UUID) -> UUID:
        """Start the upload of a blob, and return its id. Raises TooManyRequestsError."""
        folder, upload_id = self._folder(deployment_id), uuid7()
        with disk_errors():
            await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
            if len(list(folder.iterdir())) >= _UPLOADS_MAX:
                raise TooManyRequestsError("Too many uploads of this deployment are under way", _RETRY_S)
            (folder / upload_id.hex).touch()
        return upload_id

    async def append(
        self, deployment_id: UUID, upload_id: UUID, chunks: AsyncIterator[bytes], begins_at: int | None
    ) -> int:
        """Append to a blob, and return its size so far.

        Raises NotFoundError for an unknown upload, BadRequestError when `begins_at` is not the end of the blob, and
        BodyTooLargeError when the deployment's images take too much.
        """
        path = self._path(deployment_id, upload_id)
        kept_bytes = await self.store.kept_bytes(deployment_id)
        with disk_errors(), path.open("ab") as file:
            if begins_at not in (None, file.tell()):
                raise BadRequestError(f"The upload has {file.tell()} bytes: go on there")
            try:
                before = kept_bytes + file.tell()
                await write_all(file, chunks, lambda written: self._check_room(path, before + written))
            except BodyTooLargeError:
                path.unlink(missing_ok=True)
                raise
            return file.tell()

    async def size_of(self, deployment_id: UUID, upload_id: UUID) -> int:
        """Return the number of bytes that have arrived. Raises NotFoundError."""
        return self._path(deployment_id, upload_id).stat().st_size

    async def finish(self, deployment_id: UUID, upload_id: UUID, digest: str) -> None:
        """Store the blob durably. Raises NotFoundError, and BadRequestError when its digest does not match."""
        path = self._path(deployment_id, upload_id)
        with disk_errors():
            with path.open("rb") as file:
                found = f"sha256:{await asyncio.to_thread(_sha256, file)}"
            if found != digest:
                path.unlink(missing_ok=True)
                raise BadRequestError(f"What arrived is {found}, and should be {digest}")
            key = f"{self._prefix(deployment_id)}{digest.removeprefix('sha256:')}/{uuid7()}"
            facts = await self.bucket.put_file(key, path)
            if not await self.store.insert_blob(deployment_id, digest, Blob(key, facts.size_bytes)):
                await self.bucket.delete([key])
            path.unlink(missing_ok=True)

    async def blob(self, deployment_id: UUID, digest: str) -> Blob:
        """Return the blob with this digest. Raises NotFoundError."""
        blob = await self.store.use_blob(deployment_id, digest) if is_digest(digest) else None
        if blob is None:
            raise NotFoundError("The repository has no such blob")
        return blob

    def stream(self, blob: Blob) -> AsyncIterator[bytes]:
        return self.bucket.stream(blob.object_key)

    # --- manifests ---

    async def put_manifest(self, deployment_id: UUID, reference: str, media_type: str, body: bytes) -> str:
        """Store a manifest under a tag or its digest, and return the digest.

        Raises BadRequestError for an invalid manifest or one that names missing parts, and BodyTooLargeError.
        """
        if len(body) > _MANIFEST_BYTES_MAX or await self.store.kept_bytes(deployment_id) > self.rules.bytes_max:
            raise BodyTooLargeError(f"A manifest has at most {_MANIFEST_BYTES_MAX} bytes, all images {self._most()}")
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        if reference != digest and not is_tag(reference):
            raise BadRequestError(f"A manifest is put under a tag, or under its digest, {digest}")
        try:
            parts = parts_of(media_type, body)
        except ValueError as error:
            raise BadRequestError(f"This is no manifest: {error}") from None
        if missing := await self.store.missing(deployment_id, parts):
            raise BadRequestError(f"The manifest names parts that were not pushed: {', '.join(missing[:3])}")
        tag = None if reference == digest else reference
        await self.store.put_manifest(deployment_id, ImageManifest(digest, media_type, body, parts), tag)
        return digest

    async def manifest(self, deployment_id: UUID, reference: str) -> ImageManifest:
        """Return the manifest with this tag or digest. Raises NotFoundError."""
        found = None
        if is_digest(reference) or is_tag(reference):
            found = await self.store.read_manifest(deployment_id, reference)
        if found is None:
            raise NotFoundError("The repository has no such manifest")
        return found

    # --- upkeep ---

    async def remove_all(self, deployment_id: UUID) -> None:
        """Remove the images of a deleted deployment. Their rows are deleted with the deployment's."""
        await asyncio.to_thread(shutil.rmtree, self._folder(deployment_id), ignore_errors=True)
        await self.bucket.delete([found.key async for found in self.bucket.list(self._prefix(deployment_id))])

    async def sweep(self) -> int:
        """Remove objects that are no longer needed, and return how many. May be repeated, and interrupted."""
        await asyncio.to_thread(_remove_older, self.rules.folder, time.time() - self.rules.keep_s)
        unwanted = await self.store.mark_unwanted(self.rules.keep_s, self.rules.keep_revisions)
        await self.bucket.delete(unwanted)
        await self.store.remove(unwanted)
        return len(unwanted)

    def _prefix(self, deployment_id: UUID) -> str:
        return f"{repository_of(deployment_id)}/"

    def _folder(self, deployment_id: UUID) -> Path:
        return self.rules.folder / deployment_id.hex

    def _path(self, deployment_id: UUID, upload_id: UUID) -> Path:
        path = self._folder(deployment_id) / upload_id.hex
        if not path.exists():
            raise NotFoundError("There is no such upload, or it is over: begin anew")
        return path

    def _check_room(self, path: Path, own_bytes: int) -> None:
        others = sum(_size_of(each) for each in path.parent.iterdir() if each != path)
        if own_bytes + others > self.rules.bytes_max:
            raise BodyTooLargeError(f"The images of a deployment take at most {self._most()}")

    def _most(self) -> str:
        return f"{self.rules.bytes_max} bytes (MOORAGE_IMAGES_BYTES_MAX)"


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # the upload has just ended
        return 0


def _sha256(file: BufferedReader) -> str:
    return hashlib.file_digest(file, "sha256").hexdigest()


def _remove_older(folder: Path, than_s: float) -> None:
    """Remove files of abandoned uploads."""
    for path in folder.glob("*/*"):
        with suppress(FileNotFoundError):  # the upload has just ended
            if path.stat().st_mtime < than_s:
                path.unlink()
