"""Buckets: S3 and what speaks its language, Google Cloud, Azure, or a directory; one class and one set of faults for all.

Keys are hostile, so a key that could mean another place is refused. The bucket library takes its settings from the
environment too: what a destination says is set here one by one, so that nothing of the installation's own leaks into it.
"""

from __future__ import annotations

import asyncio
import hashlib
import mmap
import os
import re
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import BaseError, InvalidPathError, PermissionDeniedError, UnauthenticatedError
from obstore.store import AzureStore, GCSStore, LocalStore, ObjectStore, S3Store, from_url
from typing_extensions import Buffer

from moorage.kernel.abort_probe import may_abort
from moorage.kernel.aws_signature import Credentials, Lender
from moorage.kernel.bucket_environment import (
    BEFORE_GOOGLES_KEY,
    BESIDE_AMAZONS_KEY,
    BESIDE_AZURES_KEY,
    refuse_environment,
)
from moorage.kernel.bucket_faults import BucketError, BucketFault, fault_of, is_known
from moorage.kernel.errors import BadRequestError

_CHUNK_BYTES = 16 * 2**20
_CHUNKS_AT_ONCE = 3
_CONNECT_S = 5
_REQUEST_S = 60
_ABORT_S = 5
_KEY_BYTES_MAX = 1024
_MD5_ETAG = re.compile(r'"?([0-9a-f]{32}(?:-\d+)?)"?')


@dataclass(frozen=True)
class ObjectFacts:
    key: str
    size_bytes: int
    etag: str | None


@dataclass(frozen=True)
class S3Address:
    """Where an S3 bucket is and how it is spoken to. Without an endpoint it is AWS."""

    bucket: str
    region: str | None = None
    endpoint_url: str | None = None
    addressing: Literal["auto", "virtual", "path"] = "auto"
    accelerate: bool = False
    signs_payload: bool = True
    # Two ways to prove that what arrived is what was sent. The store compares the one, if it takes it, and we the other, if
    # its ETags are MD5s. A signature proves it too, where the store looks at more of it than who signed: not all do.
    sends_sha256: bool = False
    checks_md5: bool = False
    legacy_global: bool = False
    put_options: tuple[tuple[str, str | bool], ...] = ()


