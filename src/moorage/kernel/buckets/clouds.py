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
    """Raises BadRequestError where the environment would come before the key."""
    endpoint = root_of(endpoint_url or "https://storage.googleapis.com", bucket)
    # The address is named even where it is the usual one: a key may bring one of its own, which nobody has looked at.
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
    """An `endpoint_url` whose host does not name the account ends in it, as an emulator's: `http://host:10000/<account>`.

    Raises BadRequestError where something of the environment would be sent beside the key.
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
    """A token in the environment would come before a key in the settings, but not before a provider."""

    async def provide() -> dict[str, Any]:
        return {"access_key": account_key, "expires_at": None}

    return provide


@contextmanager
def _readable_credentials() -> Iterator[None]:
    """The library reads these two when the store is made, and says no to what is no key at all. Its words may quote it."""
    try:
        yield
    except (BaseError, ValueError):
        raise BucketError(BucketFault.INVALID_KEY_ID, "the credentials cannot be read") from None
