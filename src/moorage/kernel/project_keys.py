"""Keys of langgraph.json, and variables that hold the same sections: served, refused, or without effect.

A key becomes served by moving its line from `NOT_SERVED` to `SERVED`. The agent server and builds of deployments both
read these tables, so a project that relies on a missing key fails before it serves a request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

# Keys that are served, by their path in the file. The code that reads a section checks the keys below these paths.
SERVED = frozenset(
    {
        "$schema",
        "graphs",
        "checkpointer.ttl.default_ttl",
        "checkpointer.ttl.strategy",
        "checkpointer.ttl.sweep_interval_minutes",
        "checkpointer.ttl.sweep_limit",
        "dependencies",
        "env",
        "python_version",
        "pip_config_file",
        "auth.cache",
        "auth.disable_studio_auth",
        "auth.openapi",
        "auth.path",
        "http.app",
        "http.configurable_headers",
        "http.cors",
        "http.disable_a2a",
        "http.disable_assistants",
        "http.disable_mcp",
        "http.disable_meta",
        "http.disable_runs",
        "http.disable_store",
        "http.disable_threads",
        "http.disable_ui",
        "http.disable_webhooks",
        "http.enable_custom_route_auth",
        "http.logging_headers",
        "http.middleware_order",
        "http.mount_prefix",
        "store.index.dims",
        "store.index.embed",
        "store.index.fields",
        "store.ttl.default_ttl",
        "store.ttl.omit_expired",
        "store.ttl.refresh_on_read",
        "store.ttl.sweep_interval_minutes",
        "webhooks.env_prefix",
        "webhooks.headers",
        "webhooks.url.allowed_domains",
        "webhooks.url.allowed_ports",
        "webhooks.url.disable_loopback",
        "webhooks.url.max_url_length",
        "webhooks.url.require_https",
    }
)

# Keys that are not served yet, with the feature that a project relies on when it sets one.
NOT_SERVED = {
    "encryption": "encrypts what is stored",
    "checkpointer.path": "stores checkpoints in a saver of the project",
    "checkpointer.serde": "decides which Python types are read back from checkpoints",
    "priority": "decides which runs start first",
    "ui": "serves components of a generative UI",
    "ui_config": "configures the generative UI",
}

# Keys for the build of a container image. Nothing here depends on them, so they only cause a warning.
WITHOUT_EFFECT = {
    "_INTERNAL_docker_tag": "no container image is built",
    "api_version": "it names a version of another server",
    "base_image": "only `moorage build` and `moorage dockerfile` follow it",
    "dockerfile_lines": "only `moorage build` and `moorage dockerfile` follow them; what they install must be on this machine",
    "image_distro": "no container image is built",
    "keep_pkg_tools": "no container image is built; name pip, setuptools or wheel in `dependencies` to have them",
    "node_version": "only graphs in Python are served",
    "pip_installer": "environments are made with uv",
    "source": "the agent server runs in the environment that it is started in",
}

# Variables that hold a section of the file as JSON, as in images built for other servers.
SECTION_VARIABLES = {
    "LANGSERVE_GRAPHS": "graphs",
    "LANGGRAPH_AUTH": "auth",
    "LANGGRAPH_CHECKPOINTER": "checkpointer",
    "LANGGRAPH_ENCRYPTION": "encryption",
    "LANGGRAPH_HTTP": "http",
    "LANGGRAPH_PRIORITY": "priority",
    "LANGGRAPH_STORE": "store",
    "LANGGRAPH_UI": "ui",
    "LANGGRAPH_UI_CONFIG": "ui_config",
    "LANGGRAPH_WEBHOOKS": "webhooks",
}

# Other variables of such servers that are not served yet, with the feature that setting one relies on.
NOT_SERVED_VARIABLES = {
    "CORS_CONFIG": "decides which web pages may call; set CORS_ALLOW_ORIGINS instead",
    "LANGGRAPH_AES_JSON_KEYS": "encrypts fields of what is stored",
    "LANGGRAPH_AES_KEY": "encrypts checkpoints",
    "LANGGRAPH_THREAD_TTL": "removes old threads; set checkpointer.ttl in langgraph.json instead",
}

WITHOUT_EFFECT_VARIABLES = {
    "BG_JOB_ISOLATED_LOOPS": "all runs of a process share one event loop",
    "BG_JOB_SHUTDOWN_GRACE_PERIOD_SECS": "runs are handed to the next process at once, and go on from their last checkpoint",
    "LANGGRAPH_CLOUD_LICENSE_KEY": "moorage needs no licence key",
    "MAX_STREAM_CHUNK_SIZE_BYTES": "frames of a stream have no limit of their own",
    "REDIS_MAX_CONNECTIONS": "a process opens two connections to Redis",
}


def refusals(project: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each key of langgraph.json that is not served. Null, false and empty values ask for
    nothing.
    """
    return [
        f"langgraph.json sets {path}, which {NOT_SERVED[path]}. This version of moorage does not serve it: "
        "remove the key if the project can do without."
        for path, value in _settings_of(project)
        if value and path in NOT_SERVED
    ]


def warnings(project: Mapping[str, Any]) -> list[str]:
    """Return the keys of langgraph.json that have no effect, each with the reason."""
    return [
        f"langgraph.json sets {path}, which has no effect: {WITHOUT_EFFECT.get(path, 'moorage does not know this key')}"
        for path, value in _settings_of(project)
        if value and path not in SERVED and path not in NOT_SERVED
    ]


def variable_refusals(environ: Mapping[str, str]) -> list[str]:
    """Return a sentence for each variable that is not served. Sections of the file are checked like the file."""
    found = [
        f"{name} is set, which {does}. This version of moorage does not serve it: unset it if the project can do without."
        for name, does in NOT_SERVED_VARIABLES.items()
        if environ.get(name)
    ]
    if environ.get("LANGGRAPH_AUTH_TYPE", "noop") not in {"", "noop", "custom"}:
        found.append(
            "LANGGRAPH_AUTH_TYPE asks for authentication by another service, which decides who may call. This version of "
            "moorage does not serve it: set it to noop, or deploy on `moorage up`, which asks for keys."
        )
    return found


def variable_warnings(environ: Mapping[str, str]) -> list[str]:
    """Return the known variables that have no effect here, each with the reason."""
    return [
        f"{name} is set, which has no effect: {why}"
        for name, why in WITHOUT_EFFECT_VARIABLES.items()
        if environ.get(name)
    ]


def _settings_of(project: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield paths and values of the keys that are set, as deep as the tables go."""
    for key, value in project.items():
        path = f"{above}{key}"
        if isinstance(value, Mapping) and path in _SECTIONS:
            yield from _settings_of(value, f"{path}.")
        else:
            yield path, value


_SECTIONS = frozenset(
    path.rsplit(".", depth)[0] for path in {*SERVED, *NOT_SERVED} for depth in range(1, path.count(".") + 1)
)
