"""Buckets of Google Cloud Storage and of Azure Blob Storage."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore

from moorage.kernel.buckets.bucket import Bucket
from moorage.kernel.buckets.connections import client_options, patience, root_of
from moorage.kernel.buckets.environment import BEFORE_GOOGLES_KEY, BESIDE_AZURES_KEY, refuse_environment
from moorage.kernel.buckets.faults import BucketError, BucketFault


def gcs_bucket(
    bucket: str,
    service_account_key: str | None,
    *,
    endpoint_url: str | None = None,
    patience_s: float,
    via: str | None = None,
) -> Bucket:
    """Return the bucket. Raises BadRequestError if variables of the environment would take precedence over the key."""
    endpoint = root_of(endpoint_url or "https://storage.googleapis.com", bucket)
    # The address is always given, even the default: otherwise a key file may name one that was not checked.
    config: Any = {"base_url": endpoint, "skip_signature": False}
    if service_account_key:
        config["service_account_key"] = service_account_key
        refuse_environment(BEFORE_GOOGLES_KEY)
    options: Any = {"client_options": client_options(endpoint, patience_s, via), "retry_config": patience(patience_s)}
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
    """Return the bucket. If the host of `endpoint_url` does not name the account, its path does, as with an emulator:
    `http://host:10000/<account>`.

    Raises BadRequestError if variables of the environment would be sent along with the key.
    """
    endpoint = root_of(endpoint_url or f"https://{account_name}.blob.core.windows.net", container)
    config: Any = {
        "account_name": account_name,
        "endpoint": endpoint,
        "use_emulator": False,
        "skip_signature": False,
    }
    options: Any = {"client_options": client_options(endpoint, patience_s, via), "retry_config": patience(patience_s)}
    with _readable_credentials():
        if account_key:
            refuse_environment(BESIDE_AZURES_KEY)
            b64decode(account_key, validate=True)
            options["credential_provider"] = _account_key_provider(account_key)
        return Bucket(AzureStore(container, config=config, **options))


def _account_key_provider(account_key: str) -> Callable[[], Any]:
    """Return a provider of the key. A token in the environment takes precedence over a key in the settings, but not
    over a provider.
    """

    async def provide() -> dict[str, Any]:
        return {"access_key": account_key, "expires_at": None}

    return provide


@contextmanager
def _readable_credentials() -> Iterator[None]:
    """Translate errors of invalid credentials, which the library parses when the store is made; its text may quote
    them.
    """
    try:
        yield
    except (BaseError, ValueError):
        raise BucketError(BucketFault.INVALID_KEY_ID, "the credentials cannot be read") from None
