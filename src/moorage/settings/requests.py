"""Settings of limits of requests."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings


class RequestSettings(BaseSettings):
    """Limits of requests, which the agent server and the platform share."""

    json_values_max: int = Field(
        1_000_000,
        ge=1,
        validation_alias="MOORAGE_JSON_VALUES_MAX",
        description="JSON values and keys that one request may hold. Requests with more get 413.",
    )
    held_bytes_max: int = Field(
        384 * 2**20,
        ge=1,
        validation_alias="MOORAGE_REQUEST_MEMORY_BYTES",
        description=(
            "Memory that all request bodies of a process may take, with the objects made of them. Requests above it "
            "get 429; a single body may be larger."
        ),
    )
    body_bytes_per_s_min: int = Field(
        10_000,
        ge=0,
        validation_alias="MOORAGE_BODY_BYTES_PER_SECOND_MIN",
        description="Lowest pace of a request body. Slower bodies get 408. 0: no limit.",
    )
    body_grace_s: float = Field(
        30,
        gt=0,
        validation_alias="MOORAGE_BODY_GRACE_SECONDS",
        description="How long a request body may stay behind that pace.",
    )
    slow_bodies_per_client_max: int = Field(
        256,
        ge=0,
        validation_alias="MOORAGE_SLOW_BODIES_PER_CLIENT",
        description=(
            "Request bodies of one client address that may be 5 seconds behind that pace. Further ones get 429. 0: no "
            "limit."
        ),
    )
    connections_per_client_max: int = Field(
        10_000,
        ge=0,
        validation_alias="MOORAGE_CONNECTIONS_PER_CLIENT",
        description=(
            "Connections that one client address may keep open, to a process of the agent server and, as root with "
            "nftables, to the port of the platform. Further ones are refused. 0: no limit."
        ),
    )
    requests_per_client_max: int = Field(
        10_000,
        ge=0,
        validation_alias="MOORAGE_REQUESTS_PER_CLIENT",
        description=(
            "Requests of one client address that may be open at once, streams included. Further ones get 429. 0: no "
            "limit."
        ),
    )
    refusals_per_minute: int = Field(
        100,
        ge=0,
        validation_alias="MOORAGE_REFUSALS_PER_MINUTE",
        description=(
            "Requests without a valid key that one client address may send in a minute. Each further one waits half a "
            "second for its 401, and while 32 of them wait, the address gets 429. 0: no limit."
        ),
    )
