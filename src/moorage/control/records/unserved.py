"""Fields of a deployment that are stored and returned, but have no effect on this installation yet.

When a field begins to have an effect, remove it from the table: its warning then disappears from answers, commands and
`moorage doctor`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moorage.control.records.states import IMAGE_SOURCES

_SPEC = "source_config.resource_spec"
# The effect that each field would have.
UNSERVED: Mapping[str, str] = {
    "source_config.listener_config": "choose a namespace of a cluster; the agent is a process of the listener's machine",
    "source_config.install_command": "take the place of the installer; dependencies of langgraph.json are installed by uv",
    "source_config.build_command": "run before the agent is started; nothing but the installer is run",
    "secret_references": "take variables from secrets of a cluster; use secrets",
    **dict.fromkeys(
        (
            *(f"{_SPEC}.queue_{name}" for name in ("min_scale", "max_scale", "cpu", "cpu_limit", "memory_mb")),
            f"{_SPEC}.queue_memory_limit_mb",
            *(f"{_SPEC}.{part}_{name}" for part in ("orchestrator", "executor") for name in ("cpu", "cpu_limit")),
            *(
                f"{_SPEC}.{part}_{name}"
                for part in ("orchestrator", "executor")
                for name in ("memory_mb", "memory_limit_mb")
            ),
            f"{_SPEC}.orchestrator_min_scale",
            f"{_SPEC}.orchestrator_max_scale",
        ),
        "size processes apart from those that serve; the processes that serve also execute runs",
    ),
    **dict.fromkeys(
        (
            *(f"{_SPEC}.redis_{name}" for name in ("cpu", "cpu_limit", "memory_mb", "memory_limit_mb")),
            *(f"{_SPEC}.db_{name}" for name in ("cpu", "cpu_limit", "memory_mb", "memory_limit_mb")),
            f"{_SPEC}.db_max_connections",
        ),
        "size engines of the agent's own; agents share the engines of the installation",
    ),
    **dict.fromkeys(
        (
            *(f"{_SPEC}.{name}" for name in ("labels", "annotations", "service_account_name", "image_pull_secrets")),
            *(f"{_SPEC}.{name}" for name in ("volumes", "volume_mounts", "init_containers", "sidecars")),
        ),
        "shape what runs in a cluster; the agent is a process of this machine",
    ),
}


# Fields of the table that have an effect when the agent is a container.
SERVED_FOR_IMAGES = frozenset({f"{_SPEC}.image_pull_secrets"})


def warnings_of(deployment: Mapping[str, Any]) -> list[str]:
    """Return one sentence for each field that somebody has set. Takes a deployment's row, which
    contains no defaults.
    """
    return [
        f"{field} is kept but does not act here. It would {would}"
        for field, would in UNSERVED.items()
        if _is_set(field, deployment) and not (field in SERVED_FOR_IMAGES and deployment["source"] in IMAGE_SOURCES)
    ]


def _is_set(field: str, deployment: Mapping[str, Any]) -> bool:
    found: Any = deployment
    for name in field.split("."):
        found = (found or {}).get(name)
    return bool(found)
