"""Rules of an installation for agents as processes, and the key that each deployment has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from moorage.control.isolation import Isolation


@dataclass(frozen=True)
class AgentKey:
    """A key of the workspace for one deployment's traces."""

    id: UUID
    key: str


@dataclass(frozen=True)
class ProcessRules:
    """Settings of agents' processes. `platform` is its origin as processes of this machine reach it."""

    home: Path
    platform: str
    isolation: Isolation
    start_timeout_s: float = 60
    drain_s: float = 300
    standby_s: float = 600
    offline_s: float = 900
    body_bytes_max: int = 25_000_000
    ports: frozenset[int] = frozenset()  # of this machine, that agents may reach
    disk_bytes_max: int = 0  # of each deployment, with its database; 0: no limit
