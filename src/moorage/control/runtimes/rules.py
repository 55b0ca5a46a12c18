"""Settings for agents as processes, and the API key of each deployment."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from moorage.control.isolation import Isolation


@dataclass(frozen=True)
class AgentKey:
    """An API key of the workspace for one deployment."""

    id: UUID
    key: str


@dataclass(frozen=True)
class ProcessRules:
    """Settings of agents' processes. `platform` is the platform's origin as seen from this machine."""

    home: Path
    platform: str
    isolation: Isolation
    start_timeout_s: float = 60
    drain_s: float = 300
    standby_s: float = 600
    offline_s: float = 900
    body_bytes_max: int = 25_000_000
    ports: frozenset[int] = frozenset()  # ports of this machine that agents may reach
    disk_bytes_max: int = 0  # per deployment, with its database; 0: no limit
