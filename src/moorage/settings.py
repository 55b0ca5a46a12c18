"""Settings of the agent server, from the environment. Each field says what it is for; the docs table is made from it."""

from __future__ import annotations

from pathlib import Path

from pydantic import AliasChoices, Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class AgentSettings(BaseSettings):
    """What `moorage dev` and `moorage serve` read."""

    model_config = SettingsConfigDict(extra="ignore")

    home: Path | None = Field(
        None, validation_alias="MOORAGE_HOME", description="State directory. Default: .moorage beside langgraph.json."
    )
    database_uri: str | None = Field(
        None,
        validation_alias=AliasChoices("DATABASE_URI", "POSTGRES_URI"),
        description="PostgreSQL 15 or newer. Unset: the embedded one in the home.",
    )
    pool_max: int = Field(
        16,
        ge=2,
        validation_alias="LANGGRAPH_POSTGRES_POOL_MAX_SIZE",
        description="Connections to PostgreSQL that one process keeps at most.",
    )
    redis_uri: str | None = Field(
        None,
        validation_alias="REDIS_URI",
        description="Redis for streams, wakes and cancellations between processes. Unset: PostgreSQL's NOTIFY.",
    )
    redis_prefix: str = Field("", validation_alias="REDIS_KEY_PREFIX", description="Prefix of the channel in Redis.")
    slots: int = Field(
        1000, ge=1, validation_alias="N_JOBS_PER_WORKER", description="Runs that one process executes at once."
    )
    run_timeout_s: float = Field(
        86400, gt=0, validation_alias="BG_JOB_TIMEOUT_SECS", description="A run that takes longer ends as timeout."
    )
    attempts_max: int = Field(
        3,
        ge=1,
        validation_alias="BG_JOB_MAX_RETRIES",
        description="How often a run is taken up when the process that executed it was lost.",
    )
    lease_s: float = Field(
        15,
        gt=0,
        validation_alias="MOORAGE_LEASE_SECONDS",
        description="After this time without a beat a run counts as lost and is taken up again from its last checkpoint.",
    )
    frames_keep_s: float = Field(
        120,
        ge=0,
        validation_alias="RESUMABLE_STREAM_TTL_SECONDS",
        description="How long the frames of a resumable stream stay readable after the run ended.",
    )
    body_bytes_max: int = Field(
        300 * 2**20, ge=1, validation_alias="HTTP_MAX_REQUEST_BODY_BYTES", description="Larger request bodies are 413."
    )
    cors_origins: str = Field(
        "*",
        validation_alias="CORS_ALLOW_ORIGINS",
        description="Origins that browsers may call from, separated by commas.",
    )
    mount_prefix: str = Field(
        "", validation_alias="MOUNT_PREFIX", description="Path under which all routes are served, such as /agents."
    )
    sync_threads: int = Field(
        64,
        ge=1,
        validation_alias="MOORAGE_SYNC_THREADS",
        description="Threads for synchronous nodes, tools and factories, which would otherwise block the server.",
    )
    log_level: str = Field("INFO", validation_alias="LOG_LEVEL", description="DEBUG, INFO, WARNING or ERROR.")
    log_json: bool = Field(False, validation_alias="LOG_JSON", description="One JSON object a line instead of text.")
