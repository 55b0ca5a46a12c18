"""What the platform tells an agent by its environment."""

from __future__ import annotations

import os
from collections.abc import Mapping

from moorage.control.builds import NETWORK_VARIABLES, SEARCH_PATH
from moorage.control.places import Build, Place
from moorage.control.records.orders import Order

_CONNECTIONS_MAX = "6"


def agent_environment(
    order: Order, place: Place, build: Build, secrets: Mapping[str, str], *, database: str, platform: str, key: str
) -> dict[str, str]:
    """The deployment's secrets, and above them what is reserved. `platform` is its origin as agents reach it, `key` a key
    of the workspace that may write traces and nothing more.
    """
    network = {name: os.environ[name] for name in NETWORK_VARIABLES if name in os.environ}
    revision, deployment = str(order.revision_id), str(order.deployment_id)
    return {
        "LANGSMITH_TRACING": "true",
        "LANGSMITH_PROJECT": order.deployment_name,
        "LANGGRAPH_POSTGRES_POOL_MAX_SIZE": _CONNECTIONS_MAX,
        **network,
        **secrets,
        "PATH": f"{build.python.parent}:{SEARCH_PATH}",
        "HOME": str(place.agent_home),
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        "LOG_JSON": "true",
        "DATABASE_URI": database,
        "POSTGRES_URI": database,
        "MOORAGE_HOME": str(place.agent_home),
        "MOORAGE_PLATFORM_URL": platform,
        "LANGSMITH_ENDPOINT": f"{platform}/api/v1",
        "LANGSMITH_API_KEY": key,
        "LANGSMITH_TENANT_ID": str(order.workspace_id),
        "LANGSMITH_HOST_PROJECT_ID": deployment,
        "LANGSMITH_HOST_PROJECT_NAME": order.deployment_name,
        "LANGSMITH_HOST_REVISION_ID": revision,
        "LANGSMITH_LANGGRAPH_REVISION_ID": revision,
        "LANGSMITH_LANGGRAPH_GIT_REPO": order.source_config.get("repo_url") or "",
        "LANGSMITH_LANGGRAPH_GIT_REF": order.source_revision_config.get("repo_ref") or "",
        "LANGSMITH_LANGGRAPH_GIT_REF_SHA": build.commit or "",
    }