class Bucket:
    """Every method raises BucketError, and BadRequestError for a key that no store should see."""

    def __init__(
        self,
        store: ObjectStore,
        folder: Path | None = None,
        abort_probe: Callable[[str], Awaitable[bool | None]] | None = None,
        *,
        checks_md5: bool = False,
    ) -> None:
        self._store = store
        self._folder = folder  # of a bucket that is a directory
        self._abort_probe = abort_probe
        self._checks_md5 = checks_md5  # of what was put, by what the store says that it took

    async def put(self, key: str, data: bytes | mmap.mmap) -> ObjectFacts:
        """All of it or nothing becomes visible, and is durable when this returns."""
        put = await _told(obstore.put_async(self._store, _checked(key), data, use_multipart=False))
        if self._checks_md5:
            _check_etag(put["e_tag"], await asyncio.to_thread(md5_hex, data))
        await self._make_durable(key)
        return ObjectFacts(key, len(data), put["e_tag"])

    async def put_file(self, key: str, file: Path) -> ObjectFacts:
        """The same for a file of any size, of which a few pieces at a time are in memory.

        A cancelled upload is aborted, so that no invisible pieces stay that somebody pays for.
        """
        size_bytes = (await asyncio.to_thread(file.stat)).st_size
        if size_bytes <= _CHUNK_BYTES:
            return await self.put(key, await asyncio.to_thread(_mapped, file) if size_bytes else b"")
        pieces = _Pieces(file)
        upload = asyncio.ensure_future(
            obstore.put_async(
                self._store, _checked(key), pieces, chunk_size=_CHUNK_BYTES, max_concurrency=_CHUNKS_AT_ONCE
            )
        )
        try:
            put = await _told(asyncio.shield(upload))
        except asyncio.CancelledError:
            pieces.stop()
            await asyncio.wait([upload], timeout=_ABORT_S)
            if upload.done() and not upload.cancelled():
                upload.exception()  # it was asked for
            raise
        if self._checks_md5:
            _check_etag(put["e_tag"], await asyncio.to_thread(md5_etag, file))
        await self._make_durable(key)
        return ObjectFacts(key, size_bytes, put["e_tag"])

    async def _make_durable(self, key: str) -> None:
        """The library writes to a directory without waiting for the disk; other stores answer when they have it."""
        if self._folder is not None:
            await _told(asyncio.to_thread(_sync, self._folder, key))

    async def get(self, key: str) -> bytes | None:
        """None when it is not there."""
        result = await _told(_or_none(obstore.get_async(self._store, _checked(key))))
        return None if result is None else bytes(await _told(result.bytes_async()))

    async def stream(self, key: str) -> AsyncIterator[bytes]:
        """The object in pieces; nothing when it is not there."""
        result = await _told(_or_none(obstore.get_async(self._store, _checked(key))))
        if result is not None:
            pieces = result.stream(min_chunk_size=2**20).__aiter__()
            while (piece := await _told(_next(pieces))) is not None:
                yield bytes(piece)

    async def head(self, key: str) -> ObjectFacts | None:
        """None when it is not there."""
        meta = await _told(_or_none(obstore.head_async(self._store, _checked(key))))
        return None if meta is None else ObjectFacts(key, meta["size"], meta["e_tag"])

    async def delete(self, keys: Iterable[str]) -> None:
        """What is not there is no error."""
        for key in keys:
            await _told(_or_none(obstore.delete_async(self._store, _checked(key))))

    async def list(self, prefix: str) -> AsyncIterator[ObjectFacts]:
        """Objects whose key begins with the prefix, which ends in a slash."""
        pages = obstore.list(self._store, _checked(prefix.rstrip("/")), chunk_size=500).__aiter__()
        while (page := await _told(_next(pages))) is not None:
            for meta in page:
                yield ObjectFacts(meta["path"], meta["size"], meta["e_tag"])

    async def may_abort(self, key: str) -> bool | None:
        """Whether an upload in several pieces may be aborted; None when that cannot be told."""
        return None if self._abort_probe is None else await self._abort_probe(_checked(key))


def md5_etag(file: Path) -> str:
    """What a store that makes its ETags of MD5 answers to `put_file` with this file. Reads the file; run it in a thread."""
    digests = []
    with file.open("rb") as source:
        while chunk := source.read(_CHUNK_BYTES):
            digests.append(md5_hex(chunk))
    if len(digests) <= 1:
        return digests[0] if digests else md5_hex(b"")
    return f"{md5_hex(bytes.fromhex(''.join(digests)))}-{len(digests)}"


def md5_hex(data: Buffer) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def is_etag(etag: str | None, expected: str) -> bool | None:
    """Whether the ETag is the expected one; None when it has another form and says nothing."""
    found = _MD5_ETAG.fullmatch(etag or "")
    return None if found is None else found[1] == expected


def _check_etag(etag: str | None, expected: str) -> None:
    if is_etag(etag, expected) is False:
        raise BucketError(BucketFault.TRANSIENT, "an object arrived as something else than was sent")


# --- opening ----------------------------------------------------------------------------------------------------------


def url_bucket(url: str) -> Bucket:
    """The installation's own bucket: `file:///folder`, `s3://bucket/prefix` and others with credentials of the
    environment. A folder is made when it is not there.
    """
    if urlsplit(url).scheme == "file":
        return directory_bucket(Path(urlsplit(url).path))
    return Bucket(from_url(url, client_options={"allow_http": True}))


def directory_bucket(folder: Path) -> Bucket:
    folder.mkdir(parents=True, exist_ok=True)
    return Bucket(LocalStore(folder, automatic_cleanup=True, mkdir=True), folder)


@dataclass(frozen=True)
class Lent:
    """Lends the same ones every time. Two who lend the same are equal."""

    credentials: Credentials

    async def __call__(self) -> Credentials:
        return self.credentials


