"""Destinations: create, test, rotate and open them. Their credentials are sealed at once and appear in no answer.

The installation may be inside a private network. So the address of a destination is checked when it is created,
whenever it is opened, and at each connection, which goes to exactly the address that was checked (`kernel/relay.py`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass
from uuid import UUID

import structlog

from moorage.exports.partitions import bucket_of, place_of
from moorage.exports.records.destinations import (
    SEALED_CREDENTIALS,
    CredentialsGiven,
    Destination,
    DestinationConfig,
    DestinationCreate,
    DestinationType,
    DestinationUpdate,
    Permissions,
    credentials_fit,
    role_fits,
)
from moorage.exports.records.runs import ExportLocation
from moorage.exports.store.destinations import DestinationStore, StoredDestination
from moorage.kernel.access import Caller
from moorage.kernel.addresses import Address, Resolve, blocked_range, resolve_name
from moorage.kernel.aws_roles import AssumedRole, AwsRole, sts_url_of
from moorage.kernel.aws_signature import Credentials, Lender
from moorage.kernel.buckets.bucket import Bucket, directory_bucket
from moorage.kernel.buckets.clouds import azure_bucket, gcs_bucket
from moorage.kernel.buckets.etags import is_etag, md5_hex
from moorage.kernel.buckets.faults import BucketError, BucketFault
from moorage.kernel.buckets.s3 import Lent, S3Address, endpoint_of, s3_bucket
from moorage.kernel.crypto import MasterKeys, UnsealError
from moorage.kernel.encoding import decode, encode
from moorage.kernel.errors import BadRequestError, InvalidRequestError, NotFoundError, StartupError
from moorage.kernel.ids import uuid7
from moorage.kernel.relay import Origin, Relay, origin_of

log = structlog.get_logger(__name__)

_PROBE_S = 20.0
_PROBE_PATIENCE_S = 4.0
_LOOKUP_S = 5.0
_OPEN_MAX = 16  # the most recently used destinations are kept open
Addresses = list[Address]  # `list` is a verb below
_NAMES = {
    DestinationType.S3: "S3",
    DestinationType.GCS: "GCS",
    DestinationType.AZURE: "Azure",
    DestinationType.LOCAL: "local",
}
# Errors of a store that rejects or does not know a request.
_NOT_TAKEN = re.compile("4|501")
# Messages that clients of this API look for.
_INVALID_ENDPOINT = "Invalid endpoint"
_TEXTS = {
    BucketFault.ACCESS_DENIED: "Access denied",
    BucketFault.NO_SUCH_BUCKET: "Bucket is not valid",
    BucketFault.INVALID_KEY_ID: "Key ID you provided does not exist",
    BucketFault.INVALID_ENDPOINT: _INVALID_ENDPOINT,
    BucketFault.UNREACHABLE: "The store cannot be reached",
    BucketFault.INVALID_BUCKET_NAME: (
        "InvalidBucketName: the store does not take this bucket_name, or needs another "
        "config_kwargs_s3.addressing_style"
    ),
}


def text_of(error: BucketError) -> str:
    """Return the message for a fault: the API's text, or one with the store's error code if the API has none."""
    known = _TEXTS.get(error.fault)
    return known or f"The store failed ({error})"


class DestinationGoneError(NotFoundError):
    """The destination of an export was deleted, and its credentials cannot be restored."""

    code = "destination_gone"


@dataclass(frozen=True)
class DestinationRules:
    """Rules of this installation for its workspaces."""

    allow_private_endpoints: bool
    allow_environment_credentials: bool
    local_root: Path | None
    # Credentials of this installation for assuming the role of a destination that has no credentials of its own.
    lent: Credentials | None = None
    patience_s: float = 120.0  # a failing store is retried for this long before the attempt counts as failed


@dataclass(frozen=True)
class OpenDestination:
    """A bucket to write to, the location in it, and the permissions there."""

    bucket: Bucket
    place: ExportLocation
    permissions: Permissions


@dataclass(frozen=True)
class _Kept:
    """An open bucket, and the values that it was made from. Opening a bucket reads this machine's certificates, which
    costs a sixth of a worker's computing time for a part.
    """

    made_of: tuple[UUID, StoredDestination, Lender | None]
    opened: OpenDestination


class Destinations:
    def __init__(
        self, store: DestinationStore, keys: MasterKeys, rules: DestinationRules, resolve: Resolve = resolve_name
    ) -> None:
        self._store = store
        self._keys = keys
        self._rules = rules
        self._resolve = resolve
        self._relay = Relay(self._addresses)
        self._roles: dict[AwsRole, AssumedRole] = {}
        self._open: dict[UUID, _Kept] = {}

    async def create(self, caller: Caller, new: DestinationCreate) -> Destination:
        """Create a destination. Raises BadRequestError with the reason if nothing could be written there."""
        config = cast(DestinationConfig, new.config.model_dump(exclude_unset=False))
        credentials = _plain(new.credentials)
        destination_id = uuid7()
        sealed = self._sealed(destination_id, credentials)
        destination = StoredDestination(destination_id, new.destination_type, config, sealed, None)
        permissions = await self._probe(destination, caller.workspace_id, credentials)
        return await self._store.insert(
            destination,
            caller.workspace_id,
            display_name=new.display_name,
            credentials_keys=sorted(credentials),
            permissions=permissions,
            actor=caller.actor,
        )

    async def list(self, caller: Caller, *, limit: int, offset: int) -> list[Destination]:
        return await self._store.page(caller.workspace_id, limit=limit, offset=offset)

    async def get(self, caller: Caller, destination_id: UUID) -> Destination:
        found = await self._store.read(caller.workspace_id, destination_id)
        if found is None:
            raise _missing(destination_id)
        return found

    async def update(self, caller: Caller, destination_id: UUID, patch: DestinationUpdate) -> Destination:
        """Replace the credentials after testing the new ones. Export runs at work keep the old ones."""
        stored = await self._store.read_stored(caller.workspace_id, destination_id)
        if stored is None:
            raise _missing(destination_id)
        credentials = _plain(patch.credentials)
        try:
            if credentials:
                credentials_fit(stored.destination_type, credentials)
            if patch.aws_role_arn:
                role_fits(stored.destination_type)
        except ValueError as error:
            raise InvalidRequestError(str(error)) from None
        config: DestinationConfig = {**stored.config, "aws_role_arn": patch.aws_role_arn}
        stored = replace(stored, config=config, credentials=self._sealed(destination_id, credentials), permissions=None)
        permissions = await self._probe(stored, caller.workspace_id, credentials)
        changed = await self._store.set_credentials(
            stored,
            caller.workspace_id,
            credentials_keys=sorted(credentials),
            permissions=permissions,
            actor=caller.actor,
        )
        if changed is None:
            raise _missing(destination_id)
        return changed

    async def delete(self, caller: Caller, destination_id: UUID) -> None:
        """Delete a destination with its credentials; exports on their way there fail."""
        if not await self._store.remove(caller.workspace_id, destination_id):
            raise _missing(destination_id)

    async def open(self, workspace_id: UUID, destination_id: UUID) -> OpenDestination:
        """Open a destination for writing. Raises DestinationGoneError if it was deleted, BadRequestError if its address
        is not allowed, BucketError if its role cannot be assumed.
        """
        stored = await self._store.read_stored(workspace_id, destination_id)
        if stored is None or stored.permissions is None:
            self._open.pop(destination_id, None)
            raise DestinationGoneError("The destination was deleted; make it again and export once more")
        credentials: dict[str, str] = {}
        if stored.credentials is not None:
            credentials = decode(self._keys.open(stored.credentials, SEALED_CREDENTIALS.place(destination_id)))
        await self._check(stored)
        lend = await self._lender(stored, workspace_id, credentials, self._roles)
        kept = self._open.pop(destination_id, None)
        if kept is None or kept.made_of != (workspace_id, stored, lend):
            # Destinations that an older version tested lack the entry for checksums.
            sends_sha256 = stored.permissions.get("sha256_checksums", False)
            bucket = self._bucket(
                stored, workspace_id, credentials, lend, self._rules.patience_s, sends_sha256=sends_sha256
            )
            opened = OpenDestination(bucket, place_of(stored.config), stored.permissions)
            kept = _Kept((workspace_id, stored, lend), opened)
        self._open[destination_id] = kept
        while len(self._open) > _OPEN_MAX:
            del self._open[next(iter(self._open))]
        return kept.opened

    async def check_here(self) -> None:
        """Check that this process has everything that the existing destinations need. Raises StartupError that names
        the variable.
        """
        for stored in await self._store.read_kinds():
            if stored.credentials is not None:
                try:
                    self._keys.rewrap(stored.credentials)
                except UnsealError:
                    raise StartupError(
                        "MOORAGE_SECRET_KEY is not the one that this platform's secrets are sealed with"
                    ) from None
            if refusal := self._refusal_of(stored):
                raise StartupError(f"A destination of the type {stored.destination_type} would fail here: {refusal}")

    def _refusal_of(self, destination: StoredDestination) -> str | None:
        """Return the reason why the destination cannot work in this installation; None if it can."""
        if destination.destination_type is DestinationType.LOCAL:
            if self._rules.local_root is None:
                return "this installation has no directory for exports; set MOORAGE_EXPORT_DIRECTORY"
        elif destination.credentials is None and not self._rules.allow_environment_credentials:
            return "credentials are missing; this installation does not lend its own (MOORAGE_EXPORT_ENVIRONMENT_CREDENTIALS)"
        elif destination.config.get("aws_role_arn") and destination.credentials is None and self._rules.lent is None:
            return (
                "aws_role_arn: this installation has nothing to take on a role with; give credentials that may, or set "
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY where it runs"
            )
        return None

    def _sealed(self, destination_id: UUID, credentials: dict[str, str]) -> bytes | None:
        if not credentials:
            return None
        return self._keys.seal(encode(credentials), SEALED_CREDENTIALS.place(destination_id))

    # --- the test -----------------------------------------------------------------------------------------------------

    async def _probe(
        self, destination: StoredDestination, workspace_id: UUID, credentials: dict[str, str]
    ) -> Permissions:
        name = _NAMES[destination.destination_type]
        try:
            async with asyncio.timeout(_PROBE_S):
                await self._check(destination)
                patience_s = min(_PROBE_PATIENCE_S, self._rules.patience_s)
                # No cached roles: a role that was assumed before may be refused now.
                lend = await self._lender(destination, workspace_id, credentials, {})
                open_bucket = partial(self._bucket, destination, workspace_id, credentials, lend, patience_s)
                return await _permissions(open_bucket, destination)
        except BadRequestError as refusal:
            raise BadRequestError(f"Failed to validate {name} destination: {refusal}") from refusal
        except BucketError as error:
            log.info("a destination was refused", fault=error.fault.value, told=str(error))
            # If nothing has ever answered, the address is wrong.
            text = _INVALID_ENDPOINT if error.fault is BucketFault.UNREACHABLE else text_of(error)
            raise BadRequestError(f"Failed to validate {name} destination: {text}") from error
        except TimeoutError as error:
            raise BadRequestError(f"Failed to validate {name} destination: {_INVALID_ENDPOINT}") from error

    async def _check(self, destination: StoredDestination) -> None:
        if refusal := self._refusal_of(destination):
            raise BadRequestError(refusal)
        url, kind = destination.config["endpoint_url"], destination.destination_type
        if url is None or kind is DestinationType.LOCAL:
            return
        if destination.credentials is None and kind is not DestinationType.S3:
            # S3 only gets a signature, the others get the token itself.
            raise BadRequestError("endpoint_url: this installation lends its credentials to the usual address alone")
        try:
            parts, origins = urlsplit(url), _origins(destination)
        except ValueError:
            raise BadRequestError(_INVALID_ENDPOINT) from None
        if parts.username or parts.query or parts.fragment:
            raise BadRequestError(_INVALID_ENDPOINT)
        if not self._rules.allow_private_endpoints:
            for host, _ in origins:
                try:
                    await self._addresses(host)
                except (OSError, UnicodeError):
                    raise BadRequestError(_INVALID_ENDPOINT) from None

    async def _addresses(self, host: str) -> Addresses:
        """Resolve a host. Raises BadRequestError if one of its addresses is not allowed, OSError if it has none."""
        async with asyncio.timeout(_LOOKUP_S):
            addresses = await self._resolve(host)
        if not self._rules.allow_private_endpoints and any(map(blocked_range, addresses)):
            raise BadRequestError(
                "Invalid endpoint: it leads to a private address, which this installation does not allow "
                "(MOORAGE_EXPORT_PRIVATE_ENDPOINTS)"
            )
        return addresses

    def _via(self, destination: StoredDestination) -> str | None:
        """Return the relay's URL, for an endpoint that a workspace named. None if the environment has a proxy for it:
        that proxy then decides which addresses are allowed.
        """
        url = destination.config["endpoint_url"]
        if url is None or destination.destination_type is DestinationType.LOCAL or _has_proxy(url):
            return None
        return self._relay.route(*_origins(destination))

    async def _lender(
        self,
        destination: StoredDestination,
        workspace_id: UUID,
        credentials: dict[str, str],
        taken_on: dict[AwsRole, AssumedRole],
    ) -> Lender | None:
        """Return the lender of the credentials for S3: the destination's own, or those of its role; None for the
        environment's.
        """
        if destination.destination_type is not DestinationType.S3:
            return None
        given = Credentials(**cast(Any, credentials)) if credentials else None
        config = destination.config
        if not config["aws_role_arn"]:
            return Lent(given) if given else None
        signer = given or self._rules.lent
        assert signer is not None  # checked before
        region = config["region"] or "us-east-1"
        # The external id is the workspace's id, so that no other workspace can use a role by naming it.
        role = AwsRole(
            config["aws_role_arn"],
            str(workspace_id),
            sts_url_of(config["endpoint_url"], region),
            region,
            signer,
            self._via(destination),
        )
        if role not in taken_on:
            for each in [each for each, assumed in taken_on.items() if not assumed.is_current]:
                del taken_on[each]
            taken_on[role] = AssumedRole(role)
        assumed = taken_on[role]
        await assumed.lend()  # at once, so that a failure is reported here
        return assumed.lend

    def _bucket(
        self,
        destination: StoredDestination,
        workspace_id: UUID,
        credentials: dict[str, str],
        lend: Lender | None,
        patience_s: float,
        *,
        sends_sha256: bool,
    ) -> Bucket:
        config = destination.config
        name, via = bucket_of(config), self._via(destination)
        match destination.destination_type:
            case DestinationType.LOCAL:
                root = cast(Path, self._rules.local_root)
                return directory_bucket(root / str(workspace_id) / name)
            case DestinationType.GCS:
                key = credentials.get("service_account_key")
                return gcs_bucket(name, key, endpoint_url=config["endpoint_url"], patience_s=patience_s, via=via)
            case DestinationType.AZURE:
                account = config["account_name"] or ""
                key = credentials.get("account_key")
                return azure_bucket(
                    name, account, key, endpoint_url=config["endpoint_url"], patience_s=patience_s, via=via
                )
            case DestinationType.S3:
                address = _s3_address(name, destination, sends_sha256=sends_sha256)
                return s3_bucket(address, lend, patience_s=patience_s, via=via)


async def _permissions(open_bucket: Callable[..., Bucket], destination: StoredDestination) -> Permissions:
    """Test a destination with checksums, and again without them if the store rejects such requests."""
    place, is_s3 = place_of(destination.config), destination.destination_type is DestinationType.S3
    if is_s3 and not _is_google(destination.config["endpoint_url"]):
        try:
            found = await probe(open_bucket(sends_sha256=True), place)
            return {**found, "sha256_checksums": True}
        except BucketError as error:
            if error.fault is not BucketFault.TRANSIENT or not _NOT_TAKEN.match(str(error)):
                raise
    return await probe(open_bucket(sends_sha256=False), place)


async def probe(bucket: Bucket, place: ExportLocation) -> Permissions:
    """Write a small file and test which other operations are allowed. Raises BucketError if writing is not allowed."""
    key = place.test_file(uuid7())
    content = f"moorage tests that it may write here: {key}\n".encode()
    put = await bucket.put(key, content)
    found = await _if_allowed(bucket.head(key))
    return {
        "put_object": True,
        "get_object": None if found is None else bool(found) and found.size_bytes == len(content),
        "abort_multipart_upload": await bucket.may_abort(key),
        "delete_object": await _if_allowed(bucket.delete([key])) is not False,
        "md5_etags": bool(is_etag(put.etag, md5_hex(content))),
        "sha256_checksums": False,
    }


async def _if_allowed(call: Awaitable[Any]) -> Any:
    """Return the call's result; False if the call is not allowed."""
    try:
        return await call
    except BucketError as error:
        if error.fault.stays:
            return False
        raise


