"""Settings that the agent server and the platform share."""

from __future__ import annotations

from pydantic import AliasChoices, Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class ServerSettings(BaseSettings):
    """Database, logs and limits of requests. The text below a setting is its help text."""

    model_config = SettingsConfigDict(extra="ignore", use_attribute_docstrings=True)

    database_uri: str | None = Field(None, validation_alias=AliasChoices("DATABASE_URI", "POSTGRES_URI"))
    """PostgreSQL 15 or newer. Unset: the embedded one in the home."""

    log_level: str = Field("INFO", validation_alias="LOG_LEVEL")
    """DEBUG, INFO, WARNING or ERROR."""

    log_json: bool = Field(False, validation_alias="LOG_JSON")
    """One JSON object a line instead of text."""

    json_values_max: int = Field(1_000_000, ge=1, validation_alias="MOORAGE_JSON_VALUES_MAX")
    """JSON values and keys that one request may hold. Requests with more get 413."""

    held_bytes_max: int = Field(384 * 2**20, ge=1, validation_alias="MOORAGE_REQUEST_MEMORY_BYTES")
    """Memory that all request bodies of a process may take, with the objects made of them. Requests above it get
    429; a single body may be larger.
    """

    body_bytes_per_s_min: int = Field(10_000, ge=0, validation_alias="MOORAGE_BODY_BYTES_PER_SECOND_MIN")
    """Lowest pace of a request body. Slower bodies get 408. 0: no limit."""

    body_grace_s: float = Field(30, gt=0, validation_alias="MOORAGE_BODY_GRACE_SECONDS")
    """How long a request body may stay behind that pace."""

    slow_bodies_per_client_max: int = Field(256, ge=0, validation_alias="MOORAGE_SLOW_BODIES_PER_CLIENT")
    """Request bodies of one client address that may be 5 seconds behind that pace. Further ones get 429. 0: no
    limit.
    """

    connections_per_client_max: int = Field(10_000, ge=0, validation_alias="MOORAGE_CONNECTIONS_PER_CLIENT")
    """Connections that one client address may keep open, to a process of the agent server and, as root with
    nftables, to the port of the platform. Further ones are refused. 0: no limit.
    """

    requests_per_client_max: int = Field(10_000, ge=0, validation_alias="MOORAGE_REQUESTS_PER_CLIENT")
    """Requests of one client address that may be open at once, streams included. Further ones get 429. 0: no limit."""

    refusals_per_minute: int = Field(100, ge=0, validation_alias="MOORAGE_REFUSALS_PER_MINUTE")
    """Requests without a valid key that one client address may send in a minute. Each further one waits half a
    second for its 401, and while 32 of them wait, the address gets 429. 0: no limit.
    """