def s3_bucket(address: S3Address, lend: Lender | None, *, patience_s: float, via: str | None = None) -> Bucket:
    """Without a lender the credentials of the environment are taken. 5xx, SlowDown and time-outs are tried again for
    `patience_s`. `via` is the URL of a proxy, as for every bucket here. Raises BadRequestError where something of the
    environment would be sent beside what is lent.
    """
    endpoint, is_virtual = endpoint_of(address)
    options = dict(address.put_options)
    config: dict[str, str | bool] = {
        "aws_region": address.region or "us-east-1",
        "aws_endpoint": endpoint,
        "aws_endpoint_url_s3": endpoint,
        "aws_virtual_hosted_style_request": is_virtual,
        "aws_unsigned_payload": not address.signs_payload,
        "aws_skip_signature": False,
        "aws_request_payer": False,
        "aws_s3_express": False,
        # One request an object: not every store knows the bulk form.
        "aws_disable_bulk_delete": True,
    }
    if address.sends_sha256:
        config["aws_checksum_algorithm"] = "sha256"
    for name, known_as in _PUT_OPTIONS.items():
        if known_as in options:
            config[name] = options[known_as]
    if lend is not None:
        refuse_environment({name.upper() for name in BESIDE_AMAZONS_KEY - config.keys()})
    store = S3Store(
        address.bucket,
        config=cast(
            Any, {name: str(value).lower() if value in (True, False) else value for name, value in config.items()}
        ),
        client_options=_client_options(endpoint, patience_s, via),
        retry_config=_patience(patience_s),
        credential_provider=_provider(lend) if lend else None,
    )
    base = endpoint if is_virtual else f"{endpoint}/{address.bucket}"
    return Bucket(
        store,
        abort_probe=partial(may_abort, base, address.region or "us-east-1", lend, via) if lend else None,
        checks_md5=address.checks_md5,
    )


# What of the arguments of a put can be sent with every object, by the name that the library has for it.
_PUT_OPTIONS = {
    "aws_server_side_encryption": "ServerSideEncryption",
    "aws_sse_kms_key_id": "SSEKMSKeyId",
    "aws_sse_bucket_key_enabled": "BucketKeyEnabled",
}


def gcs_bucket(
    bucket: str,
    service_account_key: str | None,
    *,
    endpoint_url: str | None = None,
    patience_s: float,
    via: str | None = None,
) -> Bucket:
    """Raises BadRequestError where the environment would come before the key."""
    endpoint = _root_of(endpoint_url or "https://storage.googleapis.com", bucket)
    # The address is named even where it is the usual one: a key may bring one of its own, which nobody has looked at.
    config: Any = {"base_url": endpoint, "skip_signature": False}
    if service_account_key:
        config["service_account_key"] = service_account_key
        refuse_environment(BEFORE_GOOGLES_KEY)
    options: Any = {"client_options": _client_options(endpoint, patience_s, via), "retry_config": _patience(patience_s)}
    with _readable_credentials():
        return Bucket(GCSStore(bucket, config=config, **options))


def azure_bucket(
    container: str,
    account_name: str,
    account_key: str | None,
    *,
    endpoint_url: str | None = None,
    patience_s: float,
    via: str | None = None,
) -> Bucket:
    """An `endpoint_url` whose host does not name the account ends in it, as an emulator's: `http://host:10000/<account>`.

    Raises BadRequestError where something of the environment would be sent beside the key.
    """
    endpoint = _root_of(endpoint_url or f"https://{account_name}.blob.core.windows.net", container)
    config: Any = {
        "account_name": account_name,
        "endpoint": endpoint,
        "use_emulator": False,
        "skip_signature": False,
    }
    options: Any = {"client_options": _client_options(endpoint, patience_s, via), "retry_config": _patience(patience_s)}
    with _readable_credentials():
        if account_key:
            refuse_environment(BESIDE_AZURES_KEY)
            b64decode(account_key, validate=True)
            options["credential_provider"] = _account_key_provider(account_key)
        return Bucket(AzureStore(container, config=config, **options))


def _account_key_provider(account_key: str) -> Callable[[], Any]:
    """A token in the environment would come before a key in the settings, but not before a provider."""

    async def provide() -> dict[str, Any]:
        return {"access_key": account_key, "expires_at": None}

    return provide


