"""Settings of the agent server."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from moorage.settings.server import ServerSettings


class AgentSettings(ServerSettings):
    """Settings of `moorage dev` and `moorage serve`."""

    home: Path | None = Field(None, validation_alias="MOORAGE_HOME")
    """State directory. Default: .moorage beside langgraph.json."""

    pool_max: int = Field(16, ge=2, validation_alias="LANGGRAPH_POSTGRES_POOL_MAX_SIZE")
    """Connections to PostgreSQL that one process keeps at most."""

    redis_uri: str | None = Field(None, validation_alias="REDIS_URI")
    """Redis for streams, wakes and cancellations between processes. Unset: PostgreSQL's NOTIFY."""

    redis_prefix: str = Field("", validation_alias="REDIS_KEY_PREFIX")
    """Prefix of the channel in Redis."""

    worker: str | None = Field(None, pattern=r"^\d+$", validation_alias="MOORAGE_WORKER")
    """Number of this process among several behind one address, for its metrics. `serve --workers` sets it."""

    runs_per_worker: int = Field(10, ge=1, validation_alias="MOORAGE_RUNS_PER_WORKER")
    """Runs, waiting ones included, for which `serve --workers-max` adds one more process."""

    streams_per_worker: int = Field(100, ge=1, validation_alias="MOORAGE_STREAMS_PER_WORKER")
    """Open streams for which `serve --workers-max` adds one more process."""

    scale_down_s: float = Field(60, ge=0, validation_alias="MOORAGE_SCALE_DOWN_SECONDS")
    """How long fewer processes must be enough before `serve --workers-max` stops some."""

    slots: int = Field(1000, ge=1, validation_alias="N_JOBS_PER_WORKER")
    """Runs that one process executes at once."""

    run_timeout_s: float = Field(86400, gt=0, validation_alias="BG_JOB_TIMEOUT_SECS")
    """A run that takes longer ends as timeout."""

    attempts_max: int = Field(3, ge=1, validation_alias="BG_JOB_MAX_RETRIES")
    """Attempts that a run has when the processes that execute it are lost."""

    lease_s: float = Field(15, gt=0, validation_alias="MOORAGE_LEASE_SECONDS")
    """A run whose process has sent no beat for this time counts as lost; another process continues it from its last
    checkpoint.
    """

    frames_keep_s: float = Field(120, ge=0, validation_alias="RESUMABLE_STREAM_TTL_SECONDS")
    """How long the frames of a resumable stream stay readable after the run ended."""

    cron_poll_s: float = Field(1, gt=0, validation_alias="CRON_SCHEDULER_SLEEP_TIME")
    """Time between two searches for crons that are due."""

    crons_enabled: bool = Field(True, validation_alias="FF_CRONS_ENABLED")
    """Whether this process starts the runs of crons."""

    body_bytes_max: int = Field(300 * 2**20, ge=1, validation_alias="HTTP_MAX_REQUEST_BODY_BYTES")
    """Largest size of a request body. Larger ones get 413."""

    cors_origins: str = Field("*", validation_alias="CORS_ALLOW_ORIGINS")
    """Origins that browsers may call from, separated by commas."""

    open_docs: bool = Field(False, validation_alias="MOORAGE_OPEN_DOCS")
    """Whether /docs and /openapi.json of a deployed agent are open without a key."""

    mount_prefix: str = Field("", validation_alias="MOUNT_PREFIX")
    """Path under which all routes are served, such as /agents."""

    auth_timeout_s: float = Field(30, gt=0, validation_alias="MOORAGE_AUTH_TIMEOUT_SECONDS")
    """Longest time of a handler of the project's own authentication. After it the request gets 503."""

    sync_threads: int = Field(64, ge=1, validation_alias="MOORAGE_SYNC_THREADS")
    """Threads for synchronous nodes, tools and factories, which would otherwise block the server."""

    offline_s: float = Field(900, ge=0, le=86400, validation_alias="MOORAGE_AGENT_OFFLINE_SECONDS")
    """How long a deployed agent accepts keys that it knows while it cannot reach its platform."""

    metric_prefix: str = Field("lg_api_", pattern=r"^[A-Za-z_:][A-Za-z0-9_:]*$", validation_alias="METRIC_PREFIX")
    """Prefix of the names of metrics."""
