"""The request that creates a revision's container: its command, limits and rights. Pure functions."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from moorage.control.limits import limits_of
from moorage.control.places import Place
from moorage.control.records.orders import Order

_PORT = 8000
_MEGABYTE = 2**20
_TMP_BYTES, _SHM_BYTES = 2**30, 2**28
_NANOS = 10**9
_CPU_SHARES = 1024
_LOG_BYTES = "16m"  # of the engine's own copy of the output


def port_of(reached: Collection[int]) -> int:
    """Return the port that an image is told to listen at: the first from 8000 on that is not relayed into the
    container.
    """
    return next(port for port in count(_PORT) if port not in reached)


def container_body(
    order: Order, place: Place, environment: Mapping[str, str], labels: Mapping[str, str], shown: Sequence[Path] = ()
) -> dict[str, Any]:
    """Return the request for a container that runs as the deployment's own user, without rights, on a read-only root.

    The container may write to its home, which is kept, and to /tmp, which is not. `shown` are folders of this machine
    that it sees, such as the one with a database's socket.
    """
    spec, owner = order.resource_spec, f"{place.uid}:{place.uid}"
    most = limits_of(spec, order.workers_max, own_user=True)
    memory_bytes = int(spec.get("memory_limit_mb") or 0) * order.workers_max * _MEGABYTE
    binds = [_bind(place.agent_home, read_only=False), *(_bind(path, read_only=True) for path in shown)]
    limits: dict[str, Any] = {
        "Memory": memory_bytes,
        "MemorySwap": memory_bytes,  # memory and swap together: with equal values there is no swap
        # Docker refuses more processors than the machine has.
        "NanoCpus": int(min(float(spec.get("cpu_limit") or 0) * order.workers_max, os.cpu_count() or 1) * _NANOS),
        "CpuShares": int(float(spec.get("cpu") or 1) * _CPU_SHARES),
        "PidsLimit": most.processes,
    }
    return {
        "Env": [f"{name}={value}" for name, value in environment.items()],
        "User": owner,
        "Labels": dict(labels),
        "HostConfig": {
            **limits,
            "Ulimits": [_limit("nofile", most.files), _limit("nproc", most.processes or 0), _limit("core", 0)],
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges"],
            "ReadonlyRootfs": True,
            "Tmpfs": {"/tmp": f"rw,nosuid,nodev,size={_TMP_BYTES},mode=1777"},  # noqa: S108 - its own
            "ShmSize": _SHM_BYTES,
            "Mounts": binds,
            "RestartPolicy": {"Name": "no"},  # the platform restarts it
            "LogConfig": {"Type": "json-file", "Config": {"max-size": _LOG_BYTES}},
        },
    }


def _limit(name: str, most: int) -> dict[str, Any]:
    return {"Name": name, "Soft": most, "Hard": most}


def _bind(path: Path, *, read_only: bool) -> dict[str, Any]:
    return {"Type": "bind", "Source": str(path), "Target": str(path), "ReadOnly": read_only}