def _root_of(endpoint_url: str, bucket: str) -> str:
    """The address without the bucket, which the library puts there itself."""
    parts = urlsplit(endpoint_url)
    path = parts.path.strip("/")
    if path.rpartition("/")[2] == bucket:
        path = path.rpartition("/")[0]
    return f"{parts.scheme}://{parts.netloc}/{path}".rstrip("/")


@contextmanager
def _readable_credentials() -> Iterator[None]:
    """The library reads these two when the store is made, and says no to what is no key at all. Its words may quote it."""
    try:
        yield
    except (BaseError, ValueError):
        raise BucketError(BucketFault.INVALID_KEY_ID, "the credentials cannot be read") from None


def endpoint_of(address: S3Address) -> tuple[str, bool]:
    """The address of the service, and whether it holds the bucket's name."""
    bucket, region = address.bucket, address.region or "us-east-1"
    if address.endpoint_url is None:
        if address.accelerate:
            return f"https://{bucket}.s3-accelerate.amazonaws.com", True
        host = "s3.amazonaws.com" if address.legacy_global and region == "us-east-1" else f"s3.{region}.amazonaws.com"
        # A dot in the name would not fit the certificate.
        if address.addressing == "path" or (address.addressing == "auto" and "." in bucket):
            return f"https://{host}", False
        return f"https://{bucket}.{host}", True
    parts = urlsplit(address.endpoint_url)
    if (parts.hostname or "").startswith(f"{bucket.lower()}."):
        return f"{parts.scheme}://{parts.netloc}", True
    if address.addressing == "virtual":
        return f"{parts.scheme}://{bucket}.{parts.netloc}", True
    return _root_of(address.endpoint_url, bucket), False


def _client_options(endpoint: str, patience_s: float, via: str | None) -> Any:
    return {
        **({"proxy_url": via} if via else {}),
        "allow_http": endpoint.startswith("http:"),
        "connect_timeout": timedelta(seconds=_CONNECT_S),
        "timeout": timedelta(seconds=min(_REQUEST_S, patience_s)),
        "user_agent": "moorage",
    }


def _patience(patience_s: float) -> Any:
    backoff = {"init_backoff": timedelta(milliseconds=200), "max_backoff": timedelta(seconds=10), "base": 2}
    return {"max_retries": 100, "retry_timeout": timedelta(seconds=patience_s), "backoff": backoff}


def _provider(lend: Lender) -> Callable[[], Any]:
    async def provide() -> dict[str, Any]:
        found = await lend()
        return {
            "access_key_id": found.access_key_id,
            "secret_access_key": found.secret_access_key,
            "token": found.session_token,
            "expires_at": found.expires_at,
        }

    return provide


# --- faults -----------------------------------------------------------------------------------------------------------

# In the library's text, when a lender failed.
_NOT_LENT = "External AWS credential provider"


async def _told(call: Any) -> Any:
    """What the library raises, in our words."""
    try:
        return await call
    except (PermissionDeniedError, UnauthenticatedError) as error:
        if _NOT_LENT in str(error):
            # Whoever asks next, before a request, is told why.
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
        # The library panics at a host that is nearly an address, such as bucket.127.0.0.1; this class has no other name.
        if type(error).__name__ == "RustPanic":
            raise BucketError(BucketFault.INVALID_ENDPOINT, "the library cannot read the address") from error
        raise


async def _or_none(call: Any) -> Any:
    """An object that is not there, unless it is the bucket that is not."""
    try:
        return await call
    except FileNotFoundError as error:
        if is_known(str(error)):
            raise
        return None


async def _next(iterator: Any) -> Any:
    return await anext(iterator, None)


def _sync(folder: Path, key: str) -> None:
    """The object, and every folder between it and the bucket, since all of them may be new."""
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
    """The file as the kernel has it, without a copy. It is let go with the last who looks at it, since the library may do
    so for longer than its caller waits.
    """
    with file.open("rb") as source:
        return mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ)


class _Pieces:
    """A file piece by piece, until it is told to stop: that makes the library abort the upload."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        self._stopped.set()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with self._file.open("rb") as source:
            while piece := await asyncio.to_thread(source.read, _CHUNK_BYTES):
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
