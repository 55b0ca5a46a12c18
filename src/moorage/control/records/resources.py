"""Resources of one agent: as callers set them, and with all defaults."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Cpu = Annotated[float, Field(ge=0.1, le=8)]
CpuLimit = Annotated[float, Field(ge=0.1, le=16)]
MemoryMb = Annotated[int, Field(ge=64, le=262_144)]
Scale = Annotated[int, Field(ge=0, le=100)]
Objects = Annotated[list[dict[str, Any]], Field(max_length=100)]
Labels = Annotated[dict[str, str], Field(max_length=100)]

_PAIRS = (
    ("min_scale", "max_scale"),
    ("cpu", "cpu_limit"),
    ("memory_mb", "memory_limit_mb"),
    ("queue_min_scale", "queue_max_scale"),
    ("queue_cpu", "queue_cpu_limit"),
    ("queue_memory_mb", "queue_memory_limit_mb"),
)
# Default processors and memory by type of deployment. A limit that is not given is twice the request.
_LARGE = {"prod": (2.0, 2048)}
_SMALL = (1.0, 1024)


class ResourceSpec(BaseModel):
    """Resources of an agent. Fields that this machine's runtime does not use are kept and returned; another runtime may
    use them.
    """

    model_config = ConfigDict(extra="ignore")

    min_scale: Scale | None = Field(
        None, description="How many processes serve the agent. 0, for the `_zero` types only, is served by one, too."
    )
    max_scale: Annotated[int, Field(ge=1, le=100)] | None = Field(
        None, description="How many processes serve the agent under load. Default: as many as `min_scale`."
    )
    cpu: Cpu | None = None
    cpu_limit: CpuLimit | None = None
    memory_mb: MemoryMb | None = None
    memory_limit_mb: MemoryMb | None = None
    queue_min_scale: Scale | None = None
    queue_max_scale: Scale | None = None
    queue_cpu: Cpu | None = None
    queue_cpu_limit: CpuLimit | None = None
    queue_memory_mb: MemoryMb | None = None
    queue_memory_limit_mb: MemoryMb | None = None
    redis_cpu: Cpu | None = None
    redis_cpu_limit: CpuLimit | None = None
    redis_memory_mb: int | None = None
    redis_memory_limit_mb: int | None = None
    db_cpu: float | None = None
    db_cpu_limit: float | None = None
    db_memory_mb: int | None = None
    db_memory_limit_mb: int | None = None
    db_storage_gi: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        None,
        description="GiB of disk that the agent may take with its files and its database; above it, it is stopped.",
    )
    db_max_connections: Annotated[int, Field(ge=1, le=1000)] | None = None
    orchestrator_cpu: float | None = None
    orchestrator_cpu_limit: float | None = None
    orchestrator_memory_mb: int | None = None
    orchestrator_memory_limit_mb: int | None = None
    orchestrator_min_scale: int | None = None
    orchestrator_max_scale: int | None = None
    executor_cpu: float | None = None
    executor_cpu_limit: float | None = None
    executor_memory_mb: int | None = None
    executor_memory_limit_mb: int | None = None
    labels: Labels | None = None
    annotations: Labels | None = None
    service_account_name: Annotated[str, Field(max_length=253)] | None = None
    image_pull_secrets: Objects | None = None
    volumes: Objects | None = None
    volume_mounts: Objects | None = None
    init_containers: Objects | None = None
    sidecars: Objects | None = None

    @model_validator(mode="after")
    def _lower_is_not_above_upper(self) -> Self:
        for lower, upper in _PAIRS:
            low, high = getattr(self, lower), getattr(self, upper)
            if low is not None and high is not None and low > high:
                raise ValueError(f"{lower} must not be above {upper}")
        return self


def given_spec(spec: ResourceSpec) -> dict[str, Any]:
    """Return the given fields, in the form in which they are stored."""
    return spec.model_dump(exclude_none=True)


def complete_spec(given: dict[str, Any] | None, deployment_type: str | None) -> dict[str, Any]:
    """Return the spec with the defaults of the deployment's type for fields that were not given.

    Clients read the whole spec, change a field and send it back, so the answer must itself be a valid request.
    """
    cpu, memory_mb = _LARGE.get(deployment_type or "", _SMALL)
    spec: dict[str, Any] = {**dict.fromkeys(ResourceSpec.model_fields), **(given or {})}
    scale_min = spec["min_scale"] = _first(spec["min_scale"], min(1, _first(spec["max_scale"], 1)))
    spec["max_scale"] = _first(spec["max_scale"], max(1, scale_min))
    spec["cpu"] = _first(spec["cpu"], min(cpu, _first(spec["cpu_limit"], cpu)))
    spec["cpu_limit"] = _first(spec["cpu_limit"], min(16.0, round(2 * spec["cpu"], 1)))
    spec["memory_mb"] = _first(spec["memory_mb"], min(memory_mb, _first(spec["memory_limit_mb"], memory_mb)))
    spec["memory_limit_mb"] = _first(spec["memory_limit_mb"], 2 * spec["memory_mb"])
    return spec


def _first(given: Any, default: Any) -> Any:
    return default if given is None else given
