"""One bucket, wherever it is. Keys are untrusted: a key that could name another place is refused."""

from __future__ import annotations

import asyncio
import mmap
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import BaseError, InvalidPathError, PermissionDeniedError, UnauthenticatedError
from obstore.store import LocalStore, ObjectStore, from_url

from moorage.kernel.buckets.etags import CHUNK_BYTES, is_etag, md5_etag, md5_hex
from moorage.kernel.buckets.faults import BucketError, BucketFault, fault_of, is_known
from moorage.kernel.errors import BadRequestError

_CHUNKS_AT_ONCE = 3
_ABORT_S = 5
_KEY_BYTES_MAX = 1024
# Appears in the library's error text when a lender failed.
_NOT_LENT = "External AWS credential provider"


@dataclass(frozen=True)
class ObjectFacts:
    key: str
    size_bytes: int
    etag: str | None


class Bucket:
    """A bucket. Every method raises BucketError, and BadRequestError for an unsafe key."""

    def __init__(
        self,
        store: ObjectStore,
        folder: Path | None = None,
        abort_probe: Callable[[str], Awaitable[bool | None]] | None = None,
        *,
        checks_md5: bool = False,
    ) -> None:
        self._store = store
        self._folder = folder  # set for a bucket that is a directory
        self._abort_probe = abort_probe
        self._checks_md5 = checks_md5  # compares the MD5 of the upload with the ETag of the store

    async def put(self, key: str, data: bytes | mmap.mmap) -> ObjectFacts:
        """Store an object. It becomes visible as a whole, and is durable when this returns."""
        put = await _told(obstore.put_async(self._store, _checked(key), data, use_multipart=False))
        if self._checks_md5:
            _check_etag(put["e_tag"], await asyncio.to_thread(md5_hex, data))
        await self._make_durable(key)
        return ObjectFacts(key, len(data), put["e_tag"])

    async def put_file(self, key: str, file: Path) -> ObjectFacts:
        """Upload a file of any size, with a few pieces at a time in memory.

        A cancelled upload is aborted, so that no invisible parts remain that cost money.
        """
        size_bytes = (await asyncio.to_thread(file.stat)).st_size
        if size_bytes <= CHUNK_BYTES:
            return await self.put(key, await asyncio.to_thread(_mapped, file) if size_bytes else b"")
        pieces = _Pieces(file)
        upload = asyncio.ensure_future(
            obstore.put_async(
                self._store, _checked(key), pieces, chunk_size=CHUNK_BYTES, max_concurrency=_CHUNKS_AT_ONCE
            )
        )
        try:
            put = await _told(asyncio.shield(upload))
        except asyncio.CancelledError:
            pieces.stop()
            await asyncio.wait([upload], timeout=_ABORT_S)
            if upload.done() and not upload.cancelled():
                upload.exception()  # retrieved, so that asyncio logs no warning
            raise
        if self._checks_md5:
            _check_etag(put["e_tag"], await asyncio.to_thread(md5_etag, file))
        await self._make_durable(key)
        return ObjectFacts(key, size_bytes, put["e_tag"])

    async def _make_durable(self, key: str) -> None:
        """Sync the directory's disk, for which the library does not wait. Other stores answer only when data is
        durable.
        """
        if self._folder is not None:
            await _told(asyncio.to_thread(_sync, self._folder, key))

    async def get(self, key: str) -> bytes | None:
        """Return the object's bytes, or None if it does not exist."""
        result = await _told(_or_none(obstore.get_async(self._store, _checked(key))))
        return None if result is None else bytes(await _told(result.bytes_async()))

    async def stream(self, key: str) -> AsyncIterator[bytes]:
        """Yield the object in pieces; nothing if it does not exist."""
        result = await _told(_or_none(obstore.get_async(self._store, _checked(key))))
        if result is not None:
            pieces = result.stream(min_chunk_size=2**20).__aiter__()
            while (piece := await _told(_next(pieces))) is not None:
                yield bytes(piece)

    async def head(self, key: str) -> ObjectFacts | None:
        """Return the object's facts, or None if it does not exist."""
        meta = await _told(_or_none(obstore.head_async(self._store, _checked(key))))
        return None if meta is None else ObjectFacts(key, meta["size"], meta["e_tag"])

    async def delete(self, keys: Iterable[str]) -> None:
        """Delete the keys. A missing key is no error."""
        for key in keys:
            await _told(_or_none(obstore.delete_async(self._store, _checked(key))))

    async def list(self, prefix: str) -> AsyncIterator[ObjectFacts]:
        """Yield objects whose key begins with the prefix, which must end in a slash."""
        pages = obstore.list(self._store, _checked(prefix.rstrip("/")), chunk_size=500).__aiter__()
        while (page := await _told(_next(pages))) is not None:
            for meta in page:
                yield ObjectFacts(meta["path"], meta["size"], meta["e_tag"])

    async def may_abort(self, key: str) -> bool | None:
        """Return whether a multipart upload may be aborted, or None if that cannot be determined."""
        return None if self._abort_probe is None else await self._abort_probe(_checked(key))


