"""Buckets of S3 and of compatible stores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast
from urllib.parse import urlsplit

from obstore.store import S3Store

from moorage.kernel.aws_signature import Credentials, Lender
from moorage.kernel.buckets.abort_probe import may_abort
from moorage.kernel.buckets.bucket import Bucket
from moorage.kernel.buckets.connections import client_options, patience, root_of
from moorage.kernel.buckets.environment import BESIDE_AMAZONS_KEY, refuse_environment

# Arguments of a put that can be sent with every object, by the library's names.
_PUT_OPTIONS = {
    "aws_server_side_encryption": "ServerSideEncryption",
    "aws_sse_kms_key_id": "SSEKMSKeyId",
    "aws_sse_bucket_key_enabled": "BucketKeyEnabled",
}


@dataclass(frozen=True)
class S3Address:
    """The endpoint, region and addressing of an S3 bucket. Without an endpoint it is AWS."""

    bucket: str
    region: str | None = None
    endpoint_url: str | None = None
    addressing: Literal["auto", "virtual", "path"] = "auto"
    accelerate: bool = False
    signs_payload: bool = True
    # Two checks that the data arrived intact: the store compares SHA-256 if it supports that, or we compare ETags if
    # they are MD5s. A signature covers the data too, but not all stores verify more of it than the signer.
    sends_sha256: bool = False
    checks_md5: bool = False
    legacy_global: bool = False
    put_options: tuple[tuple[str, str | bool], ...] = ()


@dataclass(frozen=True)
class Lent:
    """Lender of constant credentials. Two lenders with equal credentials are equal."""

    credentials: Credentials

    async def __call__(self) -> Credentials:
        return self.credentials


def s3_bucket(address: S3Address, lend: Lender | None, *, patience_s: float, via: str | None = None) -> Bucket:
    """Return the bucket. Without a lender the credentials of the environment are used. 5xx, SlowDown and time-outs are
    retried for `patience_s`. `via` is the URL of a proxy, as for every bucket here. Raises BadRequestError if variables
    of the environment would be sent along with lent credentials.
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
        # Delete objects one by one: not every store supports the bulk form.
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
        client_options=client_options(endpoint, patience_s, via),
        retry_config=patience(patience_s),
        credential_provider=_provider(lend) if lend else None,
    )
    base = endpoint if is_virtual else f"{endpoint}/{address.bucket}"
    return Bucket(
        store,
        abort_probe=partial(may_abort, base, address.region or "us-east-1", lend, via) if lend else None,
        checks_md5=address.checks_md5,
    )


def endpoint_of(address: S3Address) -> tuple[str, bool]:
    """Return the address of the service, and whether it contains the bucket's name."""
    bucket, region = address.bucket, address.region or "us-east-1"
    if address.endpoint_url is None:
        if address.accelerate:
            return f"https://{bucket}.s3-accelerate.amazonaws.com", True
        host = "s3.amazonaws.com" if address.legacy_global and region == "us-east-1" else f"s3.{region}.amazonaws.com"
        # A wildcard certificate does not cover a bucket name with a dot.
        if address.addressing == "path" or (address.addressing == "auto" and "." in bucket):
            return f"https://{host}", False
        return f"https://{bucket}.{host}", True
    parts = urlsplit(address.endpoint_url)
    if (parts.hostname or "").startswith(f"{bucket.lower()}."):
        return f"{parts.scheme}://{parts.netloc}", True
    if address.addressing == "virtual":
        return f"{parts.scheme}://{bucket}.{parts.netloc}", True
    return root_of(address.endpoint_url, bucket), False


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
