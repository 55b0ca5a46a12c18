"""The environment variables that the platform sets for an agent."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from moorage.control.builds import NETWORK_VARIABLES, PROXY_VARIABLES, SEARCH_PATH
from moorage.control.places import Build, Place
from moorage.control.records.orders import Order
from moorage.control.records.secrets import IDENTITY

_CONNECTIONS_MAX = "6"


@dataclass(frozen=True)
class Surroundings:
    """The surroundings of an agent: the addresses of its database and platform; its API key, with which it writes
    traces and uses tokens of users; how long it may work without the platform; and the largest request that it accepts.
    """

    database: str
    platform: str
    key: str
    offline_s: float
    body_bytes_max: int


def environment_of_process(
    order: Order, place: Place, build: Build, secrets: Mapping[str, str], surroundings: Surroundings
) -> dict[str, str]:
    """Return the deployment's secrets and the reserved variables, which take precedence."""
    network = {name: os.environ[name] for name in NETWORK_VARIABLES if name in os.environ}
    own = {
        "PATH": f"{build.python.parent}:{SEARCH_PATH}",
        "LANG": "C.UTF-8",
    }
    commit = {"LANGSMITH_LANGGRAPH_GIT_REF_SHA": build.commit or ""}
    return network | commit | _environment(order, place, secrets, surroundings) | own


def environment_of_container(
    order: Order, place: Place, secrets: Mapping[str, str], surroundings: Surroundings, port: int
) -> dict[str, str]:
    """Return the variables for a container, whose image has programs and certificate authorities of its own."""
    network = {name: os.environ[name] for name in PROXY_VARIABLES if name in os.environ}
    own = {"PORT": str(port), "MOORAGE_WORKERS": str(order.workers)}
    return network | _environment(order, place, secrets, surroundings) | own


def _environment(order: Order, place: Place, secrets: Mapping[str, str], surroundings: Surroundings) -> dict[str, str]:
    # On a listener, the agent belongs to the platform that gave the order, so variables of the order win.
    told = {name: value for name, value in secrets.items() if name in IDENTITY}
    return {
        "LANGSMITH_TRACING": "true",
        "LANGSMITH_PROJECT": order.deployment_name,
        "LANGSMITH_API_URL": surroundings.platform,  # asked by the client `langchain-auth` for tokens
        "LANGGRAPH_POSTGRES_POOL_MAX_SIZE": _CONNECTIONS_MAX,
        "HTTP_MAX_REQUEST_BODY_BYTES": str(surroundings.body_bytes_max),
        **secrets,
        "HOME": str(place.agent_home),
        "PYTHONUNBUFFERED": "1",
        "LOG_JSON": "true",
        "DATABASE_URI": surroundings.database,
        "POSTGRES_URI": surroundings.database,
        # A variable instead of an option of the command: the revision may have been built with an older moorage, which
        # refuses unknown options.
        "MOORAGE_WORKERS_MAX": str(order.workers_max),
        "MOORAGE_HOME": str(place.agent_home),
        **identity_of(order, surroundings.platform, surroundings.key, surroundings.offline_s),
        **told,
    }


def identity_of(order: Order, platform: str, key: str, offline_s: float) -> dict[str, str]:
    """Return the variables that identify the agent and name its platform."""
    revision, deployment = str(order.revision_id), str(order.deployment_id)
    return {
        "MOORAGE_PLATFORM_URL": platform,
        "MOORAGE_AGENT_OFFLINE_SECONDS": f"{offline_s:g}",
        "LANGSMITH_ENDPOINT": f"{platform}/api/v1",
        "LANGSMITH_API_KEY": key,
        "LANGSMITH_TENANT_ID": str(order.workspace_id),
        "LANGSMITH_HOST_PROJECT_ID": deployment,
        "LANGSMITH_HOST_PROJECT_NAME": order.deployment_name,
        "LANGSMITH_HOST_REVISION_ID": revision,
        "LANGSMITH_LANGGRAPH_REVISION_ID": revision,
        "LANGSMITH_LANGGRAPH_GIT_REPO": order.source_config.get("repo_url") or "",
        "LANGSMITH_LANGGRAPH_GIT_REF": order.source_revision_config.get("repo_ref") or "",
    }