def _origins(destination: StoredDestination) -> set[Origin]:
    """List the hosts of a destination: the endpoint's host, and the one with the bucket's name as subdomain.

    Raises ValueError for an endpoint that is no web address.
    """
    origins = {origin_of(destination.config["endpoint_url"] or "")}
    if destination.destination_type is DestinationType.S3:
        name = bucket_of(destination.config)
        origins.add(origin_of(endpoint_of(_s3_address(name, destination, sends_sha256=False))[0]))
    return origins


def _has_proxy(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in getproxies() and not proxy_bypass(parts.hostname or "")


def _is_google(endpoint_url: str | None) -> bool:
    """Return True if the S3 endpoint is Google's, which accepts no checksums except signed ones."""
    return (urlsplit(endpoint_url or "").hostname or "").endswith(".googleapis.com")


def _s3_address(name: str, destination: StoredDestination, *, sends_sha256: bool) -> S3Address:
    config, options = destination.config, destination.config["config_kwargs_s3"] or {}
    signs_payload = options.get("payload_signing_enabled") is not False
    # A SHA-256 costs nothing extra if the signature needs it anyway.
    checks_md5 = bool(destination.permissions and destination.permissions["md5_etags"]) and not signs_payload
    return S3Address(
        name,
        region=config["region"],
        endpoint_url=config["endpoint_url"],
        addressing=options.get("addressing_style") or "auto",
        accelerate=bool(options.get("use_accelerate_endpoint")),
        signs_payload=signs_payload,
        sends_sha256=sends_sha256 and not checks_md5,
        checks_md5=checks_md5,
        legacy_global=options.get("us_east_1_regional_endpoint") == "legacy",
        put_options=tuple((config["s3_additional_kwargs"] or {}).items()),
    )


def _plain(credentials: CredentialsGiven | None) -> dict[str, str]:
    return {} if credentials is None else credentials.plain()


def _missing(destination_id: UUID) -> NotFoundError:
    return NotFoundError(f"Bulk export destination {destination_id} not found")
