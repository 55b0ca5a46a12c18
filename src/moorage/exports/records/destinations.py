"""Destinations, which are the buckets that exports are written to."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal, NotRequired
from uuid import UUID

from pydantic import AfterValidator, Field, model_validator
from typing_extensions import TypedDict

from moorage.exports.records.words import Line, StrictRequest
from moorage.kernel.crypto import SealedColumn

SEALED_CREDENTIALS = SealedColumn("export_destinations", "id", "credentials")


class DestinationType(StrEnum):
    """Type of a destination. The API defines `s3`; moorage adds the others."""

    S3 = "s3"
    GCS = "gcs"
    AZURE = "azure"
    LOCAL = "local"


class Permissions(TypedDict):
    """Permissions that the test of a destination found; None where the test was inconclusive."""

    put_object: bool
    get_object: bool | None
    delete_object: bool | None
    abort_multipart_upload: bool | None
    md5_etags: bool  # the store reports the MD5 of an upload, so that it can be compared
    # The store compares uploads with a SHA-256 that we send. Missing if an older version tested the destination.
    sha256_checksums: NotRequired[bool]


class S3Options(TypedDict, total=False):
    """Options that botocore takes as its `s3` configuration."""

    addressing_style: Literal["auto", "virtual", "path"]
    use_accelerate_endpoint: bool
    payload_signing_enabled: bool
    us_east_1_regional_endpoint: Literal["regional", "legacy"]


class DestinationConfig(TypedDict):
    bucket_name: str | None
    prefix: str
    region: str | None
    endpoint_url: str | None
    include_bucket_in_prefix: bool
    s3_additional_kwargs: dict[str, str | bool] | None
    config_kwargs_s3: S3Options | None
    aws_role_arn: str | None
    account_name: str | None


class Destination(TypedDict):
    """Destination as the API returns it: with names of credentials, never a value. `permissions` is moorage's own."""

    id: UUID
    tenant_id: UUID
    destination_type: DestinationType
    display_name: str
    config: DestinationConfig
    credentials_keys: list[str]
    permissions: Permissions
    created_at: datetime
    updated_at: datetime


DisplayName = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[a-zA-Z0-9\-_ ']+$")]
# The name is part of paths: every store accepts these characters, and none of them leads to another path.
BucketName = Annotated[str, Field(min_length=3, max_length=63, pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._\-]*$")]


class S3OptionsGiven(StrictRequest):
    addressing_style: Literal["auto", "virtual", "path"] | None = None
    use_accelerate_endpoint: bool | None = None
    payload_signing_enabled: bool | None = None
    us_east_1_regional_endpoint: Literal["regional", "legacy"] | None = None


# Arguments of a put that the bucket library can send. Others are refused rather than ignored.
S3_ADDITIONAL_KWARGS = frozenset({"ServerSideEncryption", "SSEKMSKeyId", "BucketKeyEnabled"})


def _known_kwargs(given: dict[str, str | bool]) -> dict[str, str | bool]:
    for name in given:
        if name not in S3_ADDITIONAL_KWARGS:
            raise ValueError(f"{name[:64]} is not supported; supported are {', '.join(sorted(S3_ADDITIONAL_KWARGS))}")
    return given


def _clean_prefix(prefix: str) -> str:
    clean = prefix.strip("/")
    if any(part in ("", ".", "..") for part in clean.split("/")) and clean:
        raise ValueError("must not hold empty parts, '.' or '..'")
    return clean


class DestinationConfigGiven(StrictRequest):
    bucket_name: BucketName | None = None
    prefix: Annotated[Line, Field(max_length=2048), AfterValidator(_clean_prefix)] = ""
    region: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9\-]+$")] | None = None
    endpoint_url: Annotated[Line, Field(max_length=2048)] | None = None
    include_bucket_in_prefix: bool = Field(
        False, description="Put the bucket's name before the prefix in keys, for stores that need it there."
    )
    s3_additional_kwargs: Annotated[dict[str, str | bool], AfterValidator(_known_kwargs)] | None = None
    config_kwargs_s3: S3OptionsGiven | None = None
    aws_role_arn: Annotated[Line, Field(max_length=2048)] | None = None
    account_name: Annotated[str, Field(max_length=64, pattern=r"^[a-z0-9]+$")] | None = Field(
        None, description="The storage account of an Azure container."
    )


class CredentialsGiven(StrictRequest):
    """Credentials: two keys for `s3`, with a token if they are temporary; one key for `gcs` and for `azure`."""

    access_key_id: Annotated[Line, Field(min_length=1, max_length=255)] | None = None
    secret_access_key: Annotated[Line, Field(min_length=1, max_length=2048)] | None = None
    session_token: Annotated[Line, Field(max_length=2048)] | None = None
    service_account_key: Annotated[str, Field(max_length=16384)] | None = Field(
        None, description="The JSON key of a service account of Google Cloud."
    )
    account_key: Annotated[Line, Field(max_length=2048)] | None = Field(
        None, description="The key of a storage account of Azure."
    )

    def plain(self) -> dict[str, str]:
        return self.model_dump(exclude_none=True)


_NEEDED_CREDENTIALS = {
    DestinationType.S3: {"access_key_id", "secret_access_key"},
    DestinationType.GCS: {"service_account_key"},
    DestinationType.AZURE: {"account_key"},
    DestinationType.LOCAL: set[str](),
}
_TAKEN_CREDENTIALS = {
    **_NEEDED_CREDENTIALS,
    DestinationType.S3: {"access_key_id", "secret_access_key", "session_token"},
}


def credentials_fit(kind: DestinationType, credentials: Mapping[str, str]) -> None:
    """Check credentials. Raises ValueError that names missing or superfluous ones."""
    missing = _NEEDED_CREDENTIALS[kind] - credentials.keys()
    if missing:
        raise ValueError(f"credentials of a destination of type {kind} need {', '.join(sorted(missing))}")
    more = credentials.keys() - _TAKEN_CREDENTIALS[kind]
    if more:
        raise ValueError(f"a destination of type {kind} has no credentials {', '.join(sorted(more))}")


def role_fits(kind: DestinationType) -> None:
    """Check that a destination of this type may have a role. Raises ValueError."""
    if kind is not DestinationType.S3:
        raise ValueError(f"a destination of type {kind} has no aws_role_arn")


class DestinationCreate(StrictRequest):
    destination_type: DestinationType = DestinationType.S3
    display_name: DisplayName
    config: DestinationConfigGiven
    credentials: CredentialsGiven | None = None
    # Some documented examples put it beside `config` instead of inside.
    aws_role_arn: Annotated[Line, Field(max_length=2048)] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> DestinationCreate:
        if self.aws_role_arn and not self.config.aws_role_arn:
            self.config.aws_role_arn = self.aws_role_arn
        if self.credentials is not None:
            credentials_fit(self.destination_type, self.credentials.plain())
        if self.config.aws_role_arn:
            role_fits(self.destination_type)
        if not self.config.bucket_name and not self.config.endpoint_url:
            raise ValueError("config needs a bucket_name, or an endpoint_url that holds it")
        if self.destination_type is DestinationType.AZURE and not self.config.account_name:
            raise ValueError("config of a destination of type azure needs account_name")
        return self


class DestinationUpdate(StrictRequest):
    credentials: CredentialsGiven | None = None
    aws_role_arn: Annotated[Line, Field(max_length=2048)] | None = None

    @model_validator(mode="after")
    def _something(self) -> DestinationUpdate:
        if self.credentials is None and self.aws_role_arn is None:
            raise ValueError("give credentials or aws_role_arn")
        return self
