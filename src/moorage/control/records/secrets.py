"""Secrets of a deployment: allowed names, and the form of a secret in an answer."""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel

from moorage.kernel.crypto import SealedColumn
from moorage.kernel.errors import InvalidRequestError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
_VALUE_BYTES_MAX = 64 * 1024
_COUNT_MAX = 200
# Limit of all secrets together: a process can still be started with an environment of this size.
_BYTES_MAX = 1024 * 1024
SEALED_SECRETS = SealedColumn("deployments", "id", "sealed_secrets")
# Replaces a value in an answer. A request with the mask leaves the value unchanged.
MASK = "********"

# Variables that the platform sets in an agent's environment, or that would change how it is started. A secret of such a
# name would be overwritten, or would break the agent, so it is refused at once.
RESERVED = frozenset(
    {
        "DATABASE_URI",
        "HOME",
        "HOST",
        "LANGGRAPH_AUTH_TYPE",
        "LANGSMITH_API_KEY",
        "LANGSMITH_AUTH_ENDPOINT",
        "LANGSMITH_AUTH_VERIFY_TENANT_ID",
        "LANGSMITH_CONTROL_PLANE_API_KEY",
        "LANGSMITH_ENDPOINT",
        "LANGSMITH_HOST_PROJECT_ID",
        "LANGSMITH_HOST_PROJECT_NAME",
        "LANGSMITH_HOST_REVISION_ID",
        "LANGSMITH_LANGGRAPH_API_REVISION",
        "LANGSMITH_LANGGRAPH_API_VARIANT",
        "LANGSMITH_LANGGRAPH_GIT_REF",
        "LANGSMITH_LANGGRAPH_GIT_REF_SHA",
        "LANGSMITH_LANGGRAPH_GIT_REPO",
        "LANGSMITH_LANGGRAPH_REVISION_ID",
        "LANGSMITH_TENANT_ID",
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
        "MOUNT_PREFIX",
        "PATH",
        "PORT",
        "POSTGRES_URI",
        "PYTHONHOME",
        "PYTHONPATH",
        "REDIS_URI",
    }
)
_RESERVED_PREFIXES = ("LSD_", "MOORAGE_")
# Variables that name the agent and its platform. The platform sends them to a listener with each order.
IDENTITY = frozenset(
    {
        "LANGSMITH_API_KEY",
        "LANGSMITH_ENDPOINT",
        "LANGSMITH_HOST_PROJECT_ID",
        "LANGSMITH_HOST_PROJECT_NAME",
        "LANGSMITH_HOST_REVISION_ID",
        "LANGSMITH_LANGGRAPH_GIT_REF",
        "LANGSMITH_LANGGRAPH_GIT_REF_SHA",
        "LANGSMITH_LANGGRAPH_GIT_REPO",
        "LANGSMITH_LANGGRAPH_REVISION_ID",
        "LANGSMITH_TENANT_ID",
        "MOORAGE_AGENT_OFFLINE_SECONDS",
        "MOORAGE_PLATFORM_URL",
    }
)


class Secret(BaseModel):
    """A variable of the agent's environment, as callers write it."""

    name: str
    value: str


class SecretReference(BaseModel):
    """A variable whose value is stored in a secret of the cluster that runs an image."""

    name: str
    secret_name: str
    secret_key: str


def checked_secrets(secrets: Sequence[Secret], *, may_say_who: bool = False) -> dict[str, str]:
    """Return the values by name. `may_say_who` allows the names of the agent's identity. Raises InvalidRequestError
    that names the secret and never contains its value.
    """
    if len(secrets) > _COUNT_MAX:
        raise InvalidRequestError(f"A deployment has {_COUNT_MAX} secrets at most")
    found: dict[str, str] = {}
    for secret in secrets:
        _check(secret, may_say_who=may_say_who)
        if secret.name in found:
            raise InvalidRequestError(f"The secret {secret.name} is given twice")
        found[secret.name] = secret.value
    return found


def _check(secret: Secret, *, may_say_who: bool) -> None:
    if not _NAME.fullmatch(secret.name):
        raise InvalidRequestError(
            f"{secret.name[:80]!r} is not the name of a secret: letters, digits and underscores, no digit first"
        )
    is_reserved = secret.name in RESERVED or secret.name.startswith(_RESERVED_PREFIXES)
    if is_reserved and not (may_say_who and secret.name in IDENTITY):
        raise InvalidRequestError(f"The name {secret.name} is reserved: the platform sets it. Use another name")
    if "\0" in secret.value or len(secret.value.encode()) > _VALUE_BYTES_MAX:
        raise InvalidRequestError(
            f"The value of the secret {secret.name} is longer than {_VALUE_BYTES_MAX // 1024} KB or holds a NUL"
        )


def merged_secrets(given: Sequence[Secret], current: Mapping[str, str], *, may_say_who: bool = False) -> dict[str, str]:
    """Merge given secrets with the current ones: a mask keeps the current value. Raises as `checked_secrets` does."""
    checked = checked_secrets(given, may_say_who=may_say_who)
    merged = {name: _unmasked(name, current) if value == MASK else value for name, value in checked.items()}
    if sum(len(value.encode()) for value in merged.values()) > _BYTES_MAX:
        raise InvalidRequestError(f"The secrets of a deployment are {_BYTES_MAX // 1024} KB together at most")
    return merged


def without_secrets(secrets: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """Return the secrets without these names. Raises InvalidRequestError for a name that is not among them."""
    if missing := sorted(set(names) - secrets.keys()):
        raise InvalidRequestError(f"remove_secrets: there is no secret {missing[0][:80]!r}")
    return {name: value for name, value in secrets.items() if name not in names}


def _unmasked(name: str, current: Mapping[str, str]) -> str:
    if name not in current:
        raise InvalidRequestError(f"The secret {name} has no value yet, so a mask cannot stand for it: send its value")
    return current[name]


@dataclass(frozen=True)
class SealedSecrets:
    """All secrets of a deployment. `hash` shows whether they have changed."""

    sealed: bytes
    names: tuple[str, ...]
    hash: str


def secrets_hash(secrets: Mapping[str, str], key: bytes) -> str:
    """Return a hash that shows whether a deployment's secrets have changed, without revealing them.

    The hash needs a key of the installation, so that nobody can guess values by comparing hashes. It includes lengths,
    so that other names and values cannot be joined to the same text.
    """
    digest = hmac.new(key, digestmod="sha256")
    for name in sorted(secrets):
        for part in (name, secrets[name]):
            data = part.encode()
            digest.update(len(data).to_bytes(4, "big") + data)
    return digest.hexdigest()
