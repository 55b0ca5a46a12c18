"""Settings of the platform."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, Self
from uuid import UUID

from pydantic import AliasChoices, Field, HttpUrl, SecretStr, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from moorage.settings.server import ServerSettings

# An address at which a server that listens everywhere can always be reached.
_HERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - nothing is bound here
_ORIGIN = re.compile(r"https?://[A-Za-z0-9.\-\[\]:]+")


class PlatformSettings(ServerSettings):
    """Settings of `moorage up`. `down` and `restart` read those that concern them."""

    # Container files leave a variable out by making it empty. Errors never show the value, which may be a secret.
    model_config = SettingsConfigDict(env_ignore_empty=True, hide_input_in_errors=True)

    home: Path | None = Field(None, validation_alias="MOORAGE_HOME")
    """State directory. Default: ~/.moorage, or /var/lib/moorage for root."""

    host: str = Field("127.0.0.1", validation_alias="MOORAGE_HOST")
    """Address that the platform listens on."""

    port: int = Field(8080, ge=1, le=65535, validation_alias="MOORAGE_PORT")
    """Port of that address."""

    public_url: HttpUrl | None = Field(None, validation_alias="MOORAGE_PUBLIC_URL")
    """Origin that users see, if it is not the address; it is used in links. Example: https://agents.example.com."""

    platform_names: str = Field("", validation_alias="MOORAGE_PLATFORM_NAMES")
    """Further host names that lead to the platform, separated by commas. No deployment can take one of them. The
    names of the public URL, of the address and of this machine are always refused.
    """

    https_port: int | None = Field(None, ge=1, le=65535, validation_alias="MOORAGE_HTTPS_PORT")
    """Port for HTTPS, besides the plain one. Needs MOORAGE_ACME_CA, or a certificate of your own. Unset: HTTP only,
    for use behind a load balancer that has the certificates.
    """

    acme_ca: HttpUrl | None = Field(None, validation_alias="MOORAGE_ACME_CA")
    """Directory URL of an ACME server that issues certificates for the public URL's name and the host names of
    deployments, such as https://acme-v02.api.letsencrypt.org/directory. Setting it means agreeing to the server's
    terms. Unset: no certificates are requested.
    """

    acme_email: str | None = Field(None, validation_alias="MOORAGE_ACME_EMAIL")
    """Address to which the ACME server may write about certificates."""

    acme_roots: Path | None = Field(None, validation_alias="MOORAGE_ACME_ROOTS")
    """File with the root certificates of an ACME server of your own, in PEM. Unset: the system's."""

    tls_certificate: Path | None = Field(None, validation_alias="MOORAGE_TLS_CERTIFICATE")
    """File with a certificate and its chain, in PEM. It serves the names that it contains, wildcards included. Set
    it together with MOORAGE_TLS_KEY; it is read when the platform starts.
    """

    tls_key: Path | None = Field(None, validation_alias="MOORAGE_TLS_KEY")
    """File with the key of that certificate, in PEM."""

    pool_max: int = Field(16, ge=2, validation_alias="MOORAGE_POSTGRES_POOL_MAX")
    """Connections to PostgreSQL that the platform keeps at most."""

    clickhouse_url: str | None = Field(None, validation_alias="CLICKHOUSE_URL")
    """ClickHouse for traces: http[s]://user:password@host:port/database. Unset: the embedded one in the home."""

    bucket_url: str | None = Field(None, validation_alias="MOORAGE_BUCKET_URL")
    """Bucket for attachments, uploaded archives and pushed images. Unset: a directory in the home."""

    secret_key: SecretStr | None = Field(None, validation_alias="MOORAGE_SECRET_KEY")
    """Master key that encrypts secrets: 32 bytes in base64. During a rotation several keys, the newest first.
    Unset: made once in the home.
    """

    bootstrap_api_key: SecretStr | None = Field(None, validation_alias="MOORAGE_BOOTSTRAP_API_KEY")
    """The first API key, for unattended installs. Unset: made and printed at the first start."""

    bootstrap_workspace_id: UUID | None = Field(None, validation_alias="MOORAGE_BOOTSTRAP_WORKSPACE_ID")
    """Id of the first workspace. Unset: made at the first start."""

    default_plan: Literal["developer", "plus", "enterprise"] = Field(
        "enterprise", validation_alias="MOORAGE_DEFAULT_PLAN"
    )
    """Plan of workspaces that have none of their own: developer, plus or enterprise."""

    jwks_url: str | None = Field(None, validation_alias="MOORAGE_JWKS_URL")
    """Public keys of an identity provider whose bearer tokens are accepted. Set together with the next two."""

    jwt_issuer: str | None = Field(None, validation_alias="MOORAGE_JWT_ISSUER")
    """Issuer that such a token must have."""

    jwt_audience: str | None = Field(None, validation_alias="MOORAGE_JWT_AUDIENCE")
    """Audience that such a token must have."""

    jwt_workspaces_claim: str = Field("workspaces", validation_alias="MOORAGE_JWT_WORKSPACES_CLAIM")
    """Claim of such a token with the ids of the workspaces that it opens."""

    jwt_scopes_claim: str = Field("scope", validation_alias="MOORAGE_JWT_SCOPES_CLAIM")
    """Claim of such a token with its scopes."""

    upload_bytes_max: int = Field(209_715_200, ge=1, validation_alias="MOORAGE_UPLOAD_BYTES_MAX")
    """Largest size of an uploaded source archive. Larger ones get 413."""

    images_bytes_max: int = Field(10 * 2**30, ge=1, validation_alias="MOORAGE_IMAGES_BYTES_MAX")
    """Space for all images that `langgraph deploy` pushes for one deployment. Pushes above it get 413."""

    agent_wheel: Path | None = Field(None, validation_alias="MOORAGE_AGENT_WHEEL")
    """Wheel of moorage that agents are served with. Unset: this installation, packed as one."""

    git_protocols: str = Field("https,ssh", validation_alias="MOORAGE_GIT_PROTOCOLS")
    """Protocols of git repositories, separated by commas: https, ssh, http or file."""

    git_private_addresses: bool = Field(False, validation_alias="MOORAGE_GIT_PRIVATE_ADDRESSES")
    """Whether git repositories may be on private addresses, this machine included."""

    git_poll_s: float = Field(30, ge=1, validation_alias="MOORAGE_GIT_POLL_SECONDS")
    """How often the platform asks the git repositories of deployments with `build_on_push` for pushes."""

    docker_host: str | None = Field(None, validation_alias="MOORAGE_DOCKER_HOST")
    """Socket of Docker or podman, which runs deployments of container images: unix:///var/run/docker.sock. Unset:
    such deployments are refused.
    """

    orders_from: HttpUrl | None = Field(None, validation_alias="MOORAGE_ORDERS_FROM")
    """Address of the platform whose listener this installation is. `moorage listener` sets it. That platform's
    orders may then set the identity of agents.
    """

    build_timeout_s: float = Field(900, gt=0, validation_alias="MOORAGE_BUILD_TIMEOUT_SECONDS")
    """A build that takes longer fails."""

    # At least two: the build that serves and the build that stands by.
    builds_kept: int = Field(5, ge=2, validation_alias="MOORAGE_BUILDS_KEPT")
    """Builds that are kept for each deployment, so that a rollback takes seconds."""

    agent_start_timeout_s: float = Field(60, gt=0, validation_alias="MOORAGE_AGENT_START_SECONDS")
    """A revision fails if it does not answer /ok within this time after its start."""

    agent_ports: str = Field("", validation_alias="MOORAGE_AGENT_PORTS")
    """TCP ports of this machine that agents may reach, separated by commas, such as 11434 for a model server. The
    ports of the platform, of its database and of a proxy are always open to them.
    """

    agent_disk_bytes: int = Field(20 * 2**30, ge=0, validation_alias="MOORAGE_AGENT_DISK_BYTES")
    """Disk space for the files and the database of a deployment. A deployment above it is stopped. `db_storage_gi`
    of its resource_spec takes precedence. 0: no limit.
    """

    agent_drain_s: float = Field(300, ge=0, validation_alias="MOORAGE_AGENT_DRAIN_SECONDS")
    """How long streams of a replaced revision may continue."""

    agent_standby_s: float = Field(600, ge=0, validation_alias="MOORAGE_AGENT_STANDBY_SECONDS")
    """How long a replaced revision stays ready after its streams have ended, so that a rollback takes effect at
    once.
    """

    agent_offline_s: float = Field(900, ge=0, le=86400, validation_alias="MOORAGE_AGENT_OFFLINE_SECONDS")
    """How long deployed agents accept keys that they know while they cannot reach the platform."""

    body_bytes_max: int = Field(25_000_000, ge=1, validation_alias="MOORAGE_BODY_BYTES_MAX")
    """Largest size of any other request through the front door, requests to agents included. Larger ones get 413."""

    export_slots: int = Field(2, ge=1, le=64, validation_alias="MOORAGE_EXPORT_SLOTS")
    """Export runs that one process writes at once. Each takes several times the memory of a part."""

    export_part_bytes_max: int = Field(64 * 2**20, ge=2**20, le=2**30, validation_alias="MOORAGE_EXPORT_PART_BYTES")
    """Largest size of a Parquet file of an export, before compression."""

    export_runs_max: int = Field(
        45, ge=1, validation_alias=AliasChoices("MOORAGE_EXPORT_RUNS_MAX", "BULK_EXPORT_MAX_CONCURRENT_RUNS")
    )
    """Runs of one export that are written at once, over all processes."""

    exports_max: int = Field(15, ge=1, validation_alias=AliasChoices("MOORAGE_EXPORTS_MAX", "DATA_EXPORT_RUN_LIMIT"))
    """Exports of one workspace that are written at once. Further ones wait for their turn."""

    export_timeout_s: float = Field(72 * 3600, gt=0, validation_alias="MOORAGE_EXPORT_TIMEOUT_SECONDS")
    """An export that takes longer than this ends as TimedOut."""

    export_run_timeout_s: float = Field(4 * 3600, gt=0, validation_alias="MOORAGE_EXPORT_RUN_TIMEOUT_SECONDS")
    """An attempt at one run of an export ends after this time, and the next attempt continues from there."""

    export_retries_max: int = Field(20, ge=0, validation_alias="MOORAGE_EXPORT_RETRIES_MAX")
    """How often a failed run of an export is tried again."""

    export_retry_delay_s: float = Field(30, ge=0, validation_alias="MOORAGE_EXPORT_RETRY_SECONDS")
    """Time between two attempts at a run of an export."""

    export_lease_s: float = Field(15, gt=0, validation_alias="MOORAGE_EXPORT_LEASE_SECONDS")
    """An export run whose process has sent no beat for this time counts as lost; another process continues it."""

    export_compression: Literal["none", "gzip", "snappy", "zstandard"] = Field(
        "zstandard", validation_alias="MOORAGE_EXPORT_COMPRESSION"
    )
    """Compression of exports that do not name one: none, gzip, snappy or zstandard."""

    export_private_endpoints: bool | None = Field(None, validation_alias="MOORAGE_EXPORT_PRIVATE_ENDPOINTS")
    """Whether export destinations, webhooks, OAuth providers and forges may be on addresses of this machine and its
    network. Unset: only if the platform itself listens on this machine alone.
    """

    export_environment_credentials: bool = Field(False, validation_alias="MOORAGE_EXPORT_ENVIRONMENT_CREDENTIALS")
    """Whether destinations without credentials use the credentials in the platform's environment, also to assume the
    role of a destination. This applies to destinations of all workspaces.
    """

    export_directory: Path | None = Field(None, validation_alias="MOORAGE_EXPORT_DIRECTORY")
    """Directory for destinations of the type local, with a folder for each workspace. Unset: exports in the home if
    the platform listens on this machine alone; otherwise there are no such destinations.
    """

    cors_origins: str = Field("", validation_alias="CORS_ALLOW_ORIGINS")
    """Other origins that browsers may call the platform from, separated by commas, such as https://app.example.com;
    * is all. Unset: none.
    """

    rate_limit_per_s: float = Field(500, ge=0, validation_alias="MOORAGE_RATE_LIMIT")
    """Requests a second that one key may make. Further ones get 429. 0: no limit."""

    rate_limit_burst: int = Field(5000, ge=1, validation_alias="MOORAGE_RATE_LIMIT_BURST")
    """Requests that one key may make at once before that rate applies."""

    # The database refuses to delete younger rows.
    audit_days: int = Field(400, ge=31, le=36_500, validation_alias="MOORAGE_AUDIT_DAYS")
    """Days that rows of the audit log are kept, at least 31."""

    @field_validator("cors_origins")
    @classmethod
    def _check_origins(cls, value: str) -> str:
        """Check the origins. A browser sends its origin without a path, so an origin with a path would never match."""
        for origin in _words(value):
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ValueError(f"{origin!r} is no origin; write https://app.example.com, without a path")
        return value

    @model_validator(mode="after")
    def _check_https(self) -> Self:
        """Check the settings of HTTPS: it needs a certificate, and a certificate is useless without it."""
        for wrong, words in (
            (
                self.https_port is None and (self.acme_ca or self.tls_certificate),
                "MOORAGE_ACME_CA and MOORAGE_TLS_CERTIFICATE do nothing without MOORAGE_HTTPS_PORT",
            ),
            (
                self.acme_ca is None and (self.acme_email or self.acme_roots),
                "MOORAGE_ACME_EMAIL and MOORAGE_ACME_ROOTS do nothing without MOORAGE_ACME_CA",
            ),
            (
                (self.tls_certificate is None) != (self.tls_key is None),
                "MOORAGE_TLS_CERTIFICATE and MOORAGE_TLS_KEY are set together",
            ),
            (
                self.https_port is not None and not (self.acme_ca or self.tls_certificate),
                "MOORAGE_HTTPS_PORT needs MOORAGE_ACME_CA, or MOORAGE_TLS_CERTIFICATE with MOORAGE_TLS_KEY",
            ),
            (self.https_port == self.port, "MOORAGE_HTTPS_PORT and MOORAGE_PORT are two ports"),
        ):
            if wrong:
                raise ValueError(words)
        return self

    @property
    def certificate_names(self) -> list[str]:
        """Return the platform's own names that may have a certificate."""
        url = self.public_url
        return [url.host] if url and url.host and url.scheme == "https" else []

    @property
    def browser_origins(self) -> list[str]:
        return _words(self.cors_origins)

    @property
    def further_names(self) -> list[str]:
        return _words(self.platform_names)

    @property
    def is_local(self) -> bool:
        """Return True if only this machine can reach the platform."""
        return self.host in {"127.0.0.1", "::1", "localhost"} and self.public_url is None

    @property
    def allows_private_endpoints(self) -> bool:
        """Return True if callers may name addresses of this machine and its network."""
        given = self.export_private_endpoints
        return self.is_local if given is None else given

    @property
    def origin(self) -> str:
        """Return the origin of the platform's public addresses."""
        host = _HERE.get(self.host, self.host)
        host = f"[{host}]" if ":" in host else host
        return str(self.public_url or f"http://{host}:{self.port}").rstrip("/")

    @property
    def local_host(self) -> str:
        """Return the address by which processes of this machine reach the platform, whatever proxy is before it for
        users.
        """
        return _HERE.get(self.host, self.host)

    @property
    def local_url(self) -> str:
        """Return the origin at that address."""
        host = self.local_host
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


def _words(text: str) -> list[str]:
    """Return the parts between commas, without empty ones."""
    return [word for part in text.split(",") if (word := part.strip())]