def url_bucket(url: str) -> Bucket:
    """Return the installation's own bucket: `file:///folder`, `s3://bucket/prefix` and others with credentials of the
    environment. A missing folder is created.
    """
    if urlsplit(url).scheme == "file":
        return directory_bucket(Path(urlsplit(url).path))
    return Bucket(from_url(url, client_options={"allow_http": True}))


def directory_bucket(folder: Path) -> Bucket:
    folder.mkdir(parents=True, exist_ok=True)
    return Bucket(LocalStore(folder, automatic_cleanup=True, mkdir=True), folder)


def _check_etag(etag: str | None, expected: str) -> None:
    if is_etag(etag, expected) is False:
        raise BucketError(BucketFault.TRANSIENT, "an object arrived as something else than was sent")


async def _told(call: Any) -> Any:
    """Await a call of the library and raise its errors as BucketError."""
    try:
        return await call
    except (PermissionDeniedError, UnauthenticatedError) as error:
        if _NOT_LENT in str(error):
            # The lender reports its own error when it is asked again before the next request.
            raise BucketError(BucketFault.TRANSIENT, "no credentials were lent") from error
        fault, shown = fault_of(str(error))
        raise BucketError(BucketFault.ACCESS_DENIED if not fault.stays else fault, shown) from error
    except InvalidPathError as error:
        raise BadRequestError("This is not a key that a bucket can hold") from error
    except (BaseError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk of a directory
            raise BucketError(BucketFault.TRANSIENT, error.strerror or "the disk failed") from error
        fault, shown = fault_of(str(error))
        raise BucketError(fault, shown) from error
    except Exception as error:
        # The library panics on hosts that resemble an address, such as bucket.127.0.0.1. The class can only be told by
        # its name.
        if type(error).__name__ == "RustPanic":
            raise BucketError(BucketFault.INVALID_ENDPOINT, "the library cannot read the address") from error
        raise


async def _or_none(call: Any) -> Any:
    """Await the call; None if the object does not exist. A missing bucket is an error."""
    try:
        return await call
    except FileNotFoundError as error:
        if is_known(str(error)):
            raise
        return None


async def _next(iterator: Any) -> Any:
    return await anext(iterator, None)


def _sync(folder: Path, key: str) -> None:
    """Sync the object and every folder up to the bucket, since all of them may be new."""
    path = folder / key
    for each in (path, *path.parents):
        descriptor = os.open(each, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if each == folder:
            break


def _mapped(file: Path) -> mmap.mmap:
    """Map the file into memory without a copy. The mapping lives until its last reference is gone, since the library
    may read it for longer than its caller waits.
    """
    with file.open("rb") as source:
        return mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ)


class _Pieces:
    """The pieces of a file to upload. After `stop` the next piece raises, so that the library aborts the upload."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        self._stopped.set()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with self._file.open("rb") as source:
            while piece := await asyncio.to_thread(source.read, CHUNK_BYTES):
                if self._stopped.is_set():
                    raise BucketError(BucketFault.TRANSIENT, "the upload was stopped")
                yield piece


def _checked(key: str) -> str:
    parts = key.split("/")
    if (
        not key
        or len(key.encode()) > _KEY_BYTES_MAX
        or not key.isprintable()
        or any(p in {"", ".", ".."} for p in parts)
    ):
        raise BadRequestError("This is not a key that a bucket can hold")
    return key
